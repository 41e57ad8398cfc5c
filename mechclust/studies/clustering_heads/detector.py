"""Kinds of head, from the measures of ``ClusteringHead``, and scores by which networks with a head are detected."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from mechclust.evidence.intervals import Interval
from probes import ProbeResult
from probes.clustering_head import INTEGER_DEVIATION, INTEGER_NEAREST_CENTROID

TEXTBOOK = "textbook"
INTEGER = "integer-weight"
PLANAR = "planar"
NEITHER = "neither"
_TEXTBOOK_VERDICT = 2
_NO_HEAD = -1.0  # below every score: deviations are at most 0.5


def is_textbook(head: ProbeResult) -> bool:
    """Return whether the head is a textbook head."""
    return int(head["verdict"]) == _TEXTBOOK_VERDICT


def head_kind(head: ProbeResult) -> str:
    """Return the first that applies: ``"textbook"``, ``"integer-weight"``, ``"planar"`` (lattice) or ``"neither"``."""
    if is_textbook(head):
        return TEXTBOOK
    if bool(head["integer_head"]):
        return INTEGER
    return PLANAR if on_plane(head) else NEITHER


def on_plane(head: ProbeResult) -> bool:
    """Return whether a head's weights lie on a planar lattice, by the thresholds of the integer-weight head.

    A head measured before the planar measures existed counts as being on none.
    """
    return planar_score(head) > -INTEGER_DEVIATION


def line_score(head: ProbeResult) -> float:
    """Return how near the weights are to integers: the negative deviation, if the residues and the clusters are right.

    The detector of integer-weight heads, with its threshold on the deviation left open. -1 for all others.
    """
    return _score(head, "integer")


def planar_score(head: ProbeResult) -> float:
    """Return the score for a planar lattice.

    Whether a match means anything is tested on networks that learnt little (H1a).
    """
    return _score(head, "planar")


def _score(head: ProbeResult, lattice: str) -> float:
    if f"{lattice}_match" not in head:
        return _NO_HEAD
    is_right = head[f"{lattice}_match"] == 1 and head[f"{lattice}_accuracy"] >= INTEGER_NEAREST_CENTROID
    return -float(head[f"{lattice}_deviation"]) if is_right else _NO_HEAD


def share_below(
    positive: Float[np.ndarray, "positive"], negative: Float[np.ndarray, "negative"]
) -> Float[np.ndarray, "positive"]:
    """Return for each positive the share of negatives with a lower score, ties counting half.

    Their mean is the area under the ROC curve.

    Example:
        >>> share_below(np.array([0.9, 0.4]), np.array([0.1, 0.4])).tolist()
        [1.0, 0.75]
    """
    return _above(positive, negative).mean(axis=1)


def roc_area(
    positive: Float[np.ndarray, "positive"], negative: Float[np.ndarray, "negative"]
) -> tuple[float, Interval]:
    """Return the area under the ROC curve and its 95% interval by bootstrap over both kinds of network.

    Of normal scores with an area of .9, the nominal 95% interval covers it in 78% of samples with 6 networks of each
    kind, 88% with 12 and 94% with 40 and 45. Of an area of .97, these are 45%, 74% and 90%.

    Args:
        positive: scores of cases that should be detected.
        negative: scores of cases that should not.

    Example:
        >>> area, (low, high) = roc_area(np.array([0.9, 0.8, 0.4]), np.array([0.1, 0.4]))
        >>> round(area, 3), low <= area <= high
        (0.917, True)
    """
    above = _above(positive, negative)
    rng = np.random.default_rng(0)
    n, m = above.shape
    rows = rng.multinomial(n, np.full(n, 1 / n), size=500) / n
    columns = rng.multinomial(m, np.full(m, 1 / m), size=500) / m
    areas = np.einsum("bm,bm->b", rows @ above, columns)
    low, high = np.quantile(areas, (0.025, 0.975))
    return float(above.mean()), (float(low), float(high))


def _above(
    positive: Float[np.ndarray, "positive"], negative: Float[np.ndarray, "negative"]
) -> Float[np.ndarray, "positive negative"]:
    """Return 1 if a positive scores above a negative, one half if they tie, and 0 otherwise."""
    ties = positive[:, None] == negative
    return (positive[:, None] > negative) + 0.5 * ties
