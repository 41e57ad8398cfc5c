"""Measurements of a seed that were not measured."""

from __future__ import annotations

import numpy as np

from mechclust.studies.mossa.config import SEEN_TASKS
from mechclust.studies.mossa.results import SeedResults
from tasks import SkillSuite

SUITE = SkillSuite(seen=SEEN_TASKS)
NAMES = tuple(SUITE.task_names)
SEEN = np.array([name in SUITE.seen for name in NAMES])
ENCODED = np.array([name.startswith(("copy", "swap")) for name in NAMES])
LAYERS = 8


def curves(median, spread, rows):
    """``[task layer]`` with this median and interquartile range, exactly, over an even number of tasks."""
    place = np.linspace(-1, 1, rows)
    low, high = np.quantile(place, (0.25, 0.75))
    return np.asarray(median)[None] + place[:, None] / (high - low) * np.asarray(spread)[None]


def measured(draw: int = 0, **changes) -> SeedResults:
    """A seed on which every finding holds, like the paper's figures squeezed into 8 layers; seeds differ a little."""
    values = {
        "pre": [1.0, 0.98, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5],
        "pre_spread": [0.01, 0.05, 0.1, 0.2, 0.3, 0.33, 0.36, 0.4],
        "tuned": [0.99, 0.94, 0.98, 0.97, 0.96, 0.95, 0.94, 0.9],
        "tuned_spread": [0.02, 0.16, 0.06, 0.05, 0.03, 0.04, 0.06, 0.06],
        "unseen_tuned": [0.99, 0.94, 0.9, 0.85, 0.85, 0.8, 0.75, 0.7],
        "unseen_tuned_spread": [0.02, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.5],
        "dims": ([160, 160, 12, 12, 12, 12, 12, 12], [10, 10, 12, 30, 30, 30, 30, 30]),
        "zero_shot": 0.4,
        "encoded_gain": -0.05,
        "purer": [-0.3, -0.3, 0.0, 0.0, 0.1, 0.2, 0.3, 0.2],
        "bias": 0.01,
        "identity": 1e-14,
        **changes,
    }
    noise = np.random.default_rng(draw)
    cka = {kind: np.zeros((24, LAYERS)) for kind in ("base", "tuned")}
    for tasks, tuned in ((SEEN, "tuned"), (~SEEN, "unseen_tuned")):
        rows = int(tasks.sum())
        cka["base"][tasks] = curves(values["pre"], values["pre_spread"], rows)
        cka["tuned"][tasks] = curves(values[tuned], values[f"{tuned}_spread"], rows)
    # held-out tasks that were encoded have the greatest similarity and gain nothing
    order = np.r_[4:6, 0:4]
    for kind in ("base", "tuned"):
        cka[kind][~SEEN] = cka[kind][~SEEN][order]
    both = ~SEEN & ENCODED
    cka["tuned"][both] = np.minimum(cka["tuned"][both], cka["base"][both] - 0.01)
    # the order of tasks decides nothing but C7: tuned falls from task to task by as much as asked
    gain = cka["tuned"][SEEN] - cka["base"][SEEN]
    order = np.argsort(gain[:, LAYERS // 2 :].mean(axis=1))
    wanted = np.argsort(np.argsort(np.where(ENCODED[SEEN], values["encoded_gain"], 0.0), kind="stable"))
    for kind in ("base", "tuned"):
        cka[kind][SEEN] = cka[kind][SEEN][order][wanted]
        cka[kind] = cka[kind] + noise.normal(0, 1e-3, LAYERS)
    flat = np.full(LAYERS, 0.4)
    chance = np.full(24, 0.1)
    return SeedResults(
        names=NAMES,
        cka=cka,
        biased={kind: table + values["bias"] for kind, table in cka.items()},
        ceiling=np.full((int(SEEN.sum()), LAYERS), 0.99),
        dims=dict(zip(("base", "tuned"), map(np.array, values["dims"]), strict=True)),
        purity={"base": flat, "tuned": flat + np.asarray(values["purer"])},
        purity_chance=0.16,
        accuracy={"base": chance, "tuned": chance + values["zero_shot"], "control": np.ones(24)},
        chance=chance,
        seen=SEEN,
        encoded=ENCODED,
        cluster=np.arange(24) // 4,
        identity=values["identity"],
    )
