"""Accuracy of a linear classifier of rows on examples that it was not fitted on."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from probes.functional.arrays import Array, Labels, check_class_array, computed_in_numpy, computed_in_torch
from probes.functional.preprocess import without_class_means
from tasks import InputError
from tasks.settings import check_count

ALPHAS = tuple(10.0**i for i in range(-1, 7))  # strengths of the ridge that are tried
MAX_TARGET_BYTES = 2**26  # bytes of a block's targets and of all arrays computed from them
_BLOCK = 8192  # rows at a time
_MAX_CLASSES = 10**7
_SEVERAL_CLASSES = -1
_TARGET_COPIES = 5  # float64 copies: targets, fits, errors, outputs, and intermediate results


@computed_in_torch()
def ridge_predictions(
    rows: Float[Array, "row dim"],
    labels: Int[Array, "labeling row"],
    folds: Labels,
    given: Labels | None = None,
    alphas: Sequence[float] = ALPHAS,
    device: str | torch.device = "cpu",
) -> Int[Array, "labeling row"]:
    """Return the class of each example, predicted by a ridge classifier fitted on the other folds.

    Takes tensors, NumPy arrays or lists, and returns tensors for tensors, otherwise arrays.

    Least squares on one-hot classes, with an intercept and squared weights times a strength, on features centred and
    scaled to standard deviation 1 on the training folds. The class with the largest output is predicted. The strength
    has the least squared leave-one-out error within the training folds, chosen separately for each labeling. Equal to
    scikit-learn's ``StandardScaler`` and ``RidgeClassifierCV``. One decomposition per fold serves all labelings and
    strengths.

    Memory: the rows in float64 six times, ``min(n, d)`` squared float64 numbers, 16 bytes per row and labeling, and
    64 MiB for targets (or 320 kB per class, if larger). Cost: per fold a decomposition, ``min(n, d)`` cubed, and
    ``n min(n, d)`` multiplications per class, labeling and strength.

    Args:
        rows: states, computed in float64.
        labels: classes 0, 1, ... of each example in several labelings: observed, shuffled, ...
        folds: fold of each example, 0, 1, ...
        given: class of each example in another label, whose means in the training folds are removed from the rows. A
            class that is only in the test fold gets the mean of all.
        alphas: strengths that are tried.
        device: device that computes, with float64.

    Source: Hoerl & Kennard 1970. Leave-one-out errors in closed form as in Rifkin & Lippert 2007.

    Example:
        >>> rows = torch.tensor([[0.0], [1.0], [0.1], [0.9], [0.2], [1.1]])
        >>> ridge_predictions(rows, torch.tensor([[0, 1, 0, 1, 0, 1]]), torch.tensor([0, 0, 1, 1, 2, 2]))
        tensor([[0, 1, 0, 1, 0, 1]])
    """
    check_class_array(folds, "folds", _MAX_CLASSES)
    if bool((folds == folds[0]).all()):
        raise InputError("folds has one fold; expected at least 2")
    check_class_array(labels, "labels", _MAX_CLASSES)
    x = rows.detach().to(device).double()
    fold = folds.to(device)
    labelings = labels.to(device)
    strengths = torch.tensor(list(alphas), dtype=torch.float64, device=x.device)
    n_classes = int(labelings.max()) + 1
    at_once = max(1, MAX_TARGET_BYTES // (8 * _TARGET_COPIES * min(len(x), _BLOCK) * n_classes))  # labelings
    predictions = torch.full_like(labelings, -1)
    for k in torch.unique(fold):
        training = (fold != k).nonzero()[:, 0]
        test = (fold == k).nonzero()[:, 0]
        ridge = _Ridge(*_features(x, training, test, given), strengths)
        for start in range(0, len(labelings), at_once):
            part = slice(start, start + at_once)
            predictions[part, test] = ridge.predict(labelings[part][:, training], n_classes)
    return predictions.cpu()


def _features(
    x: Float[Tensor, "row dim"],
    training: Int[Tensor, "training"],
    test: Int[Tensor, "test"],
    given: Shaped[Tensor, "row"] | None,
) -> tuple[Float[Tensor, "training dim"], Float[Tensor, "test dim"]]:
    """Return both parts, less the class means of ``given``, centred and scaled as the training part."""
    inside = x[training]
    outside = x[test]
    if given is not None:
        names, classes = torch.unique(given.to(x.device), return_inverse=True)
        outside = outside - _class_means(inside, classes[training], len(names))[classes[test]]
        inside = without_class_means(inside, classes[training])
    centre = inside.mean(0)
    inside = inside - centre
    outside = outside - centre
    scale = inside.square().mean(0).sqrt()
    tiny = 10 * torch.finfo(torch.float64).eps * (centre.abs() + 1e-300)  # a constant, up to rounding
    scale = torch.where(scale > tiny, scale, 1.0)
    return inside / scale, outside / scale


def _class_means(
    rows: Float[Tensor, "row dim"], classes: Int[Tensor, "row"], n_classes: int
) -> Float[Tensor, "class dim"]:
    """Return the mean of the rows of each class, or of all rows for a class without any."""
    middle = rows.mean(0)
    sums = rows.new_zeros(n_classes, rows.shape[1]).index_add_(0, classes, rows - middle)
    return middle + sums / classes.bincount(minlength=n_classes).clamp(min=1)[:, None]


class _Ridge:
    """Ridge regressions of any targets on one set of centred features, over all strengths."""

    def __init__(
        self,
        inside: Float[Tensor, "training dim"],
        outside: Float[Tensor, "test dim"],
        alphas: Float[Tensor, "strength"],
    ) -> None:
        n, dim = inside.shape
        if n <= dim:  # inside = U S V': squares are S^2, left is U, and fits are U S^2 / (S^2 + alpha) U' y
            squares, left = torch.linalg.eigh(inside @ inside.T)
            squares = squares.clamp(min=0)
            self._right = outside @ inside.T @ left
            self._fit = squares / (squares + alphas[:, None])
        else:  # left is U S
            squares, directions = torch.linalg.eigh(inside.T @ inside)
            squares = squares.clamp(min=0)
            left = inside @ directions
            self._right = outside @ directions
            self._fit = 1 / (squares + alphas[:, None])
        self._score = 1 / (squares + alphas[:, None])
        self._left = left
        free = 1 - 1 / n - self._fit @ left.square().T  # [strength training]: 1 - leverage, of the intercept too
        self._weights = free.square().reciprocal()

    def predict(self, labelings: Int[Tensor, "labeling training"], n_classes: int) -> Int[Tensor, "labeling test"]:
        """Return the class with the largest output for each row outside, at each labeling's best strength."""
        mean = _shares(labelings, n_classes)
        blocks = list(
            zip(
                torch.split(self._left, _BLOCK),
                torch.split(self._weights, _BLOCK, dim=1),
                torch.split(labelings, _BLOCK, dim=1),
                strict=True,
            )
        )
        inner = self._left.new_zeros(self._left.shape[1], mean.numel())
        for left, _, part in blocks:
            inner.addmm_(left.T, _targets(part, mean))
        errors = inner.new_zeros(len(self._fit), mean.numel())
        for left, weights, part in blocks:
            errors += self._errors(_targets(part, mean), left, inner, weights)
        best = errors.view(len(self._fit), *mean.shape).sum(2).argmin(0)
        scaled = inner.view(-1, *mean.shape).mul_(self._score[best].T[:, :, None]).flatten(1)
        return torch.cat([_largest(right @ scaled, mean) for right in torch.split(self._right, _BLOCK)], dim=1)

    def _errors(
        self,
        targets: Float[Tensor, "block column"],
        left: Float[Tensor, "block direction"],
        inner: Float[Tensor, "direction column"],
        weights: Float[Tensor, "strength block"],
    ) -> Float[Tensor, "strength column"]:
        """Return the squared leave-one-out errors of a block's targets, summed over its examples.

        Args:
            targets: the block's targets.
            left: its rows of the left factor.
            inner: products of all targets with the directions.
            weights: squared ratio of each example's leave-one-out error to its residual.
        """
        errors = []
        fits = torch.empty_like(inner)
        residuals = torch.empty_like(targets)
        for fit, weight in zip(self._fit, weights, strict=True):
            torch.addmm(targets, left, torch.mul(fit[:, None], inner, out=fits), alpha=-1, out=residuals)
            errors.append(weight @ residuals.square_())
        return torch.stack(errors)


def _shares(labelings: Int[Tensor, "labeling row"], n_classes: int) -> Float[Tensor, "labeling class"]:
    """Return the share of each class in each labeling."""
    ones = torch.ones(labelings.shape, dtype=torch.float64, device=labelings.device)
    counts = ones.new_zeros(len(labelings), n_classes).scatter_add_(1, labelings, ones)
    return counts / labelings.shape[1]


def _targets(
    labelings: Int[Tensor, "labeling row"], shares: Float[Tensor, "labeling class"]
) -> Float[Tensor, "row column"]:
    """Return one-hot classes minus their shares, with a column for each class of each labeling."""
    classes = torch.arange(shares.shape[1], device=labelings.device)
    one_hot = (labelings.T[:, :, None] == classes).double()
    return one_hot.sub_(shares).flatten(1)


def _largest(
    outputs: Float[Tensor, "row column"], shares: Float[Tensor, "labeling class"]
) -> Int[Tensor, "labeling row"]:
    """Return the class with the largest output, the first of tied ones, whatever the rounding."""
    return (outputs.view(-1, *shares.shape) + shares).round_(decimals=9).max(-1).indices.T


@computed_in_numpy
def stratified_folds(classes: Labels, folds: int, units: Labels | None = None, seed: int = 0) -> Int[Array, "row"]:
    """Return the fold of each example, with about equal class shares in all folds and no unit in two folds.

    Takes tensors, NumPy arrays or lists, and returns a tensor if the classes are one.

    scikit-learn's ``StratifiedKFold`` without units, and ``StratifiedGroupKFold`` if every unit has several classes,
    shuffled. A class with fewer examples than folds is missing in some.

    Units of one class are stratified as units, whatever their sizes, and those of several classes among them as one
    further class. Folds with equal shares of *examples* would be balanced for these labels alone: when units of
    different sizes exchange labels, chance would be too low.

    Raises:
        InputError: for fewer than 2 folds, or fewer examples or units than folds.

    Example:
        >>> stratified_folds(np.array([0, 0, 1, 1]), 2).tolist()
        [1, 0, 0, 1]
    """
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    check_count(folds=(folds, 2), seed=(seed, 0))
    classes = np.unique(classes, return_inverse=True)[1]
    n = len(classes) if units is None else len(np.unique(units))
    if n < folds:
        items = "examples" if units is None else "units"
        raise InputError(f"{n} {items} for {folds} folds; give at least as many {items} as folds, or fewer folds")
    if np.unique(classes, return_counts=True)[1].max() < folds:
        raise InputError(
            f"every class has fewer examples than the {folds} folds; give more examples per class, or fewer folds"
        )
    members = None if units is None else np.unique(units, return_inverse=True)[1]
    if members is not None:
        class_of_unit = _class_of_unit(classes, members)
        if (class_of_unit != _SEVERAL_CLASSES).any():
            return _dealt_in_turn(class_of_unit, folds, seed)[members]
    split = StratifiedKFold if units is None else StratifiedGroupKFold
    fold_of_example = np.empty(len(classes), dtype=np.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about classes with fewer examples than folds
        for k, (_, test) in enumerate(split(folds, shuffle=True, random_state=seed).split(classes, classes, members)):
            fold_of_example[test] = k
    return fold_of_example


def _class_of_unit(classes: Int[np.ndarray, "row"], members: Int[np.ndarray, "row"]) -> Int[np.ndarray, "unit"]:
    """Return the class of each unit 0, 1, ..., or ``_SEVERAL_CLASSES``."""
    units, classes = np.unique(np.stack([members, classes]), axis=1)
    first, n_classes = np.unique(units, return_index=True, return_counts=True)[1:]
    return np.where(n_classes == 1, classes[first], _SEVERAL_CLASSES)


def _dealt_in_turn(classes: Int[np.ndarray, "item"], folds: int, seed: int) -> Int[np.ndarray, "item"]:
    """Return the fold of each item: one class after the other, in random order, each item in the next fold."""
    order = np.lexsort((np.random.default_rng(seed).random(len(classes)), classes))
    fold_of_item = np.empty(len(classes), dtype=np.int64)
    fold_of_item[order] = np.arange(len(classes)) % folds
    return fold_of_item
