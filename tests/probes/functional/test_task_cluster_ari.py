from __future__ import annotations

import tracemalloc
from fractions import Fraction
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score as reference
from sklearn.metrics.cluster import contingency_matrix

from probes.functional import adjusted_rand_null, adjusted_rand_score, contingency
from probes.functional.task_cluster_ari import n_relabellings
from tasks import InputError

Labelings = list[tuple[int, int]]
labelings = st.lists(st.tuples(st.integers(-2, 4), st.integers(0, 3)), min_size=1, max_size=40)


def exact(a: np.ndarray, b: np.ndarray) -> Fraction:
    """Hubert & Arabie's index from the contingency table, in Python's own fractions."""

    def pairs(counts: np.ndarray) -> int:
        return sum(int(c) * (int(c) - 1) // 2 for c in counts.ravel())

    table = contingency_matrix(a, b)
    together, in_a, in_b = pairs(table), pairs(table.sum(1)), pairs(table.sum(0))
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


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_a_labeling_agrees_with_itself(labels: list[int]) -> None:
    assert adjusted_rand_score(labels, labels) == 1.0


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


def test_below_chance_is_negative() -> None:
    assert adjusted_rand_score([0, 0, 1, 1], [0, 1, 0, 1]) == -0.5


@given(labelings)
def test_contingency_counts(pairs: Labelings) -> None:
    a, b = map(list, zip(*pairs, strict=True))
    table = contingency(a, b)
    expected = [[sum(p == (x, y) for p in pairs) for y in sorted(set(b))] for x in sorted(set(a))]
    assert table.tolist() == expected


def test_what_is_refused() -> None:
    for function in (adjusted_rand_score, adjusted_rand_null, contingency):
        with pytest.raises(InputError, match="the two labelings have 2 and 3 examples; expected the same examples"):
            function([0, 1], [0, 1, 1])
        with pytest.raises(InputError, match="the labelings are empty; give at least one example"):
            function([], [])


def test_chance_is_centred_at_0_even_for_labelings_that_agree() -> None:
    labels = np.repeat(np.arange(5), [5, 10, 20, 40, 25])
    null = adjusted_rand_null(labels, labels, n_permutations=1000, seed=1)
    error = null.std() / np.sqrt(len(null))
    assert abs(null.mean()) < 4 * error
    assert null.std() < 0.05


def test_chance_is_the_score_of_shuffled_labels() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.integers(3, size=50), rng.integers(4, size=50)
    null = adjusted_rand_null(a, b, n_permutations=20, seed=7)
    shuffles = np.random.default_rng(7)
    expected = [reference(a, shuffles.permutation(b)) for _ in range(20)]
    np.testing.assert_allclose(null, expected, atol=1e-12)
    assert np.array_equal(null, adjusted_rand_null(a, b, n_permutations=20, seed=7))


def test_chance_leaves_the_global_random_state_alone() -> None:
    before = repr(np.random.get_state(legacy=False))
    adjusted_rand_null([0, 1, 1], [1, 0, 1], n_permutations=5)
    assert repr(np.random.get_state(legacy=False)) == before


def test_as_many_classes_as_examples_take_no_time_and_no_memory() -> None:
    """A dense table of these would be 3 GB, and 80 GB."""
    tracemalloc.start()
    assert adjusted_rand_score(np.arange(20_000), np.arange(20_000)) == 1.0
    pairs = np.arange(100_000)
    assert adjusted_rand_score(pairs, pairs // 2) == pytest.approx(reference(pairs, pairs // 2), abs=1e-12)
    adjusted_rand_null(pairs[:20_000] // 2, pairs[:20_000] // 3, n_permutations=2)
    assert tracemalloc.get_traced_memory()[1] < 2e8
    tracemalloc.stop()


@pytest.mark.parametrize("cells", [0, 12, 2**16])
def test_large_tables_are_counted_as_small_ones(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(3, size=60), rng.integers(4, size=60)
    expected = adjusted_rand_score(a, b), adjusted_rand_null(a, b, n_permutations=9)
    monkeypatch.setattr("probes.functional.task_cluster_ari._DENSE", cells)
    assert adjusted_rand_score(a, b) == expected[0] == pytest.approx(reference(a, b), abs=1e-12)
    assert np.array_equal(adjusted_rand_null(a, b, n_permutations=9), expected[1])


@pytest.mark.parametrize(
    "labels", [[0.0, np.nan, 1.0, np.nan], np.array(["a", None, "b", None], dtype=object), [1, float("nan"), 2, None]]
)
def test_nan_is_no_class(labels: Any) -> None:
    for function in (adjusted_rand_score, adjusted_rand_null, contingency):
        for pair in ((labels, [0, 1, 1, 0]), ([0, 1, 1, 0], labels)):
            with pytest.raises(
                InputError, match=r"^the label of example 1 is (nan|None) \(2 such\), which is no class; "
            ):
                function(*pair)


def test_relabellings_are_all_partitions_that_shuffles_give() -> None:
    for labels in ([0, 0, 1], [0, 0, 1, 1], [0, 1, 2, 2], [0, 0, 1, 1, 2, 2], [5, 5, 5, 7, 7]):
        partitions = {
            frozenset(frozenset(i for i, x in enumerate(shuffled) if x == c) for c in set(labels))
            for shuffled in permutations(labels)
        }
        assert n_relabellings(labels) == len(partitions)
