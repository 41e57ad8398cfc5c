"""Claims H1 to H7 of the clustering-head study, against bounds written before the run that tests them."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import median

import numpy as np

from mechclust.studies.claims import Bound, Claim, claim, share_interval
from mechclust.studies.heads_config import SOLVED, ClusteringHeadsConfig, jobs, unfinished
from mechclust.studies.heads_runs import MITIGATIONS, Head, Runs, load_runs
from mechclust.studies.study import Analysis, Panel

_FIRST = "Odonnat et al., arXiv 2410.24050"
_SECOND = "Odonnat et al., arXiv 2501.02362"
_REPLICATION = "our replication on seeds 0-39"
_SOLVED_BEFORE = 17 / 40  # of seeds 0-39 in the replication
_WITHIN_CHANCE = 0.22  # 1.96 standard errors of the difference of two shares of 40, both .425


def claims_of(config: ClusteringHeadsConfig, runs: Runs) -> list[Claim]:
    """Every claim; one that this size cannot test says so."""
    tested = config.test_claims
    found = [*_solved(config, runs), *_order(runs, tested), *_spikes(runs, tested)]
    found += [_curriculum(config, runs), _transfer(config, runs), *_causal(runs, tested)]
    return found


def _solved(config: ClusteringHeadsConfig, runs: Runs) -> list[Claim]:
    tested, heads, solved = config.test_claims, list(runs.heads.values()), runs.solved
    share = [float(h.solved) for h in heads]
    strong = [float(h.integer) for h in heads if h.accuracy > 0.75]
    weak = [float(not h.integer) for h in heads if h.accuracy <= 0.75]
    other = f"; solved without one: seeds {', '.join(str(h.seed) for h in solved if not h.integer) or 'none'}"
    before = runs.shares("replication")
    return [
        claim(
            "H1", f"p = {config.task.p}: share of networks above {SOLVED} test accuracy after {config.epochs:,} epochs",
            _REPLICATION, share, [("", share, Bound(">=", 0.25)), ("", share, Bound("<=", 0.6))],
            tested=tested, shares=True, chance="a network that guesses has accuracy 0.5",
        ),
        claim(
            "H1a", "every solved network is an integer-weight head", _REPLICATION, [float(h.integer) for h in solved],
            Bound(">=", 1), tested=tested, shares=True, chance="untrained networks: 0", note=f"of {len(solved)}{other}",
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
            "H1d", "seeds 0-39: the share solved differs from the replication's 17 of 40 by no more than chance",
            _REPLICATION, before,
            [("", before, Bound(">=", round(_SOLVED_BEFORE - _WITHIN_CHANCE, 3))),
             ("", before, Bound("<=", round(_SOLVED_BEFORE + _WITHIN_CHANCE, 3)))],
            tested=tested, shares=True, paper=_SOLVED_BEFORE,
        ),
    ]  # fmt: skip


def _order(runs: Runs, tested: bool) -> list[Claim]:
    dated = [h for h in runs.solved if h.integer and h.formed_at is not None and h.solved_at is not None]
    leads = [h.solved_at - h.formed_at for h in dated]  # type: ignore[operator]
    claims = [
        claim(
            "H2", "solved integer-weight heads: the within-ratio of the final partition falls below .1 before test "
            f"accuracy passes {SOLVED} (share of runs)", f"{_FIRST}, section on training phases; dates ours",
            [float(lead > 0) for lead in leads], Bound(">=", 0.9), tested=tested, shares=True, chance="0.5",
            note=f"median lead {median(leads):g} epochs" if leads else "",
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


def _spikes(runs: Runs, tested: bool) -> list[Claim]:
    found = {h.seed: h.diagnoses() for h in runs.heads.values()}
    n = sum(map(len, found.values()))
    excess = [float(np.mean([bool(s) - bool(q) for _, s, q in d])) for d in found.values() if d]
    quiet = [float(np.mean([bool(q) for _, _, q in d])) for d in found.values() if d]
    causes = {cause: sum(cause in s for d in found.values() for _, s, _ in d) for cause in
              ("small norm", "cluster near a boundary")}  # fmt: skip
    of = ", ".join(f"{cause} at {k} of {n}" for cause, k in causes.items())
    claims = [
        claim(
            "H4a", "spikes after solving coincide with a small norm of xi or a cluster near the decision boundary more "
            "often than quiet epochs of the same run at the same loss (difference of shares, a mean a run)",
            f"{_FIRST}; diagnosis ours", excess, Bound(">", 0), tested=tested and n > 0,
            chance=f"quiet epochs: {np.mean(quiet):.2f}" if quiet else None, note=of,
        )
    ]  # fmt: skip
    base = {seed: head.spike_rate for seed, head in runs.heads.items()}
    for letter, arm in zip("bcd", MITIGATIONS, strict=True):
        theirs = {seed: run.spike_rate for seed, run in runs.mitigated.get(arm, {}).items()}
        both = [seed for seed in base if math.isfinite(base[seed]) and math.isfinite(theirs.get(seed, math.nan))]
        less = [base[seed] - theirs[seed] for seed in both]
        rates = [np.mean([rate[seed] for seed in both]) if both else math.nan for rate in (base, theirs)]
        claims.append(
            claim(
                f"H4{letter}", f"a {arm} makes spikes rarer: per 100 epochs after test accuracy first passes {SOLVED}, "
                "base minus mitigated, seeds that pass it in both", f"{_FIRST}; mitigations ours", less, Bound(">", 0),
                tested=tested and bool(both),
                note=f"rates {rates[0]:.2f} and {rates[1]:.2f}; solved at the end: "
                f"{sum(runs.shares('base')):.0f} and {sum(runs.shares(arm)):.0f}" if both else "",
            )
        )  # fmt: skip
    return claims


def _curriculum(config: ClusteringHeadsConfig, runs: Runs) -> Claim:
    found = list(runs.curriculum.values())

    def accuracies(arm: str, split: str) -> list[float]:
        return [float(r.sel("accuracy", arm=arm, split=split)) for r in found]

    test = accuracies("curriculum", "test")
    barrier = [float(r["line"].max() - r["line"][[0, -1]].max()) for r in found]
    return claim(
        "H5", f"p = {config.curriculum.p}: a network trained on p = 2 first generalises (test accuracy), one from "
        "scratch memorises", _SECOND, test,
        [("", test, Bound(">=", 0.95)), ("scratch, test", accuracies("scratch", "test"), Bound("<=", 0.35)),
         ("scratch, train", accuracies("scratch", "train"), Bound(">=", 0.95))],
        tested=config.test_claims and bool(found), paper=0.992, chance=f"{1 / config.curriculum.p:g}",
        note=f"barrier in loss on the straight line between the two {np.mean(barrier):.1f} (paper: about 25)"
        if found else "",
    )  # fmt: skip


def _transfer(config: ClusteringHeadsConfig, runs: Runs) -> Claim:
    there, scratch = runs.shares("transfer"), runs.shares("scratch")
    share = float(np.mean(scratch)) if scratch else math.nan
    span = share_interval(scratch)
    best = max((test for _, test in runs.final.get("transfer", {}).values()), default=math.nan)
    return claim(
        "H6", f"p = {config.task.p + 1}: networks that go on from solved p = {config.task.p} solve it more often than "
        "from scratch (share of them; direction open before the run)", _FIRST, there, Bound(">", round(share, 4)),
        tested=config.test_claims and bool(there) and bool(scratch), shares=True,
        note=f"from scratch {share:.3f} ({span[0]:.3f} to {span[1]:.3f}, {len(scratch)} seeds); "
        f"best by transfer {best:.3f}" if span else "",
    )  # fmt: skip


def _causal(runs: Runs, tested: bool) -> list[Claim]:
    heads = [h for h in runs.solved if h.integer]

    def lost(name: str, partition: str, of: list[Head]) -> list[float]:
        return [float(h.causal["accuracy"]) - h.checked(name, partition) for h in of]

    ablated = [float(h.causal["ablated_accuracy"] - h.causal["majority_accuracy"]) for h in heads]
    swaps = [h.checked("swap_agreement") for h in heads]
    replaced = lost("centroid_accuracy", "integer_sum", heads)
    textbook = [h for h in heads if h.textbook]
    multiset = lost("centroid_accuracy", "multiset", textbook)
    rest = lost("centroid_accuracy", "multiset", [h for h in heads if not h.textbook])
    return [
        claim(
            "H7", "solved integer-weight heads: each output replaced by its integer sum's centroid (accuracy lost)",
            "ours", replaced,
            [("", replaced, Bound("<=", 0.02)), ("swap within a cluster: same prediction", swaps, Bound(">=", 0.98)),
             ("head ablated: accuracy above chance", ablated, Bound("<=", 0.05))],
            tested=tested, chance="accuracy of the best constant answer",
        ),
        claim(
            "H7b", "textbook heads: the same with the centroid of the support's multiset", "ours", multiset,
            Bound("<=", 0.02), tested=tested and bool(textbook),
            note=f"the other integer-weight heads lose {np.mean(rest):.2f}" if rest else "",
        ),
    ]  # fmt: skip


def analyse(config: ClusteringHeadsConfig, out: Path) -> Analysis:
    """Claims, figures, sandbox pages from a run's artefacts."""
    from mechclust.views import clustering_heads as figures

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
    views = {"Sandbox": "".join(f'<p><a href="{page}">{text}</a></p>' for page, text in pages.items())} if pages else {}
    return Analysis(claims=claims, panels=panels, views=views, notes=notes)
