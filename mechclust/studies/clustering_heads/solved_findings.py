"""Which networks solve their task, whether the detector detects it, and what transfer does: H1, H6."""

from __future__ import annotations

import math
from functools import partial
from statistics import median

import numpy as np

from mechclust.report.draws import Data, coins, exchanged, relabelled
from mechclust.report.findings import Parts
from mechclust.evidence.bounds import Bound
from mechclust.evidence.intervals import Interval, share_interval
from mechclust.studies.clustering_heads.config import SCRATCH, SOLVED, TRANSFER, ClusteringHeadsConfig
from mechclust.studies.clustering_heads.curves import first_below
from mechclust.studies.clustering_heads.predicted import Predicted, paired
from mechclust.studies.clustering_heads.results import WEAK, HeadsResults
from mechclust.studies.clustering_heads.roc import roc_area
from probes.clustering_head import INTEGER_DEVIATION

FIRST = "Odonnat et al., arXiv 2410.24050"
_REPLICATION = "our replication on seeds 0-39"
_SOLVED_BEFORE = 17 / 40  # of seeds 0-39 in the replication
_CHANCE = 0.22  # 1.96 standard errors of the difference of two shares of 40, both .425
_LEAST_OF_A_KIND = 6  # networks, from which on resampling them gives an interval
_AT_BOUND = "networks that solve it with the probability at either bound"


def solved_findings(config: ClusteringHeadsConfig, results: HeadsResults) -> list[Predicted]:
    """H1, H1a to H1e, H6."""
    return [*_shares(config, results), *_detector(results), _transfer(config, results)]


def _within(name: str, low: float, high: float, data: Data) -> Parts:
    return [("", data[name], Bound(">=", low)), ("", data[name], Bound("<=", high))]


def _shares(config: ClusteringHeadsConfig, results: HeadsResults) -> list[Predicted]:
    every, solved = list(results.networks.values()), results.solved
    half = [d for n in solved if (d := first_below(n.curve("test_loss"), 0.75 * math.log(n.p))) is not None]
    first, last = min(config.replication, default=0), max(config.replication, default=0)
    near = round(_SOLVED_BEFORE - _CHANCE, 3), round(_SOLVED_BEFORE + _CHANCE, 3)
    as_before = (coins("solved", chance=_SOLVED_BEFORE), "the replication's probability, 17 of 40")
    return [
        Predicted(
            "H1", f"p = {config.task.p}: share of networks above {SOLVED} test accuracy after {config.epochs:,} epochs",
            _REPLICATION, partial(_within, "solved", 0.25, 0.6), coins("solved", chance=(0.25, 0.6)), _AT_BOUND,
            *as_before, shares=True,
            predicted="undecided", data={"solved": np.array([float(n.solved) for n in every])},
            chance=f"a network that guesses has accuracy {1 / config.task.p:.2g}",
            note=f"solved networks: test loss first below .75 ln p at epoch {median(half):g} (median; replication 228)"
            if half else "",
        ),
        Predicted(
            "H1b", "textbook heads are a minority of the solved networks", _REPLICATION,
            lambda data: [("", data["textbook"], Bound("<", 0.5))],
            coins("textbook", chance=0.5), "textbook heads with probability .5",
            coins("textbook", chance=7 / 17), "the replication's probability, 7 of 17", shares=True,
            predicted="undecided", data={"textbook": np.array([float(n.textbook) for n in solved])},
        ),
        Predicted(
            "H1d", f"seeds {first}-{last}: the share solved differs from the replication's 17 of 40 by no more than "
            "chance", _REPLICATION, partial(_within, "solved", *near), coins("solved", chance=near), _AT_BOUND,
            *as_before, shares=True, paper=_SOLVED_BEFORE,
            predicted="holds", data={"solved": np.array(results.shares("replication"))},
        ),
    ]  # fmt: skip


def _detector(results: HeadsResults) -> list[Predicted]:
    networks = results.ends
    solved = np.array([n.solved for n in networks], dtype=bool)
    both = 0 < solved.sum() < len(solved)
    why = "" if both else f"networks above {SOLVED} and networks at {WEAK} or below are needed"
    exchanged_kinds = (relabelled("solved"), "which networks are solved, exchanged at random")
    line, either = (np.array([n.score(plane=plane) for n in networks]) for plane in (False, True))
    missed = [
        str(n.seed) for n, score in zip(networks, either, strict=True) if n.solved and score <= -INTEGER_DEVIATION
    ]
    left = len(results.networks) - len(networks)

    def found(data: Data) -> Parts:
        there = data["score"] > -INTEGER_DEVIATION
        return [
            ("solved: detected", there[data["solved"]].astype(float), Bound(">=", 0.9)),
            (f"at {WEAK} or below: not detected", (~there[~data["solved"]]).astype(float), Bound(">=", 0.8)),
        ]

    def area(data: Data) -> Parts:
        good, bad = data["score"][data["solved"]], data["score"][~data["solved"]]
        above = (good[:, None] > bad) + 0.5 * (good[:, None] == bad)
        return [("", above.mean(axis=1), Bound(">=", 0.9))]

    def span(data: Data) -> dict[str, Interval | None]:
        of_both = data["score"][data["solved"]], data["score"][~data["solved"]]
        return {"": roc_area(*of_both)[1] if min(map(len, of_both)) >= _LEAST_OF_A_KIND else None}

    def sharp(data: Data, rng: np.random.Generator) -> Data:
        right = rng.random(len(solved)) < 0.97
        return {**data, "score": np.where(right == data["solved"], -0.1 * rng.random(len(solved)), -1.0)}

    text = f"on fresh seeds (thresholds from 0-39), networks above {SOLVED} against those at {WEAK} or below"
    planted = (sharp, "97 in 100 networks of either kind are classified correctly")
    return [
        Predicted(
            "H1a", "solved networks have integer weights on a line or a planar lattice; networks that learnt little do "
            "not", _REPLICATION, found, *exchanged_kinds, *planted, shares=True,
            predicted="undecided", data={"score": either, "solved": solved} if both else None, why_not=why,
            note=f"solved without: seeds {', '.join(missed) or 'none'}; {left} networks in between are left out; "
            f"before training, {sum(bool(n.untrained['integer_head']) for n in results.networks.values())} of "
            f"{len(results.networks)} have integer weights",
        ),
        *(
            Predicted(
                id, f"area under the ROC curve of the deviation from {what}, {text}", _REPLICATION, area,
                *exchanged_kinds, *planted, intervals=span, chance="0.5",
                predicted="holds" if plane else "undecided",
                data={"score": score, "solved": solved} if both else None, why_not=why,
                note=f"bootstrap over {solved.sum()} solved networks and {(~solved).sum()} at {WEAK} or below",
            )
            for id, what, plane, score in (
                ("H1c", "integer weights on a line", False, line),
                ("H1e", "integer weights on a line or a planar lattice", True, either),
            )
        ),
    ]  # fmt: skip


def _transfer(config: ClusteringHeadsConfig, results: HeadsResults) -> Predicted:
    there, scratch = (results.final.get(arm, {}) for arm in (TRANSFER, SCRATCH))
    pairs = [(test, scratch[seed][1]) for seed, (_, test) in there.items() if seed in scratch]
    after, before = ([float(pair[i] > SOLVED) for pair in pairs] for i in (0, 1))
    share = results.shares(SCRATCH)
    span = share_interval(share)

    def better(data: Data, rng: np.random.Generator) -> Data:
        n = len(data["after"])
        return {"after": (rng.random(n) < 0.3).astype(float), "before": (rng.random(n) < 0.02).astype(float)}

    return Predicted(
        "H6", f"p = {config.task.p + 1}: networks that continue from solved p = {config.task.p} solve it more often "
        "than the same seeds from scratch (difference of shares)", FIRST,
        lambda data: [("", data["after"] - data["before"], Bound(">", 0))],
        exchanged(("after", "before")), "the two arms exchanged seed by seed", intervals=paired("after", "before"),
        planted=better, planted_what="30 of 100 solve it by transfer, 2 of 100 from scratch",
        predicted="undecided", data={"after": np.array(after), "before": np.array(before)},
        why_not="" if pairs else "no network continued from a solved one",
        note=f"{sum(after):g} of {len(pairs)} by transfer (twice the epochs in total; best "
        f"{max(x for x, _ in pairs):.3f}), {sum(before):g} of the same seeds from scratch; from scratch over all "
        f"{len(share)} seeds {np.mean(share):.3f} ({span[0]:.3f} to {span[1]:.3f})" if pairs and span else "",
    )  # fmt: skip
