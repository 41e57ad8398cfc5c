"""Save the hidden states of every model, one model in memory at a time."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mechclust.commands.compare.checkpoints import Checkpoint
from mechclust.commands.compare.config import CompareConfig
from mechclust.commands.compare.inputs import Inputs
from mechclust.commands.parts import shard_rows
from mechclust.commands.settings import everywhere
from mechclust.jobs import map_jobs, progress_bar
from mechclust.models.adapters import adapter_of, plain_model, set_adapter
from mechclust.report.folder import rows_errors
from probes import RowStore, save_rows
from tasks import InputError


@dataclass(frozen=True)
class WeightsJob:
    """Checkpoints that are one set of weights with different adapters.

    Attributes:
        models: the checkpoints.
        inputs: the prompts.
        config: how the weights are loaded and the prompts read.
        rows: folder with a folder for each model.
    """

    models: Sequence[Checkpoint]
    inputs: Inputs
    config: CompareConfig
    rows: Path

    @property
    def name(self) -> str:
        """Name of the job in errors."""
        return ", ".join(model.name for model in self.models)


def save_hidden_states(
    inputs: Inputs, config: CompareConfig, rows: Path, *, progress: bool = False
) -> dict[Checkpoint, RowStore]:
    """Save each model's hidden states, where they are not saved yet.

    Weights are loaded once for all their adapters, unless there are enough workers for each checkpoint to be a job.
    """
    by_weights: dict[tuple[Any, ...], list[Checkpoint]] = {}
    for model in inputs.checkpoints:
        by_weights.setdefault(model.weights, []).append(model)
    groups = list(by_weights.values())
    if config.here:
        for models in groups:
            save_job(WeightsJob(models, inputs, config, rows), progress=progress)
    else:
        if config.workers is None or config.workers > len(groups):
            groups = [[model] for model in inputs.checkpoints]
        jobs = [WeightsJob([_portable(m) for m in models], inputs, config.portable, rows) for models in groups]
        map_jobs(save_job, jobs, **config.on, folder=rows, progress="hidden states" if progress else None)
    return {model: RowStore(rows / model.name) for model in inputs.checkpoints}


def _portable(model: Checkpoint) -> Checkpoint:
    """Make paths absolute, for a process in another folder."""
    return replace(model, source=everywhere(model.source), adapter=everywhere(model.adapter))


def save_job(job: WeightsJob, *, progress: bool = False) -> None:
    """Save the hidden states of a job's models; weights that were loaded for it are freed."""
    first = job.models[0]
    _check_without_adapter(job.models)
    hooked: Any = None
    loaded_adapter: str | None = None  # of a folder that is an adapter and was loaded with its base
    try:
        with _naming(first):
            hooked = _load(first, job.config)
        loaded_adapter = adapter_of(hooked)
        for model in job.models[1:]:  # an adapter that does not fit is refused before a prompt is read
            _set_adapter(hooked, model, loaded_adapter)
        for model in job.models:
            _set_adapter(hooked, model, loaded_adapter)
            with _naming(model):
                _save_rows(hooked, model, job, progress)
    finally:
        if first.in_memory and adapter_of(hooked) != loaded_adapter:
            set_adapter(hooked, loaded_adapter)  # the weights are the caller's
        del hooked
        gc.collect()  # hooks are cycles: without this, two models would be in memory
        if torch.device(first.device).type == "cuda":
            torch.cuda.empty_cache()


def _check_without_adapter(models: Sequence[Checkpoint]) -> None:
    """Refuse a second adapter on a model in memory."""
    for model in models:
        present = adapter_of(model.source) if model.in_memory and model.adapter is not None else None
        if present is not None:
            with _naming(model):
                raise InputError(
                    f"the adapter {present!r} is in the model already; take it out with set_adapter(model, None)"
                )


def _set_adapter(hooked: Any, model: Checkpoint, loaded_adapter: str | None) -> None:
    """Replace the adapter in the weights by the checkpoint's."""
    adapter = model.adapter or loaded_adapter
    if adapter != adapter_of(hooked):
        with _naming(model):
            set_adapter(hooked, adapter)


def _save_rows(hooked: Any, model: Checkpoint, job: WeightsJob, progress: bool) -> None:
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
def _naming(model: Checkpoint) -> Iterator[None]:
    """Begin errors with the model that they are about."""
    try:
        with rows_errors("--max-per-task"):
            yield
    except InputError as error:
        raise InputError(f"{model}: {error}") from error


def _load(model: Checkpoint, config: CompareConfig) -> Any:
    """Load the weights without an adapter.

    No probe here reads attention patterns, so that fused attention does. Models in memory are hooked anew, with the
    same hook points as all others.
    """
    settings = replace(config, device=model.device, dtype=model.dtype, adapter=None)
    if not model.in_memory:
        return settings.load(model.source, "prompts", attention="sdpa")
    plain = plain_model(model.source)
    source = model.source if plain is None else plain
    return settings.load(source, "prompts", attention="sdpa", tokenizer=model.own_tokenizer)
