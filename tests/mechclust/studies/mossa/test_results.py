"""A seed's measurements as curves by task: the numbers that the study always had."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mechclust.studies.mossa.report import headline
from tests.mechclust.mossa.layer_groups_of_curves import layer_groups
from tests.mechclust.studies.mossa.made import SEEN, measured


def quartile_range(values: np.ndarray) -> np.ndarray:
    low, high = np.quantile(values, (0.25, 0.75), axis=0)
    return high - low


def test_medians_ranges_and_groups_are_over_the_tasks_asked_for():
    m = measured()
    assert np.array_equal(m.curves.seen.median("base"), np.median(m.cka["base"][SEEN], axis=0))
    assert np.array_equal(m.curves.unseen.spread("tuned"), quartile_range(m.cka["tuned"][~SEEN]))
    curves = [np.median(m.cka[which][SEEN], axis=0) for which in ("base", "tuned")]
    assert m.groups == layer_groups(*curves, quartile_range(m.cka["tuned"][SEEN]), m.dims["tuned"])


def test_no_task_is_no_number():
    everything = replace(measured(), seen=np.ones(24, dtype=bool), ceiling=None)
    assert np.isnan(everything.curves.unseen.median("base")).all()
    assert not everything.unseen_groups.transition


def test_the_headline_has_the_last_layer_before_and_after_tuning_also_of_one_seed():
    conclusion = headline([measured()])
    assert conclusion == "Last layer: median CKA with single-task models 0.50 before tuning, 0.90 after."
