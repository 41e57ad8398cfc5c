"""Neighbours, Gaussian kernels, planes and t-SNE against matrix products and other packages, and their memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from tests.benchmarks.memory import forget_peak, held, peak, printed
from tests.benchmarks.ratio import alternate

torch.set_num_threads(1)
_BLOCK = 512


@lru_cache
def _rows(n: int, d: int, seed: int = 0) -> Tensor:
    """Ten clouds, in float32."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=draw) + 2 * torch.randn(10, d, generator=draw)[torch.arange(n) % 10]


def _products(x: Tensor) -> None:
    """Squared distances from matrix products in float64, a block at a time; nothing is made of them."""
    norms = x.square().sum(1)
    for rows, own in zip(x.split(_BLOCK), norms.split(_BLOCK), strict=True):
        torch.addmm(norms, rows, x.T, alpha=-2).add_(own[:, None])


def kernels_over_products(n: int, d: int) -> float:
    """RBFCKA, medians included, against the distances of both sides once."""
    from probes.functional import rbf_cka

    x, y = _rows(n, d).double(), _rows(n, d, 1).double()

    def bound() -> None:
        _products(x)
        _products(y)

    return alternate(lambda: rbf_cka(x, y), bound, rounds=5)


def kernels_by_definition(n: int, d: int) -> float:
    """Distances subtracted one by one, the median of all, and two kernels block by block, against RBFCKA."""
    from probes.functional import rbf_cka

    x, y = _rows(n, d).double(), _rows(n, d, 1).double()

    def plain() -> None:
        scales = [float(np.median(torch.pdist(side).numpy())) / 2 for side in (x, y)]
        for rows in torch.arange(n).split(_BLOCK):
            blocks = []
            for side, scale in zip((x, y), scales, strict=True):
                distance = torch.cdist(side[rows], side, compute_mode="donot_use_mm_for_euclid_dist")
                blocks.append(torch.expm1(-(distance / scale).square() / 2))
            torch.vdot(blocks[0].flatten(), blocks[1].flatten())

    return alternate(plain, lambda: rbf_cka(x, y), rounds=2)


def neighbours_over_products(n: int, d: int) -> float:
    """The ten nearest of every row against the distances alone, in float64."""
    from probes.functional.neighbour_purity import nearest_rows

    x = _rows(n, d)
    whole = x.double()
    return alternate(lambda: nearest_rows(x, 10), lambda: _products(whole), rounds=5)


def neighbours_by_scikit_learn(n: int, d: int) -> float:
    """scikit-learn's brute force in float64, one thread as ours, over ours."""
    from sklearn.neighbors import NearestNeighbors
    from threadpoolctl import threadpool_limits

    from probes.functional.neighbour_purity import nearest_rows

    x = _rows(n, d)
    whole = x.double().numpy()

    def theirs() -> None:
        with threadpool_limits(1):
            NearestNeighbors(n_neighbors=10, algorithm="brute").fit(whole).kneighbors(return_distance=False)

    return alternate(theirs, lambda: nearest_rows(x, 10), rounds=5)


def planes_over_pca(n: int, d: int) -> float:
    """A layer's plane against scikit-learn's randomized PCA, which stops after seven steps."""
    from sklearn.decomposition import PCA
    from threadpoolctl import threadpool_limits

    from probes.functional.planes import aligned_planes

    x = _rows(n, d)

    def theirs() -> None:
        with threadpool_limits(1):
            PCA(2, svd_solver="randomized", random_state=0).fit_transform(x.double().numpy())

    return alternate(lambda: aligned_planes([x]), theirs, rounds=3)


def open_tsne(n: int) -> float:
    """scikit-learn's t-SNE over openTSNE's, both on one thread, from the same 50 components."""
    from probes.functional.projection import open_tsne_2d, project_2d

    x = _rows(n, 50).numpy()
    return alternate(lambda: project_2d(x), lambda: open_tsne_2d(x), rounds=1)


def memory(what: str) -> float:
    """Growth of a process's peak memory at twice the rows over that at once as many, the rows themselves left out:
    4 where it goes with their square, 2 where with their number, 1 where it stays."""
    return _peak_mib(what, 16_000) / _peak_mib(what, 8000)


def _peak_mib(what: str, n: int) -> float:
    code = f"from tests.benchmarks.pairs import _peak; _peak({what!r}, {n})"
    return printed(code, rounds=3)[0]


def _peak(what: str, n: int) -> None:
    from probes.functional import rbf_cka
    from probes.functional.neighbour_purity import nearest_rows

    x, small = _rows(n, 64), _rows(300, 64)
    run = {"nearest": lambda x: nearest_rows(x, 10), "rbf_cka": lambda x: rbf_cka(x, x)}[what]
    run(small)  # what is imported on first use
    forget_peak()
    before = held()
    run(x)
    print(peak() - before)


def table() -> list[tuple[str, Callable[[], float], str]]:
    """What is measured, how, and the goal."""
    return [
        ("RBFCKA, 2,000 x 768 twice / distances of both alone", lambda: kernels_over_products(2000, 768), "<= 2"),
        ("RBFCKA with pdist, cdist and np.median / ours, the same", lambda: kernels_by_definition(2000, 768), ">= 4"),
        ("NeighbourPurity, 10,000 x 768 / distances alone", lambda: neighbours_over_products(10_000, 768), "<= 1.2"),
        ("scikit-learn's brute force / the same", lambda: neighbours_by_scikit_learn(10_000, 768), ">= 1"),
        ("a layer's plane, 5,000 x 2,048 / scikit-learn's randomized PCA", lambda: planes_over_pca(5000, 2048), "<= 2"),
        ("t-SNE of 3,000 x 50, scikit-learn / openTSNE", lambda: open_tsne(3000), ">= 1.5"),
        ("peak memory of RBFCKA, 16,000 rows / 8,000", lambda: memory("rbf_cka"), "<= 1.5"),
        ("peak memory of NeighbourPurity, 16,000 rows / 8,000", lambda: memory("nearest"), "<= 2"),
    ]
