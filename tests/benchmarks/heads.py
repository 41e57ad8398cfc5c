"""Clustering heads: many seeds at once against one by one, the detector's cost, the sandbox page."""

from __future__ import annotations

import time
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.benchmarks.ratio import alternate

_EPOCH = 64  # steps of the base setting


def _settings(epochs: int) -> Any:
    from mechclust import TrainConfig

    return TrainConfig(
        steps=_EPOCH * epochs, batch_size=32, lr=3e-3, schedule="constant", optimizer="adam", weight_decay=0.0,
        clip=None, save_every=10_000,
    )  # fmt: skip


def _ensemble(seeds: int, epochs: int, backend: str) -> float:
    """Seconds to train so many seeds, snapshots included."""
    from mechclust.studies.clustering_heads.config import PoolingTransformerConfig
    from mechclust.training import Member, train_ensemble
    from tasks import SparseModularAddition

    members = [Member(PoolingTransformerConfig(seed=s), SparseModularAddition(seed=s)) for s in range(seeds)]
    with TemporaryDirectory() as folder:
        start = time.perf_counter()
        train_ensemble(members, _settings(epochs), folder, backend=backend)  # type: ignore[arg-type]
        return time.perf_counter() - start


@lru_cache
def seconds_per_epoch(seeds: int = 40, backend: str = "compiled") -> float:
    """What one more epoch of an ensemble costs, data and snapshots included; compiling and set-up fall out."""
    _ensemble(seeds, 1, backend)
    times = {epochs: min(_ensemble(seeds, epochs, backend) for _ in range(3)) for epochs in (1, 51)}
    return (times[51] - times[1]) / 50


def alone(seeds: int = 40) -> float:
    """The same for as many runs of ``train``, one after the other (measured on four)."""
    from mechclust import build_model, train
    from mechclust.studies.clustering_heads.config import PoolingTransformerConfig
    from tasks import SparseModularAddition

    def once(epochs: int) -> float:
        start = time.perf_counter()
        for seed in range(4):
            train(build_model(PoolingTransformerConfig(seed=seed)), SparseModularAddition(seed=seed), _settings(epochs))
        return time.perf_counter() - start

    once(1)
    return (min(once(6) for _ in range(3)) - min(once(1) for _ in range(3))) / 5 * seeds / 4


def speedup(backend: str = "compiled") -> float:
    """40 single runs over an ensemble of 40, an epoch of each."""
    return alone() / seconds_per_epoch(backend=backend)


@lru_cache
def detector() -> tuple[float, float]:
    """The detector on all 4,096 sequences over the bare forward pass, and its milliseconds."""
    import torch

    from mechclust import build_model
    from mechclust.studies.clustering_heads.config import PoolingTransformerConfig
    from probes import ClusteringHead, run
    from tasks import SparseModularAddition

    task = SparseModularAddition()
    model, (batch,) = build_model(PoolingTransformerConfig()), list(task.batches("all", 4096))
    probe = ClusteringHead(("multiset", "sum"), support=task.positions, modulus=2)

    def bare() -> None:
        with torch.inference_mode():
            model(batch.tokens)

    def measured() -> None:
        run(model, batch, probe)

    ratio = alternate(measured, bare, rounds=10)
    start = time.perf_counter()
    measured()
    return ratio, 1e3 * (time.perf_counter() - start)


@lru_cache
def sandbox() -> tuple[float, float]:
    """Seconds to make a page of 300 epochs, and its megabytes."""
    from mechclust.sandbox import sandbox_page
    from mechclust.studies.clustering_heads.config import PoolingTransformerConfig
    from mechclust.studies.clustering_heads.sandbox import sandbox_run
    from mechclust.training import Member, train_ensemble
    from tasks import SparseModularAddition

    with TemporaryDirectory() as folder:
        members = [Member(PoolingTransformerConfig(), SparseModularAddition())]
        snapshots = train_ensemble(members, _settings(300), Path(folder) / "run", backend="vmap")
        start = time.perf_counter()
        page = sandbox_page(sandbox_run(snapshots, 0), Path(folder) / "page.html")
        return time.perf_counter() - start, page.stat().st_size / 1e6
