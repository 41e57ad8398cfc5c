"""How well a curve over layers finds the layers that were changed: pure functions, one rule for all measures."""

from __future__ import annotations

import math

import numpy as np

Span = tuple[int, int]


def rise(curve: np.ndarray) -> np.ndarray:
    """``[... layer]`` how much a curve rises from each layer to the next, starting from 0 before the first.

    Example:
        >>> rise(np.array([0.0, 0.2, 0.5])).round(1).tolist()
        [0.0, 0.2, 0.3]
    """
    return np.diff(curve, prepend=np.zeros((*curve.shape[:-1], 1)), axis=-1)


def threshold(null: np.ndarray, margin: float) -> np.ndarray:
    """``[... layer]`` above which a layer is called changed: ``margin`` times the largest value of the null's pairs.

    Args:
        null: ``[pair ... layer]`` the same measure between models without a relevant difference.
        margin: at least 1.

    Example:
        >>> threshold(np.array([[0.1, -0.1], [0.2, -0.3]]), 2).tolist()
        [0.4, 0.0]
    """
    return margin * np.maximum(null.max(axis=0), 0)  # type: ignore[no-any-return]


def truth_of(span: Span | None, n_layers: int) -> np.ndarray:
    """``[layer]`` which layers were changed.

    Example:
        >>> truth_of((2, 3), 4).tolist()
        [False, True, True, False]
    """
    layers = np.arange(1, n_layers + 1)
    return np.zeros(n_layers, dtype=bool) if span is None else (layers >= span[0]) & (layers <= span[1])


def chance_error(layer: int, n_layers: int) -> float:
    """Mean distance of a random layer from this one.

    Example:
        >>> chance_error(1, 3), chance_error(2, 3)
        (1.0, 0.6666666666666666)
    """
    return float(np.abs(np.arange(1, n_layers + 1) - layer).mean())


def errors(called: np.ndarray, span: Span) -> tuple[np.ndarray, np.ndarray]:
    """How far the first and the last layer that are called changed are from the first and the last that were.

    If no layer is called, both are the expected errors of a random layer.

    Args:
        called: ``[... layer]``.
        span: first and last changed layer, from 1.

    Returns:
        Both, ``[...]``.

    Example:
        >>> [error.tolist() for error in errors(np.array([False, True, True, True]), (2, 3))]
        [0.0, 1.0]
    """
    n, some = called.shape[-1], called.any(axis=-1)
    first, last = called.argmax(axis=-1) + 1, n - np.flip(called, axis=-1).argmax(axis=-1)
    return layer_error(np.where(some, first, 0), span[0], n), layer_error(np.where(some, last, 0), span[1], n)


def layer_error(found: np.ndarray, layer: int, n_layers: int) -> np.ndarray:
    """How far layers are from this one; for layers not found (0, or above the last), the error of a random layer.

    Example:
        >>> layer_error(np.array([1, 0, 4]), 1, 3).tolist()
        [0.0, 1.0, 1.0]
    """
    there = (found >= 1) & (found <= n_layers)
    return np.where(there, np.abs(found - layer), chance_error(layer, n_layers)).astype(float)


def auc(curve: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """The area under the ROC curve: how often a changed layer has a larger value than an unchanged one (ties half).

    NaN if all layers or none were changed, or a value is undefined.

    Args:
        curve: ``[... layer]``.
        truth: ``[layer]``.

    Example:
        >>> auc(np.array([0.0, 0.5, 0.4, 0.4]), np.array([False, True, True, False])).tolist()
        0.875
    """
    yes, no = curve[..., truth], curve[..., ~truth]
    if not truth.any() or truth.all():
        return np.full(curve.shape[:-1], math.nan)
    above = np.sign(yes[..., :, None] - no[..., None, :]).mean(axis=(-2, -1))
    return np.where(np.isfinite(curve).all(axis=-1), (above + 1) / 2, math.nan)


def shares(called: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Share of the changed layers that are called changed, and of the others; NaN if there are none.

    Example:
        >>> called, truth = np.array([True, True, False]), np.array([True, False, False])
        >>> [share.tolist() for share in shares(called, truth)]
        [1.0, 0.5]
    """
    none = np.full(called.shape[:-1], math.nan)
    hit, false = (called[..., chosen].mean(axis=-1) if chosen.any() else none for chosen in (truth, ~truth))
    return hit, false


def upper_call(called: np.ndarray) -> np.ndarray:
    """Whether the layers called changed are those from some layer up to the last, and not all.

    Example:
        >>> upper_call(np.array([[False, True, True], [True, True, True], [False, True, False]])).tolist()
        [True, False, False]
    """
    rising = (np.diff(called.astype(int), axis=-1) >= 0).all(axis=-1)
    return np.asarray(rising & called[..., -1] & ~called[..., 0])
