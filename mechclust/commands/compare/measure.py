"""What tuning changed in a user's own model: layer by layer, task by task."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mechclust.commands.compare.checkpoints import Checkpoint
from mechclust.commands.compare.comparison import Comparison
from mechclust.commands.compare.config import CompareConfig
from mechclust.commands.compare.inputs import Inputs, check_same_prompts, prompts_file, read_inputs
from mechclust.commands.compare.planes import prompt_planes
from mechclust.commands.compare.report import results_of
from mechclust.commands.compare.result import CompareResult
from mechclust.commands.compare.tables import ALL
from mechclust.commands.folder import own_folder
from mechclust.commands.parts import MeasurementPart, measured, remove_others, shard_rows
from mechclust.commands.settings import everywhere
from mechclust.commands.units import NONE
from mechclust.jobs import map_jobs, progress_bar
from mechclust.models.adapters import adapter_of, plain_model, set_adapter
from mechclust.models.pretrained import AnyModel, model_name
from mechclust.report.folder import rows_errors
from mechclust.report.page import save_results
from probes import ProbeResult, RowStore, save_rows
from tasks import InputError


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

    One model is in memory at a time: its hidden states are saved in ``out/rows`` and compared from there. A second call
    with the same arguments resumes where the first was interrupted, and does not repeat finished measurements. With
    ``config.workers`` or a Ray cluster the models, and then the layers, are spread over several processes; the results
    are the same.

    Args:
        base: hub name or local directory, see ``load_pretrained``.
        tuned: the same; its tokenizer must read these prompts as the base's does. Its width and number of layers may
            differ.
        config: what to measure.
        out: folder for the hidden states and, in ``results``, the measurements.
        progress: show progress bars.

    Raises:
        InputError: before any weights are loaded: for bad settings or prompts, an unavailable device, models
            without weights or tokenizer, tokenizers that read a prompt differently, too little memory or disk, a model
            in memory for several processes, an ``out`` that another process uses, or that was started with other
            prompts or models. Later: for a model that cannot be loaded, an ``out`` that holds another model's hidden
            states, and activations that are not finite.

    Example:
        >>> # result = compare_models("gpt2", "runs/my-gpt2", CompareConfig(Path("prompts.jsonl")), "runs/compare")
        >>> # result.summary(), result.to_dataframe(), result.sentences
    """
    out = Path(out)
    inputs = read_inputs(base, tuned, config, out, tokenizer)
    config = replace(config, units=inputs.units.label or NONE)
    config.check_shared(base, tuned)
    first, second, *_ = inputs.checkpoints
    subject = {f"{m.role} model": model_name(everywhere(m.source), everywhere(m.adapter)) for m in (first, second)}
    subject["texts"] = inputs.digest()
    with own_folder(out, "compare", None if prompts_file(out).exists() else subject):
        check_same_prompts(inputs, out)
        if progress:
            print(inputs.units.sentence, file=sys.stderr)
        result = _compared(inputs, config, out, progress)
        save_results(out, "compare", results_of(result), subject)
    return result


def _compared(inputs: Inputs, config: CompareConfig, out: Path, progress: bool) -> CompareResult:
    """All that is measured, in a folder of our own."""
    rows = out / "rows" if config.here else (out / "rows").absolute()
    stores = _measured(inputs, config, rows, progress)
    first, second, *controls = inputs.checkpoints
    pair = {"tuned": stores[second], "base": stores[first]}
    same = stores[first].model == stores[second].model
    told = ["Base and tuned model are the same: their weights and configurations are identical."] if same else []
    comparison = Comparison(pair, inputs.of_task(), config, rows / "measured")
    parts = comparison.parts()
    against = {str(m.task): comparison.of_control(stores[m], str(m.task)) for m in controls}
    groups = [*parts.values(), *(each for two in against.values() for each in two.values())]
    steps = [part for group in groups for part in group]
    results = measured({"comparing layers": steps}, config, rows, progress=progress)["comparing layers"]
    by_part = dict(zip((step.path for step in steps), results, strict=True))
    remove_others(rows / "measured", by_part)

    def results_of_parts(of: Mapping[str, Sequence[MeasurementPart]]) -> dict[str, list[ProbeResult]]:
        return {name: [by_part[part.path] for part in each] for name, each in of.items()}

    found = comparison.joined(results_of_parts(parts))

    cka = found.pop("cka")

    def recorded(result: ProbeResult) -> ProbeResult:
        return replace(result, metadata={**result.metadata, "tokenization": dict(inputs.tokenization)})

    return CompareResult(
        base=model_name(first.source, first.adapter),
        tuned=model_name(second.source, second.adapter),
        config=config,
        tasks=inputs.tasks,
        cka=recorded(cka),
        **{name: recorded(result) for name, result in found.items()},
        clusters=inputs.clusters,
        families=inputs.families,
        controls={
            task: {n: recorded(result) for n, result in comparison.joined(results_of_parts(two), task).items()}
            for task, two in against.items()
        },
        notes=[*told, *inputs.notes],
        distinct=_distinct(cka, pair, inputs.of_task()),
        tokenization=inputs.tokenization,
        planes=prompt_planes(pair, inputs, config.map_prompts, progress=progress),
    )


def _measured(inputs: Inputs, config: CompareConfig, rows: Path, progress: bool) -> dict[Checkpoint, RowStore]:
    """Each model's hidden states on disk. Checkpoints that are one model with other adapters come one after the other,
    so that it is loaded once; but where there are workers for more, each is a job."""
    of_weights: dict[tuple[Any, ...], list[Checkpoint]] = {}
    for model in inputs.checkpoints:
        of_weights.setdefault(model.weights, []).append(model)
    groups = list(of_weights.values())
    if config.here:
        for models in groups:
            _save(_Weights(models, inputs, config, rows), progress=progress)
    else:
        if config.workers is None or config.workers > len(groups):
            groups = [[model] for model in inputs.checkpoints]
        jobs = [_Weights([_portable(m) for m in models], inputs, config.portable, rows) for models in groups]
        map_jobs(_save, jobs, **config.on, folder=rows, progress="hidden states" if progress else None)
    return {model: RowStore(rows / model.name) for model in inputs.checkpoints}


def _portable(model: Checkpoint) -> Checkpoint:
    """For a process in another folder."""
    return replace(model, source=everywhere(model.source), adapter=everywhere(model.adapter))


@dataclass(frozen=True)
class _Weights:
    """One set of weights with each adapter, as a job."""

    models: Sequence[Checkpoint]
    inputs: Inputs
    config: CompareConfig
    rows: Path

    @property
    def name(self) -> str:
        """In errors."""
        return ", ".join(model.name for model in self.models)


def _save(job: _Weights, *, progress: bool = False) -> None:
    """Its hidden states; a model that was loaded for it is gone again."""
    models, config = job.models, job.config
    hooked: Any = None
    for model in models:
        if model.in_memory and model.adapter is not None and (other := adapter_of(model.source)) is not None:
            with _named(model):
                raise InputError(
                    f"the adapter {other!r} is in the model already; take it out with set_adapter(model, None)"
                )
    own: str | None = None  # of a folder that is an adapter and was loaded with its base
    try:
        with _named(models[0]):
            hooked = _loaded(models[0], config)
        own = adapter_of(hooked)
        for model in models[1:]:  # one that does not fit is refused before a prompt is read
            _put(hooked, model, own)
        for model in models:
            _put(hooked, model, own)
            with _named(model):
                _save_rows(hooked, model, job, progress)
    finally:
        if models[0].in_memory and adapter_of(hooked) != own:
            set_adapter(hooked, own)  # the weights are the caller's
        del hooked
        gc.collect()  # hooks are cycles: without this, two models would be in memory
        if torch.device(models[0].device).type == "cuda":
            torch.cuda.empty_cache()


def _put(hooked: Any, model: Checkpoint, own: str | None) -> None:
    """A checkpoint's adapter in the place of the one that is in."""
    if (adapter := model.adapter or own) != adapter_of(hooked):
        with _named(model):
            set_adapter(hooked, adapter)


def _save_rows(hooked: Any, model: Checkpoint, job: _Weights, progress: bool) -> None:
    batches = job.inputs.batches_of(model.task)
    save_rows(
        hooked,
        progress_bar(batches, desc=f"{model.name}: hidden states", unit="batch") if progress else batches,
        job.rows / model.name,
        readout=job.config.readout,
        labels=job.config.kept_labels,
        shard_rows=shard_rows(sum(map(len, batches))),
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
