"""k-means against scikit-learn and faiss, and relabellings drawn as tables against shuffles, on one thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch

from tests.benchmarks.memory import forget_peak, held, peak, printed
from tests.benchmarks.ratio import alternate

torch.set_num_threads(1)
_SIZES = {"100,000 x 768": (100_000, 768), "1,000,000 x 64": (1_000_000, 64)}
_K, _STARTS, _STEPS = 10, 3, 30  # clusters, starts, most iterations of all three


class _Run(NamedTuple):
    seconds: float  # of the processor: all run on one thread, and other processes do not count
    inertia: float


@cache
def _rows(size: str) -> np.ndarray:
    """Overlapping clusters of unequal size."""
    n, d = _SIZES[size]
    rng = np.random.default_rng(0)
    which = np.minimum(rng.integers(_K, size=n), rng.integers(_K, size=n))
    centres = rng.normal(size=(_K, d)).astype(np.float32) * 0.5
    return centres[which] + rng.standard_normal((n, d), dtype=np.float32)


def _ours(rows: np.ndarray) -> float:
    from probes.functional import kmeans

    return kmeans(torch.from_numpy(rows), _K, n_init=_STARTS, max_iter=_STEPS).inertia


def _scikit_learn(rows: np.ndarray) -> float:
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        return float(KMeans(_K, n_init=_STARTS, max_iter=_STEPS, random_state=0).fit(rows).inertia_)


def _faiss(rows: np.ndarray, per_centroid: int) -> float:
    """With its random starts; the inertia of the centres that it found, on all rows."""
    import faiss

    faiss.omp_set_num_threads(1)
    found = faiss.Kmeans(rows.shape[1], _K, niter=_STEPS, nredo=_STARTS, seed=1, max_points_per_centroid=per_centroid)
    found.train(rows)
    return float(found.index.search(rows, 1)[0].sum())


_OTHERS: dict[str, Callable[[np.ndarray], float]] = {
    "scikit-learn": _scikit_learn,
    "faiss": lambda rows: _faiss(rows, len(rows)),
    "faiss on 256 rows per centre": lambda rows: _faiss(rows, 256),
    "ours": _ours,
}


@cache
def _run(name: str, size: str) -> _Run:
    rows, start = _rows(size), time.process_time()
    inertia = _OTHERS[name](rows)
    return _Run(time.process_time() - start, inertia)


def faster(name: str, size: str) -> float:
    """Time of another over ours; both once, for they take seconds."""
    return _run(name, size).seconds / _run("ours", size).seconds


def inertia(name: str, size: str) -> float:
    """Inertia of ours over that of another."""
    return _run("ours", size).inertia / _run(name, size).inertia


def memory(size: str) -> float:
    """Peak memory of ours over that of scikit-learn, both beside the rows."""
    return _peak_mib("ours", size) / _peak_mib("scikit-learn", size)


def _peak_mib(name: str, size: str) -> float:
    code = f"from tests.benchmarks.kmeans import _peak; _peak({name!r}, {size!r})"
    return printed(code)[0]


def _peak(name: str, size: str) -> None:
    rows = _rows(size)
    _OTHERS[name](rows[:1000])  # imports
    before = held()
    forget_peak()
    _OTHERS[name](rows)
    print(max(1.0, peak() - before))


def relabellings(n: int = 100_000) -> float:
    """Time of 200 shuffles over that of 200 tables with the same margins, for 10 classes and 10 clusters."""
    from probes.functional import adjusted_rand_null
    from probes.functional.adjusted_rand import _cells, _codes

    rng = np.random.default_rng(0)
    a, b = rng.integers(10, size=n), rng.integers(10, size=n)

    def shuffles() -> Any:
        ia, ib = _codes(a, b)
        draw = np.random.default_rng(0)
        return [_cells(ia, draw.permutation(ib)) for _ in range(200)]

    return alternate(shuffles, lambda: adjusted_rand_null(a, b, 200), rounds=3)


def table() -> list[tuple[str, Callable[[], float], str]]:
    """What is measured, how, and the goal."""
    rows: list[tuple[str, Callable[[], float], str]] = []
    for size in _SIZES:
        where = f"k-means, {size}, {_K} clusters"
        for name in ("scikit-learn", "faiss", "faiss on 256 rows per centre"):
            goal = "" if "256" in name else ">= 1"  # that one reads a part of the rows
            rows.append((f"{where}: time, {name} / ours", partial(faster, name, size), goal))
            rows.append((f"{where}: inertia, ours / {name}", partial(inertia, name, size), "<= 1.01"))
        rows.append((f"{where}: peak memory, ours / scikit-learn", partial(memory, size), "<= 1"))
    rows.append(("200 relabellings of 100,000 examples: shuffles / tables", relabellings, ">= 10"))
    return rows
