"""What tuning changed in a user's own model: layer by layer, task by task."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mechclust.commands.compare.checkpoints import Checkpoint
from mechclust.commands.compare.inputs import CompareConfig, Inputs, layers_bytes, read_inputs
from mechclust.commands.compare.planes import prompt_planes
from mechclust.commands.compare.result import CompareResult
from mechclust.commands.compare.tables import ALL
from mechclust.jobs import progress_bar
from mechclust.models.adapters import adapter_of, plain_model, set_adapter
from mechclust.models.pretrained import AnyModel, model_name
from mechclust.report.folder import rows_errors
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

_SHARD_ROWS, _SHARDS = 128, 64  # of which an interruption costs two: prompts at least, and how many at most
_ASKED = 10_000  # prompts, at most, whose neighbours are looked for
_GROUPS = 8  # steps of the progress bar, at least, where there are as many layers


def compare_models(
    base: AnyModel,
    tuned: AnyModel,
    config: CompareConfig,
    out: str | Path,
    *,
    tokenizer: Any = None,
    progress: bool = False,
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
    inputs = read_inputs(base, tuned, config, out, tokenizer)
    stores = _measured(inputs, config, out, progress)
    first, second, *controls = inputs.checkpoints
    pair = {"tuned": stores[second], "base": stores[first]}
    same = stores[first].model == stores[second].model
    told = ["Base and tuned model are one: their weights and configurations are the same."] if same else []
    found = _compared(pair, inputs.of_task(), config, progress)
    against = {str(m.task): _of_control(stores[m], str(m.task), pair, config) for m in controls}

    def recorded(result: ProbeResult) -> ProbeResult:
        return replace(result, metadata={**result.metadata, "tokenization": dict(inputs.tokenization)})

    return CompareResult(
        base=model_name(first.source, first.adapter),
        tuned=model_name(second.source, second.adapter),
        config=config,
        tasks=inputs.tasks,
        cka=recorded(found["cka"]),
        rbf=recorded(found["rbf"]) if "rbf" in found else None,
        n_dims=recorded(found["n_dims"]),
        purity=recorded(found["purity"]) if "purity" in found else None,
        controls={task: {name: recorded(x) for name, x in two.items()} for task, two in against.items()},
        notes=[*told, *inputs.notes],
        distinct=_distinct(found["cka"], pair, inputs.of_task()),
        tokenization=inputs.tokenization,
        planes=prompt_planes(pair, inputs, config.map_prompts, progress=progress),
    )


def _measured(inputs: Inputs, config: CompareConfig, out: Path, progress: bool) -> dict[Checkpoint, RowStore]:
    """Each model's hidden states on disk. Checkpoints that are one model with other adapters come one after the other,
    so that it is loaded once."""
    of_weights: dict[tuple[Any, ...], list[Checkpoint]] = {}
    for model in inputs.checkpoints:
        of_weights.setdefault(model.weights, []).append(model)
    found: dict[Checkpoint, RowStore] = {}
    for models in of_weights.values():
        found |= _measured_with(models, inputs, config, out, progress)
    return found


def _measured_with(
    models: Sequence[Checkpoint], inputs: Inputs, config: CompareConfig, out: Path, progress: bool
) -> dict[Checkpoint, RowStore]:
    """The same for one set of weights with each adapter; a model that was loaded for it is gone again."""
    found: dict[Checkpoint, RowStore] = {}
    hooked: Any = None
    for model in models:
        if model.in_memory and model.adapter is not None and (other := adapter_of(model.source)) is not None:
            with _named(model):
                raise InputError(
                    f"the adapter {other!r} is in the model already; take it out with set_adapter(model, None)"
                )
    own: str | None = None  # of a folder that is an adapter and was loaded with its base
    try:
        for model in models:
            with _named(model):
                if hooked is None:
                    hooked = _loaded(model, config)
                    own = adapter_of(hooked)
                if (adapter := model.adapter or own) != adapter_of(hooked):
                    set_adapter(hooked, adapter)
                found[model] = _rows(hooked, model, inputs, config, out, progress)
    finally:
        if models[0].in_memory and adapter_of(hooked) != own:
            set_adapter(hooked, own)  # the weights are the caller's
        del hooked
        gc.collect()  # hooks are cycles: without this, two models would be in memory
        if torch.device(models[0].device).type == "cuda":
            torch.cuda.empty_cache()
    return found


def _rows(hooked: Any, model: Checkpoint, inputs: Inputs, config: CompareConfig, out: Path, progress: bool) -> RowStore:
    batches = inputs.batches_of(model.task)
    return save_rows(
        hooked,
        progress_bar(batches, desc=f"{model.name}: hidden states", unit="batch") if progress else batches,
        out / "rows" / model.name,
        readout=config.readout,
        labels=("task",),
        shard_rows=max(_SHARD_ROWS, sum(map(len, batches)) // _SHARDS),
    )


@contextmanager
def _named(model: Checkpoint) -> Iterator[None]:
    """Errors inside say which model it was."""
    try:
        with rows_errors("--max-per-task"):
            yield
    except InputError as error:
        raise InputError(f"{model}: {error}") from error


def _loaded(model: Checkpoint, config: CompareConfig) -> Any:
    """The model without its adapter. No probe here reads attention patterns; and all models come with the same hook
    points in the same places, also one that has other hooks already."""
    settings = replace(config, device=model.device, dtype=model.dtype, adapter=None)
    if not model.in_memory:
        return settings.load(model.source, "prompts", attention="sdpa")
    plain, tokenizer = plain_model(model.source), model.own_tokenizer
    source = model.source if plain is None else plain
    return settings.load(source, "prompts", attention="sdpa", tokenizer=tokenizer)


def _distinct(
    cka: ProbeResult, pair: Mapping[str, RowStore], of_task: Mapping[str, Tensor]
) -> dict[tuple[str, str], int]:
    """By site and label without a CKA or an interval, how many different hidden states there are, in the model that has
    fewer. It tells too few prompts from prompts that are all alike."""
    values = cka["debiased_cka"]
    lacking = values.isnan() if values.ndim == 2 else values.isnan().all(dim=1)
    if "debiased_cka_low" in cka.values:
        lacking |= cka["debiased_cka_low"].isnan()
    stores = pair if values.ndim == 2 else {"tuned": pair["tuned"]}
    found = {}
    for i, k in lacking.nonzero().tolist():
        site, label = cka.coords["site"][i], cka.coords["label"][k]
        counts = []
        for store in stores.values():
            index = store.index if label == ALL else of_task[label]
            rows = store.take(index, [f"rows/{site}"])[f"rows/{site}"].float().numpy() + 0.0  # -0 is 0
            counts.append(len({row.tobytes() for row in rows}))
        found[site, label] = min(counts)
    return found


def _compared(
    pair: Mapping[str, RowStore], of_task: Mapping[str, Tensor], config: CompareConfig, progress: bool
) -> dict[str, ProbeResult]:
    """``cka``, ``n_dims``, and, where asked for, ``purity`` and, where layers are the same, ``rbf``."""
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

    def purity(at: Selector) -> ProbeResult:
        return run_stores(pair, NeighbourPurity(at, **options, k=min(10, n - 1), max_rows=_ASKED))

    measures: dict[str, Callable[[Selector], ProbeResult]] = {
        "cka": lambda at: run_stores(pair, CKA(at, **options, **kind)),
        "n_dims": lambda at: run_stores(pair, NDims(at, **options)),
        **({"purity": purity} if config.purity else {}),
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
    most = max(1, -(-len(layers) // _GROUPS))
    fits = (
        size
        for size in range(most, 0, -1)
        if layers_bytes(size * [tuned], size * [base], n) <= config.max_memory * 2**30
    )
    size = next(fits, 1)
    return [residual(layers[i : i + size]) for i in range(0, len(layers), size)]


def _joined(parts: Sequence[ProbeResult]) -> ProbeResult:
    """Parts of one measurement; their notes on small n would be as many as the parts."""
    return replace(reduce(ProbeResult.merge, parts), notes=[])


def _labelled(result: ProbeResult, labels: Sequence[str] | None) -> ProbeResult:
    """With names for the labels, which a probe knows by number."""
    return result if labels is None else replace(result, coords={**result.coords, "label": list(labels)}, notes=[])
