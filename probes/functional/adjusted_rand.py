"""Adjusted Rand index, exact (Hubert & Arabie 1985, equation 5)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float, Int

from probes.functional.arrays import Array, Labels, computed_in_numpy
from probes.functional.relabelling import Relabelling
from tasks.settings import check_count

Classes: TypeAlias = Int[np.ndarray, "row"]  # numbered 0, 1, ...

MAX_DENSE_CELLS = 2**16  # size up to which whole tables are counted. Of larger ones, only cells that are not empty
MAX_CELLS_AT_ONCE = 2**22  # cells of all tables in memory
FEWEST_EFFECTIVE_CLASSES = 2.5  # needed for a p-value from moments. Two equal classes are 2, three are 3


@computed_in_numpy
def adjusted_rand_score(a: Labels, b: Labels) -> float:
    """Return how well two labelings of examples agree: 1 identical, 0 expected by chance.

    Takes tensors, NumPy arrays or lists.

    Args:
        a: class of each example.
        b: class of each example.

    Memory: O(examples), however many classes there are.

    Returns:
        The index, exact to the last bit for any number of examples (integer arithmetic), not clamped. Equal to
        scikit-learn's, also in the degenerate cases.

    Raises:
        InputError: for labelings of different length, empty ones, or NaN among them (as scikit-learn).

    Example:
        >>> adjusted_rand_score([0, 0, 1, 1], [1, 1, 0, 0])
        1.0
        >>> adjusted_rand_score([0, 0, 1, 1], [0, 1, 0, 1])
        -0.5
    """
    classes_a = _codes(a)
    classes_b = _codes(b)
    together = _pairs(_cells(classes_a, classes_b))
    pairs_a = _pairs(np.bincount(classes_a))
    pairs_b = _pairs(np.bincount(classes_b))
    return _index(together, pairs_a, pairs_b, math.comb(len(classes_a), 2))


def _index(together: int, pairs_a: int, pairs_b: int, pairs: int) -> float:
    """Return ``(S - A B / N) / ((A + B) / 2 - A B / N)`` in exact integers, over the common denominator 2 N.

    Source: Hubert & Arabie 1985, equation 5.

    Args:
        together: ``S``, the pairs of examples in one class of both labelings.
        pairs_a: ``A``, those in one class of the first labeling.
        pairs_b: ``B``, those in one class of the second.
        pairs: ``N``, all pairs.
    """
    numerator = 2 * (together * pairs - pairs_a * pairs_b)
    denominator = (pairs_a + pairs_b) * pairs - 2 * pairs_a * pairs_b
    if denominator == 0:  # both labelings are one class, or both all singletons: they agree
        return 1.0
    return numerator / denominator


def _pairs(counts: Int[np.ndarray, "..."]) -> int:
    """Return the number of pairs inside the cells, as a Python integer, so that computations do not overflow."""
    counts = counts.astype(np.int64)
    return int((counts * (counts - 1) // 2).sum())


def _codes(labels: Labels) -> Classes:
    """Return the classes 0, 1, ... of each example."""
    return np.unique(labels, return_inverse=True)[1]


def _cells(classes_a: Classes, classes_b: Classes) -> Int[np.ndarray, "cell"]:
    """Return the counts of the pairs of classes that meet, and zeros: at most ``MAX_DENSE_CELLS``, or one per row."""
    n_b = int(classes_b.max()) + 1
    pair = classes_a * n_b + classes_b
    if (int(classes_a.max()) + 1) * n_b <= MAX_DENSE_CELLS:
        return np.bincount(pair)
    return np.unique(pair, return_counts=True)[1]


@computed_in_numpy
def adjusted_rand_null(
    a: Labels,
    b: Labels,
    n_permutations: int = 1000,
    seed: int = 0,
    within: Labels | None = None,
    units: Labels | None = None,
) -> Float[Array, "n_permutations"]:
    """Return the index under random relabelling: ``a`` against shuffles of ``b``.

    Takes tensors, NumPy arrays or lists, and returns a tensor if the first is one.

    These are values of the index by chance, with unchanged class sizes. Contingency tables with equal margins are drawn
    (``scipy.stats.random_table``, Patefield 1981) instead of shuffles, unless they have more cells than there are
    examples. The distribution is equal, and the cost hardly depends on the number of examples.

    Args:
        a: class of each example.
        b: class of each example.
        n_permutations: number of shuffles.
        seed: for the shuffles. The global random state is not touched.
        within: stratum of each example. Shuffles stay within strata. The index then need not be 0 on average.
        units: unit of each example. Units of one class of ``b`` exchange their labels as a whole. Examples of a unit
            with several classes exchange labels within the unit.

    Example:
        >>> null = adjusted_rand_null([0, 0, 1, 1] * 25, [0, 1, 0, 1] * 25, n_permutations=200)
        >>> bool(abs(null.mean()) < 0.01)
        True
    """
    check_count(n_permutations=(n_permutations, 0), seed=(seed, 0))
    classes_a = _codes(a)
    classes_b = _codes(b)
    rng = np.random.default_rng(seed)
    relabelling = Relabelling.from_classes(classes_b, units, within)
    if relabelling.whole_units:
        return _index_between_units(classes_a, relabelling, n_permutations, rng)
    together = _pairs_within_strata(classes_a, classes_b, relabelling.strata, n_permutations, rng)
    pairs_a = _pairs(np.bincount(classes_a))
    pairs_b = _pairs(np.bincount(classes_b))
    return np.array([_index(pairs, pairs_a, pairs_b, math.comb(len(classes_a), 2)) for pairs in together])


def relabelled_adjusted_rand(
    classes: Int[np.ndarray, "row"],
    clusters: Int[np.ndarray, "row"],
    relabelling: Relabelling,
    n_permutations: int,
    seed: int,
) -> Float[np.ndarray, "n_permutations"]:
    """Return the adjusted Rand index of clusters and randomly permuted classes, by the permutations of these classes.

    Args:
        classes: class of each row.
        clusters: cluster of each row, counted from 0.
        relabelling: the permutations, ``Relabelling.from_classes(classes, ...)``.
        n_permutations: number of permutations.
        seed: for the permutations.
    """
    if relabelling.whole_units:
        return _index_between_units(clusters, relabelling, n_permutations, np.random.default_rng(seed))
    return adjusted_rand_null(classes, clusters, n_permutations, seed, relabelling.strata)


def _index_between_units(
    classes: Classes, relabelling: Relabelling, times: int, rng: np.random.Generator
) -> Float[np.ndarray, "times"]:
    """Return the index of ``classes`` and labels that whole units exchange at random, changing class sizes.

    Args:
        classes: class of each example, counted from 0.
        relabelling: the units and their labels.
        times: number of exchanges.
        rng: for the exchanges.
    """
    labels = np.unique(relabelling.classes, return_inverse=True)[1]
    n_units = len(labels)
    n_labels = int(labels.max()) + 1
    n_classes = int(classes.max()) + 1
    cells = np.bincount(relabelling.member * n_classes + classes, minlength=n_units * n_classes)
    counts = cells.reshape(n_units, n_classes).astype(np.float32)
    places = np.argsort(relabelling.strata, kind="stable")
    pairs_of_classes = _pairs(np.bincount(classes))
    pairs = math.comb(len(classes), 2)
    at_once = max(1, MAX_CELLS_AT_ONCE // (n_labels * max(n_units, n_classes)))
    indices: list[float] = []
    for start in range(0, times, at_once):
        keys = relabelling.strata + rng.random((min(at_once, times - start), n_units))  # keys below 1 keep strata apart
        shuffled = np.empty(keys.shape, dtype=np.int64)
        shuffled[:, places] = labels[keys.argsort(axis=1)]
        one_hot = shuffled[:, None] == np.arange(n_labels)[:, None]  # [draw label unit]
        tables = (one_hot.astype(np.float32) @ counts).astype(np.int64)  # exact below 2^24
        sizes = tables.sum(axis=2)
        together = (tables * (tables - 1) // 2).sum(axis=(1, 2)).tolist()
        pairs_of_labels = (sizes * (sizes - 1) // 2).sum(axis=1).tolist()
        for pairs_in_both, pairs_in_labels in zip(together, pairs_of_labels, strict=True):
            indices.append(_index(pairs_in_both, pairs_of_classes, pairs_in_labels, pairs))
    return np.array(indices)


def _pairs_within_strata(
    classes_a: Classes, classes_b: Classes, strata: Classes, times: int, rng: np.random.Generator
) -> list[int]:
    """Return the pairs of examples together in both labelings when ``b`` is shuffled within each stratum."""
    examples = np.split(np.argsort(strata, kind="stable"), np.cumsum(np.bincount(strata))[:-1])
    n_cells = (int(classes_a.max()) + 1) * (int(classes_b.max()) + 1)
    together: list[int] = []
    if n_cells > min(MAX_DENSE_CELLS, len(classes_a)):
        shuffled = classes_b.copy()
        for _ in range(times):
            for stratum in examples:
                shuffled[stratum] = rng.permutation(classes_b[stratum])
            together.append(_pairs(_cells(classes_a, shuffled)))
        return together
    at_once = max(1, MAX_CELLS_AT_ONCE // n_cells)
    for start in range(0, times, at_once):
        tables = _random_tables(classes_a, classes_b, examples, min(at_once, times - start), rng)
        together += [_pairs(table) for table in tables]
    return together


def _random_tables(
    classes_a: Classes,
    classes_b: Classes,
    strata: Sequence[Int[np.ndarray, "_"]],
    times: int,
    rng: np.random.Generator,
) -> Int[np.ndarray, "times class_a class_b"]:
    """Return random contingency tables, each the sum of tables with the margins of each stratum.

    Args:
        classes_a: class of each example, counted from 0.
        classes_b: class of each example, counted from 0.
        strata: the examples of each stratum.
        times: number of tables.
        rng: for the draws.
    """
    from scipy.stats import random_table

    total = np.zeros((times, int(classes_a.max()) + 1, int(classes_b.max()) + 1), dtype=np.int64)
    for examples in strata:
        rows, row_sums = np.unique(classes_a[examples], return_counts=True)
        columns, column_sums = np.unique(classes_b[examples], return_counts=True)
        if len(columns) == 1:
            tables = row_sums[:, None]
        elif len(rows) == 1:
            tables = column_sums
        else:
            drawn = np.asarray(random_table(row_sums, column_sums).rvs(times, random_state=rng), dtype=np.int64)
            tables = drawn.reshape(times, len(rows), len(columns))
        total[:, rows[:, None], columns] += tables
    return total


class IndexMoments(NamedTuple):
    """Moments of the adjusted Rand index under random relabelling.

    Attributes:
        mean: 0, except if no relabelling can change the index, which is then 1.
        variance: variance of the index.
        skewness: third central moment over the variance to the power 3/2. NaN if that is 0.
        step: by how much one more pair together changes the index.
        least: the smallest p-value that relabelling can give.
        classes: effective number of classes of the labeling that has fewer. Classes of one size all count.
        margins: number of examples, and of examples in one class of either labeling, if both have two classes.

    Example:
        >>> moments = adjusted_rand_moments([0, 1, 2] * 40, [0, 1, 2, 3] * 30)
        >>> moments.mean, round(moments.variance, 5), moments.margins
        (0.0, 0.00014, None)
    """

    mean: float
    variance: float
    skewness: float
    step: float
    least: float = 0.0
    classes: float = math.inf
    margins: tuple[int, int, int] | None = None

    def null(self, score: float) -> tuple[float, float, float]:
        """Return the central 95% of the index, and the share of relabellings with an index of at least ``score``.

        Two classes against two: exact, from the hypergeometric distribution. Otherwise from a Pearson type III
        distribution (a shifted gamma) with these moments, by which shares of .05 and .01 are right within a third. Far
        smaller ones are a rough guide, never below ``least``. With fewer than 2.5 effective classes in a labeling, the
        index takes too few values for that, and all three are NaN: draw relabellings (``adjusted_rand_null``).

        Example:
            >>> low, high, p = adjusted_rand_moments([0, 1] * 50, [0, 0, 1, 1] * 25).null(0.05)
            >>> print(f"{low:.3f} {high:.3f} {p:.3f}")
            -0.010 0.048 0.009
        """
        if self.variance == 0:
            return self.mean, self.mean, 1.0 if score <= self.mean else 0.0
        if self.margins is not None:
            return self._null_of_two(*self.margins, score)
        if self.classes < FEWEST_EFFECTIVE_CLASSES:
            return math.nan, math.nan, math.nan
        from scipy.stats import pearson3

        shape = pearson3(self.skewness, loc=self.mean, scale=math.sqrt(self.variance))
        low, high = shape.ppf([0.025, 0.975])
        return float(low), float(high), max(self.least, float(shape.sf(score - self.step / 2)))

    def _null_of_two(self, n: int, a: int, b: int, score: float) -> tuple[float, float, float]:
        """Return ``null`` for ``a`` of ``n`` examples in a class of one labeling and ``b`` in one of the other."""
        from scipy.stats import hypergeom

        both = np.arange(max(0, a + b - n), min(a, b) + 1)
        probability = hypergeom(n, a, b).pmf(both)
        probability /= probability.sum()
        cells = np.stack([both, a - both, b - both, n - a - b + both])
        together = (cells * (cells - 1) // 2).sum(axis=0)
        index = (together - (probability * together).sum()) * self.step
        order = np.argsort(index, kind="stable")
        below = np.cumsum(probability[order])
        last = len(order) - 1
        low = index[order[min(int(np.searchsorted(below, 0.025)), last)]]
        high = index[order[min(int(np.searchsorted(below, 0.975)), last)]]
        as_high = probability[index >= score - self.step / 2]
        return float(low), float(high), math.fsum(as_high) / math.fsum(probability)  # 1 for all of them, not 1 + 2e-16


@computed_in_numpy
def adjusted_rand_moments(a: Labels, b: Labels) -> IndexMoments:
    """Return the exact moments of the index over all relabellings: ``a`` against every shuffle of ``b``.

    Takes tensors, NumPy arrays or lists.

    The number of pairs together in both labelings is a Mantel statistic (Mantel 1967). Its moments are sums over sets
    of one to three pairs, by how many examples they touch. The third moment is as in Siemiatycki 1978. Cost depends on
    the numbers of examples and classes, not of relabellings.

    Raises:
        InputError: as ``adjusted_rand_score``.

    Example:
        >>> moments = adjusted_rand_moments([0, 0, 1, 1], [0, 1, 0, 1])
        >>> moments.mean, round(moments.variance, 3)  # of 1, -0.5 and -0.5
        (0.0, 0.5)
    """
    classes_a = _codes(a)
    classes_b = _codes(b)
    n = len(classes_a)
    sizes_a = np.bincount(classes_a)
    sizes_b = np.bincount(classes_b)
    pairs = math.comb(n, 2)
    pairs_a = _pairs(sizes_a)
    pairs_b = _pairs(sizes_b)
    unit = Fraction((pairs_a + pairs_b) * pairs - 2 * pairs_a * pairs_b, 2 * pairs) if pairs else Fraction(0)
    if unit == 0:
        return IndexMoments(1.0, 0.0, math.nan, 0.0)
    mean, square, cube = _expected_powers(sizes_a, sizes_b)
    variance = square - mean**2
    if variance == 0:
        return IndexMoments(0.0, 0.0, math.nan, float(1 / unit))
    third = cube - 3 * mean * square + 2 * mean**3
    return IndexMoments(
        mean=0.0,
        variance=float(variance / unit**2),
        skewness=float(third / variance) / math.sqrt(variance),
        step=float(1 / unit),
        least=max(smallest_adjusted_rand_p_value(classes_a), smallest_adjusted_rand_p_value(classes_b)),
        classes=min(_effective_classes(classes_a), _effective_classes(classes_b)),
        margins=(n, int(sizes_a[0]), int(sizes_b[0])) if len(sizes_a) == len(sizes_b) == 2 else None,
    )


def too_few_for_index_moments(labels: Labels) -> bool:
    """Return whether a labeling has fewer than 2.5 effective classes, for which ``IndexMoments`` gives no p-value.

    Example:
        >>> too_few_for_index_moments([0, 0, 1, 1, 2, 2]), too_few_for_index_moments([0] * 8 + [1, 2])
        (False, True)
    """
    return _effective_classes(labels) < FEWEST_EFFECTIVE_CLASSES


def _effective_classes(labels: Labels) -> float:
    """Return how many classes of one size are as mixed: one over the chance that two draws are of one class."""
    sizes = np.unique(np.asarray(labels).ravel(), return_counts=True)[1].astype(np.int64)
    return float(sizes.sum()) ** 2 / float(np.square(sizes).sum())


# Powers one to three of a number of pairs, as sums over distinct examples, by how many examples each group of
# connected pairs has: how often such a choice of pairs comes, over the orders of its examples.
_POWERS: tuple[dict[tuple[int, ...], Fraction], ...] = (
    {(2,): Fraction(1, 2)},
    {(2,): Fraction(1, 2), (3,): Fraction(1), (2, 2): Fraction(1, 4)},
    {
        (2,): Fraction(1, 2),
        (3,): Fraction(4),
        (4,): Fraction(4),
        (2, 2): Fraction(3, 4),
        (3, 2): Fraction(3, 2),
        (2, 2, 2): Fraction(1, 8),
    },
)


def _expected_powers(sizes_a: Int[np.ndarray, "class_a"], sizes_b: Int[np.ndarray, "class_b"]) -> list[Fraction]:
    """Return powers one to three of the number of pairs together in both labelings, on average over relabellings."""
    n = int(sizes_a.sum())
    choices_a = _choices(sizes_a)
    choices_b = _choices(sizes_b)
    powers = []
    for weights in _POWERS:
        power = Fraction(0)
        for groups, weight in weights.items():
            if sum(groups) <= n:
                power += weight * choices_a[groups] * choices_b[groups] / math.perm(n, sum(groups))
        powers.append(power)
    return powers


def _choices(sizes: Int[np.ndarray, "class"]) -> dict[tuple[int, ...], int]:
    """Return the ways to choose distinct examples in order, such that each group's examples are of one class."""
    distinct_sizes, n_classes = np.unique(sizes, return_counts=True)
    by_size = dict(zip(distinct_sizes.tolist(), n_classes.tolist(), strict=True))
    two = _choices_in_one_class(by_size, 2)
    three = _choices_in_one_class(by_size, 3)
    four = _choices_in_one_class(by_size, 4)
    two_twice = _choices_in_one_class(by_size, 2, 2)
    three_classes = two**3 - 3 * two * two_twice + 2 * _choices_in_one_class(by_size, 2, 2, 2)
    two_classes = 3 * (two * four - _choices_in_one_class(by_size, 4, 2))  # two groups of one, the third of another
    return {
        (2,): two,
        (3,): three,
        (4,): four,
        (2, 2): two**2 - two_twice + four,
        (3, 2): three * two - _choices_in_one_class(by_size, 3, 2) + _choices_in_one_class(by_size, 5),
        (2, 2, 2): three_classes + two_classes + _choices_in_one_class(by_size, 6),
    }


def _choices_in_one_class(classes_by_size: Mapping[int, int], *groups: int) -> int:
    """Return the ways to choose groups of examples of one class, distinct within a group only."""
    total = 0
    for size, n_classes in classes_by_size.items():
        total += n_classes * math.prod(math.perm(size, group) for group in groups)
    return total


def smallest_adjusted_rand_p_value(labels: Labels) -> float:
    """Return the smallest p-value: one over the number of partitions that shuffles of ``labels`` can give.

    Example:
        >>> round(1 / smallest_adjusted_rand_p_value([0, 0, 1, 1])), smallest_adjusted_rand_p_value(range(9))
        (3, 1.0)
    """
    n, interchangeable = _interchangeable(labels)
    return math.exp(sum(math.lgamma(k + 1) for k in interchangeable) - math.lgamma(n + 1))


def _interchangeable(labels: Labels) -> tuple[int, list[int]]:
    """Return the number of examples, and how many examples, or classes, may be exchanged without a difference."""
    sizes = np.unique(np.asarray(labels).ravel(), return_counts=True)[1]
    classes_of_size = np.unique(sizes, return_counts=True)[1]  # classes of one size may change names
    return int(sizes.sum()), [*sizes.tolist(), *classes_of_size.tolist()]
