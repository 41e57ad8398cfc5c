"""Curves of as many tasks as wanted, with the medians, quartiles and correlations of the paper's figures."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np

from mechclust.mossa.published import COLEMAN_LIAU, DATA_SIZE, FLESCH_KINCAID, N_LAYERS
from mechclust.mossa.task_curves import TaskCurves

_QUARTILE = 0.6745  # of a standard normal distribution
_LASTING = 0.9  # share of the variance between tasks that is the same at every layer
_DATA = Path(__file__).parents[2] / "data" / "mossa"
_CORRELATIONS = {  # with CKA of one model over tasks (the paper's figure 6)
    FLESCH_KINCAID: ("tuned", (0.38 + 0.43) / 2),
    COLEMAN_LIAU: ("tuned", (0.41 + 0.45) / 2),
    DATA_SIZE: ("base", (0.46 + 0.46) / 2),
}


def published_curves(n_seen: int, n_held_out: int, seed: int = 0) -> TaskCurves:
    """Draw tasks that lie above or below the published median by as much at every layer, but for a tenth."""
    rng = np.random.default_rng(seed)
    n = n_seen + n_held_out
    held_out = np.arange(n) >= n_seen
    values = {}
    lasting = {}
    for which, kind in (("base", "pre"), ("tuned", "sft")):
        lasting[which] = rng.standard_normal(n)
        noise = rng.standard_normal((n, N_LAYERS))
        place = math.sqrt(_LASTING) * lasting[which][:, None] + math.sqrt(1 - _LASTING) * noise
        seen, unseen = (_at(file, kind, place) for file in ("fig2_seen_tasks.csv", "fig7_unseen_tasks.csv"))
        values[which] = np.where(held_out[:, None], unseen, seen)
    covariates = {}
    for covariate, (which, r) in _CORRELATIONS.items():
        covariates[covariate] = r * lasting[which] + math.sqrt(1 - r**2) * rng.standard_normal(n)
    layers = range(1, N_LAYERS + 1)
    return TaskCurves(
        tuple(map(str, range(n))), tuple(map(str, layers)), values["base"], values["tuned"], None, None, held_out,
        (None,) * n, {}, covariates,
    )  # fmt: skip


def _at(file: str, kind: str, place: np.ndarray) -> np.ndarray:
    with open(_DATA / file) as lines:
        rows = list(csv.DictReader(lines))
    table = np.array([[float(row[f"{kind}_{end}"] or "nan") for row in rows] for end in ("q1", "median", "q3")])
    known = np.isfinite(table).all(axis=0)
    layers = np.arange(1, N_LAYERS + 1)
    low, median, high = (np.interp(layers, layers[known], row[known]) for row in table)
    return np.minimum(median + place / _QUARTILE * np.where(place > 0, high - median, median - low), 1.0)
