"""Claims H1 to H7 of the clustering-head study, against bounds written before the run that tests them."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import median

import numpy as np
from markupsafe import escape

from mechclust.report.analysis import Analysis, Panel
from mechclust.report.claims import Bound, Claim, claim, interval, share_interval
from mechclust.studies.clustering_heads.config import SOLVED, ClusteringHeadsConfig, jobs, unfinished
from mechclust.studies.clustering_heads.curves import first_below, loss_drops
from mechclust.studies.clustering_heads.results import MITIGATIONS, Head, Runs, load_runs

_FIRST = "Odonnat et al., arXiv 2410.24050"
_SECOND = "Odonnat et al., arXiv 2501.02362"
_REPLICATION = "our replication on seeds 0-39"
_SOLVED_BEFORE = 17 / 40  # of seeds 0-39 in the replication
_WITHIN_CHANCE = 0.22  # 1.96 standard errors of the difference of two shares of 40, both .425


def claims_of(config: ClusteringHeadsConfig, runs: Runs) -> list[Claim]:
    """Every claim; one that this size cannot test says so."""
    tested = config.test_claims
    found = [*_solved(config, runs), *_order(runs, tested), *_spikes(config, runs)]
    found += [_curriculum(config, runs), _transfer(config, runs), *_causal(runs, tested)]
    return found


def _solved(config: ClusteringHeadsConfig, runs: Runs) -> list[Claim]:
    tested, heads, solved = config.test_claims, list(runs.heads.values()), runs.solved
    share = [float(h.solved) for h in heads]
    strong = [float(h.integer) for h in heads if h.accuracy > 0.75]
    weak = [float(not h.integer) for h in heads if h.accuracy <= 0.75]
    other = ", ".join(str(h.seed) for h in solved if not h.integer)
    untrained = sum(bool(h.untrained["integer_head"]) for h in heads)
    half = [d for h in solved if (d := first_below(h.curve("test_loss"), 0.75 * math.log(h.p))) is not None]
    before, first, last = (
        runs.shares("replication"),
        min(config.replication, default=0),
        max(config.replication, default=0),
    )
    return [
        claim(
            "H1", f"p = {config.task.p}: share of networks above {SOLVED} test accuracy after {config.epochs:,} epochs",
            _REPLICATION, share, [("", share, Bound(">=", 0.25)), ("", share, Bound("<=", 0.6))],
            tested=tested, shares=True, chance=f"a network that guesses has accuracy {1 / config.task.p:.2g}",
            note=f"solved ones: test loss first below .75 ln p at epoch {median(half):g} (median; replication 228)"
            if half else "",
        ),
        claim(
            "H1a", "every solved network is an integer-weight head", _REPLICATION, [float(h.integer) for h in solved],
            Bound(">=", 1), tested=tested, shares=True,
            chance=f"the same networks before training: {untrained} of {len(heads)}",
            note=f"solved without one: seeds {other or 'none'}",
        ),
        claim(
            "H1b", "textbook heads are a minority of the solved networks", _REPLICATION,
            [float(h.textbook) for h in solved], Bound("<", 0.5), tested=tested, shares=True,
        ),
        claim(
            "H1c", "the detector's thresholds, set on seeds 0-39, tell networks above .75 accuracy (share detected) "
            "from weaker ones (share not detected)", _REPLICATION, strong,
            [("above .75", strong, Bound(">=", 0.9)), ("below", weak, Bound(">=", 0.8))], tested=tested, shares=True,
        ),
        claim(
            "H1d", f"seeds {first}-{last}: the share solved differs from the replication's 17 of 40 by no more than "
            "chance", _REPLICATION, before,
            [("", before, Bound(">=", round(_SOLVED_BEFORE - _WITHIN_CHANCE, 3))),
             ("", before, Bound("<=", round(_SOLVED_BEFORE + _WITHIN_CHANCE, 3)))],
            tested=tested, shares=True, paper=_SOLVED_BEFORE,
        ),
    ]  # fmt: skip


def _order(runs: Runs, tested: bool) -> list[Claim]:
    heads = [h for h in runs.solved if h.integer]
    leads = [h.lead for h in heads]
    known = [lead for lead in leads if lead is not None]
    phases = [len(loss_drops(h.curve("train_loss"))) for h in runs.solved]
    counts = ", ".join(f"{n} in {phases.count(n)}" for n in sorted(set(phases)))
    claims = [
        claim(
            "H2", "solved integer-weight heads: the within-ratio of the final partition falls below .1 before test "
            f"accuracy passes {SOLVED} (share of runs)", f"{_FIRST}, section on training phases; dates ours",
            [float(lead is not None and lead > 0) for lead in leads], Bound(">=", 0.9), tested=tested, shares=True,
            chance="a partition handed out at random stays at a within-ratio of 1",
            note=f"median lead {median(known):g} epochs; solved networks without such a partition are left out "
            f"({len(runs.solved) - len(heads)}); phases in which the training loss falls: {counts} of the solved runs"
            if known else "",
        )
    ]  # fmt: skip
    for id, without, text in (("H3", False, ""), ("H3b", True, ", both outside loss spikes")):
        found = [pair for h in runs.solved if (pair := h.peak_and_drop(without_spikes=without)) is not None]
        gaps = [abs(peak - drop) for peak, drop in found]
        n = max((len(h.curve("train_loss")) for h in runs.solved), default=0)
        claims.append(
            claim(
                id, "solved runs: the gradient norm peaks within 10 epochs of the largest fall of the loss in one "
                f"epoch{text} (share of runs)", f"{_FIRST}; dates ours", [float(gap <= 10) for gap in gaps],
                Bound(">=", 0.9), tested=tested, shares=True, chance=f"about {21 / n:.2f}" if n else None,
                note=f"median distance {median(gaps):g} epochs" if gaps else "",
            )
        )  # fmt: skip
    return claims


def _above(values: list[float], value: float = 0.0) -> list[tuple[str, list[float], Bound]]:
    """Parts of a claim that a mean, and its whole interval, lie above a value."""
    span = interval(values)
    low = [] if span is None else [span[0]]
    return [("", values, Bound(">", value)), ("lower end of the interval", low, Bound(">", value))]


def _spikes(config: ClusteringHeadsConfig, runs: Runs) -> list[Claim]:
    tested, claims = config.test_claims, []
    text = (
        "spikes after solving coincide with a small norm of xi or a cluster near the decision boundary more often than "
        "quiet epochs of the same run at the same loss (difference of shares, a mean a run)"
    )
    for id, before, what in (
        ("H4a", False, text),
        ("H4e", True, f"{text}, the epoch before alone (added after the run)"),
    ):
        found = {h.seed: h.diagnoses(before=before) for h in runs.heads.values()}
        n = sum(map(len, found.values()))
        excess = [float(np.mean([bool(s) - bool(q) for _, s, q in d])) for d in found.values() if d]
        quiet = [float(np.mean([bool(q) for _, _, q in d])) for d in found.values() if d]
        causes = ("small norm", "cluster near a boundary")
        of = [f"{cause} at {sum(cause in s for d in found.values() for _, s, _ in d)} of {n}" for cause in causes]
        crossed = sum(bool(runs.heads[seed].curve("crossings")[s.epoch]) for seed, d in found.items() for s, _, _ in d)
        claims.append(
            claim(
                id, what, f"{_FIRST}; diagnosis ours", excess, _above(excess), tested=tested,
                chance=f"quiet epochs: {np.mean(quiet):.2f}" if quiet else None,
                note=f"{', '.join(of)}; a cluster's centroid changes its class at {crossed} of {n}" if n else "",
            )
        )  # fmt: skip
    base = list(runs.heads.items())
    for letter, arm in zip("bcd", MITIGATIONS, strict=True):
        start = config.epochs // 2 if arm == MITIGATIONS[2] else 0  # the rate drops half way
        there = runs.mitigated.get(arm, {})
        pairs = [(h.spike_rate(start), there[seed].spike_rate(start)) for seed, h in base if seed in there]
        both = [(x, y) for x, y in pairs if math.isfinite(x) and math.isfinite(y)]
        less = [x - y for x, y in both]
        rates = np.mean(both, axis=0) if both else (math.nan, math.nan)
        claims.append(
            claim(
                f"H4{letter}", f"a {arm} makes spikes rarer: per 100 epochs after test accuracy first passes {SOLVED}, "
                "base minus mitigated, seeds with 100 such epochs in both", f"{_FIRST}; mitigations ours", less,
                _above(less), tested=tested,
                note=f"rates {rates[0]:.2f} and {rates[1]:.2f}; {len(pairs) - len(both)} of {len(pairs)} seeds left "
                f"out; share solved at the end {np.mean(runs.shares('base')):.2f} and {np.mean(runs.shares(arm)):.2f}"
                if both and runs.shares(arm) else "",
            )
        )  # fmt: skip
    return sorted(claims, key=lambda c: c.id)


def _curriculum(config: ClusteringHeadsConfig, runs: Runs) -> Claim:
    found = list(runs.curriculum.values())

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
        tested=config.test_claims, paper=0.992, chance=f"{1 / config.curriculum.p:g}",
        note=f"from scratch, test, by seed: {', '.join(f'{x:.2f}' for x in scratch)}; on p = 2 before: "
        f"{np.mean(first):.3f}; barrier in loss on the straight line between the two {np.mean(barrier):.1f} (paper: "
        "about 25)" if found else "",
    )  # fmt: skip


def _transfer(config: ClusteringHeadsConfig, runs: Runs) -> Claim:
    final, share = runs.final, runs.shares("scratch")
    pairs = [
        (test, final["scratch"][seed][1])
        for seed, (_, test) in final.get("transfer", {}).items()
        if seed in final.get("scratch", {})
    ]
    more = [float(there > SOLVED) - float(scratch > SOLVED) for there, scratch in pairs]
    span = share_interval(share)
    solved = [sum(x > SOLVED for x in column) for column in zip(*pairs, strict=True)] or [0, 0]
    return claim(
        "H6", f"p = {config.task.p + 1}: networks that go on from solved p = {config.task.p} solve it more often than "
        "the same seeds from scratch (difference of shares; direction open before the run)", _FIRST, more, _above(more),
        tested=config.test_claims,
        note=f"{solved[0]} of {len(pairs)} by transfer (twice the epochs in all; best {max(x for x, _ in pairs):.3f}), "
        f"{solved[1]} of the same seeds from scratch; from scratch over all {len(share)} seeds {np.mean(share):.3f} "
        f"({span[0]:.3f} to {span[1]:.3f})" if pairs and span else "",
    )  # fmt: skip


def _causal(runs: Runs, tested: bool) -> list[Claim]:
    heads = [h for h in runs.solved if h.integer]

    def lost(partition: str, of: list[Head]) -> list[float]:
        return [float(h.causal["accuracy"]) - h.checked("centroid_accuracy", partition) for h in of]

    ablated = [float(h.causal["ablated_accuracy"] - h.causal["majority_accuracy"]) for h in heads]
    swaps = [h.checked("swap_agreement") for h in heads]
    replaced = lost("integer_sum", heads)
    textbook = [h for h in heads if h.textbook]
    rest = lost("multiset", [h for h in heads if not h.textbook])
    misplaced = [h.checked("misplaced_accuracy") for h in heads]
    return [
        claim(
            "H7", "solved integer-weight heads: each output replaced by its integer sum's centroid (accuracy lost)",
            "ours", replaced,
            [("", replaced, Bound("<=", 0.02)), ("swap within a cluster: same prediction", swaps, Bound(">=", 0.98)),
             ("head ablated: accuracy above chance", ablated, Bound("<=", 0.05))],
            tested=tested, chance="accuracy of the best constant answer",
            note="the ablation cannot fail here: nothing else reaches the logits; left out: "
            f"{len(runs.solved) - len(heads)} solved networks without integer weights",
        ),
        claim(
            "H7b", "textbook heads: the same with the centroid of the support's multiset", "ours",
            (multiset := lost("multiset", textbook)), Bound("<=", 0.02), tested=tested and bool(multiset),
            note=f"the other integer-weight heads lose {np.mean(rest):.2f}" if rest else "",
        ),
        claim(
            "H7c", "control: with the centroid of another example's cluster they guess (accuracy; added after the run)",
            "ours", misplaced, Bound("<=", 0.6), tested=tested, chance="0.5 for p = 2",
        ),
    ]  # fmt: skip


def analyse(config: ClusteringHeadsConfig, out: Path) -> Analysis:
    """Claims, figures, sandbox pages from a run's artefacts."""
    from mechclust.studies.clustering_heads import figures as figures

    runs = load_runs(config, out)
    claims = claims_of(config, runs)
    pages = figures.sandbox_pages(config, runs, out)
    panels: list[Panel] = figures.panels(config, runs, out)
    notes = [
        "Training is chaotic in float32: the order of additions alone moves single seeds after some hundred epochs. "
        "Compare shares and distributions over seeds, never lists of seeds.",
        "The final partition of a network is that of its integer weights; of a network without them, the support's "
        "multiset.",
    ]
    if config.task.p**config.task.length > 4096:
        notes.append(
            f"There are {config.task.p}^{config.task.length} sequences, too many to measure heads on all of them; they "
            "are measured on the training and test sequences, a sample."
        )
    if waiting := [job.name for job in unfinished(config, out)]:
        notes.append(
            f"This run is not finished; its claims are judged on what there is. Missing, of {len(jobs(config))} jobs: "
            f"{', '.join(waiting)}."
        )
    views = {"Sandbox": "".join(f'<p><a href="{escape(page)}">{escape(text)}</a></p>' for page, text in pages.items())}
    if table := figures.ablation_table(config, runs):
        views["Ablations: test accuracy at the end"] = table
    return Analysis(
        claims=claims, panels=panels, views={name: html for name, html in views.items() if html}, notes=notes
    )
