"""Claims H1 to H7 of the clustering-head study, against bounds written before the run that tests them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median

import numpy as np

from mechclust.report.claims import Claim, claim, untested, with_severity
from mechclust.report.verdicts import Bound, share_interval
from mechclust.studies.clustering_heads.config import MITIGATIONS, SOLVED, ClusteringHeadsConfig
from mechclust.studies.clustering_heads.curves import first_below, loss_drops
from mechclust.studies.clustering_heads.results import CAUSES, HeadsResults, TrainedNetwork

_FIRST = "Odonnat et al., arXiv 2410.24050"
_SECOND = "Odonnat et al., arXiv 2501.02362"
_REPLICATION = "our replication on seeds 0-39"
_SOLVED_BEFORE = 17 / 40  # of seeds 0-39 in the replication
_WITHIN_CHANCE = 0.22  # 1.96 standard errors of the difference of two shares of 40, both .425

_share = partial(claim, shares=True)


def claims_of(config: ClusteringHeadsConfig, results: HeadsResults) -> list[Claim]:
    """Every claim; one that this size cannot test says so."""
    found = [*_solved(config, results), *_order(results), *sorted(_spikes(config, results), key=lambda c: c.id)]
    found += [_curriculum(config, results), _transfer(config, results), *_causal(results)]
    return with_severity(found if config.test_claims else map(untested, found))


_Parts = list[tuple[str, Sequence[float], Bound]]


def _between(values: Sequence[float], low: float, high: float) -> _Parts:
    """Parts of a claim that a mean lies between two values."""
    return [("", values, Bound(">=", low)), ("", values, Bound("<=", high))]


def _solved(config: ClusteringHeadsConfig, results: HeadsResults) -> list[Claim]:
    every, solved = list(results.networks.values()), results.solved
    share = [n.solved for n in every]
    strong = [n.integer for n in every if n.accuracy > 0.75]
    weak = [not n.integer for n in every if n.accuracy <= 0.75]
    other = ", ".join(str(n.seed) for n in solved if not n.integer)
    untrained = sum(bool(n.untrained["integer_head"]) for n in every)
    half = [d for n in solved if (d := first_below(n.curve("test_loss"), 0.75 * math.log(n.p))) is not None]
    first, last = min(config.replication, default=0), max(config.replication, default=0)
    before = results.shares("replication")
    chance = round(_SOLVED_BEFORE - _WITHIN_CHANCE, 3), round(_SOLVED_BEFORE + _WITHIN_CHANCE, 3)
    return [
        _share(
            "H1", f"p = {config.task.p}: share of networks above {SOLVED} test accuracy after {config.epochs:,} epochs",
            _REPLICATION, share, _between(share, 0.25, 0.6),
            chance=f"a network that guesses has accuracy {1 / config.task.p:.2g}",
            note=f"solved ones: test loss first below .75 ln p at epoch {median(half):g} (median; replication 228)"
            if half else "",
        ),
        _share(
            "H1a", "every solved network is an integer-weight head", _REPLICATION, [n.integer for n in solved],
            Bound(">=", 1), chance=f"the same networks before training: {untrained} of {len(every)}",
            note=f"solved without one: seeds {other or 'none'}",
        ),
        _share(
            "H1b", "textbook heads are a minority of the solved networks", _REPLICATION,
            [n.textbook for n in solved], Bound("<", 0.5),
        ),
        _share(
            "H1c", "the detector's thresholds, set on seeds 0-39, tell networks above .75 accuracy (share detected) "
            "from weaker ones (share not detected)", _REPLICATION, strong,
            [("above .75", strong, Bound(">=", 0.9)), ("below", weak, Bound(">=", 0.8))],
        ),
        _share(
            "H1d", f"seeds {first}-{last}: the share solved differs from the replication's 17 of 40 by no more than "
            "chance", _REPLICATION, before, _between(before, *chance), paper=_SOLVED_BEFORE,
        ),
    ]  # fmt: skip


def _order(results: HeadsResults) -> Iterator[Claim]:
    solved = results.solved
    leads = [n.lead for n in solved if n.integer]
    known = [lead for lead in leads if lead is not None]
    phases = [len(loss_drops(n.curve("train_loss"))) for n in solved]
    counts = ", ".join(f"{n} in {phases.count(n)}" for n in sorted(set(phases)))
    yield _share(
        "H2", "solved integer-weight heads: the within-ratio of the final partition falls below .1 before test "
        f"accuracy passes {SOLVED} (share of runs)", f"{_FIRST}, section on training phases; dates ours",
        [lead is not None and lead > 0 for lead in leads], Bound(">=", 0.9),
        chance="a partition handed out at random stays at a within-ratio of 1",
        note=f"median lead {median(known):g} epochs; solved networks without such a partition are left out "
        f"({len(solved) - len(leads)}); phases in which the training loss falls: {counts} of the solved runs"
        if known else "",
    )  # fmt: skip
    epochs = max((len(n.curve("train_loss")) for n in solved), default=0)
    for id, without, text in (("H3", False, ""), ("H3b", True, ", both outside loss spikes")):
        found = [pair for n in solved if (pair := n.peak_and_drop(without_spikes=without)) is not None]
        gaps = [abs(peak - drop) for peak, drop in found]
        yield _share(
            id, "solved runs: the gradient norm peaks within 10 epochs of the largest fall of the loss in one "
            f"epoch{text} (share of runs)", f"{_FIRST}; dates ours", [gap <= 10 for gap in gaps],
            Bound(">=", 0.9), chance=f"about {21 / epochs:.2f}" if epochs else None,
            note=f"median distance {median(gaps):g} epochs" if gaps else "",
        )  # fmt: skip


def _spikes(config: ClusteringHeadsConfig, results: HeadsResults) -> Iterator[Claim]:
    text = (
        "spikes after solving coincide with a small norm of xi or a cluster near the decision boundary more often than "
        "quiet epochs of the same run at the same loss (difference of shares, a mean a run)"
    )
    for id, before, what in (
        ("H4a", False, text),
        ("H4e", True, f"{text}, the epoch before alone (added after the run)"),
    ):
        found = [(n, diagnoses) for n in results.networks.values() if (diagnoses := n.diagnoses(before=before))]
        excess = [float(np.mean([bool(s) - bool(q) for _, s, q in d])) for _, d in found]
        quiet = [float(np.mean([bool(q) for _, _, q in d])) for _, d in found]
        every = [(n, spike, causes) for n, d in found for spike, causes, _ in d]
        crossed = sum(bool(n.curve("crossings")[spike.epoch]) for n, spike, _ in every)
        of = [f"{cause} at {sum(cause in causes for _, _, causes in every)} of {len(every)}" for cause in CAUSES]
        yield claim(
            id, what, f"{_FIRST}; diagnosis ours", excess, Bound(">", 0),
            chance=f"quiet epochs: {np.mean(quiet):.2f}" if quiet else None,
            note=f"{', '.join(of)}; a cluster's centroid changes its class at {crossed} of {len(every)}"
            if every else "",
        )  # fmt: skip
    for letter, arm in zip("bcd", MITIGATIONS, strict=True):
        start = config.epochs // 2 if arm == MITIGATIONS[2] else 0  # the rate drops half way
        there, base = results.mitigated.get(arm, {}), results.networks.items()
        pairs = [(n.spike_rate(start), there[seed].spike_rate(start)) for seed, n in base if seed in there]
        both = [(x, y) for x, y in pairs if math.isfinite(x) and math.isfinite(y)]
        less = [x - y for x, y in both]
        rates = np.mean(both, axis=0) if both else (math.nan, math.nan)
        shares = results.shares("base"), results.shares(arm)
        yield claim(
            f"H4{letter}", f"a {arm} makes spikes rarer: per 100 epochs after test accuracy first passes {SOLVED}, "
            "base minus mitigated, seeds with 100 such epochs in both", f"{_FIRST}; mitigations ours", less,
            Bound(">", 0),
            note=f"rates {rates[0]:.2f} and {rates[1]:.2f}; {len(pairs) - len(both)} of {len(pairs)} seeds left "
            f"out; share solved at the end {np.mean(shares[0]):.2f} and {np.mean(shares[1]):.2f}"
            if both and shares[1] else "",
        )  # fmt: skip


def _curriculum(config: ClusteringHeadsConfig, results: HeadsResults) -> Claim:
    found = list(results.curriculum.values())

    def accuracies(arm: str, split: str) -> list[float]:
        return [float(r.sel("accuracy", arm=arm, split=split)) for r in found]

    test, scratch = accuracies("curriculum", "test"), accuracies("scratch", "test")
    barrier = [float(r["line"].max() - r["line"][[0, -1]].max()) for r in found]
    first = [float(r.sel("first_accuracy", split="test")) for r in found]
    return claim(
        "H5", f"p = {config.curriculum.p}: a network trained on p = 2 first generalises (test accuracy), one from "
        "scratch memorises", _SECOND, test,
        [("", test, Bound(">=", 0.95)), ("scratch, test", scratch, Bound("<=", 0.35)),
         ("scratch, train", accuracies("scratch", "train"), Bound(">=", 0.95))],
        paper=0.992, chance=f"{1 / config.curriculum.p:g}",
        note=f"from scratch, test, by seed: {', '.join(f'{x:.2f}' for x in scratch)}; on p = 2 before: "
        f"{np.mean(first):.3f}; barrier in loss on the straight line between the two {np.mean(barrier):.1f} (paper: "
        "about 25)" if found else "",
    )  # fmt: skip


def _transfer(config: ClusteringHeadsConfig, results: HeadsResults) -> Claim:
    there, scratch = (results.final.get(arm, {}) for arm in ("transfer", "scratch"))
    pairs = [(test, scratch[seed][1]) for seed, (_, test) in there.items() if seed in scratch]
    more = [float(after > SOLVED) - float(before > SOLVED) for after, before in pairs]
    share = results.shares("scratch")
    span = share_interval(share)
    solved = [sum(x > SOLVED for x in column) for column in zip(*pairs, strict=True)] or [0, 0]
    return claim(
        "H6", f"p = {config.task.p + 1}: networks that go on from solved p = {config.task.p} solve it more often than "
        "the same seeds from scratch (difference of shares; direction open before the run)", _FIRST, more,
        Bound(">", 0),
        note=f"{solved[0]} of {len(pairs)} by transfer (twice the epochs in all; best {max(x for x, _ in pairs):.3f}), "
        f"{solved[1]} of the same seeds from scratch; from scratch over all {len(share)} seeds {np.mean(share):.3f} "
        f"({span[0]:.3f} to {span[1]:.3f})" if pairs and span else "",
    )  # fmt: skip


def _causal(results: HeadsResults) -> list[Claim]:
    heads = [n for n in results.solved if n.integer]

    def lost(partition: str, of: list[TrainedNetwork]) -> list[float]:
        return [float(n.causal["accuracy"]) - n.checked("centroid_accuracy", partition) for n in of]

    ablated = [float(n.causal["ablated_accuracy"] - n.causal["majority_accuracy"]) for n in heads]
    swaps = [n.checked("swap_agreement") for n in heads]
    replaced = lost("integer_sum", heads)
    rest = lost("multiset", [n for n in heads if not n.textbook])
    return [
        claim(
            "H7", "solved integer-weight heads: each output replaced by its integer sum's centroid (accuracy lost)",
            "ours", replaced,
            [("", replaced, Bound("<=", 0.02)), ("swap within a cluster: same prediction", swaps, Bound(">=", 0.98)),
             ("head ablated: accuracy above chance", ablated, Bound("<=", 0.05))],
            chance="accuracy of the best constant answer",
            note="the ablation cannot fail here: nothing else reaches the logits; left out: "
            f"{len(results.solved) - len(heads)} solved networks without integer weights",
        ),
        claim(
            "H7b", "textbook heads: the same with the centroid of the support's multiset", "ours",
            lost("multiset", [n for n in heads if n.textbook]), Bound("<=", 0.02),
            note=f"the other integer-weight heads lose {np.mean(rest):.2f}" if rest else "",
        ),
        claim(
            "H7c", "control: with the centroid of another example's cluster they guess (accuracy; added after the run)",
            "ours", [n.checked("misplaced_accuracy") for n in heads], Bound("<=", 0.6), chance="0.5 for p = 2",
        ),
    ]  # fmt: skip
