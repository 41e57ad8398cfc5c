"""Models that are measured: loaded in this process, or by others."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechclust.commands.topics.config import TopicsConfig
from mechclust.jobs import map_jobs, progress_bar, run_sharded
from mechclust.models import token_embeddings
from mechclust.models.resolved import ResolvedModel
from probes import ProbeResult, run
from probes.engine.probe import Probe
from probes.store.digest import digest_of
from tasks import Batch, InputError
from tasks.batch_rows import token_batch_rows
from tasks.text.encoded_corpus import EncodedCorpus

SHARDS = "shards"  # folder of the workers' states, until the report is written
_LEAST_SHARD_WINDOWS = 64
_MAX_SHARDS = 16  # a lost worker costs one of them


class ModelSource(Protocol):
    """A model that is measured."""

    def run(self, encoded: EncodedCorpus, config: TopicsConfig, probes: Sequence[Probe]) -> list[ProbeResult]:
        """Run probes on a corpus. They hold their states afterwards."""

    def word_rows(self, tokens: Int[Tensor, "word"]) -> Float[Tensor, "word dim"]:
        """Return rows of the token embedding matrix. Tokens below 0 give any row."""


@dataclass(frozen=True)
class LoadedModel:
    """A model in this process.

    Attributes:
        hooked: the model.
        progress: whether progress bars are shown.
    """

    hooked: Any
    progress: bool = False

    def run(self, encoded: EncodedCorpus, config: TopicsConfig, probes: Sequence[Probe]) -> list[ProbeResult]:
        """Run probes on a corpus."""
        batches: Iterable[Batch] = encoded.batches(config.tokens_per_batch)
        if self.progress:
            lengths = [len(window) for window in encoded.windows]
            total = sum(1 for _ in token_batch_rows(lengths, config.tokens_per_batch, str))
            batches = progress_bar(batches, total=total, desc="measuring", unit="batch")
        return run(self.hooked, batches, probes)

    def word_rows(self, tokens: Int[Tensor, "word"]) -> Float[Tensor, "word dim"]:
        """Return rows of the token embedding matrix. Tokens below 0 give any row."""
        table = token_embeddings(self.hooked)
        return table[tokens.clamp(min=0).to(table.device)].to("cpu", torch.float64)


@dataclass(frozen=True)
class ModelInWorkers:
    """A model that other processes load.

    Attributes:
        name: of its folder, and in errors.
        load: loads it.
        out: folder of the run, or ``None`` if no files are kept.
        rows: its rows of the token embedding matrix.
        progress: whether progress bars are shown.
    """

    name: str
    load: Callable[[], Any]
    out: Path | None
    rows: Float[Tensor, "word dim"]
    progress: bool

    def run(self, encoded: EncodedCorpus, config: TopicsConfig, probes: Sequence[Probe]) -> list[ProbeResult]:
        """Run probes on a corpus, in shards that do not depend on the number of workers, for bit-identical results."""
        folder = None if self.out is None else self._folder(self.out / SHARDS, config, probes)
        try:
            return run_sharded(
                self.load,
                encoded.batches(config.tokens_per_batch),
                probes,
                **config.on,
                shard_examples=max(_LEAST_SHARD_WINDOWS, -(-len(encoded.windows) // _MAX_SHARDS)),
                out=folder,
                progress=self.progress,
            )
        except InputError as error:
            message = str(error).replace("a new folder as out", "another folder with --out")
            raise InputError(f"{self.name}: {message}") from error

    def _folder(self, shards: Path, config: TopicsConfig, probes: Sequence[Probe]) -> Path:
        """Return the folder of the states of these probes, and remove other probes' states."""
        settings = (config.tokens_per_batch, config.max_length, config.max_documents, config.bos, config.seed)
        digest = digest_of([repr(settings), *(repr((probe, probe.states)) for probe in probes)])
        folder = shards / f"{self.name}-{digest}"
        for other in shards.glob(f"{self.name}-*"):
            if other != folder:
                shutil.rmtree(other, ignore_errors=True)
        return folder

    def word_rows(self, tokens: Int[Tensor, "word"]) -> Float[Tensor, "word dim"]:
        """Return the rows of the token embedding matrix that a job has looked up."""
        assert len(tokens) == len(self.rows)
        return self.rows


@dataclass(frozen=True)
class _RowsJob:
    name: str
    load: Callable[[], Any]
    tokens: Int[Tensor, "word"]


def _look_up(job: _RowsJob) -> Float[Tensor, "word dim"]:
    return LoadedModel(job.load()).word_rows(job.tokens)


def models_in_workers(
    model: ResolvedModel,
    tokens: Int[Tensor, "word"],
    config: TopicsConfig,
    out: Path | None,
    *,
    tokenizer: Any,
    progress: bool,
) -> list[ModelInWorkers]:
    """Return the model and the untrained ones, which other processes load.

    Args:
        model: the model.
        tokens: token of each word.
        config: the settings.
        out: folder of the run, or ``None``.
        tokenizer: of a loaded Hugging Face model.
        progress: show progress bars.
    """
    options: dict[str, Any] = {"tokenizer": tokenizer, "measures_attention": True}
    loads = {"trained": config.loader(model, "text", **options)}
    for seed in range(config.untrained):
        loads[f"untrained-seed{seed}"] = config.loader(model, "text", **options, untrained=True, seed=seed)
    jobs = [_RowsJob(name, load, tokens) for name, load in loads.items()]
    rows = map_jobs(_look_up, jobs, **config.on, progress="embedding matrices" if progress else None)
    return [
        ModelInWorkers(name, load, out, matrix, progress)
        for (name, load), matrix in zip(loads.items(), rows, strict=True)
    ]
