"""How well a linear classifier reads classes from rows, on examples that it was not fitted on."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from probes.functional.arrays import Array, Labels, computed_in_numpy, computed_in_torch
from probes.functional.preprocess import without_class_means
from tasks import InputError

ALPHAS = tuple(10.0**i for i in range(-1, 7))  # strengths of the ridge that are tried
_HELD = 2**26  # bytes of the targets and of all that is made of them, at most
_COPIES = 5  # of the targets, in float64: they, their fits, errors and outputs, and what is made on the way


@computed_in_torch("rows", "labels", labels=["folds", "given"])
def ridge_predictions(
    rows: Float[Array, "n d"],
    labels: Sequence[Int[Array, "labelings n"]],
    folds: Labels,
    given: Labels | None = None,
    alphas: Sequence[float] = ALPHAS,
    device: str | torch.device = "cpu",
) -> list[Int[Array, "labelings n"]]:
    """Class of each example, predicted by a ridge classifier fitted on the other folds.

    Takes tensors or NumPy arrays, and returns the same kind.

    Least squares on one-hot classes, with an intercept and squared weights times a strength, on features centred and
    scaled to standard deviation 1 on the training folds; the class with the largest output is predicted. The strength
    is the one with the least squared leave-one-out error within the training folds, chosen for each labeling by
    itself. The same as scikit-learn's ``StandardScaler`` and ``RidgeClassifierCV``. One decomposition per fold serves
    all labels, labelings and strengths.

    Memory: the rows in float64 three times, ``min(n, d)`` squared float64 numbers, and 64 MiB for the targets of as
    many labelings and classes as fit in that, at least of one class. Cost: per fold a decomposition, ``min(n, d)``
    cubed, and ``n min(n, d)`` multiplications per class, labeling and strength.

    Args:
        rows: states; computed in float64.
        labels: of each label, the classes 0, 1, ... of each example in several labelings: observed, shuffled, ...
        folds: fold of each example, 0, 1, ...
        given: class of each example in another label, whose means in the training folds are removed from the rows. A
            class that is only in the test fold gets the mean of all.
        alphas: strengths that are tried.
        device: where it is computed; one with float64.

    Source: Hoerl & Kennard 1970; leave-one-out errors in closed form as in Rifkin & Lippert 2007.

    Example:
        >>> rows = torch.tensor([[0.0], [1.0], [0.1], [0.9], [0.2], [1.1]])
        >>> ridge_predictions(rows, [torch.tensor([[0, 1, 0, 1, 0, 1]])], torch.tensor([0, 0, 1, 1, 2, 2]))
        [tensor([[0, 1, 0, 1, 0, 1]])]
    """
    x, fold = rows.to(device).double(), folds.to(device)
    placed = [labelings.to(device) for labelings in labels]
    found = [torch.full_like(labelings, -1) for labelings in placed]
    strengths = torch.tensor(list(alphas), dtype=torch.float64, device=x.device)
    for k in range(int(fold.max()) + 1):
        training, test = (fold != k).nonzero()[:, 0], (fold == k).nonzero()[:, 0]
        if not len(test):
            continue
        fitted = _Ridge(*_features(x, training, test, given), strengths)
        for labelings, predicted in zip(placed, found, strict=True):
            classes = int(labelings.max()) + 1
            at_once = max(1, _HELD // (8 * _COPIES * len(x)))  # columns: classes of labelings
            step = max(1, at_once // classes)
            for start in range(0, len(labelings), step):
                part = slice(start, start + step)
                predicted[part, test] = fitted.predict(labelings[part][:, training], classes, at_once)
    return [predicted.cpu() for predicted in found]


def _features(
    x: Float[Tensor, "n d"], training: Tensor, test: Tensor, given: Int[Tensor, "n"] | None
) -> tuple[Float[Tensor, "training d"], Float[Tensor, "test d"]]:
    """Both parts, less the class means of ``given``, centred and scaled as the training part."""
    inside, outside = x[training], x[test]
    if given is not None:
        which, of_class = torch.unique(given.to(x.device), return_inverse=True)
        held, asked = of_class[training], of_class[test]
        middle = inside.mean(0)
        sums = torch.zeros(len(which), x.shape[1], dtype=x.dtype, device=x.device).index_add_(0, held, inside - middle)
        counts = held.bincount(minlength=len(which)).clamp(min=1)[:, None]  # of a class that is not there: the mean
        inside, outside = without_class_means(inside, held), outside - (middle + sums / counts)[asked]
    centre = inside.mean(0)
    inside, outside = inside - centre, outside - centre
    scale = inside.square().mean(0).sqrt()
    tiny = 10 * torch.finfo(torch.float64).eps * (centre.abs() + 1e-300)  # a constant, up to rounding
    scale = torch.where(scale > tiny, scale, 1.0)
    return inside / scale, outside / scale


class _Ridge:
    """Ridge regressions of any targets on the same centred features, over all strengths."""

    def __init__(
        self, inside: Float[Tensor, "n d"], outside: Float[Tensor, "m d"], alphas: Float[Tensor, "alphas"]
    ) -> None:
        n, d = inside.shape
        if n <= d:  # inside = U S V': squares are S^2, left is U, and fits are U S^2 / (S^2 + alpha) U' y
            squares, left = torch.linalg.eigh(inside @ inside.T)
            self._right = outside @ inside.T @ left
            self._fit = squares.clamp(min=0) / (squares.clamp(min=0) + alphas[:, None])
        else:  # left is U S
            squares, directions = torch.linalg.eigh(inside.T @ inside)
            left, self._right = inside @ directions, outside @ directions
            self._fit = 1 / (squares.clamp(min=0) + alphas[:, None])
        self._score = 1 / (squares.clamp(min=0) + alphas[:, None])
        self._left = left
        self._free = 1 - 1 / n - self._fit @ left.square().T  # [alphas n]: 1 - leverage, of the intercept too

    def predict(self, labelings: Int[Tensor, "labelings n"], classes: int, at_once: int) -> Int[Tensor, "labelings m"]:
        """Class with the largest output for each row outside, at each labeling's own best strength.

        Args:
            labelings: classes of the rows inside.
            classes: how many there are.
            at_once: of them for all labelings, at least one.
        """
        step = max(1, at_once // len(labelings))
        every = torch.arange(classes, device=labelings.device)
        parts = [every[start : start + step] for start in range(0, classes, step)]
        errors = torch.zeros(len(self._free), len(labelings), dtype=torch.float64, device=labelings.device)
        for part in parts:
            y, mean = _targets(labelings, part)
            inner = self._left.T @ y
            fits, off = torch.empty_like(inner), torch.empty_like(y)
            for found, fit, weight in zip(errors, self._fit, self._free.square().reciprocal(), strict=True):
                torch.addmm(y, self._left, torch.mul(fit[:, None], inner, out=fits), alpha=-1, out=off)
                found += (weight @ off.square_()).view(len(labelings), len(part)).sum(1)
            del fits, off
        score = self._score[errors.argmin(0)].T[:, :, None]
        for part in parts:
            if len(parts) > 1:
                y, mean = _targets(labelings, part)
                inner = self._left.T @ y
            del y
            outputs = self._right @ inner.view(-1, *mean.shape).mul_(score).flatten(1)
            highest, which = outputs.view(-1, *mean.shape).add_(mean).round_(decimals=9).max(-1)
            if part is parts[0]:
                best, predicted = highest, which
            else:  # of classes that tie, the first, not what rounding says
                predicted = torch.where(highest > best, which + part[0], predicted)
                best = torch.maximum(best, highest)
        return predicted.T


def _targets(
    labelings: Int[Tensor, "labelings n"], classes: Int[Tensor, "classes"]
) -> tuple[Float[Tensor, "n columns"], Float[Tensor, "labelings classes"]]:
    """One-hot classes, less their means, with one column for each class of each labeling; and the means."""
    y = (labelings.T[:, :, None] == classes).double()
    mean = y.mean(0)
    return y.sub_(mean).flatten(1), mean


@computed_in_numpy("hits_per_fold", "n_per_fold")
def accuracy_interval(
    hits_per_fold: Sequence[int] | Int[Array, "folds"],
    n_per_fold: Sequence[int] | Int[Array, "folds"],
    n_effective: float | None = None,
) -> tuple[float, float]:
    """95% interval of a cross-validated accuracy: of ``hits_per_fold`` among the ``n_per_fold`` examples of each fold.

    Takes tensors, NumPy arrays or lists.

    On either side the wider of two intervals, within 0 and 1: Wilson's, over examples, and the corrected resampled
    one, over the k folds' accuracies with variance ``s^2``, whose training parts overlap:
    ``accuracy +- t_{k-1} sqrt((1 / k + 1 / (k - 1)) s^2)``. Wilson's alone is too narrow, as it takes the fitted
    classifiers as given. Folds without examples do not count; with one fold it is Wilson's.

    Args:
        hits_per_fold: examples that were predicted right.
        n_per_fold: examples.
        n_effective: number of independent examples for Wilson's interval, see ``effective_size``; all of them if not
            given.

    Source: Wilson 1927; Nadeau & Bengio, Machine Learning 52, 2003.

    Raises:
        InputError: for no example.

    Example:
        >>> [round(x, 3) for x in accuracy_interval([9, 7, 8, 8, 8], [10] * 5)]
        [0.668, 0.932]
        >>> accuracy_interval([7, 7, 7], [10, 10, 10]) == wilson_interval(21, 30)
        True
    """
    from scipy.stats import t

    hits, n = np.asarray(hits_per_fold, dtype=np.float64), np.asarray(n_per_fold, dtype=np.float64)
    size = float(n.sum()) if n_effective is None else n_effective
    low, high = wilson_interval(float(hits.sum()) * (size / max(1.0, float(n.sum()))), size)
    shares, k = hits[n > 0] / n[n > 0], int((n > 0).sum())
    if k < 2:
        return low, high
    half = float(t.ppf(0.975, k - 1)) * math.sqrt((1 / k + 1 / (k - 1)) * float(shares.var(ddof=1)))
    accuracy = float(hits.sum() / n.sum())
    return max(0.0, min(low, accuracy - half)), min(1.0, max(high, accuracy + half))


def effective_size(right: Bool[np.ndarray, "n"], units: Int[np.ndarray, "n"]) -> float:
    """Number of independent examples whose share would vary as much as that of these, which come in units.

    ``n`` over Kish's design effect, from the variance of the units' sums about their sizes times the share; at most
    ``n``. The number of units if all examples are equal.

    Source: Kish, Survey Sampling, 1965.

    Example:
        >>> right, units = np.array([True, True, False, False] * 10), np.repeat(np.arange(20), 2)
        >>> round(effective_size(right, units), 1)  # of 40, in pairs that always agree
        19.0
    """
    member = np.unique(units, return_inverse=True)[1]
    sizes = np.bincount(member)
    n, n_units, share = len(right), len(sizes), float(right.mean())
    if n_units < 2 or share in (0.0, 1.0):
        return float(n_units)
    residuals = np.bincount(member, weights=right) - share * sizes
    variance = n_units / (n_units - 1) * float(np.square(residuals).sum()) / n**2
    independent = share * (1 - share) / n
    return n if variance <= independent else n * independent / variance


def wilson_interval(hits: float, n: float, z: float = 1.959963984540054) -> tuple[float, float]:
    """95% interval of a share: of ``hits`` among ``n`` independent examples (Wilson 1927).

    Raises:
        InputError: for no example.

    Example:
        >>> [round(x, 3) for x in wilson_interval(8, 10)]
        [0.49, 0.943]
    """
    if n < 1:
        raise InputError(f"n is {n:g}; expected at least 1 example")
    share = hits / n
    middle = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


@computed_in_numpy("classes", "units")
def stratified_folds(classes: Labels, folds: int, units: Labels | None = None, seed: int = 0) -> Int[Array, "n"]:
    """Fold of each example, with about the same share of each class in each fold, and no unit in two of them.

    Takes tensors, NumPy arrays or lists, and returns a tensor if the classes are one.

    scikit-learn's ``StratifiedKFold`` or ``StratifiedGroupKFold``, shuffled. A class with fewer examples than folds is
    missing in some.

    Raises:
        InputError: for fewer than 2 folds, or fewer examples or units than folds.

    Example:
        >>> stratified_folds(np.array([0, 0, 1, 1]), 2).tolist()
        [1, 0, 0, 1]
    """
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    if folds < 2:
        raise InputError(f"folds is {folds}; expected at least 2")
    what, n = ("examples", len(classes)) if units is None else ("units", len(np.unique(units)))
    if n < folds:
        raise InputError(f"{n} {what} for {folds} folds; give at least as many {what} as folds, or fewer folds")
    if np.unique(classes, return_counts=True)[1].max() < folds:
        raise InputError(
            f"every class has fewer examples than the {folds} folds; give more examples per class, or fewer folds"
        )
    split = StratifiedKFold if units is None else StratifiedGroupKFold
    found = np.empty(len(classes), dtype=np.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of classes with fewer examples than folds
        for k, (_, test) in enumerate(split(folds, shuffle=True, random_state=seed).split(classes, classes, units)):
            found[test] = k
    return found
