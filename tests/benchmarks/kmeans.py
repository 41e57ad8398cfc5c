"""k-means against scikit-learn and faiss, on one thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial

import numpy as np
import torch

torch.set_num_threads(1)
_N, _WIDTH = 100_000, 768
_K, _STARTS, _STEPS = 10, 3, 30  # clusters, starts, most iterations of all three


@cache
def _rows() -> np.ndarray:
    """Overlapping clusters of unequal size."""
    rng = np.random.default_rng(0)
    which = np.minimum(rng.integers(_K, size=_N), rng.integers(_K, size=_N))
    centres = rng.normal(size=(_K, _WIDTH)).astype(np.float32) * 0.5
    return centres[which] + rng.standard_normal((_N, _WIDTH), dtype=np.float32)


def _ours(rows: np.ndarray) -> None:
    from probes.functional import kmeans

    kmeans(torch.from_numpy(rows), _K, n_init=_STARTS, max_iter=_STEPS)


def _scikit_learn(rows: np.ndarray) -> None:
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        KMeans(_K, n_init=_STARTS, max_iter=_STEPS, random_state=0).fit(rows)


def _faiss(rows: np.ndarray) -> None:
    """With its random starts, on all rows."""
    import faiss

    faiss.omp_set_num_threads(1)
    options = {"niter": _STEPS, "nredo": _STARTS, "seed": 1, "max_points_per_centroid": len(rows)}
    found = faiss.Kmeans(rows.shape[1], _K, **options)
    found.train(rows)
    found.index.search(rows, 1)


@cache
def _seconds(fit: Callable[[np.ndarray], None]) -> float:
    """Seconds of the processor: all run on one thread, and other processes do not count."""
    rows, start = _rows(), time.process_time()
    fit(rows)
    return time.process_time() - start


def faster(other: Callable[[np.ndarray], None]) -> float:
    """Time of another over ours; both once, for they take seconds."""
    return _seconds(other) / _seconds(_ours)


def table() -> list[tuple[str, Callable[[], float], str]]:
    """What is measured, how, and the goal."""
    where = f"k-means, {_N:,} x {_WIDTH}, {_K} clusters"
    return [
        (f"{where}: time, scikit-learn / ours", partial(faster, _scikit_learn), ">= 1"),
        (f"{where}: time, faiss / ours", partial(faster, _faiss), ">= 1"),
    ]
