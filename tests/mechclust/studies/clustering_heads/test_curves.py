"""Drops, spikes and quiet epochs of constructed curves."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechclust.studies.clustering_heads.curves import (
    Spike,
    away_from,
    drops_after_guessing,
    first_above,
    first_below,
    loss_drops,
    loss_spikes,
    spikes_after_solving,
)
from tasks import InputError

NAN = float("nan")


def published(end: int = 1000) -> np.ndarray:
    """The two-phase run of Odonnat, Bouaziz & Cabannes: epochs 244-260 and 340-365."""
    epochs, losses = [0, 244, 260, 340, 365, 510], [0.69, 0.69, 0.47, 0.36, 0.1, 1e-4]
    return np.interp(np.arange(end), epochs, losses)


def noise(n: int, seed: int, size: float = 0.03) -> np.ndarray:
    return 1 + size * np.random.default_rng(seed).standard_normal(n)


def dates(loss: Any, **arguments: Any) -> list[tuple[int, int]]:
    return [(drop.start, drop.end) for drop in loss_drops(loss, **arguments)]


# ---- first_below, first_above ----


def test_the_first_place_beyond_a_level_is_strictly_beyond() -> None:
    assert first_below([0.3, 0.1, 0.05, 0.2, 0.0], 0.1) == 2
    assert first_above([0.3, 0.9, 0.98, 0.99, 1.0], 0.98) == 3
    assert first_below([0.3, 0.1], 0.1) is None
    assert first_above([], 0.0) is None
    assert type(first_below([1.0, 0.0], 0.5)) is int


def test_nan_is_beyond_no_level() -> None:
    assert first_below([NAN, 1.0, NAN, 0.0], 0.5) == 3
    assert first_above([NAN, NAN], -1.0) is None


# ---- loss_drops ----


def test_the_published_run_has_its_two_phases() -> None:
    first, second = loss_drops(published())
    assert (first.start, first.end) == (245, 260)
    assert (second.start, second.end) == (341, 363)
    assert (first.before, first.after) == (pytest.approx(0.69), pytest.approx(0.47, abs=0.015))
    assert (second.before, second.after) == (pytest.approx(0.36, abs=0.015), pytest.approx(0.1, abs=0.01))
    assert all(type(x) is kind for x, kind in zip(first, (int, int, float, float), strict=True))


@pytest.mark.parametrize("seed", range(5))
def test_noise_of_a_few_percent_moves_the_dates_little(seed: int) -> None:
    first, second = loss_drops(published() * noise(1000, seed))
    assert (abs(first.start - 244), abs(first.end - 260)) <= (6, 6)
    assert (abs(second.start - 340), abs(second.end - 365)) <= (6, 6)


@pytest.mark.parametrize("end", [600, 3000])
def test_phases_do_not_depend_on_how_long_training_went_on(end: int) -> None:
    assert dates(published(end)) == dates(published(1000))


def test_a_fast_start_hides_no_phase() -> None:
    """Unlikely classes are unlearnt within a few epochs, before the plateau."""
    loss = published()
    loss[:6] += [0.8, 0.4, 0.2, 0.1, 0.05, 0.02]
    assert dates(loss)[-2:] == [(245, 260), (341, 363)]


@pytest.mark.parametrize("seed", range(5))
def test_what_never_falls_has_no_phase(seed: int) -> None:
    assert loss_drops(np.full(1000, 0.69)) == []
    assert loss_drops(0.69 * noise(1000, seed)) == []
    assert loss_drops(np.linspace(0.1, 0.7, 1000) * noise(1000, seed)) == []


def test_a_slow_drift_is_no_phase_however_far_it_goes() -> None:
    assert loss_drops(np.linspace(0.7, 0.0, 1000)) == []
    assert loss_drops(0.7 * np.exp(-np.arange(1000) / 250)) == []


@pytest.mark.parametrize("length", [1, 4, 30])
def test_one_fall_is_one_phase(length: int) -> None:
    loss = np.interp(np.arange(400), [200, 200 + length], [0.7, 0.1])
    ((start, end),) = dates(loss)
    assert start == pytest.approx(200 + length / 10, abs=1)
    assert end == pytest.approx(200 + 0.9 * length, abs=1)


def test_a_drop_covers_its_share_of_the_starting_level() -> None:
    loss = np.concatenate([np.full(50, 1.0), np.full(50, 0.85), np.full(50, 0.0)])
    assert dates(loss) == [(49, 50), (99, 100)]
    assert dates(loss, least=0.14) == [(49, 50), (99, 100)]
    assert dates(loss, least=0.16) == [(99, 100)]


def test_speed_is_measured_over_the_window() -> None:
    loss = np.interp(np.arange(400), [100, 300], [0.7, 0.1])
    assert dates(loss) == []
    ((start, end),) = dates(loss, window=40)
    assert (start, end) == (pytest.approx(120, abs=3), pytest.approx(280, abs=3))


@pytest.mark.parametrize("length", [1, 3, 5, 40])
def test_the_way_back_from_a_spike_is_no_phase(length: int) -> None:
    loss = published()
    loss[150 : 150 + length] = 2.0
    loss[300 : 300 + length] = 1.5  # on the plateau between the phases
    loss[700 : 700 + length] = 0.9
    np.testing.assert_allclose(dates(loss), dates(published()), atol=2)


def test_a_jump_that_stays_is_no_phase_and_neither_is_the_way_back_from_it() -> None:
    loss = np.concatenate([published(), np.full(100, 0.8), np.full(100, 1e-3)])
    assert dates(loss) == dates(published())
    assert dates(loss[1000:]) == [(99, 100)]  # cut at the jump, as the documentation says


def test_one_lucky_epoch_is_no_phase() -> None:
    loss = np.full(200, 0.7)
    loss[[0, 80, 199]] = 0.0
    assert loss_drops(loss) == []


def test_missing_epochs_hide_no_phase_and_make_none() -> None:
    loss = published()
    loss[[0, 100, 101, 250]] = NAN
    loss[400] = math.inf
    np.testing.assert_allclose(dates(loss), dates(published()), atol=1)
    gone = published()
    gone[300:] = NAN
    assert dates(gone) == [(245, 260)]
    assert loss_drops(np.full(50, NAN)) == []
    overflow = published()
    overflow[:20] = math.inf
    assert dates(overflow) == dates(published())
    late = np.concatenate([np.full(30, NAN), np.full(50, 0.7), np.full(50, 0.0)])
    assert dates(late) == [(79, 80)]


@pytest.mark.parametrize("loss", [[], [0.7], [0.7] * 5 + [0.0] * 5, [0.0] * 50])
def test_what_is_too_short_or_zero_has_no_phase(loss: list[float]) -> None:
    assert loss_drops(loss) == []


# ---- loss_spikes ----


def test_the_spike_of_a_fine_tuned_run_is_found() -> None:
    loss = np.full(60, 6e-5)
    loss[40:43] = [0.11, 0.03, 0.004]
    assert loss_spikes(loss) == [Spike(40, 0.11, 6e-5, 43)]
    assert [type(x) for x in loss_spikes(loss)[0]] == [int, float, float, int]


def test_a_spike_ends_where_the_loss_is_below_the_threshold_of_before() -> None:
    """The median of the epochs just before would have moved with the spike."""
    loss = np.full(60, 0.01)
    loss[20:45] = 0.2
    loss[45:48] = 0.051
    assert loss_spikes(loss) == [Spike(20, 0.2, 0.01, 48)]
    loss[45:48] = 0.05  # exactly at the threshold is back
    assert loss_spikes(loss) == [Spike(20, 0.2, 0.01, 45)]


def test_what_is_away_from_spikes() -> None:
    spikes = [Spike(2, 0.3, 0.01, end=3), Spike(10, 0.3, 0.01, end=12)]
    assert np.flatnonzero(away_from(spikes, 18, 3)).tolist() == [6, 7, 15, 16, 17]
    assert away_from([], 4, 3).all()


def test_a_jump_that_stays_is_one_spike_to_the_end() -> None:
    assert loss_spikes([0.01] * 20 + [0.9] * 100) == [Spike(20, 0.9, 0.01, 120)]


def test_a_long_spike_does_not_hide_the_next_one() -> None:
    loss = np.full(60, 0.01)
    loss[20:30], loss[32] = 0.5, 0.4
    assert loss_spikes(loss) == [Spike(20, 0.5, 0.01, 30), Spike(32, 0.4, 0.01, 33)]


def test_what_stays_below_the_floor_is_no_spike() -> None:
    loss = np.full(60, 1e-6)
    loss[30:33] = [1e-3, 9e-4, 1e-4]
    assert loss_spikes(loss) == []
    assert [spike.epoch for spike in loss_spikes(loss, floor=9.5e-4)] == [30]
    loss[30] = 1.1e-3
    assert loss_spikes(loss) == [Spike(30, 1.1e-3, 1e-6, 31)]  # and ends there


def test_the_first_epochs_cannot_be_spikes() -> None:
    loss = np.full(60, 0.01)
    loss[9] = 1.0
    assert loss_spikes(loss) == []
    loss[9], loss[10] = 0.01, 1.0
    assert [spike.epoch for spike in loss_spikes(loss)] == [10]
    assert loss_spikes(loss, window=11) == []
    loss[3] = 1.0
    assert [spike.epoch for spike in loss_spikes(loss, window=3)] == [3, 10]


def test_factor_is_compared_with_the_median_not_the_mean() -> None:
    loss = [0.1] * 6 + [0.01] * 4 + [0.45, 0.51] + [0.1] * 10
    assert loss_spikes(loss) == [Spike(11, 0.51, 0.1, 12)]
    assert [spike.epoch for spike in loss_spikes(loss, factor=4.4)] == [10]
    assert [spike.epoch for spike in loss_spikes([0.1] * 20 + [0.19, 0.1], factor=1.8)] == [20]


def test_the_median_is_that_of_the_window_alone() -> None:
    loss = [0.7] * 30 + [0.01] * 10 + [0.1] + [0.01] * 5
    assert loss_spikes(loss) == [Spike(40, 0.1, 0.01, 41)]
    assert loss_spikes(loss, window=30) == []


@given(st.lists(st.floats(1e-6, 10), min_size=12, max_size=40))
def test_without_earlier_spikes_the_definition_is_met_literally(values: list[float]) -> None:
    loss = np.array(values)
    literal = [i for i in range(10, len(loss)) if loss[i] > max(5 * np.median(loss[i - 10 : i]), 1e-3)]
    found = loss_spikes(loss)
    assert [spike.epoch for spike in found[:1]] == literal[:1]
    assert all(a.end <= b.epoch for a, b in pairwise(found))


def test_drops_count_from_guessing_on_and_spikes_after_solving() -> None:
    """Without either there are none."""
    assert drops_after_guessing([9.0] * 50 + [4.0] * 50, 2) == []
    loss = [0.01] * 20 + [1.0] + [0.01] * 9
    solved = [0.5] * 20 + [1.0] * 10  # at the spike itself
    assert spikes_after_solving(loss, solved, 0.98) == []
    assert spikes_after_solving(loss, [*solved[1:], 1.0], 0.98) == loss_spikes(loss)


@pytest.mark.parametrize("seed", range(5))
def test_runs_without_spikes_have_none(seed: int) -> None:
    assert loss_spikes(published() * noise(1000, seed)) == []


def test_nan_starts_no_spike_and_ends_none() -> None:
    assert loss_spikes([0.01] * 20 + [NAN] * 10) == []
    assert loss_spikes([0.01] * 20 + [0.9, NAN, 0.9, 0.01]) == [Spike(20, 0.9, 0.01, 23)]
    assert loss_spikes([0.01] * 20 + [0.9, NAN, NAN]) == [Spike(20, 0.9, 0.01, 23)]
    assert [spike.epoch for spike in loss_spikes([0.01] * 9 + [NAN, 0.9, 0.01, 0.9])] == [12]
    assert loss_spikes([0.01] * 12 + [math.inf, 0.01]) == [Spike(12, math.inf, 0.01, 13)]


@pytest.mark.parametrize("function", [loss_drops, loss_spikes])
def test_curves_have_one_axis(function: Any) -> None:
    with pytest.raises(InputError, match=re.escape("loss has shape (2, 2); expected one number per epoch")):
        function([[1.0, 2.0], [3.0, 4.0]])


@pytest.mark.parametrize("function", [first_below, first_above])
def test_levels_are_passed_by_one_curve(function: Any) -> None:
    with pytest.raises(InputError, match=re.escape("curve has shape (); expected one number per epoch")):
        function(1.0, 0.5)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (loss_drops, {"window": 0}, "window is 0; expected at least 1"),
        (loss_drops, {"least": 0.0}, "least is 0.0; expected a share between 0 and 1, such as 0.1"),
        (loss_drops, {"least": 1}, "least is 1; expected a share between 0 and 1, such as 0.1"),
        (loss_spikes, {"window": 0}, "window is 0; expected at least 1"),
        (loss_spikes, {"factor": 1.0}, "factor is 1.0; expected more than 1, such as 5.0"),
        (loss_spikes, {"factor": NAN}, "factor is nan; expected more than 1, such as 5.0"),
        (loss_spikes, {"floor": -1.0}, "floor is -1.0; expected at least 0"),
    ],
)
def test_what_is_refused(function: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        function([0.1] * 20, **arguments)
