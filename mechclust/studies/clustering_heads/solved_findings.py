"""Which networks solve their task, whether the detector finds their heads, and what transfer does: H1 and H6."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Finding, Part, Within, paired_share_part, resampled_part, share_part
from mechclust.studies.clustering_heads.config import (
    IDEAL_POSITIONS,
    MITIGATIONS,
    SCRATCH,
    SOLVED,
    TRANSFER,
    ClusteringHeadsConfig,
)
from mechclust.studies.clustering_heads.controls import FIRST_PAPER, control_of
from mechclust.studies.clustering_heads.curves import first_below
from mechclust.studies.clustering_heads.detector import is_textbook, roc_area, share_below
from mechclust.studies.clustering_heads.results import WEAK, HeadsResults, TrainedNetwork
from probes.clustering_head import INTEGER_DEVIATION

_REPLICATION = "our replication on seeds 0-39"
_SOLVED_BEFORE = 17 / 40  # of seeds 0-39 in the replication
_CHANCE = 0.22  # 1.96 standard errors of the difference of two shares of 40, both .425
_LEAST_OF_A_KIND = 6  # networks, from which on resampling them gives an interval
_SLOWER = "a slower feed-forward layer"
_BETWEEN = f"networks in between ({WEAK} to {SOLVED}) in place of solved ones"


def solved_findings(config: ClusteringHeadsConfig, results: HeadsResults) -> list[Finding]:
    """Return H1, H1a to H1e and H6."""
    return [*_shares(config, results), *_detector(results), _transfer(config, results)]


def _shares(config: ClusteringHeadsConfig, results: HeadsResults) -> list[Finding]:
    range_of_share = Within(0.25, 0.6)
    near = Within(round(_SOLVED_BEFORE - _CHANCE, 3), round(_SOLVED_BEFORE + _CHANCE, 3))
    minority = Bound("<", 0.5)
    slower = list(results.solved_by_seed(MITIGATIONS[1]).values())
    first = min(config.replication, default=0)
    last = max(config.replication, default=0)
    return [
        Finding(
            id="H1",
            statement=f"p = {config.task.p}: share of networks above {SOLVED} test accuracy after {config.epochs:,} "
            "epochs",
            source=_REPLICATION,
            parts=_share([network.solved for network in results.networks.values()], range_of_share),
            control=control_of(_SLOWER, _share(slower, range_of_share)),
            note="; ".join(filter(None, [_when_loss_falls(results), _with_larger_eps(results)])),
        ),
        Finding(
            id="H1b",
            statement="textbook heads are a minority of the solved networks",
            source=_REPLICATION,
            parts=_share([network.textbook for network in results.solved], minority),
            control=control_of(
                "solved networks that started with ideal positions", _share(_textbook_after_ideal(results), minority)
            ),
        ),
        Finding(
            id="H1d",
            statement=f"seeds {first}-{last}: the share solved differs from the replication's 17 of 40 by no more "
            "than chance",
            source=_REPLICATION,
            parts=_share(list(results.solved_by_seed("replication").values()), near),
            control=control_of(_SLOWER, _share(slower, near)),
            paper=_SOLVED_BEFORE,
            note=_with_larger_eps(results),
        ),
    ]


def _detector(results: HeadsResults) -> list[Finding]:
    weak = results.weak
    between = results.in_between
    both_needed = f"networks above {SOLVED} and networks at {WEAK} or below are needed"
    not_tested = "" if results.solved and weak else both_needed
    found = [
        Finding(
            id="H1a",
            statement="solved networks have integer weights on a line or a planar lattice; networks that learnt "
            "little do not",
            source=_REPLICATION,
            parts=_detected(_scores(results.solved), _scores(weak)),
            control=control_of(_BETWEEN, _detected(_scores(between), _scores(weak))),
            not_tested=not_tested,
            note=_missed(results),
        )
    ]
    for id, what, plane in (("H1c", "on a line", False), ("H1e", "on a line or a planar lattice", True)):
        solved, little, middle = (_scores(networks, plane=plane) for networks in (results.solved, weak, between))
        found.append(
            Finding(
                id=id,
                statement=f"area under the ROC curve of the deviation from integer weights {what}: networks above "
                f"{SOLVED} against those at {WEAK} or below, on fresh seeds (thresholds from seeds 0-39)",
                source=_REPLICATION,
                parts=_area(solved, little),
                control=control_of(_BETWEEN, _area(middle, little)),
                not_tested=not_tested,
                note=f"bootstrap over {len(solved)} solved networks and {len(little)} at {WEAK} or below"
                + _against(solved, middle),
            )
        )
    return found


def _transfer(config: ClusteringHeadsConfig, results: HeadsResults) -> Finding:
    continued = results.solved_by_seed(TRANSFER)
    scratch = results.solved_by_seed(SCRATCH)
    seeds = [seed for seed in continued if seed in scratch]
    others = [seed for seed in scratch if seed not in continued][: len(seeds)]
    before = [scratch[seed] for seed in seeds]
    other_seeds = [scratch[seed] for seed in others]
    return Finding(
        id="H6",
        statement=f"p = {config.task.p + 1}: networks that continue from solved p = {config.task.p} solve it more "
        "often than the same seeds from scratch (difference of shares)",
        source=FIRST_PAPER,
        parts=more_often([continued[seed] for seed in seeds], before),
        control=control_of(
            "other seeds from scratch in place of transfer", more_often(other_seeds, before[: len(other_seeds)])
        ),
        not_tested="" if seeds else "no network continued from a solved one",
        note=f"{sum(continued.values()):g} of {len(continued)} by transfer (twice the epochs in total), "
        f"{sum(before):g} of the same seeds and {sum(scratch.values()):g} of all {len(scratch)} from scratch",
    )


# ---- what is measured ----


def more_often(after: Sequence[float], before: Sequence[float]) -> tuple[Part, ...]:
    """Judge whether more units succeed in one way than in another; 0 or 1 for each, in the same order."""
    differences = np.array(after, dtype=float) - np.array(before, dtype=float)
    return (paired_share_part("", differences, Bound(">", 0)),)


def _share(values: Sequence[float], bound: Bound | Within) -> tuple[Part, ...]:
    return (share_part("", values, bound),)


def _textbook_after_ideal(results: HeadsResults) -> list[bool]:
    solved = results.solved_by_seed(IDEAL_POSITIONS)
    heads = results.started.get(IDEAL_POSITIONS, {})
    return [is_textbook(head) for seed, head in heads.items() if solved.get(seed)]


def _scores(networks: Sequence[TrainedNetwork], *, plane: bool = True) -> Float[np.ndarray, "network"]:
    return np.array([network.score(plane=plane) for network in networks])


def _detected(positive: Float[np.ndarray, "n"], negative: Float[np.ndarray, "m"]) -> tuple[Part, ...]:
    """Judge whether the detector finds a head in networks of one kind, and none in those of another."""
    return (
        share_part("solved: detected", positive > -INTEGER_DEVIATION, Bound(">=", 0.9)),
        share_part(f"at {WEAK} or below: not detected", negative <= -INTEGER_DEVIATION, Bound(">=", 0.8)),
    )


def _area(positive: Float[np.ndarray, "n"], negative: Float[np.ndarray, "m"]) -> tuple[Part, ...]:
    """Judge the area under the ROC curve: the mean share of the second kind that scores below one of the first."""
    fewer = min(len(positive), len(negative))
    if not fewer:
        return ()
    interval = roc_area(positive, negative)[1] if fewer >= _LEAST_OF_A_KIND else None
    return (resampled_part("", share_below(positive, negative), interval, Bound(">=", 0.9)),)


# ---- notes ----


def _when_loss_falls(results: HeadsResults) -> str:
    dates = [first_below(network.curve("test_loss"), 0.75 * math.log(network.p)) for network in results.solved]
    known = [date for date in dates if date is not None]
    if not known:
        return ""
    return f"solved networks: test loss first below .75 ln p at epoch {median(known):g} (median; replication 228)"


def _with_larger_eps(results: HeadsResults) -> str:
    larger = list(results.solved_by_seed(MITIGATIONS[0]).values())
    return f"with a larger eps the share is {np.mean(larger):.2f}" if larger else ""


def _against(solved: Float[np.ndarray, "n"], between: Float[np.ndarray, "m"]) -> str:
    if not (len(solved) and len(between)):
        return ""
    return f"; area of solved networks against the {len(between)} in between: {share_below(solved, between).mean():.2f}"


def _missed(results: HeadsResults) -> str:
    missed = [str(network.seed) for network in results.solved if network.score(plane=True) <= -INTEGER_DEVIATION]
    before = sum(bool(network.untrained["integer_head"]) for network in results.networks.values())
    return (
        f"solved without: seeds {', '.join(missed) or 'none'}; before training, {before} of {len(results.networks)} "
        "have integer weights"
    )
