"""Save the hidden states of models, with adapters or random weights, one model in memory at a time."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mechclust.commands.parts import shard_rows
from mechclust.commands.settings import Dtype, ModelSettings
from mechclust.jobs import map_jobs, progress_bar
from mechclust.models.adapters import adapter_of, plain_model, set_adapter
from mechclust.models.resolved import ResolvedModel
from mechclust.models.sizes import Sizes
from mechclust.models.tokenizers import tokenizer_and_sizes
from mechclust.report.folder import rows_errors
from probes import Readout, RowStore, save_rows
from probes.engine.texts import tokenizer_of
from probes.store.files import file_name
from tasks import Batch, InputError


@dataclass(frozen=True)
class Checkpoint:
    """A model to measure.

    Attributes:
        role: what it is compared as, such as ``base``.
        model: by name or in memory, with its adapter.
        device: of its weights.
        dtype: of its weights.
        task: task of a control.
        tokenizer: tokenizer of a model that has none.
        untrained: seed of random weights that replace its own.
    """

    role: str
    model: ResolvedModel
    device: str
    dtype: Dtype
    task: str | None = None
    tokenizer: Any = None
    untrained: int | None = None

    def __str__(self) -> str:
        memory = " (in memory)" if self.model.in_memory else ""
        adapter = "" if self.model.adapter is None else f" with the adapter {self.model.adapter!r}"
        return f"{self.role} {self.model.name!r}{memory}{adapter}"

    @property
    def name(self) -> str:
        """Name of its folder of rows."""
        return self.role if self.task is None else f"{self.role}-{file_name(self.task)}"

    @property
    def weights(self) -> tuple[Any, ...]:
        """Key that is equal for checkpoints that are one model, with different adapters or none."""
        source = self.model.source
        key = (id(source),) if self.model.in_memory else (source, self.device, self.dtype)
        return (*key, self.untrained)

    @property
    def own_tokenizer(self) -> Any:
        """Tokenizer of a model in memory, or the one given with it."""
        tokenizer = tokenizer_of(self.model.source)
        return self.tokenizer if tokenizer is None else tokenizer

    def read(self, trust_remote_code: bool = False) -> tuple[Any, Sizes]:
        """Read its tokenizer and its sizes, without loading weights.

        Raises:
            InputError: for a checkpoint that is not there or incomplete, and a model in memory without tokenizer.
        """
        tokenizer, sizes = tokenizer_and_sizes(self.model, trust_remote_code=trust_remote_code)
        tokenizer = self.tokenizer if tokenizer is None else tokenizer
        if tokenizer is None:
            raise InputError(f"{self} has no tokenizer to read prompts; give tokenizer= too")
        return tokenizer, sizes


@dataclass(frozen=True)
class WeightsJob:
    """Checkpoints that are one set of weights with different adapters.

    Attributes:
        batches: the prompts of each checkpoint.
        settings: how the weights are loaded.
        readout: which hidden state of a prompt is saved.
        labels: labels that are saved beside it.
        rows: folder with a folder for each checkpoint.
        fewer_prompts: option that limits the prompts, named when the disk is full.
    """

    batches: Mapping[Checkpoint, Sequence[Batch]]
    settings: ModelSettings
    readout: Readout
    labels: Sequence[str]
    rows: Path
    fewer_prompts: str

    @property
    def name(self) -> str:
        """Name of the job in errors."""
        return ", ".join(checkpoint.name for checkpoint in self.batches)


def saved_rows(
    batches: Mapping[Checkpoint, Sequence[Batch]],
    settings: ModelSettings,
    readout: Readout,
    labels: Sequence[str],
    rows: Path,
    *,
    fewer_prompts: str = "--max-per-task",
    progress: bool = False,
) -> dict[Checkpoint, RowStore]:
    """Save each model's hidden states, where they are not saved yet.

    Weights are loaded once for all their adapters, unless there are enough workers for each checkpoint to be a job.

    Args:
        batches: the prompts of each model.
        settings: how and where models are loaded.
        readout: which hidden state of a prompt to save.
        labels: labels to save beside it.
        rows: folder that gets a folder for each model.
        fewer_prompts: option that limits the prompts, named when the disk is full.
        progress: show progress bars.
    """
    by_weights: dict[tuple[Any, ...], list[Checkpoint]] = {}
    for checkpoint in batches:
        by_weights.setdefault(checkpoint.weights, []).append(checkpoint)
    groups = list(by_weights.values())
    if not settings.here and (settings.workers is None or settings.workers > len(groups)):
        groups = [[checkpoint] for checkpoint in batches]
    jobs = []
    for checkpoints in groups:
        prompts = {each if settings.here else _portable(each): batches[each] for each in checkpoints}
        jobs.append(WeightsJob(prompts, settings, readout, labels, rows, fewer_prompts))
    if settings.here:
        for job in jobs:
            save_job(job, progress=progress)
    else:
        map_jobs(save_job, jobs, **settings.on, folder=rows, progress="hidden states" if progress else None)
    return {checkpoint: RowStore(rows / checkpoint.name) for checkpoint in batches}


def free_memory(device: str) -> None:
    """Free the memory of a model that was deleted: its hooks are cycles, so that two would be in memory otherwise."""
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()


def _portable(checkpoint: Checkpoint) -> Checkpoint:
    """Make paths absolute, for a process in another folder."""
    return replace(checkpoint, model=checkpoint.model.portable)


def save_job(job: WeightsJob, *, progress: bool = False) -> None:
    """Save the hidden states of a job's models; weights that were loaded for it are freed."""
    first, *others = job.batches
    _check_without_adapter(job)
    hooked: Any = None
    loaded_adapter: str | None = None  # of a folder that is an adapter and was loaded with its base
    try:
        with _naming(first, job):
            hooked = _load(first, job.settings)
        loaded_adapter = adapter_of(hooked)
        for checkpoint in others:  # an adapter that does not fit is refused before a prompt is read
            _set_adapter(hooked, checkpoint, loaded_adapter, job)
        for checkpoint in job.batches:
            _set_adapter(hooked, checkpoint, loaded_adapter, job)
            with _naming(checkpoint, job):
                _save_rows(hooked, checkpoint, job, progress)
    finally:
        if first.model.in_memory and adapter_of(hooked) != loaded_adapter:
            set_adapter(hooked, loaded_adapter)  # the weights are the caller's
        del hooked
        free_memory(first.device)


def _check_without_adapter(job: WeightsJob) -> None:
    """Refuse a second adapter on a model in memory."""
    for checkpoint in job.batches:
        present = adapter_of(checkpoint.model.source)
        if checkpoint.model.adapter is not None and present is not None:
            with _naming(checkpoint, job):
                raise InputError(
                    f"the adapter {present!r} is in the model already; take it out with set_adapter(model, None)"
                )


def _set_adapter(hooked: Any, checkpoint: Checkpoint, loaded_adapter: str | None, job: WeightsJob) -> None:
    """Replace the adapter in the weights by the checkpoint's."""
    adapter = checkpoint.model.adapter or loaded_adapter
    if adapter != adapter_of(hooked):
        with _naming(checkpoint, job):
            set_adapter(hooked, adapter)


def _save_rows(hooked: Any, checkpoint: Checkpoint, job: WeightsJob, progress: bool) -> None:
    batches = job.batches[checkpoint]
    save_rows(
        hooked,
        progress_bar(batches, desc=f"{checkpoint.name}: hidden states", unit="batch") if progress else batches,
        job.rows / checkpoint.name,
        readout=job.readout,
        labels=job.labels,
        shard_rows=shard_rows(sum(map(len, batches))),
    )


@contextmanager
def _naming(checkpoint: Checkpoint, job: WeightsJob) -> Iterator[None]:
    """Begin errors with the model that they are about."""
    try:
        with rows_errors(job.fewer_prompts):
            yield
    except InputError as error:
        raise InputError(f"{checkpoint}: {error}") from error


def _load(checkpoint: Checkpoint, settings: ModelSettings) -> Any:
    """Load the weights without an adapter.

    No probe here reads attention patterns, so that fused attention does. Models in memory are hooked anew, with the
    same hook points as all others.
    """
    settings = replace(settings, device=checkpoint.device, dtype=checkpoint.dtype)
    options: dict[str, Any] = {"attention": "sdpa", "tokenizer": checkpoint.tokenizer}
    if checkpoint.untrained is not None:
        options |= {"untrained": True, "seed": checkpoint.untrained}
    weights = checkpoint.model.without_adapter
    if weights.in_memory:
        options["tokenizer"] = checkpoint.own_tokenizer
        plain = plain_model(weights.source)
        if plain is not None:
            weights = ResolvedModel(plain)
    return settings.load(weights, "prompts", **options)
