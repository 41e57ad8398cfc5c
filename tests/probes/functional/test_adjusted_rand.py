from __future__ import annotations

import math
import tracemalloc
from fractions import Fraction
from itertools import combinations, permutations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jaxtyping import Float, Int
from sklearn.metrics import adjusted_rand_score as reference
from sklearn.metrics.cluster import contingency_matrix

from probes.functional import adjusted_rand_moments, adjusted_rand_null, adjusted_rand_score
from probes.functional.adjusted_rand import smallest_adjusted_rand_p_value
from tasks import InputError
from tests.calibration.ari_moments import false_positive_rate

Labelings = list[tuple[int, int]]
Codes = Int[np.ndarray, "example"]
labelings = st.lists(st.tuples(st.integers(-2, 4), st.integers(0, 3)), min_size=1, max_size=40)


def exact(a: Int[np.ndarray, "example"], b: Int[np.ndarray, "example"]) -> Fraction:
    """Hubert & Arabie's index from the contingency table, in Python's own fractions."""

    def pairs(counts: Int[np.ndarray, "*cell"]) -> int:
        return sum(int(c) * (int(c) - 1) // 2 for c in counts.ravel())

    table = contingency_matrix(a, b)
    together = pairs(table)
    in_a = pairs(table.sum(1))
    in_b = pairs(table.sum(0))
    expected = Fraction(in_a * in_b, pairs(np.array([len(a)])))
    return (together - expected) / (Fraction(in_a + in_b, 2) - expected)


@settings(max_examples=100, deadline=None)
@given(labelings)
@example([(0, 0)])
@example([(0, 0), (0, 0)])
@example([(0, 0), (1, 1)])
@example([(0, 0), (0, 1)])
@example([(0, 0), (1, 0), (2, 0), (3, 0)])
@example([(0, 0), (1, 1), (2, 2), (3, 3)])
@example([(0, 0), (1, 1), (2, 2), (2, 3)])
def test_equals_scikit_learn(pairs: Labelings) -> None:
    a, b = map(list, zip(*pairs, strict=True))
    assert adjusted_rand_score(a, b) == pytest.approx(reference(a, b), abs=1e-12)


@settings(deadline=None)
@given(labelings)
def test_is_symmetric_and_blind_to_names_and_order(pairs: Labelings) -> None:
    a, b = (np.array(x) for x in zip(*pairs, strict=True))
    score = adjusted_rand_score(a, b)
    assert adjusted_rand_score(b, a) == score
    assert adjusted_rand_score(a[::-1], b[::-1]) == score
    assert adjusted_rand_score(100 - 3 * a, [f"class {x}" for x in b]) == score


@pytest.mark.parametrize("classes", [2, 50])
def test_exact_for_a_million_examples(classes: int) -> None:
    rng = np.random.default_rng(classes)
    a = rng.integers(classes, size=10**6)
    b = np.where(rng.random(10**6) < 0.3, a, rng.integers(classes, size=10**6))
    assert adjusted_rand_score(a, b) == float(exact(a, b))


def test_exact_where_int64_products_overflow() -> None:
    a = np.repeat([0, 1], [10**6 - 3, 3])
    b = np.roll(a, 1)
    assert adjusted_rand_score(a, b) == float(exact(a, b))


def test_what_is_refused() -> None:
    for function in (adjusted_rand_score, adjusted_rand_null):
        with pytest.raises(InputError, match="a has 2 rows and b 3; give both for the same rows"):
            function([0, 1], [0, 1, 1])
        with pytest.raises(InputError, match=r"a has shape \(0,\); expected labels \[row\], at least one of each"):
            function([], [])


def test_chance_is_centred_at_0_even_for_labelings_that_agree() -> None:
    labels = np.repeat(np.arange(5), [5, 10, 20, 40, 25])
    null = adjusted_rand_null(labels, labels, n_permutations=1000, seed=1)
    error = null.std() / np.sqrt(len(null))
    assert abs(null.mean()) < 4 * error
    assert null.std() < 0.05


def test_chance_is_the_score_of_shuffled_labels() -> None:
    rng = np.random.default_rng(3)
    a = rng.integers(20, size=50)  # with more pairs of classes than examples, no tables are drawn
    b = rng.integers(4, size=50)
    null = adjusted_rand_null(a, b, n_permutations=20, seed=7)
    shuffles = np.random.default_rng(7)
    expected = [reference(a, shuffles.permutation(b)) for _ in range(20)]
    np.testing.assert_allclose(null, expected, atol=1e-12)
    assert np.array_equal(null, adjusted_rand_null(a, b, n_permutations=20, seed=7))


def test_as_many_classes_as_examples_take_no_time_and_no_memory() -> None:
    """A dense table of these would be 3 GB, and 80 GB."""
    tracemalloc.start()
    assert adjusted_rand_score(np.arange(20_000), np.arange(20_000)) == 1.0
    pairs = np.arange(100_000)
    assert adjusted_rand_score(pairs, pairs // 2) == pytest.approx(reference(pairs, pairs // 2), abs=1e-12)
    adjusted_rand_null(pairs[:20_000] // 2, pairs[:20_000] // 3, n_permutations=2)
    assert tracemalloc.get_traced_memory()[1] < 2e8
    tracemalloc.stop()


def test_more_classes_than_units_are_within_the_limit_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    units = np.arange(2000) // 200
    case: dict[str, Any] = {"a": np.arange(2000), "b": units % 2, "n_permutations": 100, "units": units}
    expected = adjusted_rand_null(**case)
    monkeypatch.setattr("probes.functional.adjusted_rand.MAX_CELLS_AT_ONCE", 2**13)
    tracemalloc.start()
    null = adjusted_rand_null(**case)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (null == expected).all()
    assert peak < 2**20


@pytest.mark.parametrize("cells", [0, 12, 2**16])
def test_large_tables_are_counted_as_small_ones(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(20, size=60)
    b = rng.integers(4, size=60)
    expected = adjusted_rand_score(a, b), adjusted_rand_null(a, b, n_permutations=9)
    monkeypatch.setattr("probes.functional.adjusted_rand.MAX_DENSE_CELLS", cells)
    assert adjusted_rand_score(a, b) == expected[0] == pytest.approx(reference(a, b), abs=1e-12)
    assert np.array_equal(adjusted_rand_null(a, b, n_permutations=9), expected[1])


@pytest.mark.parametrize(
    "labels", [[0.0, np.nan, 1.0, np.nan], np.array(["a", None, "b", None], dtype=object), [1, float("nan"), 2, None]]
)
def test_nan_is_no_class(labels: Any) -> None:
    for function in (adjusted_rand_score, adjusted_rand_null):
        for pair in ((labels, [0, 1, 1, 0]), ([0, 1, 1, 0], labels)):
            with pytest.raises(InputError, match=r"^(a|b) has (nan|None) at row 1; leave the example out, or label it"):
                function(*pair)


def test_relabellings_are_all_partitions_that_shuffles_give() -> None:
    for labels in ([0, 0, 1], [0, 0, 1, 1], [0, 1, 2, 2], [0, 0, 1, 1, 2, 2], [5, 5, 5, 7, 7]):
        partitions = {
            frozenset(frozenset(i for i, x in enumerate(shuffled) if x == c) for c in set(labels))
            for shuffled in permutations(labels)
        }
        assert 1 / smallest_adjusted_rand_p_value(labels) == pytest.approx(len(partitions))


# ---- moments, strata, tables ----

SHAPES = [
    ([0, 0, 1, 1], [0, 1, 0, 1]),
    ([0, 0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 1, 1, 2]),
    ([0, 0, 0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 1, 1, 1, 1]),
    ([0, 0, 0, 0, 0, 0, 1], [0, 0, 1, 1, 2, 2, 2]),
    ([0, 1, 2, 2, 2], [0, 0, 0, 1, 1]),
]


@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_moments_are_those_of_all_relabellings(a: list[int], b: list[int]) -> None:
    values = np.array([adjusted_rand_score(a, shuffled) for shuffled in set(permutations(b))])
    moments = adjusted_rand_moments(a, b)
    apart = values - values.mean()
    assert moments.mean == 0 == pytest.approx(values.mean(), abs=1e-12)
    assert moments.variance == pytest.approx((apart**2).mean(), rel=1e-12)
    assert moments.skewness == pytest.approx((apart**3).mean() / (apart**2).mean() ** 1.5, rel=1e-9)


@pytest.mark.parametrize(
    ("a", "b", "mean"),
    [([0], [0], 1.0), ([0, 1], [0, 1], 1.0), ([0, 0, 0], [0, 1, 1], 0.0), ([0, 1, 2], [0, 0, 1], 0.0)],
)
def test_where_no_relabelling_changes_the_index(a: list[int], b: list[int], mean: float) -> None:
    moments = adjusted_rand_moments(a, b)
    assert (moments.mean, moments.variance) == (mean, 0.0)
    assert np.isnan(moments.skewness)
    assert {adjusted_rand_score(a, shuffled) for shuffled in set(permutations(b))} == {mean}
    assert moments.null(mean) == (mean, mean, 1.0)


def test_no_p_value_is_below_what_relabelling_can_give() -> None:
    for classes, n, expected in ((3, 3, 1 / 280), (4, 4, 24 * 24**4 / math.factorial(16))):
        a = np.repeat(np.arange(classes), n)
        assert adjusted_rand_moments(a, a).null(1.0)[2] == pytest.approx(expected)
    apart = adjusted_rand_moments([0, 0, 0, 1, 1, 1, 2, 2, 2], [0, 0, 0, 0, 0, 0, 0, 1, 2])
    assert apart.least == pytest.approx(1 / 36)  # of the 36 and 280 partitions of either, the fewer are possible


def test_moments_do_not_overflow() -> None:
    a = np.repeat([0, 1], 10**6)
    b = np.tile([0, 1, 2, 3], 5 * 10**5)
    deviation = adjusted_rand_null(a, b, n_permutations=2000).std()
    assert np.sqrt(adjusted_rand_moments(a, b).variance) == pytest.approx(deviation, rel=0.1)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([30] * 10, [30] * 10),
        ([30] * 10, [100, 50, 50, 40, 30, 10, 5, 5, 5, 5]),
        ([40, 30, 20, 20, 20], [50, 50, 30]),
        ([3] * 20, [3] * 20),
        ([500, 300, 220], [340] * 3),
        ([120, 90, 90], [110, 110, 80]),
    ],
)
def test_the_fitted_distribution_is_near_that_of_permutations(first: list[int], second: list[int]) -> None:
    """Check the accuracy that the docstring gives: a third at .05 and .01."""
    a, b = (np.repeat(np.arange(len(sizes)), sizes) for sizes in (first, second))
    null = np.sort(adjusted_rand_null(a, b, n_permutations=20_000, within=np.zeros(len(a))))
    moments = adjusted_rand_moments(a, b)
    for level in (0.05, 0.01):
        score = null[-int(level * len(null))]
        assert moments.null(score)[2] == pytest.approx((null >= score).mean(), rel=1 / 3)
    low, high, _ = moments.null(0.0)
    assert ((null < low) | (null > high)).mean() < 0.06


@pytest.mark.parametrize(("n", "in_a", "in_b"), [(8, 4, 4), (9, 2, 5), (10, 3, 4)])
def test_two_classes_against_two_are_exact(n: int, in_a: int, in_b: int) -> None:
    a = np.arange(n) < in_a
    b = np.arange(n) < in_b
    values = np.array([adjusted_rand_score(a, np.isin(np.arange(n), c)) for c in combinations(range(n), in_b)])
    moments = adjusted_rand_moments(a, b)
    for score in np.unique(values):
        assert moments.null(score)[2] == pytest.approx((values >= score).mean())
    assert moments.null(0.0)[:2] == pytest.approx(np.quantile(values, [0.025, 0.975], method="inverted_cdf"))


def test_two_unequal_classes_are_called_in_at_most_5_of_100() -> None:
    for case in ("n 30, 3 + 27, 7 + 23", "n 100, 50 + 50, 10 + 90", "n 100, 10 + 90, 50 + 50"):
        called, draws = false_positive_rate(500, 0, case)
        assert called <= 0.06 * draws


@pytest.mark.parametrize("few", [[10, 20], [28, 1, 1], [24, 3, 3], [14, 15, 1]])
def test_few_effective_classes_have_no_p_value_from_moments(few: list[int]) -> None:
    a = np.repeat(np.arange(len(few)), few)
    b = np.arange(30) % 3
    for moments in (adjusted_rand_moments(a, b), adjusted_rand_moments(b, a)):
        assert np.isnan(moments.null(0.1)).all()


def small_strata() -> tuple[Codes, Codes, Codes]:
    strata = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2])
    return np.array([0, 1, 1, 0, 0, 1, 2, 2, 0]), np.array([0, 1, 0, 1, 1, 1, 0, 0, 1]), strata


@pytest.mark.parametrize("shuffled", [False, True])
def test_relabellings_within_strata_are_all_of_them(shuffled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if shuffled:
        monkeypatch.setattr("probes.functional.adjusted_rand.MAX_DENSE_CELLS", 0)
    a, b, strata = small_strata()
    every = []
    for orders in product(*(permutations(np.flatnonzero(strata == s)) for s in range(3))):
        every.append(adjusted_rand_score(a, b[np.concatenate(orders)]))
    null = adjusted_rand_null(a, b, n_permutations=5_000, within=strata)
    assert set(np.round(null, 12)) == set(np.round(every, 12))
    for value in set(every):
        share = np.mean(np.isclose(every, value))
        assert np.isclose(null, value).mean() == pytest.approx(share, abs=5 * np.sqrt(share / 5_000))
    assert abs(null.mean()) > 0.01  # strata alone make them agree, or differ


def test_tables_have_the_chance_of_shuffles(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(4, size=200)
    b = rng.integers(3, size=200) ** 2
    shuffles = [adjusted_rand_score(a, rng.permutation(b)) for _ in range(2_000)]
    tables = adjusted_rand_null(a, b, n_permutations=10_000)
    from scipy.stats import ks_2samp

    assert ks_2samp(shuffles, tables).pvalue > 1e-3
    monkeypatch.setattr("probes.functional.adjusted_rand.MAX_CELLS_AT_ONCE", 100)  # a few tables at a time
    assert np.array_equal(np.sort(adjusted_rand_null(a, b, n_permutations=50)), np.sort(null_at_once(a, b, 50)))


def null_at_once(a: Codes, b: Codes, times: int) -> Float[np.ndarray, "times"]:
    """Return the indices of the same draws, with all tables in memory at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("probes.functional.adjusted_rand.MAX_CELLS_AT_ONCE", 2**22)
        return adjusted_rand_null(a, b, n_permutations=times)


def test_a_stratum_without_choice_never_changes() -> None:
    a = [0, 0, 1, 1, 2, 2]
    b = [0, 1, 0, 0, 1, 1]
    null = adjusted_rand_null(a, b, n_permutations=50, within=[0, 0, 1, 1, 2, 2])
    assert set(null) == {adjusted_rand_score(a, b)}


def test_the_p_value_of_two_classes_never_exceeds_1() -> None:
    """Rounded probabilities may add up to more than 1, which corrections for several tests refuse."""
    for n in range(4, 12):
        for a, b in product(range(1, n), repeat=2):
            moments = adjusted_rand_moments([0] * a + [1] * (n - a), [0] * b + [1] * (n - b))
            assert moments.null(-2.0)[2] == 1.0
