"""Measure with both models in memory: blocks' additions to the same input, and the effect of patching."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mechclust.commands.compare.block_rows import block_folder, save_block_rows
from mechclust.commands.compare.by_layer import PromptsOf, SavedRows
from mechclust.commands.compare.config import CompareConfig
from mechclust.commands.compare.inputs import Inputs
from mechclust.commands.compare.patching import (
    PromptsToPatch,
    batches_to_patch,
    patching_part,
    patching_result,
    why_not_patched,
)
from mechclust.commands.parts import remove_others
from mechclust.commands.sampling import drawn_of_each
from mechclust.commands.saved_rows import (
    Checkpoint,
    absolute_paths,
    check_without_adapter,
    free_memory,
    loaded_checkpoint,
    put_adapter,
    rows_errors,
)
from mechclust.jobs import map_jobs, progress_bar
from mechclust.models.adapters import adapter_of
from mechclust.models.patching import can_be_patched, patching_points
from mechclust.models.plain_model import plain_model
from mechclust.report.text import GIB
from probes import ProbeResult, RowStore
from probes.engine.devices import free_device_memory
from probes.engine.hooked_model import HookedModel
from tasks import Batch, InputError
from tasks.errors import error_line


@dataclass(frozen=True)
class PairJob:
    """A base and a tuned model that are in memory together.

    Attributes:
        pair: base and tuned model.
        weights: strings that identify the weights of both.
        tasks: names of the tasks.
        batches: the prompts.
        in_blocks: indices of the prompts for blocks' additions, by task. Empty if these are not measured.
        patched: prompts for patching. Empty if it is not measured.
        config: how to load the weights, and the settings of saved rows.
        rows: folder that gets ``blocks-base``, ``blocks-tuned`` and ``patched``.
    """

    pair: tuple[Checkpoint, Checkpoint]
    weights: Sequence[str]
    tasks: Sequence[str]
    batches: Sequence[Batch]
    in_blocks: PromptsOf
    patched: Sequence[PromptsToPatch]
    config: CompareConfig
    rows: Path

    name = "both models"


@dataclass(frozen=True)
class Together:
    """Measurements that need both models in memory.

    Attributes:
        blocks: each block's addition to the base's residual stream, or ``None``.
        patching: the effect of patching, see ``patching_result``, or ``None``.
        why_no_blocks: why there are no blocks, or ``""`` if there are.
        why_no_patching: why there is no patching, or ``""`` if there is.
    """

    blocks: SavedRows | None = None
    patching: ProbeResult | None = None
    why_no_blocks: str = ""
    why_no_patching: str = ""


def measure_together(
    inputs: Inputs, rows: SavedRows, config: CompareConfig, folder: Path, *, progress: bool = False
) -> Together:
    """Measure everything that needs both models in memory, as far as it was requested and is possible.

    Args:
        inputs: models and prompts.
        rows: hidden states of both models.
        config: the settings.
        folder: gets the measurements.
        progress: show progress bars, and the cost of patching.
    """
    reason = _reason_before_loading(inputs, config)
    why_no_blocks = reason if config.blocks else "--no-blocks was given"
    why_no_patching = reason if config.n_patched else "--n-patched 0 was given"
    if why_no_blocks and why_no_patching:
        return Together(why_no_blocks=why_no_blocks, why_no_patching=why_no_patching)
    patched: list[PromptsToPatch] = []
    if not why_no_patching:
        of_task = drawn_of_each(rows.of_task, config.n_patched, inputs.units.codes)
        patched = batches_to_patch(inputs.batches, of_task, config.tokens_per_batch)
    base, tuned = inputs.checkpoints
    job = PairJob(
        pair=(base, tuned) if config.here else (absolute_paths(base), absolute_paths(tuned)),
        weights=[f"{store.model} {store.dtype}" for store in (rows.pair["base"], rows.pair["tuned"])],
        tasks=inputs.tasks,
        batches=inputs.batches,
        in_blocks={} if why_no_blocks else drawn_of_each(rows.of_task, config.blocks_prompts, inputs.units.codes),
        patched=patched,
        config=config,
        rows=folder,
    )
    with rows_errors("--blocks-prompts"):
        if config.here:
            together = measure_pair(job, progress=progress)
        else:
            shown = job.name if progress else None
            (together,) = map_jobs(measure_pair, [job], **config.on, folder=folder, progress=shown)
    return replace(
        together,
        why_no_blocks=why_no_blocks or together.why_no_blocks,
        why_no_patching=why_no_patching or together.why_no_patching,
    )


def _reason_before_loading(inputs: Inputs, config: CompareConfig) -> str:
    """Return why the models cannot be measured together, as far as it is known without weights."""
    base, tuned = inputs.checkpoints
    if inputs.families:
        return "the models are of different families"
    if inputs.has_different_dtypes:
        return _other_dtypes(base.dtype, tuned.dtype)
    if base.model.in_memory and tuned.model.in_memory and _weights(base) is _weights(tuned):
        return "base and tuned model are one model in memory, which cannot have and lack an adapter at once"
    return _too_little_memory(inputs, config)


def _too_little_memory(inputs: Inputs, config: CompareConfig) -> str:
    """Return that both models' weights do not fit in memory, as far as sizes tell, or ``""`` if they may."""
    if not config.here or config.device_map or config.quantize:
        return ""
    needed: dict[str, int] = {}
    for checkpoint in inputs.checkpoints:
        if not checkpoint.model.in_memory:
            n_bytes = inputs.sizes[checkpoint].least_weights * getattr(torch, checkpoint.dtype).itemsize
            needed[checkpoint.device] = needed.get(checkpoint.device, 0) + n_bytes
    for device, n_bytes in needed.items():
        free = free_device_memory(device)
        if free is not None and n_bytes > free:
            return f"their weights take {n_bytes / GIB:.3g} GiB or more, and {device} has {free / GIB:.3g} GiB free"
    return ""


def _weights(checkpoint: Checkpoint) -> Any:
    source = checkpoint.model.source
    plain = plain_model(source)
    return source if plain is None else plain


def _chosen(batches: Sequence[Batch], of_task: PromptsOf) -> list[Batch]:
    """Return the batches with only these prompts."""
    chosen = torch.cat([*of_task.values()])
    parts = (batch.select(torch.isin(batch.index, chosen).nonzero()[:, 0]) for batch in batches)
    return [part for part in parts if len(part)]


def measure_pair(job: PairJob, *, progress: bool = False) -> Together:
    """Measure with both models of a job, and free the weights that were loaded for it."""
    try:
        return _measure_pair(job, progress)
    finally:
        for checkpoint in job.pair:
            free_memory(checkpoint.device)


def _measure_pair(job: PairJob, progress: bool) -> Together:
    check_without_adapter(job.pair)
    with ExitStack() as stack:
        models = {}
        try:
            for checkpoint in job.pair:
                model = stack.enter_context(loaded_checkpoint(checkpoint, job.config, attention="eager"))
                put_adapter(model, checkpoint, adapter_of(model))
                models[checkpoint] = model
        except (InputError, torch.OutOfMemoryError) as error:  # each was loaded before, alone and read-only
            reason = f"the models cannot be loaded together, with hooks that write ({error_line(error)})"
            return Together(why_no_blocks=reason, why_no_patching=reason)
        base, tuned = models.values()
        reason = _reason(base, tuned)
        if reason:
            return Together(why_no_blocks=reason, why_no_patching=reason)
        blocks = None
        if job.in_blocks:
            save_block_rows(models, _chosen(job.batches, job.in_blocks), job.config, job.rows, progress=progress)
            stores = {role: RowStore(block_folder(job.rows, role)) for role in ("tuned", "base")}
            blocks = SavedRows(stores, job.in_blocks)
        why_no_patching = why_not_patched(base, tuned)
        patching = _patch(job, base, tuned, progress) if job.patched and not why_no_patching else None
        return Together(blocks, patching, why_no_patching=why_no_patching)


def _patch(job: PairJob, base: HookedModel, tuned: HookedModel, progress: bool) -> ProbeResult:
    """Patch the batches that were not patched yet, and summarise all."""
    folder = job.rows / "patched"
    if progress:
        n_passes = 2 * len(patching_points(base)) + 3
        n_prompts = sum(len(batch.prompts) for batch in job.patched)
        print(f"Patching: {n_passes} forward passes of {n_prompts:,} prompts.", file=sys.stderr)
    parts = [patching_part(base, tuned, batch, job.weights, folder) for batch in job.patched]
    results = [part.found() for part in progress_bar(parts, desc="patching", unit="batch", disable=not progress)]
    remove_others(folder, {part.path for part in parts})
    prompts = [batch.prompts for batch in job.patched]
    return patching_result(results, prompts, job.tasks, job.config.unit_label)


def _reason(base: HookedModel, tuned: HookedModel) -> str:
    """Return why states of one model cannot be given to the other, or ``""`` if they can."""
    if not can_be_patched(base) or not can_be_patched(tuned):
        return "the hooks of models of this kind can only read"
    if base.cfg.d_model != tuned.cfg.d_model:
        return "the models have different widths"
    dtypes = [next(each.parameters()).dtype for each in (base, tuned)]
    return "" if dtypes[0] == dtypes[1] else _other_dtypes(*dtypes)


def _other_dtypes(base: torch.dtype | str, tuned: torch.dtype | str) -> str:
    return f"the models have different dtypes ({base} and {tuned}), whose rounding would count as change"
