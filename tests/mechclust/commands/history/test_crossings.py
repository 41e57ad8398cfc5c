"""When a layer crosses chance, on curves whose p-values are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from mechclust.commands.history.curves import crossings
from tests.mechclust.commands.history.made import made_curve, made_result, rows

LOW, NO = 1e-4, 0.8


def row(p, right=None):
    """The crossing of one layer with these p-values."""
    names = [f"step{i}" for i in range(len(p))]
    right = list(range(len(p))) if right is None else right
    return crossings(made_curve(np.array(p)[:, None]), names, right).iloc[0]


@pytest.mark.parametrize(
    ("p", "crosses_at", "after", "note"),
    [
        ([NO, NO, LOW, LOW, LOW], "step2", "step1", ""),
        ([LOW, LOW, LOW, LOW, LOW], "step0", None, "above chance from the first checkpoint"),
        ([NO, NO, NO, NO, NO], None, None, "never above chance"),
        ([NO, LOW, NO, NO, NO], None, None, "above chance at single checkpoints only"),
        ([LOW, NO, NO, LOW, LOW], "step3", "step2", ""),
        ([NO, LOW, LOW, NO, NO], "step1", "step0", "at chance again later"),
        ([LOW, LOW, LOW, NO, NO], "step0", None, "above chance from the first checkpoint; at chance again later"),
        ([NO, NO, NO, NO, LOW], "step4", "step3", "at the last checkpoint, with none after it to confirm"),
    ],
)
def test_the_first_checkpoint_above_chance_that_the_next_confirms(p, crosses_at, after, note):
    found = row(p)
    assert found["note"] == note
    for name, expected in (("crosses_at", crosses_at), ("after", after)):
        assert found[name] == expected or (expected is None and pd.isna(found[name]))


@pytest.mark.parametrize(
    ("p", "crosses_at", "after"),
    [
        pytest.param([NO, LOW, NO, LOW, LOW], "step1", "step0", id="a flagged one at chance does not end it"),
        pytest.param([NO, LOW, LOW, NO, NO], None, None, id="a flagged one does not confirm"),
        pytest.param([NO, NO, LOW, LOW, LOW], "step3", "step1", id="a flagged one is no crossing, nor the one before"),
    ],
)
def test_a_flagged_checkpoint_is_left_out(p, crosses_at, after):
    found = row(p, right=[0, 1, 3, 4])
    for name, expected in (("crosses_at", crosses_at), ("after", after)):
        assert found[name] == expected or (expected is None and pd.isna(found[name]))


def test_single_checkpoints_above_chance_are_told():
    p = np.ones((4, 3))
    p[1, 2] = 0.001
    single = made_result([made_curve(p)])
    assert rows(single, "Crosses chance") == [("layers 0-2", "never")]
    (never,) = (reading for reading in single.readings if reading.value == "never")
    assert never.verdict == "Above chance at single checkpoints only: layer 2."
    assert single.headline.endswith("Layers crossing chance: none of 3 (clusters against tasks).")
    none = made_result([made_curve(np.ones((4, 3)))])
    assert rows(none, "Crosses chance") == [("layers 0-2", "never")]
    assert all(reading.verdict == "" for reading in none.readings if reading.value == "never")


def test_readings_of_a_crossing():
    p = np.array([[NO, NO, NO, NO], [LOW, NO, NO, NO], [LOW, LOW, NO, LOW], [NO, LOW, NO, LOW], [NO, LOW, NO, LOW]])
    curve = made_curve(p, layers=[0, 2, 5, 6])
    result = made_result([curve])
    assert result.headline == (
        "All 5 checkpoints pass integrity checks. Layers crossing chance: 3 of 4 (clusters against tasks), half by "
        "'step2'."
    )
    first, second, never = (reading for reading in result.readings if reading.what.startswith("Crosses chance: "))
    assert (first.where, first.value) == ("layer 0", f"at 'step1', {curve.value[1, 0]:.2f}")
    assert (first.chance, first.random_weights) == (f"at most {curve.high[1, 0]:.2f}", f"{curve.value[0, 0]:.2f}")
    assert first.verdict == "At chance again later: layer 0."
    values = f"{curve.value[2, 1]:.2f} to {curve.value[2, 3]:.2f}"
    assert (second.where, second.value, second.verdict) == ("layers 2, 6", f"at 'step2', {values}", "")
    assert second.random_weights == f"{curve.value[0, 1]:.2f} to {curve.value[0, 3]:.2f}"
    assert (never.where, never.value) == ("layer 5", "never")


@pytest.mark.parametrize(("n", "joined"), [(5, "at 1 later checkpoint"), (7, "at 3 later checkpoints")])
def test_crossings_at_many_checkpoints_are_joined(n, joined):
    p = np.where(np.arange(9)[:, None] > np.arange(n), LOW, NO)
    result = made_result([made_curve(p)])
    at = [f"at 'step{i}'" for i in range(1, 5)]
    assert [value.partition(",")[0] for _, value in rows(result, "Crosses")] == [*at, joined]
    assert rows(result, "Crosses chance")[-1][0] == ("layer 4" if n == 5 else "layers 4-6")


@pytest.mark.parametrize("name", ["clusters", "heads", "topics"])
def test_a_headline_has_at_most_25_words(name):
    result = made_result([made_curve(np.full((4, 3), LOW), name=name)], flagged=[2])
    assert "with random weights" in result.headline
    assert len(result.headline.split()) <= 25


def test_a_row_has_the_values_of_its_crossing():
    p = np.array([[NO, LOW, NO], [NO, LOW, LOW], [NO, LOW, LOW]])
    curve = made_curve(p, layers=[0, 2, 5])
    table = crossings(curve, ["a", "b", "c"], [0, 1, 2])
    assert table["layer"].tolist() == [0, 2, 5]
    assert table["site"].tolist() == list(curve.sites)
    assert set(table["measure"]) == {"clusters"}
    assert table["value"][1:].tolist() == [curve.value[0, 1], curve.value[1, 2]]
    assert table["null_high"][1:].tolist() == [curve.high[0, 1], curve.high[1, 2]]
    assert np.isnan(table.loc[0, ["value", "null_high"]].to_numpy(dtype=float)).all()


def rejected(p):
    """By Benjamini & Hochberg's rule as they state it: all up to the largest k with p(k) <= k / m of the level."""
    ordered = np.sort(p[np.isfinite(p)])
    within = [value for k, value in enumerate(ordered, 1) if value <= 0.05 * k / len(ordered)]
    return p <= (within[-1] if within else -1)


def first_confirmed(above):
    """Where it is above twice in a row, or at the end."""
    return next((k for k in range(len(above)) if above[k] and (k + 1 == len(above) or above[k + 1])), None)


def test_p_values_are_corrected_for_all_layers_and_checkpoints_without_findings():
    draw = np.random.default_rng(0)
    names, right = [f"step{i}" for i in range(6)], [0, 1, 2, 4, 5]
    places, ways = [], dict.fromkeys(("plain", "by layer", "by checkpoint", "with flagged"), 0)
    for _ in range(60):
        p = np.where(draw.random((6, 4)) < 0.5, draw.random((6, 4)) * 0.03, draw.random((6, 4)))
        p[3] = 1e-6  # of a flagged checkpoint: it would make all the others easier
        p[draw.integers(0, 6), draw.integers(0, 4)] = np.nan
        above = rejected(p[right].reshape(-1)).reshape(5, 4)
        expected = [first_confirmed(above[:, layer]) for layer in range(4)]
        table = crossings(made_curve(p), names, right)
        at = [None if pd.isna(name) else name for name in table["crosses_at"]]
        assert at == [None if k is None else names[right[k]] for k in expected]
        places += expected
        others = {
            "plain": p[right] <= 0.05,
            "by layer": np.stack([rejected(p[right, layer]) for layer in range(4)], axis=1),
            "by checkpoint": np.stack([rejected(p[i]) for i in right]),
            "with flagged": rejected(p.reshape(-1)).reshape(6, 4)[right],
        }
        for way, other in others.items():
            ways[way] += [first_confirmed(other[:, layer]) for layer in range(4)] != expected
    assert set(places) == {None, 0, 1, 2, 3, 4}
    assert min(ways.values()) > 0  # other corrections would have given other crossings


def test_the_headline_of_a_measure_without_crossings():
    curve = made_curve(np.full((3, 2), np.nan), name="cka_last")
    result = made_result([curve], flagged=[2])
    first, last = (f"{curve.value[i].mean():.2f}" for i in (0, 1))
    means = f"CKA with the last checkpoint (debiased), mean over layers: {first} at 'step0', {last} at 'step1'."
    assert result.headline == f"1 of 3 checkpoints fails integrity checks. {means}"
    assert str(result.readings[-1]) == means
    nothing = made_result([curve.without([0, 1])], flagged=[2])
    assert nothing.headline == "1 of 3 checkpoints fails integrity checks."


def test_a_single_checkpoint_is_named_once():
    curve = made_curve(np.full((3, 2), np.nan), name="cka_last")
    headline = made_result([curve], flagged=[0, 2]).headline
    assert headline.endswith(f"mean over layers: {curve.value[1].mean():.2f} at 'step1'.")
    assert headline.count("step") == 1


class TestUnknown:
    """Layers without a p-value are not said to stay at chance."""

    @pytest.fixture
    def curve(self):
        """Layer 0 could not be tested, layer 1 is undefined, layer 2 stays at chance."""
        p = np.tile([np.nan, np.nan, NO], (3, 1))
        value = np.tile([0.9, np.nan, 0.0], (3, 1))
        return made_curve(p, value=value)

    def test_of_some_layers(self, curve):
        result = made_result([curve])
        assert result.crossings["note"].tolist() == [
            "too few relabellings for a p-value",
            "undefined at every checkpoint",
            "never above chance",
        ]
        assert rows(result, "Crosses chance") == [("layer 0", "unknown"), ("layer 1", "unknown"), ("layer 2", "never")]

    def test_of_all_layers(self, curve):
        curve = replace(curve, p=np.full((3, 3), np.nan))
        result = made_result([curve])
        assert "crossing chance" not in result.headline
        assert result.headline.endswith("Not tested against chance, for want of relabellings: clusters against tasks.")
        assert not [note for note in result.caveats if "--n-permutations" in note]
