"""How near the weights of a head are to integers on a line, or to a planar lattice: scores, and a verdict."""

from __future__ import annotations

import math

from probes import ProbeResult
from probes.clustering_head import INTEGER_DEVIATION, INTEGER_NEAREST_CENTROID

_NEVER = -1.0  # below every score: deviations are at most 0.5


def on_plane(head: ProbeResult) -> bool:
    """Whether a head's weights lie on a planar lattice, by the thresholds of the integer-weight head.

    A head measured before the planar measures existed counts as on none.
    """
    return planar_score(head) > -INTEGER_DEVIATION


def line_score(head: ProbeResult) -> float:
    """How near the weights are to integers: the negative deviation, if the residues and the clusters are right.

    The detector of integer-weight heads, with its threshold on the deviation left open. -1 for all others.
    """
    if not (_number(head, "integer_match") and _number(head, "integer_accuracy") >= INTEGER_NEAREST_CENTROID):
        return _NEVER
    return -_number(head, "integer_deviation")


def planar_score(head: ProbeResult) -> float:
    """The same for a planar lattice. Whether a match means anything is tested on networks that learnt little (H1a)."""
    if not (_number(head, "planar_match") == 1 and _number(head, "planar_accuracy") >= INTEGER_NEAREST_CENTROID):
        return _NEVER
    return -_number(head, "planar_deviation")


def _number(head: ProbeResult, name: str) -> float:
    return float(head[name]) if name in head else math.nan
