"""Save the hidden states of models, with adapters or random weights, one model in memory at a time."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mechclust.commands.parts import shard_rows
from mechclust.commands.settings import Dtype, ModelSettings
from mechclust.jobs import map_jobs, progress_bar
from mechclust.models.adapters import adapter_of, set_adapter
from mechclust.models.load_plain import AttentionKind
from mechclust.models.plain_model import plain_model
from mechclust.models.resolved import ResolvedModel
from mechclust.models.sizes import Sizes
from mechclust.models.tokenizers import check_has_tokenizer, tokenizer_and_sizes
from probes import Readout, RowStore, save_rows
from probes.engine.text_tokenizer import tokenizer_of
from probes.rows.shards import StoredRowsError
from tasks import Batch, InputError


@dataclass(frozen=True)
class Checkpoint:
    """A model to measure.

    Attributes:
        role: its role in comparisons, such as ``base``, and the name of its folder of rows.
        model: by name or in memory, with its adapter.
        device: of its weights.
        dtype: of its weights.
        tokenizer: tokenizer of a model that has none.
        untrained: seed of random weights in place of its weights.
    """

    role: str
    model: ResolvedModel
    device: str
    dtype: Dtype
    tokenizer: Any = None
    untrained: int | None = None

    def __str__(self) -> str:
        memory = " (in memory)" if self.model.in_memory else ""
        adapter = "" if self.model.adapter is None else f" with the adapter {self.model.adapter!r}"
        return f"{self.role} {self.model.name!r}{memory}{adapter}"

    @property
    def weights(self) -> tuple[Any, ...]:
        """Key that is equal for checkpoints that are one model, with different adapters or none."""
        source = self.model.source
        key = (id(source),) if self.model.in_memory else (source, self.device, self.dtype)
        return (*key, self.untrained)

    def read(self, trust_remote_code: bool = False) -> tuple[Any, Sizes]:
        """Read its tokenizer and its sizes, without loading weights.

        Raises:
            InputError: for a checkpoint that is not there or incomplete, and a model in memory without tokenizer.
        """
        tokenizer, sizes = tokenizer_and_sizes(self.model, trust_remote_code=trust_remote_code)
        tokenizer = self.tokenizer if tokenizer is None else tokenizer
        check_has_tokenizer(str(self), tokenizer, "prompts")
        return tokenizer, sizes


@dataclass(frozen=True)
class _WeightsJob:
    """Checkpoints that are one set of weights with different adapters.

    Attributes:
        checkpoints: the checkpoints.
        batches: the prompts.
        settings: how the weights are loaded.
        readout: which hidden state of a prompt is saved.
        labels: labels that are saved beside it.
        rows: folder with a folder for each checkpoint.
    """

    checkpoints: Sequence[Checkpoint]
    batches: Sequence[Batch]
    settings: ModelSettings
    readout: Readout
    labels: Sequence[str]
    rows: Path

    @property
    def name(self) -> str:
        """Name of the job in errors."""
        return ", ".join(checkpoint.role for checkpoint in self.checkpoints)


def saved_rows(
    checkpoints: Sequence[Checkpoint],
    batches: Sequence[Batch],
    settings: ModelSettings,
    readout: Readout,
    labels: Sequence[str],
    rows: Path,
    *,
    progress: bool = False,
) -> dict[Checkpoint, RowStore]:
    """Save each model's hidden states, unless they are saved already.

    Weights are loaded once for all their adapters, or for each model alone if there may be more workers than sets of
    weights.

    Args:
        checkpoints: the models.
        batches: the prompts.
        settings: how and where models are loaded.
        readout: which hidden state of a prompt to save.
        labels: labels to save beside it.
        rows: folder that gets a folder for each model.
        progress: show progress bars.
    """
    by_weights: dict[tuple[Any, ...], list[Checkpoint]] = {}
    for checkpoint in checkpoints:
        by_weights.setdefault(checkpoint.weights, []).append(checkpoint)
    groups = list(by_weights.values())
    if not settings.here:
        if settings.workers is None or settings.workers > len(groups):
            groups = [[checkpoint] for checkpoint in checkpoints]
        groups = [list(map(absolute_paths, group)) for group in groups]
    jobs = [_WeightsJob(group, batches, settings, readout, labels, rows) for group in groups]
    if settings.here:
        for job in jobs:
            _save_job(job, progress=progress)
    else:
        map_jobs(_save_job, jobs, **settings.on, folder=rows, progress="hidden states" if progress else None)
    return {checkpoint: RowStore(rows / checkpoint.role) for checkpoint in checkpoints}


def save_rows_anew(model: Any, batches: Iterable[Batch], folder: Path, **options: Any) -> RowStore:
    """Save rows, or go on with those in the folder. Rows that are damaged or others than these are removed.

    Args:
        model: as ``save_rows``.
        batches: as ``save_rows``.
        folder: as ``save_rows``.
        options: as ``save_rows``.
    """
    try:
        return save_rows(model, batches, folder, **options)
    except StoredRowsError:
        shutil.rmtree(folder)
        return save_rows(model, batches, folder, **options)


def free_memory(device: str) -> None:
    """Free the memory of a model that was deleted: its hooks are cycles, so that two would be in memory otherwise."""
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()


def absolute_paths(checkpoint: Checkpoint) -> Checkpoint:
    """Make paths absolute, for a process in another folder."""
    return replace(checkpoint, model=checkpoint.model.portable)


def _save_job(job: _WeightsJob, *, progress: bool = False) -> None:
    """Save the hidden states of a job's models, and free weights that were loaded for it."""
    try:
        _save_models(job, progress)
    finally:
        free_memory(job.checkpoints[0].device)


def _save_models(job: _WeightsJob, progress: bool) -> None:
    first, *others = job.checkpoints
    check_without_adapter(job.checkpoints)
    with loaded_checkpoint(first, job.settings) as hooked:
        loaded_adapter = adapter_of(hooked)  # of a folder that is an adapter and was loaded with its base
        for checkpoint in others:  # an adapter that does not fit is refused before a prompt is read
            put_adapter(hooked, checkpoint, loaded_adapter)
        for checkpoint in job.checkpoints:
            put_adapter(hooked, checkpoint, loaded_adapter)
            folder = job.rows / checkpoint.role
            with name_in_errors(checkpoint):
                save_batches(hooked, job.batches, folder, job.readout, job.labels, progress=progress)


@contextmanager
def loaded_checkpoint(
    checkpoint: Checkpoint, settings: ModelSettings, attention: AttentionKind = "sdpa"
) -> Iterator[Any]:
    """Load a checkpoint's weights for the block, without its adapter. One that is put in is taken out afterwards.

    Args:
        checkpoint: the model.
        settings: how it is loaded.
        attention: ``sdpa``, fused attention, is faster, and hooks can then only read.
    """
    with name_in_errors(checkpoint):
        hooked = _load(checkpoint, settings, attention)
    before = adapter_of(hooked)
    try:
        yield hooked
    finally:
        if checkpoint.model.in_memory and adapter_of(hooked) != before:
            set_adapter(hooked, before)  # the weights are the caller's


def check_without_adapter(checkpoints: Iterable[Checkpoint]) -> None:
    """Refuse a second adapter on a model in memory."""
    for checkpoint in checkpoints:
        present = adapter_of(checkpoint.model.source)
        if checkpoint.model.adapter is not None and present is not None:
            raise InputError(
                f"{checkpoint}: the adapter {present!r} is in the model already; take it out with "
                "set_adapter(model, None)"
            )


def put_adapter(hooked: Any, checkpoint: Checkpoint, loaded_adapter: str | None) -> None:
    """Replace the adapter in the weights by the checkpoint's."""
    adapter = checkpoint.model.adapter or loaded_adapter
    if adapter != adapter_of(hooked):
        with name_in_errors(checkpoint):
            set_adapter(hooked, adapter)


def save_batches(
    hooked: Any,
    batches: Sequence[Batch],
    folder: Path,
    readout: Readout,
    labels: Sequence[str],
    *,
    progress: bool = False,
    **options: Any,
) -> None:
    """Save a model's hidden states in a folder, whose name is shown.

    Args:
        hooked: the model.
        batches: its prompts.
        folder: of the row store.
        readout: which hidden state of a prompt to save.
        labels: labels to save beside it.
        progress: show a progress bar.
        **options: further ones of ``save_rows``.
    """
    save_rows(
        hooked,
        progress_bar(batches, desc=f"{folder.name}: hidden states", unit="batch", disable=not progress),
        folder,
        readout=readout,
        labels=labels,
        shard_rows=shard_rows(sum(map(len, batches))),
        **options,
    )


@contextmanager
def name_in_errors(checkpoint: Checkpoint) -> Iterator[None]:
    """Begin errors with the model that they are about."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{checkpoint}: {error}") from error


def _load(checkpoint: Checkpoint, settings: ModelSettings, attention: AttentionKind) -> Any:
    """Load the weights without an adapter.

    Models in memory are hooked anew, with standard hook points.
    """
    settings = replace(settings, device=checkpoint.device, dtype=checkpoint.dtype)
    options: dict[str, Any] = {"attention": attention, "tokenizer": checkpoint.tokenizer}
    if checkpoint.untrained is not None:
        options |= {"untrained": True, "seed": checkpoint.untrained}
    weights = checkpoint.model.without_adapter
    if weights.in_memory:
        tokenizer = tokenizer_of(weights.source)
        options["tokenizer"] = checkpoint.tokenizer if tokenizer is None else tokenizer
        plain = plain_model(weights.source)
        if plain is not None:
            weights = ResolvedModel(plain)
    return settings.load(weights, "prompts", **options)


@contextmanager
def rows_errors(fewer: str) -> Iterator[None]:
    """Replace an error's advice for Python by the command line's option.

    Args:
        fewer: the option that gives fewer prompts, such as ``"--max-rows"``.
    """
    words = {
        "call save_rows with the same arguments": "run the same command again",
        "give fewer prompts or layers, dtype=torch.bfloat16, or another folder": (
            f"give fewer prompts ({fewer}), --dtype bfloat16, or another folder with --out"
        ),
        "give fewer prompts or layers, or another folder": (
            f"give fewer prompts ({fewer}), or another folder with --out"
        ),
        "save the rows again, in a new folder": "give another folder with --out",
        "or give a new one": "or give another folder with --out",
        ", or a new folder": ", or another folder with --out",
        "give a new folder": "give another folder with --out",
        "give another folder": "give another folder with --out",
    }
    try:
        yield
    except InputError as error:
        message = str(error)
        for python, command in words.items():
            if command not in message:
                message = message.replace(python, command)
        if message == str(error):
            raise
        raise InputError(message) from error
