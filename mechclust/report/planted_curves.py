"""Curves drawn from the published ones: data in which the paper's claims are true, for the power of a run's claims."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from mechclust.report.published_mossa import CORRELATIONS, DIMS, HELD_OUT, N_LAYERS, SEEN, Quartiles
from mechclust.report.task_curves import TaskCurves

_QUARTILE = 0.6745  # of a standard normal distribution
_LASTING = 0.9  # share of the variance between tasks that is the same at every layer; the figures do not say


def planted(curves: TaskCurves, draw: np.random.Generator) -> TaskCurves:
    """As many tasks and layers as the curves have, drawn with the published medians and quartiles.

    Layers are matched by their share of the depth. A task lies above or below the median by as much at every layer,
    but for a tenth of the variance. Known covariates are drawn with the published correlations. Dimensions, where the
    curves have some, are the published ones. There is no ceiling and no null, which are not published.

    Example:
        >>> none, tasks, layers = np.zeros((40, 32)), tuple(map(str, range(40))), tuple(map(str, range(32)))
        >>> like = TaskCurves(tasks, layers, none, none, None, None, none[:, 0] > 0, (None,) * 40)
        >>> found = planted(like, np.random.default_rng(0))
        >>> found.base.shape, bool(found.gap[-1] > 0.2)
        ((40, 32), True)
    """
    n, shape = len(curves.tasks), (len(curves.tasks), curves.n_layers)
    found, lasting = {}, {}
    for which in ("base", "tuned"):
        lasting[which] = draw.standard_normal(n)
        own = draw.standard_normal(shape)
        place = math.sqrt(_LASTING) * lasting[which][:, None] + math.sqrt(1 - _LASTING) * own
        seen, unseen = (_at(part[which], place) for part in (SEEN, HELD_OUT))
        found[which] = np.where(curves.held_out[:, None], unseen, seen)
    covariates = {name: draw.standard_normal(n) for name in curves.covariates}
    for known in CORRELATIONS:
        r = (known.low + known.high) / 2
        if known.covariate in covariates and r > 0:
            noise = covariates[known.covariate]
            covariates[known.covariate] = r * lasting[known.which] + math.sqrt(1 - r**2) * noise
    depth = np.arange(1, curves.n_layers + 1) * N_LAYERS / curves.n_layers
    dims = {which: np.interp(depth, [*DIMS[which]], [*DIMS[which].values()]) for which in curves.dims}
    return replace(
        curves, base=found["base"], tuned=found["tuned"], ceiling=None, null=None, dims=dims, covariates=covariates
    )


def _at(published: Quartiles, place: np.ndarray) -> np.ndarray:
    """``[task layer]`` similarity of tasks so many standard deviations from the median."""
    low, median, high = _by_depth(published, place.shape[1])
    return np.minimum(median + place / _QUARTILE * np.where(place > 0, high - median, median - low), 1.0)


def _by_depth(published: Quartiles, n_layers: int) -> list[np.ndarray]:
    """Quartiles at so many layers, by their share of the depth; what is not shown is as at the next layer that is."""
    tables = np.array([published.low, published.median, published.high])
    known = np.isfinite(tables).all(axis=0)
    layers = np.arange(1, N_LAYERS + 1)[known]
    wanted = np.arange(1, n_layers + 1) * N_LAYERS / n_layers
    return [np.interp(wanted, layers, table[known]) for table in tables]
