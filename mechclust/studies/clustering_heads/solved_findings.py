"""Findings on which networks solve their task, on detected heads, and on transfer: H1, H6 and H8."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Control, Finding, Part, TwoSidedBound, paired_share_part, resampled_part
from mechclust.evidence.compared import compared
from mechclust.studies.clustering_heads.claims import FIRST_PAPER, joined_notes
from mechclust.studies.clustering_heads.config import (
    IDEAL_POSITIONS,
    MITIGATIONS,
    SCRATCH,
    SOLVED,
    TRANSFER,
    ClusteringHeadsConfig,
)
from mechclust.studies.clustering_heads.curves import first_below
from mechclust.studies.clustering_heads.detector import is_textbook, roc_area, share_below
from mechclust.studies.clustering_heads.results import WEAK, HeadsResults, TrainedNetwork
from probes.clustering_head import INTEGER_DEVIATION

_REPLICATION = "our replication on seeds 0-39"
_MIN_NETWORKS = 12  # of a kind, from which on resampling them gives an interval, see ``roc_area``
_BETWEEN = f"networks in between ({WEAK} to {SOLVED}) in place of solved ones"
_DETECTED = "solved: detected"
_NOT_DETECTED = f"at {WEAK} or below: not detected"

_Scores = Float[np.ndarray, "network"]


def solved_findings(config: ClusteringHeadsConfig, results: HeadsResults) -> list[Finding]:
    """Return H1, H1a, H1b, H1e, H6 and H8."""
    not_tested = ""
    if not (results.solved and results.weak):
        not_tested = f"networks above {SOLVED} and networks at {WEAK} or below are needed"
    return [
        *_shares(config, results),
        _detected(results, not_tested),
        _area(results, not_tested),
        _second_stage(results),
        _transfer(config, results),
    ]


def _shares(config: ClusteringHeadsConfig, results: HeadsResults) -> list[Finding]:
    slower = list(results.solved_by_seed(MITIGATIONS[1]).values())
    return [
        compared(
            "H1",
            f"p = {config.task.p}: share of networks above {SOLVED} test accuracy after {config.epochs:,} epochs",
            {"": TwoSidedBound(0.25, 0.6)},
            [[network.solved for network in results.networks.values()]],
            "a slower feed-forward layer",
            [slower],
            shares=[""],
            source=_REPLICATION,
            note=joined_notes(_fall_note(results), _larger_eps_note(results)),
        ),
        compared(
            "H1b",
            "textbook heads are a minority of the solved networks",
            {"": Bound("<", 0.5)},
            [[network.textbook for network in results.solved]],
            "solved networks that started with ideal positions",
            [_textbook_after_ideal(results)],
            shares=[""],
            source=_REPLICATION,
        ),
    ]


def _textbook_after_ideal(results: HeadsResults) -> list[bool]:
    solved = results.solved_by_seed(IDEAL_POSITIONS)
    return [is_textbook(head) for seed, head in results.ideal_positions.items() if solved.get(seed)]


def _fall_note(results: HeadsResults) -> str:
    """Return when the loss of solved networks falls."""
    dates = [first_below(network.curve("test_loss"), 0.75 * math.log(network.p)) for network in results.solved]
    known = [date for date in dates if date is not None]
    if not known:
        return ""
    return f"solved networks: test loss first below .75 ln p at epoch {median(known):g} (median; replication 228)"


def _larger_eps_note(results: HeadsResults) -> str:
    larger = list(results.solved_by_seed(MITIGATIONS[0]).values())
    return f"with a larger eps the share is {np.mean(larger):.2f}" if larger else ""


# ---- the detector ----


def _detected(results: HeadsResults, not_tested: str) -> Finding:
    """Judge whether the detector finds a head in networks that solve the task, and none in weak ones."""
    none_in_weak = _scores(results.weak) <= -INTEGER_DEVIATION
    return compared(
        "H1a",
        "solved networks have integer weights on a line or a planar lattice; networks that learnt little do not",
        {_DETECTED: Bound(">=", 0.9), _NOT_DETECTED: Bound(">=", 0.8)},
        [_scores(results.solved) > -INTEGER_DEVIATION, none_in_weak],
        _BETWEEN,
        [_scores(results.in_between) > -INTEGER_DEVIATION, none_in_weak],
        shares=[_DETECTED, _NOT_DETECTED],
        source=_REPLICATION,
        not_tested=not_tested,
        note=_missed_note(results),
    )


def _scores(networks: Sequence[TrainedNetwork]) -> _Scores:
    return np.array([network.score for network in networks])


def _missed_note(results: HeadsResults) -> str:
    missed = [str(network.seed) for network in results.solved if network.score <= -INTEGER_DEVIATION]
    before = sum(bool(network.untrained["integer_head"]) for network in results.networks.values())
    return (
        f"solved without: seeds {', '.join(missed) or 'none'}; before training, {before} of {len(results.networks)} "
        "have integer weights"
    )


def _area(results: HeadsResults, not_tested: str) -> Finding:
    solved = _scores(results.solved)
    weak = _scores(results.weak)
    between = _scores(results.in_between)
    control_parts = _area_parts(between, weak)
    is_resampled = min(len(solved), len(weak)) >= _MIN_NETWORKS
    note = f"{len(solved)} solved networks and {len(weak)} at {WEAK} or below"
    note = f"bootstrap over {note}" if is_resampled else f"too few to resample: {note}"
    if len(solved) and len(between):
        area = share_below(solved, between).mean()
        note += f"; area of solved networks against the {len(between)} in between: {area:.2f}"
    return Finding(
        id="H1e",
        statement="area under the ROC curve of the deviation from integer weights on a line or a planar lattice: "
        f"networks above {SOLVED} against those at {WEAK} or below (thresholds from seeds 0-39)",
        source=_REPLICATION,
        parts=_area_parts(solved, weak),
        control=Control(_BETWEEN, control_parts) if control_parts else None,
        not_tested=not_tested,
        note=note,
    )


def _area_parts(positive: _Scores, negative: Float[np.ndarray, "negative"]) -> tuple[Part, ...]:
    """Judge the area under the ROC curve: the mean share of the second kind that scores below one of the first."""
    fewer = min(len(positive), len(negative))
    if not fewer:
        return ()
    interval = roc_area(positive, negative)[1] if fewer >= _MIN_NETWORKS else None
    return (resampled_part("", share_below(positive, negative), interval, Bound(">=", 0.9)),)


# ---- the second stage alone, and transfer ----


def _second_stage(results: HeadsResults) -> Finding:
    alone = results.second_stage
    base_solved = [network.solved for seed, network in results.networks.items() if seed in alone]
    return compared(
        "H8",
        "the feed-forward layer alone, on the frozen ideal head: share of networks that solve the task",
        {"": Bound(">=", 0.85)},
        [[run.solved for run in alone.values()]],
        "the base setting",
        [base_solved],
        shares=[""],
        source=f"{FIRST_PAPER}; second stage alone",
        not_tested="" if alone else "the second stage was not run",
        note=f"the base setting with these seeds: {np.mean(base_solved):.2f}" if base_solved else "",
    )


def _transfer(config: ClusteringHeadsConfig, results: HeadsResults) -> Finding:
    transferred = results.solved_by_seed(TRANSFER)
    scratch = results.solved_by_seed(SCRATCH)
    seeds = [seed for seed in transferred if seed in scratch]
    others = [seed for seed in scratch if seed not in transferred]
    n_from_scratch = sum(scratch[seed] for seed in seeds)
    return compared(
        "H6",
        f"p = {config.task.p + 1}: networks that continue from solved p = {config.task.p} solve it more often than the "
        "same seeds from scratch (difference of shares)",
        {"": Bound(">", 0)},
        [[transferred[seed] - scratch[seed] for seed in seeds]],
        "other seeds from scratch in place of transfer",
        [[scratch[other] - scratch[seed] for other, seed in zip(others, seeds, strict=False)]],
        make_part={"": paired_share_part},
        source=FIRST_PAPER,
        not_tested="" if seeds else "no network continued from a solved one",
        note=f"{sum(transferred.values()):g} of {len(transferred)} by transfer (twice the epochs in total), "
        f"{n_from_scratch:g} of the same seeds and {sum(scratch.values()):g} of all {len(scratch)} from scratch",
    )
