"""Planes in which points of many dimensions are drawn, fixed over checkpoints, so that frames can be compared."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int, Shaped
from numpy.typing import ArrayLike

from tasks import InputError

PlaneName = Literal["pca", "last", "classes"]
_PLANE_NAMES = ("pca", "last", "classes")
_ROUNDING = 1e-6  # of the largest component: smaller ones are rounding of float32


class DrawnPlane(NamedTuple):
    """A plane in a space of ``d`` dimensions.

    Attributes:
        directions: orthonormal.
        centre: the point drawn at (0, 0).
    """

    directions: Float[np.ndarray, "2 d"]
    centre: Float[np.ndarray, "d"]

    def flatten(self, points: Float[np.ndarray, "*rest d"]) -> Float[np.ndarray, "*rest 2"]:
        """Return coordinates of points in the plane."""
        return np.asarray((points - self.centre) @ self.directions.T)

    def variance(self, points: Float[np.ndarray, "frame n d"]) -> Float[np.ndarray, "frame"]:
        """Return the share of each frame's variance that lies in the plane, or NaN if all its points are equal."""
        apart = points - points.mean(axis=1, keepdims=True)
        total = (apart**2).sum(axis=(1, 2))
        inside = ((apart @ self.directions.T) ** 2).sum(axis=(1, 2))
        return np.divide(inside, total, out=np.full(len(points), np.nan), where=total > 0)


def fit_drawn_plane(
    points: Float[np.ndarray, "frame n d"],
    how: PlaneName | ArrayLike = "pca",
    classes: Int[np.ndarray, "n"] | None = None,
) -> DrawnPlane:
    """Return one plane for all frames.

    Args:
        points: the same points at every checkpoint.
        how: ``"pca"``, the two principal components of the points of all frames together. ``"last"``, those of the last
            frame. ``"classes"``, those of the class means in the last frame. Or ``[2 d]``, two directions, which are
            made orthonormal in this order. The plane's origin is the mean used for the components or, with two
            directions, the origin of the space.
        classes: which class each point has, for ``"classes"``.

    Raises:
        InputError: for an unknown name, or directions of the wrong shape or along one line.

    Example:
        >>> points = np.random.default_rng(0).normal(size=(5, 40, 3)) * [3.0, 1.0, 0.01]
        >>> abs(fit_drawn_plane(points).directions.round(1)).tolist()
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    d = points.shape[-1]
    if not isinstance(how, str):
        return DrawnPlane(_orthonormal(np.asarray(how, dtype=np.float64), d), np.zeros(d))
    if how not in _PLANE_NAMES:
        raise InputError(f"plane is {how!r}; expected 'pca', 'last', 'classes', or two directions [2 {d}]")
    rows = points.reshape(-1, d) if how == "pca" else points[-1]
    if how == "classes" and classes is not None:
        rows = np.stack([rows[classes == c].mean(axis=0) for c in np.unique(classes)])
    rows = rows[np.isfinite(rows).all(axis=1)].astype(np.float64)
    centre = rows.mean(axis=0) if len(rows) else np.zeros(d)
    _, sizes, components = np.linalg.svd(rows - centre, full_matrices=False)
    components = components[sizes > _ROUNDING * sizes[:1]]
    # With fewer than two components, as of two classes, the plane is completed along the axes.
    basis = np.linalg.qr(np.concatenate([components[:2], np.eye(d)]).T)[0].T[:2]
    signs = np.sign(basis[np.arange(2), np.abs(basis).argmax(axis=1)])
    return DrawnPlane(basis * signs[:, None], centre)


def _orthonormal(directions: Float[np.ndarray, "..."], d: int) -> Float[np.ndarray, "2 d"]:
    if directions.shape != (2, d):
        raise InputError(f"the plane's directions have shape {directions.shape}; expected {(2, d)}, two directions")
    basis, corner = np.linalg.qr(directions.T)
    if not (np.isfinite(corner).all() and np.abs(np.diag(corner)).min() > 1e-9 * np.abs(corner).max()):
        raise InputError("the plane's two directions lie along one line; give two that do not")
    return np.asarray(basis.T * np.sign(np.diag(corner))[:, None])


def drawn_plane_reach(points: Shaped[np.ndarray, "frame ..."]) -> float:
    """Return the largest coordinate without outlier frames, with a margin."""
    furthest = np.abs(points.reshape(len(points), -1)).max(axis=1)
    return 1.08 * float(np.nanpercentile(furthest, 98)) or 1.0
