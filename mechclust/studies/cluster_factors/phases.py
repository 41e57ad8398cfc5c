"""Phases: the labels by which the states of a layer cluster, over the seeds of an arm."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Shaped

from mechclust.evidence import Bound
from mechclust.evidence.bounds import verdict_of
from mechclust.evidence.intervals import mean_interval
from mechclust.studies.cluster_factors.results import ArmResults

NEITHER = "neither"
TASK = "task"
OUTPUT = "output"
BOTH = "both"
UNDECIDED = "undecided"


def verdicts(index: Float[np.ndarray, "seed layer"], clear: float) -> Shaped[np.ndarray, "layer"]:
    """Return whether states cluster by a label: the whole 95% interval of its index over seeds is at least ``clear``.

    A single seed decides nothing.

    Example:
        >>> verdicts(np.array([[0.9, 0.1, 0.2], [0.8, 0.2, 0.9]]), 0.1).tolist()
        ['holds', 'undecided', 'undecided']
    """
    return np.array([verdict_of(Bound(">=", clear), mean_interval(of_layer)) for of_layer in index.T.tolist()])


def phases(arm: ArmResults, step: int, clear: float, position: str = "x") -> Shaped[np.ndarray, "layer"]:
    """Return the phase of each layer at a checkpoint; ``undecided`` if an interval straddles ``clear``.

    At the end of the instruction only the task counts, since no output is known yet.
    """
    task = arm.ari[f"{position} task"]
    output = arm.ari.get(f"{position} output", np.zeros_like(task))
    by_task = verdicts(task[:, step], clear)
    by_output = verdicts(output[:, step], clear)
    undecided = (by_task == UNDECIDED) | (by_output == UNDECIDED)
    held_by_task = by_task == "holds"
    held_by_output = by_output == "holds"
    conditions = [undecided, held_by_task & held_by_output, held_by_task, held_by_output]
    return np.select(conditions, [UNDECIDED, BOTH, TASK, OUTPUT], NEITHER)
