"""Effects of the curriculum, and how far apart the solutions with it and from scratch are: H5 and H5b."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from mechclust.evidence import Bound, Finding, prediction_part
from mechclust.evidence.compared import compared
from mechclust.evidence.intervals import prediction_interval
from mechclust.studies.clustering_heads.claims import SECOND_PAPER
from mechclust.studies.clustering_heads.config import CURRICULUM, SCRATCH, SOLVED, ClusteringHeadsConfig
from mechclust.studies.clustering_heads.interpolation import loss_barrier
from mechclust.studies.clustering_heads.results import HeadsResults
from probes import ProbeResult

_PUBLISHED_BARRIERS = (25, 28)  # nats
_Runs = Sequence[ProbeResult]
_Seeds = Float[np.ndarray, "seed"]


def curriculum_findings(config: ClusteringHeadsConfig, results: HeadsResults) -> list[Finding]:
    """Return H5 and H5b."""
    runs = list(results.curriculum.values())
    size = f"p = {config.curriculum.p}, {config.curriculum.d_model} dimensions"
    not_tested = "" if runs else "the curriculum was not run"
    within = [[loss_barrier(line) for line in run["own_line"].numpy()] for run in runs]
    within_scratch, within_curriculum = np.array(within).reshape(-1, 2).T
    between = np.minimum(_barriers(runs, "line"), _barriers(runs, "matched_line"))
    return [
        compared(
            "H5",
            f"{size}: networks trained on p = 2 first solve it (share above {SOLVED} test accuracy), networks from "
            "scratch memorise the training sequences instead",
            {"": Bound(">=", 0.95), "scratch, test": Bound("<=", 0.35), "scratch, train": Bound(">=", 0.95)},
            [_solve(runs, CURRICULUM, "test"), _solve(runs, SCRATCH, "test"), _solve(runs, SCRATCH, "train")],
            "the two ways to train exchanged",
            [_solve(runs, SCRATCH, "test"), _solve(runs, CURRICULUM, "test"), _solve(runs, CURRICULUM, "train")],
            shares=["", "scratch, test", "scratch, train"],
            source=SECOND_PAPER,
            not_tested=not_tested,
            note=_accuracies_note(runs),
        ),
        compared(  # one more run's barrier, since the paper reports a single run
            "H5b",
            f"{size}: a loss barrier lies between the solution after p = 2 and that from scratch (nats above the worse "
            "end on the straight line, the lower of with and without matched neurons, minus the larger barrier from "
            "halfway to the end of either)",
            {"": Bound(">", 0)},
            [between - np.maximum(within_scratch, within_curriculum)],
            "the line within one run instead",
            [within_scratch - within_curriculum],
            make_part={"": prediction_part},
            source=SECOND_PAPER,
            not_tested=not_tested,
            paper=25,
            note=_barriers_note(runs),
        ),
    ]


def _accuracy(runs: _Runs, arm: str, split: str) -> _Seeds:
    return np.array([float(run.sel("accuracy", arm=arm, split=split)) for run in runs])


def _solve(runs: _Runs, arm: str, split: str) -> Bool[np.ndarray, "seed"]:
    """Return whether each network is above the accuracy that counts as solved. Few networks end in between."""
    return _accuracy(runs, arm, split) > SOLVED


def _barriers(runs: _Runs, line: str) -> _Seeds:
    return np.array([loss_barrier(run[line].numpy()) for run in runs])


def _accuracies_note(runs: _Runs) -> str:
    if not runs:
        return ""
    after = _accuracy(runs, CURRICULUM, "test")
    scratch = _accuracy(runs, SCRATCH, "test")
    first = np.mean([float(run.sel("first_accuracy", split="test")) for run in runs])
    return (
        f"{(after > SOLVED).sum()} and {(scratch > SOLVED).sum()} of {len(runs)} networks; mean test accuracies "
        f"{after.mean():.3f} and {scratch.mean():.3f} (the paper's run: 0.992 after p = 2); on p = 2, before the "
        f"curriculum goes on: {first:.3f}"
    )


def _barriers_note(runs: _Runs) -> str:
    if not runs:
        return ""
    plain = _barriers(runs, "line")
    least, most = _PUBLISHED_BARRIERS
    beside = f"published: {least} to {most}"
    interval = prediction_interval(plain.tolist())
    if interval is not None:
        low, high = interval
        place = "within" if low <= least and high >= most else "not within"
        beside = f"one more run {low:.1f} to {high:.1f} ({beside}, {place} it)"
    return (
        f"without matching, as in the paper: mean {plain.mean():.1f}, seeds from {plain.min():.1f} to "
        f"{plain.max():.1f}, {beside}; with matching {_barriers(runs, 'matched_line').mean():.1f}"
    )
