"""What tuning changed in a user's own model: layer by layer, task by task."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mechclust.commands.compare.inputs import Checkpoint, CompareConfig, Inputs, read_inputs
from mechclust.commands.compare.result import ALL, CompareResult
from mechclust.jobs import progress_bar
from mechclust.models import load_pretrained
from probes import (
    CKA,
    RBFCKA,
    NDims,
    NeighbourPurity,
    ProbeResult,
    RowStore,
    residual,
    resolve,
    run_stores,
    save_rows,
)
from probes.sites import Selector
from tasks import InputError

_SHARD_ROWS = 128  # prompts that an interruption can cost
_GROUPS = 8  # steps of the progress bar, at least, where there are as many layers


def compare_models(
    base: str, tuned: str, config: CompareConfig, out: str | Path, *, progress: bool = False
) -> CompareResult:
    """CKA between a model and the one it was tuned from, at every layer, for every task of the prompts.

    One model is in memory at a time: its hidden states go to ``out/rows``, whence all are compared. A second call
    with the same arguments goes on where the first was interrupted, and runs nothing again that is there.

    Args:
        base: hub name or local directory, see ``load_pretrained``.
        tuned: likewise; with the same tokenizer on these prompts. Its width and number of layers may be others.
        config: what to measure.
        out: folder for the hidden states.
        progress: show progress bars.

    Raises:
        InputError: before any weights are loaded: for bad settings or prompts, a device that is not there, models
            without weights or tokenizer, tokenizers that read a prompt differently, too little memory or disk, an
            ``out`` begun with other prompts. Later: for a model that cannot be loaded, an ``out`` that holds another
            model's hidden states, and activations that are not finite.

    Example:
        >>> # result = compare_models("gpt2", "runs/my-gpt2", CompareConfig(Path("prompts.jsonl")), "runs/compare")
        >>> # result.summary(), result.to_dataframe(), result.sentences
    """
    out = Path(out)
    inputs = read_inputs(str(base), str(tuned), config, out)
    stores = {model: _measured(model, inputs, config, out, progress) for model in inputs.checkpoints}
    first, second, *controls = inputs.checkpoints
    pair = {"tuned": stores[second], "base": stores[first]}
    found = _compared(pair, inputs.of_task(), config, progress)
    return CompareResult(
        base=str(base),
        tuned=str(tuned),
        config=config,
        tasks=inputs.tasks,
        cka=found["cka"],
        rbf=found.get("rbf"),
        n_dims=found["n_dims"],
        purity=found["purity"],
        controls={str(m.task): _of_control(stores[m], str(m.task), pair, config) for m in controls},
        notes=inputs.notes,
    )


def _measured(model: Checkpoint, inputs: Inputs, config: CompareConfig, out: Path, progress: bool) -> RowStore:
    """The model's hidden states on disk; the model itself is gone again."""
    batches = inputs.batches_of(model.task)
    try:
        hooked = load_pretrained(model.path, device=model.device, dtype=getattr(torch, model.dtype))
        shown = progress_bar(batches, desc=f"{model.name}: hidden states", unit="batch") if progress else batches
        return save_rows(
            hooked,
            shown,
            out / "rows" / model.name,
            readout=config.readout,
            labels=("task",),
            shard_rows=max(_SHARD_ROWS, config.batch_size),
        )
    except InputError as error:
        raise InputError(f"{model}: {error}") from error
    finally:
        gc.collect()  # hooks are cycles: without this, two models would be in memory
        if torch.device(model.device).type == "cuda":
            torch.cuda.empty_cache()


def _compared(
    pair: Mapping[str, RowStore], of_task: Mapping[str, Tensor], config: CompareConfig, progress: bool
) -> dict[str, ProbeResult]:
    """``cka``, ``rbf`` (where asked for, and where layers are the same), ``n_dims`` and ``purity``."""
    readout, n = config.readout, len(pair["tuned"])
    alike = pair["tuned"].sites == pair["base"].sites
    options: dict[str, Any] = {"readout": readout, "label": "task", "max_memory": config.max_memory}
    kind: dict[str, Any] = {"pairs": "all", "form": "rows"}
    if alike:
        kind = {"n_resamples": config.n_resamples, "n_permutations": config.n_permutations, "seed": config.seed}

    def rbf(at: Selector) -> ProbeResult:  # of all prompts together it would cost as much as the square of their number
        probe = RBFCKA(at, readout, max_memory=config.max_memory)
        parts = {task: {name: store.select(index) for name, store in pair.items()} for task, index in of_task.items()}
        return _joined([_labelled(run_stores(part, probe), [task]) for task, part in parts.items()])

    measures: dict[str, Callable[[Selector], ProbeResult]] = {
        "cka": lambda at: run_stores(pair, CKA(at, **options, **kind)),
        "n_dims": lambda at: run_stores(pair, NDims(at, **options)),
        "purity": lambda at: run_stores(pair, NeighbourPurity(at, **options, k=min(10, n - 1))),
        **({"rbf": rbf} if alike and config.rbf else {}),
    }
    groups = _layer_groups(pair, n, config) if alike else [residual()]
    steps = [(name, at) for at in groups for name in measures]
    parts: dict[str, list[ProbeResult]] = {name: [] for name in measures}
    for name, at in progress_bar(steps, desc="comparing layers", unit="step") if progress else steps:
        parts[name].append(measures[name](at))
    labels = {"cka": [ALL, *of_task], "n_dims": [ALL, *of_task]}
    return {name: _labelled(_joined(found), labels.get(name)) for name, found in parts.items()}


def _of_control(
    control: RowStore, task: str, pair: Mapping[str, RowStore], config: CompareConfig
) -> dict[str, ProbeResult]:
    """CKA of a control with each model, over the prompts of its task."""
    probe = CKA(residual(), config.readout, n_resamples=config.n_resamples, max_memory=config.max_memory)
    return {
        name: _labelled(run_stores({"control": control, name: store.select(control.index)}, probe), [task])
        for name, store in pair.items()
    }


def _layer_groups(pair: Mapping[str, RowStore], n: int, config: CompareConfig) -> list[Selector]:
    """Layers that fit in memory together."""
    layers = [site.layer for site in resolve(pair["tuned"], residual())]
    sites = [f"rows/{site}" for site in pair["tuned"].sites]
    tuned, base = (
        max(x.shape[1] for x in store.take(store.index[:1], sites).values()) for store in (pair["tuned"], pair["base"])
    )
    fit = int(config.max_memory * 2**30 // CKA(form="rows").memory([tuned], [base], n=n))
    size = max(1, min(fit, -(-len(layers) // _GROUPS)))
    return [residual(layers[i : i + size]) for i in range(0, len(layers), size)]


def _joined(parts: Sequence[ProbeResult]) -> ProbeResult:
    """Parts of one measurement; their notes on small n would be as many as the parts."""
    return replace(reduce(ProbeResult.merge, parts), notes=[])


def _labelled(result: ProbeResult, labels: Sequence[str] | None) -> ProbeResult:
    """With names for the labels, which a probe knows by number."""
    return result if labels is None else replace(result, coords={**result.coords, "label": list(labels)}, notes=[])
