"""What the curriculum does, and how far apart its solution and that from scratch are: H5 and H5b."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Finding, Part, prediction_part, share_part
from mechclust.evidence.intervals import prediction_interval
from mechclust.studies.clustering_heads.config import SOLVED, ClusteringHeadsConfig
from mechclust.studies.clustering_heads.controls import SECOND_PAPER, control_of
from mechclust.studies.clustering_heads.curriculum import ARMS
from mechclust.studies.clustering_heads.interpolation import barrier
from mechclust.studies.clustering_heads.results import HeadsResults
from probes import ProbeResult

_SCRATCH, _CURRICULUM = ARMS
_NOT_RUN = "the curriculum was not run"

Runs = Sequence[ProbeResult]


def curriculum_findings(config: ClusteringHeadsConfig, results: HeadsResults) -> list[Finding]:
    """Return H5 and H5b."""
    runs = list(results.curriculum.values())
    size = f"p = {config.curriculum.p}, {config.curriculum.d_model} dimensions"
    own = np.array([[barrier(line) for line in run["own_line"].numpy()] for run in runs]).reshape(-1, 2)
    return [
        Finding(
            id="H5",
            statement=f"{size}: networks trained on p = 2 first solve it (share above {SOLVED} test accuracy), "
            "networks from scratch memorise the training sequences instead",
            source=SECOND_PAPER,
            parts=_generalise(runs, _CURRICULUM, _SCRATCH),
            control=control_of("the two ways to train exchanged", _generalise(runs, _SCRATCH, _CURRICULUM)),
            not_tested="" if runs else _NOT_RUN,
            note=_accuracies(runs),
        ),
        Finding(
            id="H5b",
            statement=f"{size}: a loss barrier lies between the solution after p = 2 and that from scratch (nats above "
            "the worse end on the straight line, with or without matched neurons, whichever is lower, minus the larger "
            "barrier on the line from halfway to the end of either)",
            source=SECOND_PAPER,
            parts=_higher(_between(runs), own.max(axis=1)),
            control=control_of("the line within one run instead", _higher(own[:, 0], own[:, 1])),
            not_tested="" if runs else _NOT_RUN,
            paper=25,
            note=_barriers(runs),
        ),
    ]


# ---- what is measured ----


def _accuracy(runs: Runs, arm: str, split: str) -> Float[np.ndarray, "seed"]:
    return np.array([float(run.sel("accuracy", arm=arm, split=split)) for run in runs])


def _generalise(runs: Runs, arm: str, other: str) -> tuple[Part, ...]:
    """Judge the shares of networks above the accuracy that counts as solved, since few networks end in between."""
    return (
        share_part("", _accuracy(runs, arm, "test") > SOLVED, Bound(">=", 0.95)),
        share_part("scratch, test", _accuracy(runs, other, "test") > SOLVED, Bound("<=", 0.35)),
        share_part("scratch, train", _accuracy(runs, other, "train") > SOLVED, Bound(">=", 0.95)),
    )


def _between(runs: Runs) -> Float[np.ndarray, "seed"]:
    """Return the barrier between the two solutions, with or without matched neurons, whichever is lower."""
    return np.minimum(_barriers_on(runs, "line"), _barriers_on(runs, "matched_line"))


def _barriers_on(runs: Runs, line: str) -> Float[np.ndarray, "seed"]:
    return np.array([barrier(run[line].numpy()) for run in runs])


def _higher(between: Float[np.ndarray, "seed"], own: Float[np.ndarray, "seed"]) -> tuple[Part, ...]:
    """Judge one more run's barrier, since the paper reports a single run."""
    return (prediction_part("", between - own, Bound(">", 0)),)


# ---- notes ----


def _accuracies(runs: Runs) -> str:
    if not runs:
        return ""
    after, scratch = (_accuracy(runs, arm, "test") for arm in (_CURRICULUM, _SCRATCH))
    first = np.mean([float(run.sel("first_accuracy", split="test")) for run in runs])
    return (
        f"{(after > SOLVED).sum()} and {(scratch > SOLVED).sum()} of {len(runs)} networks; mean test accuracies "
        f"{after.mean():.3f} and {scratch.mean():.3f} (the paper's run: 0.992 after p = 2); on p = 2, before the "
        f"curriculum goes on: {first:.3f}"
    )


def _barriers(runs: Runs) -> str:
    if not runs:
        return ""
    plain = _barriers_on(runs, "line")
    low, high = prediction_interval(plain.tolist()) or (np.nan, np.nan)
    place = "within" if low <= 25 and high >= 28 else "not within"
    return (
        f"without matching, as in the paper: mean {plain.mean():.1f}, seeds from {plain.min():.1f} to "
        f"{plain.max():.1f}, one more run {low:.1f} to {high:.1f} (published: 25 to 28, {place} it); with matching "
        f"{_barriers_on(runs, 'matched_line').mean():.1f}"
    )
