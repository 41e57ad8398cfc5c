"""Two principal directions of every layer, each turned to fit the layer before, so that points can be followed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from probes.functional.arrays import row_matrix
from probes.functional.preprocess import centred_matrix
from tasks import InputError

_MAX_SIZE_OF_SVD = 256  # rows or dimensions, whichever are fewer. For more, a Krylov space is searched
_KRYLOV_VECTORS_PER_STEP = 8
_MAX_KRYLOV_STEPS = 40
_MAX_RESIDUAL = 1e-7  # share of the largest eigenvalue


class AlignedPlanes(NamedTuple):
    """A plane of every layer.

    Attributes:
        xy: coordinates, centred, with a mean square distance from 0 of 1. Zeros if all rows of a layer are equal.
        variance: share of the rows' variance in the plane. NaN without variance.
    """

    xy: Float[np.ndarray, "layer row 2"]
    variance: Float[np.ndarray, "layer"]


def aligned_planes(
    rows: Iterable[Shaped[Tensor, "row _"]], start: Float[np.ndarray, "row 2"] | None = None
) -> AlignedPlanes:
    """Return the plane of the two leading principal directions of each layer.

    It is turned or mirrored to fit the plane of the layer before (orthogonal Procrustes). Rotating, mirroring, shifting
    or scaling a layer's rows moves no point. In the first layer the point farthest along each axis is at its positive
    end.

    Memory: one layer at a time in float64. Cost: some 20 passes over a layer's rows, a second for 5,000 x 4,096.

    Source: Schoenemann 1966 for the rotation. Musco & Musco 2015 (arXiv 1504.05477) for large layers.

    Args:
        rows: rows of each layer, for the same examples in order, read one layer at a time.
        start: a plane for the first layer to fit, such as ``xy[0]`` of another model.

    Raises:
        InputError: for no layers, layers of different numbers of rows, fewer than 2 rows, or rows that are not finite.

    Example:
        >>> x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([3.0, 2.0, 0.1])
        >>> turned = x @ torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(1)))[0]
        >>> planes = aligned_planes([x, turned])
        >>> bool(np.allclose(planes.xy[0], planes.xy[1], atol=1e-5)), planes.variance.round(2).tolist()
        (True, [1.0, 1.0])
    """
    from scipy.linalg import orthogonal_procrustes

    planes: list[Float[np.ndarray, "row 2"]] = []
    shares: list[float] = []
    before = None if start is None else np.asarray(start, dtype=np.float64)
    for layer, x in enumerate(rows):
        xy, share = _plane(x)
        if len(xy) < 2:
            raise InputError(f"layer {layer} has one row; a plane needs at least 2")
        if before is not None and before.shape != xy.shape:
            other = "the plane to fit" if layer == 0 else "the layer before"
            raise InputError(
                f"layer {layer} has {len(xy)} rows and {other} {len(before)}; give the rows of the same examples"
            )
        if before is not None and xy.any() and before.any():
            xy = xy @ orthogonal_procrustes(xy, before)[0]
        if xy.any() or before is None:
            before = xy
        planes.append(xy)
        shares.append(share)
    if not planes:
        raise InputError("no layers given; give the rows of at least one")
    return AlignedPlanes(np.stack(planes), np.array(shares))


def _plane(x: Shaped[Tensor, "row dim"]) -> tuple[Float[np.ndarray, "row 2"], float]:
    """Return coordinates of unit mean square, and their share of the variance."""
    x = centred_matrix(row_matrix(x, "x"))
    largest = x.abs().max()
    if not bool(largest):
        return np.zeros((len(x), 2)), math.nan
    x = x.div_(largest)
    scores = _scores_by_svd(x) if min(x.shape) <= _MAX_SIZE_OF_SVD else _scores_by_krylov(x)
    variance = scores.square().sum()
    xy = torch.zeros(len(x), 2, dtype=torch.float64)
    xy[:, : scores.shape[1]] = (scores * (len(x) / variance).sqrt()).cpu()
    farthest = xy.gather(0, xy.abs().argmax(0)[None])
    return torch.where(farthest < 0, -xy, xy).numpy(), float(variance / x.square().sum())


def _scores_by_svd(x: Float[Tensor, "row dim"]) -> Float[Tensor, "row _"]:
    """Return coordinates along the first two principal directions, or the only one."""
    u, s, _ = torch.linalg.svd(x, full_matrices=False)
    return u[:, :2] * s[:2]


def _scores_by_krylov(x: Float[Tensor, "row dim"]) -> Float[Tensor, "row 2"]:
    """Return the coordinates from a block Krylov space of ``x' x``, which grows until both directions are found.

    If they never are (many directions of almost one variance), the best directions of the space are taken.
    """
    draw = torch.Generator().manual_seed(0)
    block = x.T @ torch.randn(len(x), _KRYLOV_VECTORS_PER_STEP, generator=draw, dtype=torch.float64).to(x.device)
    basis = x.new_zeros(x.shape[1], 0)
    images = x.new_zeros(x.shape[1], 0)
    for _ in range(_MAX_KRYLOV_STEPS):
        for _ in range(2):  # twice: once leaves rounding behind
            block = torch.linalg.qr(block - basis @ (basis.T @ block))[0]
        basis = torch.cat([basis, block], dim=1)
        block = x.T @ (x @ block)
        images = torch.cat([images, block], dim=1)
        values, vectors = torch.linalg.eigh(basis.T @ images)
        values = values[-2:].flip(0)
        vectors = vectors[:, -2:].flip(1)
        residual = images @ vectors - basis @ (vectors * values)
        if float(residual.norm(dim=0).max()) <= _MAX_RESIDUAL * float(values[0]):
            break
    return x @ (basis @ vectors)
