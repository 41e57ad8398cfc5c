"""Phases: what the states of a layer cluster by, over the seeds of an arm."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mechclust.evidence.bounds import Bound, verdict_of
from mechclust.evidence.intervals import mean_interval
from mechclust.studies.cluster_factors.results import RunResults

NEITHER, TASK, OUTPUT, BOTH, UNDECIDED = "neither", "task", "output", "both", "undecided"
PHASES = (NEITHER, TASK, OUTPUT, BOTH, UNDECIDED)


def phase_of(task: Sequence[float], output: Sequence[float], clear: float) -> str:
    """What states cluster by: a label counts if the whole 95% interval of its index over seeds is at least this.

    ``undecided`` if an interval straddles this bound. A single seed decides nothing.

    Example:
        >>> phase_of([0.9, 0.8, 0.85], [0.1, 0.2, 0.1], 0.5), phase_of([0.9, 0.8, 0.85], [0.2, 0.9, 0.5], 0.5)
        ('task', 'undecided')
    """
    verdicts = [verdict_of(Bound(">=", clear), mean_interval(list(values))) for values in (task, output)]
    if "undecided" in verdicts:
        return UNDECIDED
    return (NEITHER, OUTPUT, TASK, BOTH)[2 * (verdicts[0] == "holds") + (verdicts[1] == "holds")]


def phases(runs: Sequence[RunResults], clear: float, position: str = "x") -> list[list[str]]:
    """``[steps][layers]`` phases of an arm; at the end of the instruction by task only: no output is known yet."""
    task = np.stack([run.ari[f"{position} {TASK}"] for run in runs], -1)
    known = f"{position} {OUTPUT}" in runs[0].ari
    output = np.stack([run.ari[f"{position} {OUTPUT}"] for run in runs], -1) if known else np.zeros_like(task)
    return [
        [phase_of(t.tolist(), o.tolist(), clear) for t, o in zip(*at, strict=True)]
        for at in zip(task, output, strict=True)
    ]


def clear_by(runs: Sequence[RunResults], clear: float, curve: str) -> np.ndarray:
    """``[steps layers]`` where the whole interval of a curve's index over seeds is at least this; else nowhere."""
    if curve not in runs[0].ari:
        return np.zeros(runs[0].linear.shape, dtype=bool)
    values = np.stack([run.ari[curve] for run in runs], -1)
    return np.array(
        [[verdict_of(Bound(">=", clear), mean_interval(v.tolist())) == "holds" for v in at] for at in values]
    )
