"""Score how well a curve over layers finds the layers that were changed: pure functions, one rule for all measures."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Bool, Float, Int

Span = tuple[int, int]  # first and last layer, from 1
Curve = Float[np.ndarray, "*curve layer"]
Called = Bool[np.ndarray, "*curve layer"]
Truth = Bool[np.ndarray, "layer"]
PerCurve = Float[np.ndarray, "*curve"]


def rise_by_layer(curve: Curve) -> Curve:
    """Return how much a curve rises from each layer to the next, starting from 0 before the first.

    Example:
        >>> rise_by_layer(np.array([0.0, 0.2, 0.5])).round(1).tolist()
        [0.0, 0.2, 0.3]
    """
    return np.diff(curve, prepend=np.zeros((*curve.shape[:-1], 1)), axis=-1)


def change_threshold(null: Float[np.ndarray, "pair *curve layer"], margin: float) -> Curve:
    """Return the value above which a layer is called changed: ``margin`` times the largest of the null's pairs.

    Args:
        null: this measure between models without a relevant difference.
        margin: at least 1.

    Example:
        >>> change_threshold(np.array([[0.1, -0.1], [0.2, -0.3]]), 2).tolist()
        [0.4, 0.0]
    """
    largest: Curve = np.maximum(null.max(axis=0), 0)
    return margin * largest


def truth_of(span: Span | None, n_layers: int) -> Truth:
    """Return which layers were changed.

    Example:
        >>> truth_of((2, 3), 4).tolist()
        [False, True, True, False]
    """
    layers = np.arange(1, n_layers + 1)
    if span is None:
        return np.zeros(n_layers, dtype=bool)
    return (layers >= span[0]) & (layers <= span[1])


def chance_error(layer: int, n_layers: int) -> float:
    """Return the mean distance of a random layer from this one.

    Example:
        >>> chance_error(1, 3), chance_error(2, 3)
        (1.0, 0.6666666666666666)
    """
    return float(np.abs(np.arange(1, n_layers + 1) - layer).mean())


def boundary_errors(called: Called, span: Span) -> tuple[PerCurve, PerCurve]:
    """Return how far the first and the last layer called changed are from the first and the last that were.

    If no layer is called, both are the expected errors of a random layer.

    Example:
        >>> [error.tolist() for error in boundary_errors(np.array([False, True, True, True]), (2, 3))]
        [0.0, 1.0]
    """
    n_layers = called.shape[-1]
    any_called = called.any(axis=-1)
    first = np.where(any_called, called.argmax(axis=-1) + 1, 0)
    last = np.where(any_called, n_layers - np.flip(called, axis=-1).argmax(axis=-1), 0)
    return layer_error(first, span[0], n_layers), layer_error(last, span[1], n_layers)


def layer_error(read: Int[np.ndarray, "*curve"], layer: int, n_layers: int) -> PerCurve:
    """Return how far layers are from this one.

    A layer that was not found (0, or above the last) has the error of a random layer.

    Example:
        >>> layer_error(np.array([1, 0, 4]), 1, 3).tolist()
        [0.0, 1.0, 1.0]
    """
    exists = (read >= 1) & (read <= n_layers)
    return np.where(exists, np.abs(read - layer), chance_error(layer, n_layers)).astype(float)


def roc_auc(curve: Curve, truth: Truth) -> PerCurve:
    """Return the area under the ROC curve: how often a changed layer has a larger value than another (ties half).

    NaN if all layers or none were changed, or a value is undefined.

    Example:
        >>> roc_auc(np.array([0.0, 0.5, 0.4, 0.4]), np.array([False, True, True, False])).tolist()
        0.875
    """
    if not truth.any() or truth.all():
        return np.full(curve.shape[:-1], math.nan)
    changed = curve[..., truth]
    unchanged = curve[..., ~truth]
    above = np.sign(changed[..., :, None] - unchanged[..., None, :]).mean(axis=(-2, -1))
    return np.where(np.isfinite(curve).all(axis=-1), (above + 1) / 2, math.nan)


def share_called(called: Called, chosen: Truth) -> PerCurve:
    """Return the share of the chosen layers that are called changed, or NaN if none is chosen.

    Example:
        >>> share_called(np.array([True, True, False]), np.array([False, True, True])).tolist()
        0.5
    """
    if not chosen.any():
        return np.full(called.shape[:-1], math.nan)
    return np.asarray(called[..., chosen].mean(axis=-1))


def _upper_call(called: Called) -> Bool[np.ndarray, "*curve"]:
    """Return whether the layers called changed are all from some layer up to the last, but not all layers.

    Example:
        >>> _upper_call(np.array([[False, True, True], [True, True, True], [False, True, False]])).tolist()
        [True, False, False]
    """
    rising = (np.diff(called.astype(int), axis=-1) >= 0).all(axis=-1)
    return np.asarray(rising & called[..., -1] & ~called[..., 0])


def score_curves(curve: Curve, bar: Curve, truth: Span | None) -> dict[str, PerCurve]:
    """Score how well curves find the layers that were planted.

    Args:
        curve: the measure by layer.
        bar: the value above which a layer is called changed.
        truth: first and last planted layer, or ``None`` if there is none.

    Returns:
        ``auc``. ``onset`` and ``end``: errors in layers. ``hit``: share of the changed layers that are called.
        ``false``: share of the others that are called. ``found``: whether any layer is called. ``top``: whether the
        model's last layer is. ``upper``: whether upper layers only are. NaN if a score is undefined.
    """
    called = curve > bar
    planted = truth_of(truth, curve.shape[-1])
    onset = end = np.full(curve.shape[:-1], math.nan)
    if truth is not None:
        onset, end = boundary_errors(called, truth)
    scores = {
        "auc": roc_auc(curve, planted),
        "onset": onset,
        "end": end,
        "hit": share_called(called, planted),
        "false": share_called(called, ~planted),
        "found": called.any(axis=-1).astype(float),
        "top": called[..., -1].astype(float),
        "upper": _upper_call(called).astype(float),
    }
    known = np.isfinite(curve).all(axis=-1) & np.isfinite(bar).all(axis=-1)
    return {name: np.where(known, values, math.nan) for name, values in scores.items()}
