"""Curves of as many tasks as wanted, with the medians, quartiles and correlations of the paper's figures."""

from __future__ import annotations

import math

import numpy as np

from mechclust.mossa.published import CORRELATIONS, HELD_OUT, N_LAYERS, SEEN, PublishedQuartiles
from mechclust.mossa.task_curves import TaskCurves

_QUARTILE = 0.6745  # of a standard normal distribution
_LASTING = 0.9  # share of the variance between tasks that is the same at every layer


def published_curves(n_seen: int, n_held_out: int, seed: int = 0) -> TaskCurves:
    """Draw tasks that lie above or below the published median by as much at every layer, but for a tenth."""
    rng = np.random.default_rng(seed)
    n = n_seen + n_held_out
    held_out = np.arange(n) >= n_seen
    values = {}
    lasting = {}
    for which in ("base", "tuned"):
        lasting[which] = rng.standard_normal(n)
        noise = rng.standard_normal((n, N_LAYERS))
        place = math.sqrt(_LASTING) * lasting[which][:, None] + math.sqrt(1 - _LASTING) * noise
        seen, unseen = (_at(part[which], place) for part in (SEEN, HELD_OUT))
        values[which] = np.where(held_out[:, None], unseen, seen)
    covariates = {}
    for known in CORRELATIONS:
        r = (known.low + known.high) / 2
        if r > 0:
            noise = rng.standard_normal(n)
            covariates[known.covariate] = r * lasting[known.which] + math.sqrt(1 - r**2) * noise
    layers = range(1, N_LAYERS + 1)
    return TaskCurves(
        tuple(map(str, range(n))), tuple(map(str, layers)), values["base"], values["tuned"], None, None, held_out,
        (None,) * n, {}, covariates,
    )  # fmt: skip


def _at(published: PublishedQuartiles, place: np.ndarray) -> np.ndarray:
    table = np.array([published.low, published.median, published.high])
    known = np.isfinite(table).all(axis=0)
    layers = np.arange(1, N_LAYERS + 1)
    low, median, high = (np.interp(layers, layers[known], row[known]) for row in table)
    return np.minimum(median + place / _QUARTILE * np.where(place > 0, high - median, median - low), 1.0)
