"""Changes between checkpoints and means over layers, with intervals, on curves whose halves are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mechclust.commands.history.changes import mean_over_layers
from tests.mechclust.commands.history.made import made_curve, made_result, rows

LOW, NO = 1e-4, 0.8
CHANGES = "Change: clusters against tasks"


def curve_with_halves(change, noise=0.02, **fields):
    """Three checkpoints of two layers, of which the last differs from the first by ``change``."""
    value = np.array([[0.1, 0.2], [0.1, 0.2], [0.1 + change, 0.2 + change]])
    halves = value[:, :, None] + noise * np.random.default_rng(0).normal(size=(3, 2, 50))
    ends = {"value_low": value - 0.05, "value_high": value + 0.05}
    p = np.array([[NO, NO], [LOW, NO], [LOW, LOW]])
    return made_curve(p, value=value, **{"halves": halves, "n_units": 30, **ends, **fields})


@pytest.mark.parametrize(("change", "verdict"), [(0.3, "It rose."), (-0.3, "It fell."), (0.001, "")])
def test_the_change_is_read_with_its_interval(change, verdict):
    (reading,) = (r for r in made_result([curve_with_halves(change)]).readings if r.what == CHANGES)
    assert reading.value.startswith(f"{change:.2f} (")
    assert reading.value.endswith(") from 'step0' to 'step2'")
    assert (reading.where, reading.verdict) == ("mean over layers", verdict)


def test_flagged_checkpoints_have_no_part_in_a_change():
    ((_, change),) = rows(made_result([curve_with_halves(0.3)], flagged=[2]), CHANGES)
    assert change.endswith(" from 'step0' to 'step1'")


def test_a_layer_that_is_undefined_at_a_checkpoint_has_no_part_in_a_change():
    value = np.array([[np.nan, 0.2], [0.1, 0.2], [np.nan, 0.5]])
    result = made_result([replace(curve_with_halves(0.3, halves=None), value=value)])
    assert rows(result, CHANGES) == [("mean over layers", "0.30 from 'step0' to 'step2'")]


def test_halves_that_are_the_same_in_all_layers_do_not_average_out():
    """Noise of the prompts is common to all layers."""
    curve = curve_with_halves(0.3)
    common = np.random.default_rng(1).normal(size=50)
    common /= common.std()
    alike = made_curve(curve.p, value=curve.value, halves=curve.value[:, :, None] + 0.02 * common, n_units=30)
    width = np.diff(mean_over_layers(curve, 2)[1])
    assert np.diff(mean_over_layers(alike, 2)[1]) > 1.2 * width


def test_without_halves_there_is_a_change_without_an_interval():
    result = made_result([curve_with_halves(0.3, halves=None)])
    assert rows(result, CHANGES) == [("mean over layers", "0.30 from 'step0' to 'step2'")]


def test_brackets_are_explained_only_where_there_are_intervals():
    for ends, explained in (({}, True), (dict.fromkeys(("value_low", "value_high"), np.full((3, 2), np.nan)), False)):
        caveats = made_result([curve_with_halves(0.3, **ends)]).caveats
        assert any(note.startswith("In brackets after a value") for note in caveats) == explained


def test_a_crossing_shows_the_interval():
    result = made_result([curve_with_halves(0.3)])
    assert rows(result, "Crosses chance: ")[0] == ("layer 0", "at 'step1', 0.10 (0.05 to 0.15)")
    assert any("95% interval over prompts" in note for note in result.caveats)
