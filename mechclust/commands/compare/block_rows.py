"""Save what each block of base and tuned model adds to the base's residual stream, with both models in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from mechclust.commands.compare.by_layer import SavedRows
from mechclust.commands.compare.config import CompareConfig
from mechclust.commands.compare.inputs import Inputs
from mechclust.commands.sampling import drawn_of_each
from mechclust.commands.saved_rows import (
    Checkpoint,
    check_without_adapter,
    free_memory,
    loaded,
    naming,
    portable,
    put_adapter,
    save_batches,
)
from mechclust.jobs import map_jobs
from mechclust.models.adapters import adapter_of, plain_model
from mechclust.models.same_input import can_write, on_the_stream_of
from mechclust.models.sizes import free_memory_bytes
from mechclust.report.resources import GIB
from probes import RowStore, residual
from probes.engine.hooks import HookedModel, n_blocks
from tasks import Batch, InputError
from tasks.errors import first_line

_FEWER_PROMPTS = "--blocks-prompts"


@dataclass(frozen=True)
class BlocksJob:
    """A base and a tuned model that are in memory together.

    Attributes:
        pair: base and tuned model.
        batches: the prompts.
        config: how the weights are loaded, and what is saved.
        rows: folder that gets ``blocks-base`` and ``blocks-tuned``.
    """

    pair: tuple[Checkpoint, Checkpoint]
    batches: Sequence[Batch]
    config: CompareConfig
    rows: Path

    name = "blocks"


def block_rows(
    inputs: Inputs, rows: SavedRows, config: CompareConfig, folder: Path, *, progress: bool = False
) -> tuple[SavedRows | None, str]:
    """Save what each block adds to the base's residual stream, of at most ``blocks_prompts`` prompts of each task.

    Args:
        inputs: models and prompts.
        rows: hidden states of both models.
        config: what to measure.
        folder: gets the rows.
        progress: show progress bars.

    Returns:
        The rows, and why there are none; one of them is empty.
    """
    base, tuned, *_ = inputs.checkpoints
    reason = _reason_before_loading(base, tuned, inputs, rows, config)
    if reason:
        return None, reason
    of_task = drawn_of_each(rows.of_task, config.blocks_prompts)
    pair = (base, tuned) if config.here else (portable(base), portable(tuned))
    job = BlocksJob(pair, _chosen(inputs.batches, of_task), config, folder)
    if config.here:
        reason = save_block_rows(job, progress=progress)
    else:
        shown = "what blocks add" if progress else None
        (reason,) = map_jobs(save_block_rows, [job], **config.on, folder=folder, progress=shown)
    if reason:
        return None, reason
    stores = {role: RowStore(folder / f"blocks-{role}") for role in ("tuned", "base")}
    return SavedRows(stores, {}, of_task), ""


def _reason_before_loading(
    base: Checkpoint, tuned: Checkpoint, inputs: Inputs, rows: SavedRows, config: CompareConfig
) -> str:
    """Return why no block can be given the base's residual stream, as far as it is known without weights."""
    if not config.blocks:
        return "--no-blocks was given"
    if not rows.same_layers:
        return "the models have different layers"
    if inputs.families:
        return "the models are of different families"
    by_name = not base.model.in_memory and not tuned.model.in_memory
    if by_name and base.dtype != tuned.dtype:
        return _other_dtypes(base.dtype, tuned.dtype)
    if base.model.in_memory and tuned.model.in_memory and _weights(base) is _weights(tuned):
        return "base and tuned model are one model in memory, which cannot have and lack an adapter at once"
    return _too_little_memory(inputs, config)


def _too_little_memory(inputs: Inputs, config: CompareConfig) -> str:
    """Return that the weights of both models do not fit in memory, as far as their sizes tell; empty if they may."""
    if not config.here or config.device_map or config.quantize:
        return ""
    needed: dict[str, int] = {}
    for checkpoint in inputs.checkpoints[:2]:
        if not checkpoint.model.in_memory:
            n_bytes = inputs.sizes[checkpoint].least_weights * getattr(torch, checkpoint.dtype).itemsize
            needed[checkpoint.device] = needed.get(checkpoint.device, 0) + n_bytes
    for device, n_bytes in needed.items():
        free = free_memory_bytes(device)
        if free is not None and n_bytes > free:
            return f"their weights take {n_bytes / GIB:.3g} GiB or more, and {device} has {free / GIB:.3g} GiB free"
    return ""


def _weights(checkpoint: Checkpoint) -> Any:
    source = checkpoint.model.source
    plain = plain_model(source)
    return source if plain is None else plain


def _chosen(batches: Sequence[Batch], of_task: Mapping[str, Int[Tensor, "_"]]) -> list[Batch]:
    """Return the batches with only these prompts."""
    chosen = torch.cat([*of_task.values()])
    parts = (batch.select(torch.isin(batch.index, chosen).nonzero()[:, 0]) for batch in batches)
    return [part for part in parts if len(part)]


def save_block_rows(job: BlocksJob, *, progress: bool = False) -> str:
    """Save the rows of a job and free the weights that were loaded for it.

    Returns:
        Why it is not possible, and then nothing is saved; or an empty text.
    """
    try:
        return _save_pair(job, progress)
    finally:
        for checkpoint in job.pair:
            free_memory(checkpoint.device)


def _save_pair(job: BlocksJob, progress: bool) -> str:
    check_without_adapter(job.pair, _FEWER_PROMPTS)
    with ExitStack() as stack:
        models = {}
        try:
            for checkpoint in job.pair:
                model = stack.enter_context(loaded(checkpoint, job.config, _FEWER_PROMPTS, attention="eager"))
                put_adapter(model, checkpoint, adapter_of(model), _FEWER_PROMPTS)
                models[checkpoint] = model
        except (InputError, torch.OutOfMemoryError) as error:  # each was loaded before, alone and read-only
            return f"the models cannot be loaded together, with hooks that write ({first_line(error)})"
        reason = _reason(*models.values())
        if not reason:
            _save(job, models, progress)
        return reason


def _save(job: BlocksJob, models: Mapping[Checkpoint, HookedModel], progress: bool) -> None:
    base, _ = models.values()
    readout = job.config.readout
    labels = job.config.kept_labels
    blocks = residual(range(1, n_blocks(list(base.hook_dict)) + 1))
    for checkpoint, model in models.items():
        folder = job.rows / f"blocks-{checkpoint.role}"
        with naming(checkpoint, _FEWER_PROMPTS), on_the_stream_of(base, model) as same_input:
            save_batches(same_input, job.batches, folder, readout, labels, progress=progress, at=blocks)


def _reason(base: HookedModel, tuned: HookedModel) -> str:
    """Return why the blocks of a model cannot be given the base's residual stream; empty if they can."""
    if not can_write(base) or not can_write(tuned):
        return "the hooks of models of this kind can only read"
    if base.cfg.d_model != tuned.cfg.d_model:
        return "the models have different widths"
    dtypes = [next(each.parameters()).dtype for each in (base, tuned)]
    return "" if dtypes[0] == dtypes[1] else _other_dtypes(*dtypes)


def _other_dtypes(base: torch.dtype | str, tuned: torch.dtype | str) -> str:
    return f"the models have different dtypes ({base} and {tuned}), whose rounding would count as change"
