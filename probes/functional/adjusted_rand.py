"""Adjusted Rand index, exact (Hubert & Arabie 1985, equation 5)."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from probes.functional.arrays import Array, computed_in_numpy
from probes.functional.units import Relabelling
from tasks import InputError

_DENSE = 2**16  # cells of a table that is counted whole; a larger one only where it is not empty
_SHUFFLED = 10_000  # examples up to which labels are shuffled one by one; tables are drawn for more
_HELD = 2**22  # cells of the tables held at once
FEWEST_EFFECTIVE_CLASSES = 2.5  # for a p-value from moments; two equal classes are 2, three are 3


@computed_in_numpy("a", "b")
def contingency(a: ArrayLike, b: ArrayLike) -> Int[Array, "classes_a classes_b"]:
    """``[classes of a, classes of b]`` int64 counts of examples.

    Takes tensors, NumPy arrays or lists, and returns a tensor if the first is one.

    Memory: O(number of classes squared).

    Raises:
        InputError: for labelings of different length, empty ones, or NaN among them.
    """
    ia, ib = _codes(a, b)
    shape = int(ia.max()) + 1, int(ib.max()) + 1
    return np.bincount(ia * shape[1] + ib, minlength=shape[0] * shape[1]).reshape(shape)


def _codes(a: ArrayLike, b: ArrayLike) -> tuple[Int[np.ndarray, "n"], Int[np.ndarray, "n"]]:
    """Classes 0, 1, ... of each example in both labelings."""
    given = [np.asarray(x).ravel() for x in (a, b)]
    if len(given[0]) != len(given[1]):
        raise InputError(
            f"the two labelings have {len(given[0])} and {len(given[1])} examples; expected the same examples"
        )
    if not len(given[0]):
        raise InputError("the labelings are empty; give at least one example")
    for values in given:
        missing = [v is None for v in values] if values.dtype == object else np.zeros(len(values), dtype=bool)
        if len(undefined := np.flatnonzero(missing | (values != values))):
            raise InputError(
                f"the label of example {undefined[0]} is {values[undefined[0]]} ({len(undefined)} such), which is not "
                "a class; leave these examples out, or label them"
            )
    ia, ib = (np.unique(x, return_inverse=True)[1] for x in given)
    return ia, ib


def _cells(ia: np.ndarray, ib: np.ndarray) -> Int[np.ndarray, "cells"]:
    """Counts of the pairs of classes that meet (and zeros); never more cells than ``_DENSE`` or examples."""
    width = int(ib.max()) + 1
    pair = ia * width + ib
    if (int(ia.max()) + 1) * width <= _DENSE:
        return np.bincount(pair)
    return np.unique(pair, return_counts=True)[1]


def _pairs(counts: np.ndarray) -> int:
    """Number of pairs inside the cells, as a Python integer (never overflows in what follows)."""
    counts = counts.astype(np.int64)
    return int((counts * (counts - 1) // 2).sum())


def _index(together: int, pairs_a: int, pairs_b: int, pairs: int) -> float:
    # (S - AB/N) / ((A + B)/2 - AB/N), over the common denominator 2N, in exact integers
    numerator = 2 * (together * pairs - pairs_a * pairs_b)
    denominator = (pairs_a + pairs_b) * pairs - 2 * pairs_a * pairs_b
    if denominator == 0:  # both labelings are one class, or both all singletons: they agree
        return 1.0
    return numerator / denominator


@computed_in_numpy("a", "b")
def adjusted_rand_score(a: ArrayLike, b: ArrayLike) -> float:
    """How well two labelings of the same examples agree: 1 identical, 0 expected by chance.

    Takes tensors, NumPy arrays or lists.

    Args:
        a: ``[n]`` class of each example.
        b: ``[n]`` class of each example.

    Memory: O(examples), however many classes there are.

    Returns:
        The index, exact to the last bit for any ``n`` (integer arithmetic), not clamped; equal to
        scikit-learn's, also in the degenerate cases.

    Raises:
        InputError: for labelings of different length, empty ones, or NaN among them (as scikit-learn).

    Example:
        >>> adjusted_rand_score([0, 0, 1, 1], [1, 1, 0, 0])
        1.0
        >>> adjusted_rand_score([0, 0, 1, 1], [0, 1, 0, 1])
        -0.5
    """
    ia, ib = _codes(a, b)
    n = len(ia)
    return _index(_pairs(_cells(ia, ib)), _pairs(np.bincount(ia)), _pairs(np.bincount(ib)), n * (n - 1) // 2)


@computed_in_numpy("a", "b", "within", "units")
def adjusted_rand_null(
    a: ArrayLike,
    b: ArrayLike,
    n_permutations: int = 1000,
    seed: int = 0,
    within: ArrayLike | None = None,
    units: ArrayLike | None = None,
) -> Float[Array, "n_permutations"]:
    """``[n_permutations]`` the index under random relabelling: ``a`` against shuffles of ``b``.

    Takes tensors, NumPy arrays or lists, and returns a tensor if the first is one.

    What the index would be by chance, with the same class sizes. Up to 10,000 examples without ``within`` are
    shuffled one by one. Otherwise contingency tables with the same margins are drawn, which has the same distribution
    at a cost that hardly depends on the number of examples (``scipy.stats.random_table``; Patefield 1981), unless the
    tables have more cells than there are examples.

    Args:
        a: ``[n]`` class of each example.
        b: ``[n]`` class of each example.
        n_permutations: how many.
        seed: for the shuffles. The global random state is not touched.
        within: ``[n]`` stratum of each example; shuffles stay within strata. The index then need not be 0 on average.
        units: ``[n]`` unit of each example. Whole units are shuffled if ``b`` is the same within each; otherwise
            examples are shuffled within their unit.

    Example:
        >>> null = adjusted_rand_null([0, 0, 1, 1] * 25, [0, 1, 0, 1] * 25, n_permutations=200)
        >>> bool(abs(null.mean()) < 0.01)
        True
    """
    ia, ib = _codes(a, b)
    n = len(ia)
    pairs_a, pairs_b = _pairs(np.bincount(ia)), _pairs(np.bincount(ib))
    rng = np.random.default_rng(seed)
    if units is not None:
        strata = None if within is None else _codes(a, within)[1]
        relabelling = Relabelling.of(ib, _codes(a, units)[1], strata)
        if relabelling.whole_units:
            return index_between_units(ia, relabelling, n_permutations, rng)
        within = relabelling.strata
    if within is None and n <= _SHUFFLED:
        together = [_pairs(_cells(ia, rng.permutation(ib))) for _ in range(n_permutations)]
    else:
        strata = np.zeros(n, dtype=np.int64) if within is None else _codes(a, within)[1]
        together = _stratified(ia, ib, strata, n_permutations, rng)
    return np.array([_index(pairs, pairs_a, pairs_b, n * (n - 1) // 2) for pairs in together])


def index_between_units(
    ia: Int[np.ndarray, "n"], relabelling: Relabelling, times: int, rng: np.random.Generator
) -> Float[np.ndarray, "times"]:
    """Return the index of ``ia`` and classes that whole units exchange at random; class sizes change with them."""
    n, width = len(ia), int(ia.max()) + 1
    of_units = np.unique(relabelling.classes, return_inverse=True)[1]
    n_units, n_classes = len(of_units), int(of_units.max()) + 1
    of_unit = np.bincount(relabelling.member * width + ia, minlength=n_units * width).reshape(n_units, width)
    places = np.argsort(relabelling.strata, kind="stable")
    pairs_a, pairs = _pairs(np.bincount(ia)), n * (n - 1) // 2
    at_once = max(1, _HELD // (n_units * n_classes))
    found = []
    for start in range(0, times, at_once):
        keys = relabelling.strata + rng.random((min(at_once, times - start), n_units))  # below 1: strata stay apart
        classes = np.empty(keys.shape, dtype=np.int64)
        classes[:, places] = of_units[keys.argsort(axis=1)]
        one_hot = classes[:, None] == np.arange(n_classes)[:, None]
        tables = (one_hot.astype(np.float32) @ of_unit.astype(np.float32)).astype(np.int64)  # exact below 2^24
        sizes = tables.sum(axis=2)
        together = (tables * (tables - 1) // 2).sum(axis=(1, 2))
        pairs_b = (sizes * (sizes - 1) // 2).sum(axis=1)
        found += [_index(t, pairs_a, b, pairs) for t, b in zip(together.tolist(), pairs_b.tolist(), strict=True)]
    return np.array(found)


def _stratified(
    ia: Int[np.ndarray, "n"],
    ib: Int[np.ndarray, "n"],
    strata: Int[np.ndarray, "n"],
    times: int,
    rng: np.random.Generator,
) -> list[int]:
    """Pairs of examples together in both labelings, when ``ib`` is shuffled within each stratum, so many times."""
    parts = np.split(np.argsort(strata, kind="stable"), np.cumsum(np.bincount(strata))[:-1])
    shape = int(ia.max()) + 1, int(ib.max()) + 1
    cells = shape[0] * shape[1]
    if cells > min(_DENSE, len(ia)):
        shuffled, together = ib.copy(), []
        for _ in range(times):
            for part in parts:
                shuffled[part] = rng.permutation(ib[part])
            together.append(_pairs(_cells(ia, shuffled)))
        return together
    at_once = max(1, _HELD // cells)
    return [
        _pairs(table)
        for start in range(0, times, at_once)
        for table in _tables(ia, ib, parts, shape, min(at_once, times - start), rng)
    ]


def _tables(
    ia: Int[np.ndarray, "n"],
    ib: Int[np.ndarray, "n"],
    parts: list[np.ndarray],
    shape: tuple[int, int],
    times: int,
    rng: np.random.Generator,
) -> Int[np.ndarray, "times classes_a classes_b"]:
    """Random contingency tables, each the sum of one per stratum with the stratum's margins."""
    from scipy.stats import random_table

    total = np.zeros((times, *shape), dtype=np.int64)
    for part in parts:
        (rows, row_sums), (columns, column_sums) = (np.unique(x[part], return_counts=True) for x in (ia, ib))
        if len(rows) == 1 or len(columns) == 1:
            total[:, rows[:, None], columns] += row_sums[:, None] if len(columns) == 1 else column_sums
            continue
        drawn = random_table(row_sums, column_sums).rvs(times, random_state=rng)
        total[:, rows[:, None], columns] += np.asarray(drawn, dtype=np.int64).reshape(times, len(rows), len(columns))
    return total


class IndexMoments(NamedTuple):
    """Moments of the adjusted Rand index under random relabelling.

    Attributes:
        mean: 0, except where no relabelling can change the index, which is then 1.
        variance: of the index.
        skewness: third central moment over the variance to the power 3/2; NaN where that is 0.
        step: by how much one more pair together changes the index.
        least: the smallest p-value that relabelling can give.
        classes: effective number of classes of the labeling that has fewer, as ``effective_classes``.
        margins: number of examples, and of those in one class of either labeling, if both have two classes.
    """

    mean: float
    variance: float
    skewness: float
    step: float
    least: float = 0.0
    classes: float = math.inf
    margins: tuple[int, int, int] | None = None

    def null(self, score: float) -> tuple[float, float, float]:
        """The central 95% of the index, and the share of relabellings with an index of at least ``score``.

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
        """``null`` for ``a`` of ``n`` examples in a class of one labeling and ``b`` in one of the other."""
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
        low, high = (float(index[order[min(int(np.searchsorted(below, q)), last)]]) for q in (0.025, 0.975))
        as_high = probability[index >= score - self.step / 2]
        return low, high, math.fsum(as_high) / math.fsum(probability)  # 1 for all of them, not 1 + 2e-16


@computed_in_numpy("a", "b")
def adjusted_rand_moments(a: ArrayLike, b: ArrayLike) -> IndexMoments:
    """Exact mean, variance and skewness of the index over all relabellings: ``a`` against every shuffle of ``b``.

    Takes tensors, NumPy arrays or lists.

    The number of pairs together in both labelings is a Mantel statistic, whose moments are sums over sets of one to
    three pairs, by how many examples they touch (Mantel 1967; the third moment as in Siemiatycki 1978). Cost: the
    numbers of examples and classes, not of relabellings.

    Raises:
        InputError: as ``adjusted_rand_score``.

    Example:
        >>> moments = adjusted_rand_moments([0, 0, 1, 1], [0, 1, 0, 1])
        >>> moments.mean, round(moments.variance, 3)  # of 1, -0.5 and -0.5
        (0.0, 0.5)
    """
    ia, ib = _codes(a, b)
    n = len(ia)
    first, second = (_touching(np.bincount(x)) for x in (ia, ib))

    def expected(weights: dict[tuple[int, ...], Fraction]) -> Fraction:
        """A power of the number of pairs, on average."""
        terms = (w * first[t] * second[t] / _falling(n, sum(t)) for t, w in weights.items() if sum(t) <= n)
        return sum(terms, Fraction(0))

    mean, square, cube = (expected(weights) for weights in _POWERS)
    variance = square - mean**2
    third = cube - 3 * mean * square + 2 * mean**3
    pairs_a, pairs_b, pairs = _pairs(np.bincount(ia)), _pairs(np.bincount(ib)), n * (n - 1) // 2
    unit = Fraction((pairs_a + pairs_b) * pairs - 2 * pairs_a * pairs_b, 2 * pairs) if pairs else Fraction(0)
    if unit == 0:
        return IndexMoments(1.0, 0.0, math.nan, 0.0)
    if variance == 0:
        return IndexMoments(0.0, 0.0, math.nan, float(1 / unit))
    skewness = float(third / variance) / math.sqrt(variance)
    sizes = [np.bincount(x) for x in (ia, ib)]
    margins = (n, int(sizes[0][0]), int(sizes[1][0])) if all(len(x) == 2 for x in sizes) else None
    return IndexMoments(
        0.0,
        float(variance / unit**2),
        skewness,
        float(1 / unit),
        max(_least(ia), _least(ib)),
        min(map(effective_classes, (ia, ib))),
        margins,
    )


def effective_classes(labels: ArrayLike) -> float:
    """How many classes of one size are as mixed as these: one over the chance that two draws are of one class.

    Example:
        >>> effective_classes([0, 0, 1, 1, 2, 2]), round(effective_classes([0] * 8 + [1, 2]), 2)
        (3.0, 1.52)
    """
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


def _touching(sizes: Int[np.ndarray, "classes"]) -> dict[tuple[int, ...], int]:
    """Ways to choose distinct examples in order, such that those of each group are of one class."""
    size, times = (x.tolist() for x in np.unique(sizes, return_counts=True))

    def power(*groups: int) -> int:
        """Ways for groups that are all of one class, with examples apart within a group only."""
        return sum(t * math.prod(_falling(s, g) for g in groups) for s, t in zip(size, times, strict=True))

    def joint(*groups: int) -> int:
        """Ways for groups that are all of one class."""
        return power(sum(groups))

    two, three = power(2), power(3)
    pairs: dict[tuple[int, ...], int] = {
        (x, y): power(x) * power(y) - power(x, y) + joint(x, y) for x, y in ((2, 2), (3, 2))
    }
    apart = two**3 - 3 * two * power(2, 2) + 2 * power(2, 2, 2)  # three groups of three classes
    two_classes = 3 * (
        two * joint(2, 2)
        - sum(  # two groups of one class, the third of another
            t * _falling(s, 4) * _falling(s, 2) for s, t in zip(size, times, strict=True)
        )
    )
    return {(2,): two, (3,): three, (4,): power(4), **pairs, (2, 2, 2): apart + two_classes + joint(2, 2, 2)}


def _falling(n: int, k: int) -> int:
    """``n (n - 1) ...``, ``k`` factors."""
    return math.perm(n, k)


def n_relabellings(labels: ArrayLike) -> int:
    """In how many different partitions shuffles of ``labels`` can end; the smallest p-value is one over it.

    Example:
        >>> n_relabellings([0, 0, 1]), n_relabellings([0, 0, 1, 1]), n_relabellings([0, 0, 0, 1, 1])
        (3, 3, 10)
    """
    n, interchangeable = _interchangeable(labels)
    return math.factorial(n) // math.prod(map(math.factorial, interchangeable))


def _least(labels: ArrayLike) -> float:
    """One over ``n_relabellings``, without its huge numbers."""
    n, interchangeable = _interchangeable(labels)
    return math.exp(sum(math.lgamma(k + 1) for k in interchangeable) - math.lgamma(n + 1))


def _interchangeable(labels: ArrayLike) -> tuple[int, list[int]]:
    """How many examples there are, and how many of them, or of the classes, may be exchanged without a difference."""
    sizes = np.unique(np.asarray(labels).ravel(), return_counts=True)[1]
    alike = np.unique(sizes, return_counts=True)[1]  # classes of one size may change names
    return int(sizes.sum()), [int(n) for n in (*sizes, *alike)]
