"""How well a curve over layers finds the layers that were changed: pure functions, one rule for all measures."""

from __future__ import annotations

import math

import numpy as np

Span = tuple[int, int]


def rise(curve: np.ndarray) -> np.ndarray:
    """``[... layer]`` how much a curve rises from each layer to the next; from 0 before the first.

    Example:
        >>> rise(np.array([0.0, 0.2, 0.5])).round(1).tolist()
        [0.0, 0.2, 0.3]
    """
    return np.diff(curve, prepend=np.zeros((*curve.shape[:-1], 1)), axis=-1)


def threshold(null: np.ndarray, margin: float) -> np.ndarray:
    """``[... layer]`` above which a layer is called changed: ``margin`` times the largest value of the null's pairs.

    Args:
        null: ``[pair ... layer]`` the same measure between models that differ in nothing that matters.
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
    """How far a layer drawn at random is from this one, on average.

    Example:
        >>> chance_error(1, 3), chance_error(2, 3)
        (1.0, 0.6666666666666666)
    """
    return float(np.abs(np.arange(1, n_layers + 1) - layer).mean())


def errors(called: np.ndarray, span: Span) -> tuple[float, float]:
    """How far the first and the last layer that are called changed are from the first and the last that were.

    Where no layer is called, both are those of layers drawn at random.

    Args:
        called: ``[layer]``.
        span: first and last changed layer, from 1.

    Example:
        >>> errors(np.array([False, True, True, True]), (2, 3))
        (0.0, 1.0)
    """
    found = np.flatnonzero(called) + 1
    if not len(found):
        return chance_error(span[0], len(called)), chance_error(span[1], len(called))
    return float(abs(found[0] - span[0])), float(abs(found[-1] - span[1]))


def auc(curve: np.ndarray, truth: np.ndarray) -> float:
    """How often a changed layer has a larger value than an unchanged one, ties counting half: the area under the ROC.

    NaN where all layers or none were changed, or a value is undefined.

    Example:
        >>> auc(np.array([0.0, 0.5, 0.4, 0.4]), np.array([False, True, True, False]))
        0.875
    """
    yes, no = curve[truth], curve[~truth]
    if not len(yes) or not len(no) or not np.isfinite(curve).all():
        return math.nan
    above = np.sign(yes[:, None] - no[None])
    return float((above.mean() + 1) / 2)


def partial_call(called: np.ndarray) -> bool:
    """Whether some layers are called changed and others are not: the change is said to have a place.

    Example:
        >>> partial_call(np.array([False, True])), partial_call(np.array([True, True]))
        (True, False)
    """
    return bool(called.any() and not called.all())
