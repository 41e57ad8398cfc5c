"""What comes first, where the gradient is large, and what causes and prevents spikes: H2, H3, H4."""

from __future__ import annotations

import math
from statistics import median

import numpy as np

from mechclust.report.draws import Data, exchanged, moved_to, one_of, random_signs
from mechclust.report.findings import Parts
from mechclust.evidence.bounds import Bound, Verdict
from mechclust.studies.clustering_heads.config import MITIGATIONS, SOLVED, ClusteringHeadsConfig, counted_from
from mechclust.studies.clustering_heads.predicted import Predicted, paired
from mechclust.studies.clustering_heads.replay import FROZEN
from mechclust.studies.clustering_heads.results import HeadsResults, spikes_in_both
from mechclust.studies.clustering_heads.solved_findings import FIRST


def dynamics_findings(config: ClusteringHeadsConfig, results: HeadsResults) -> list[Predicted]:
    """H2, H2b, H3, H3b, H3c, H4a to H4d, H4f, H4g."""
    return [
        *_order(results),
        *_gradients(config, results),
        _saddle(config, results),
        *_replayed(results),
        *_mitigated(config, results),
    ]


def _order(results: HeadsResults) -> list[Predicted]:
    solved = results.solved
    why = "" if solved else "no network is solved"
    dates = np.array([[n.ready_at("head"), n.ready_at("classifier")] for n in solved], dtype=float).reshape(-1, 2)
    leads, apart = dates[:, 1] - dates[:, 0], dates[:, 0] != dates[:, 1]
    tied = len(solved) - int(apart.sum())
    ahead = np.array([x for n in solved if math.isfinite(x := n.head_ahead)])

    def first(data: Data) -> Parts:
        return [("", (data["classifier"] > data["head"]).astype(float), Bound(">", 0.5))]

    def eight_of_ten(data: Data, rng: np.random.Generator) -> Data:
        n = len(data["head"])
        return {"head": np.zeros(n), "classifier": np.where(rng.random(n) < 0.8, 1.0, -1.0)}

    return [
        Predicted(
            "H2", "solved networks: the head is ready before the classifier (share of runs in which the head passes "
            f"{SOLVED} with the final classifier at an earlier epoch than the classifier does with the final head)",
            f"{FIRST}, section on training phases; stitching ours", first,
            exchanged(("head", "classifier")), "head and classifier exchanged run by run",
            eight_of_ten, "the head first in 8 of 10 runs", shares=True, chance="0.5", predicted="undecided",
            data={"head": dates[apart, 0], "classifier": dates[apart, 1]} if apart.any() else None,
            why_not=why or ("" if apart.any() else "both parts are always ready at the same epoch"),
            note=f"{tied} runs in which both are ready at the same epoch are left out; median lead {median(leads):g} "
            f"epochs; ready at epoch {median(dates[:, 0]):g} and {median(dates[:, 1]):g}; both parts of one epoch "
            f"solve the task at {median(n.solved_or_end for n in solved):g} (medians)" if solved else "",
        ),
        Predicted(
            "H2b", "solved networks, mean over the epochs before the task is solved: accuracy of the epoch's head with "
            "the final classifier, minus that of the reverse", f"{FIRST}; ours",
            lambda data: [("", data["ahead"], Bound(">", 0))], random_signs("ahead"), "differences with random signs",
            moved_to(ahead=0.05), "a mean of .05 with the measured spread", chance="0",
            predicted="undecided", data={"ahead": ahead} if len(ahead) else None,
            why_not=why or ("" if len(ahead) else "every network is solved at the first snapshot"),
        ),
    ]  # fmt: skip


def _gradients(config: ClusteringHeadsConfig, results: HeadsResults) -> list[Predicted]:
    runs, p = list(results.full_batch.values()), config.task.p
    found = [pair for run in runs if (pair := run.gradient_in_drops(p)) is not None]
    phases = [run.drops(p) for run in runs]
    more = [
        run.feed_forward_share(drops[-1]) - run.feed_forward_share(drops[0])
        for run, drops in zip(runs, phases, strict=True)
        if len(drops) > 1
    ]
    why = "" if found else ("the loss falls in none of the runs" if runs else "the full-batch run was not made")
    counts = [len(drops) for drops in phases]

    def ratios(data: Data) -> Parts:
        of = [float(np.log10(np.median(g[falls]) / np.median(g[~falls]))) for g, falls in data["runs"]]
        return [("", of, Bound(">", math.log10(2)))]

    def rolled(data: Data, rng: np.random.Generator) -> Data:
        return {"runs": [(np.roll(g, int(rng.integers(len(g)))), falls) for g, falls in data["runs"]]}

    return [
        Predicted(
            "H3", "full batch: the gradient norm is more than twice as large where the loss falls as on the plateaus "
            "before (log10 of the ratio of medians)", f"{FIRST}, figure of gradient norms; its settings are not known",
            ratios, rolled, "each run's gradient norms shifted along its training by a random time", chance="0",
            predicted="holds", data={"runs": found} if found else None, why_not=why,
            note=f"falls of the loss: {', '.join(f'{k} in {counts.count(k)}' for k in sorted(set(counts)))} of "
            f"{len(runs)} runs" if runs else "",
        ),
        Predicted(
            "H3b", "full batch: the feed-forward layer has a larger share of the squared gradient in the last fall of "
            "the loss than in the first (difference; runs with two or more falls)", f"{FIRST}; ours",
            lambda data: [("", data["more"], Bound(">", 0))], random_signs("more"), "differences with random signs",
            moved_to(more=0.1), "a mean of .1 with the measured spread", chance="0",
            predicted="holds", data={"more": np.array(more)} if more else None,
            why_not=why or ("" if more else "no run has two falls of the loss"),
        ),
    ]  # fmt: skip


def _saddle(config: ClusteringHeadsConfig, results: HeadsResults) -> Predicted:
    found = [pair for seed in results.curvature if (pair := results.saddle(seed, config.task.p)) is not None]
    data = np.array(found, dtype=float).reshape(-1, 2)
    why = "" if found else (
        "no full-batch run solved the task after a plateau" if results.curvature else "no curvature was measured"
    )  # fmt: skip

    def planted(data: Data, rng: np.random.Generator) -> Data:
        n = len(data["plateau"])
        return {"plateau": rng.choice([0.05, 0.1, 0.2], n), "end": rng.choice([0.0, 0.005, 0.01], n)}

    return Predicted(
        "H3c", "full batch, runs that solve the task: the plateau is a saddle (minus the smallest eigenvalue of the "
        "Hessian over the largest, median on the plateaus minus the value at the end of training)",
        f"{FIRST}; Hessian ours",
        lambda data: [
            ("", data["plateau"] - data["end"], Bound(">", 0)),
            ("on the plateaus", data["plateau"], Bound(">=", 0.01)),
        ],
        exchanged(("plateau", "end")), "plateau and end exchanged run by run",
        planted, "0.05 to 0.2 on the plateaus, 0 to 0.01 at the end", chance="0",
        predicted="holds", data={"plateau": data[:, 0], "end": data[:, 1]} if found else None, why_not=why,
        note=f"medians {np.median(data[:, 0]):.3g} and {np.median(data[:, 1]):.3g}" if found else "",
    )  # fmt: skip


def _replayed(results: HeadsResults) -> list[Predicted]:
    runs = [gone for n in results.networks.values() if len(gone := n.replay["gone"].numpy())]
    why = "" if runs else "no loss spike after the task was solved"
    every = np.concatenate(runs) if runs else np.zeros((0, len(FROZEN)))
    means = every.mean(axis=0) if runs else np.zeros(0)
    shares = ", ".join(f"{name} {share:.2f}" for name, share in zip(FROZEN, means, strict=False))

    def more(data: Data) -> Parts:
        pairs = zip(data["frozen"], data["control"], strict=True)
        return [("", [float(np.mean(a) - np.mean(b)) for a, b in pairs], Bound(">", 0))]

    def swapped(data: Data, rng: np.random.Generator) -> Data:
        flips = [rng.random(len(a)) < 0.5 for a in data["frozen"]]
        pairs = list(zip(data["frozen"], data["control"], flips, strict=True))
        return {
            "frozen": [np.where(flip, b, a) for a, b, flip in pairs],
            "control": [np.where(flip, a, b) for a, b, flip in pairs],
        }

    def removed(data: Data, rng: np.random.Generator) -> Data:
        def of(name: str, chance: float) -> list[np.ndarray]:
            return [(rng.random(len(x)) < chance).astype(float) for x in data[name]]

        return {"frozen": of("frozen", 0.6), "control": of("control", 0.2)}

    def finding(id: str, part: str, what: str, predicted: Verdict) -> Predicted:
        place, control = FROZEN.index(part), FROZEN.index("attention")
        data = {"frozen": [gone[:, place] for gone in runs], "control": [gone[:, control] for gone in runs]}
        return Predicted(
            id, f"spikes after solving, replayed: with {what} frozen they disappear more often than with the attention "
            "pattern frozen (difference of shares, one mean per run)", f"{FIRST}; replay ours", more,
            swapped, "frozen part and control exchanged spike by spike",
            removed, "6 of 10 spikes gone, with the control 2 of 10", chance="0",
            predicted=predicted, data=data if runs else None, why_not=why,
            note=f"{len(every)} spikes of {len(runs)} runs; shares gone: {shares}",
        )  # fmt: skip

    return [
        finding("H4a", "norm direction", "the direction of the normalised embedding", "undecided"),
        finding("H4f", "wedges", "the feed-forward layer's gates", "holds"),
        finding("H4g", "norm scale", "the scale of the norm", "undecided"),
    ]


def _mitigated(config: ClusteringHeadsConfig, results: HeadsResults) -> list[Predicted]:
    return [_treated(config, results, f"H4{letter}", arm) for letter, arm in zip("bcd", MITIGATIONS, strict=True)]


def _treated(config: ClusteringHeadsConfig, results: HeadsResults, id: str, arm: str) -> Predicted:
    start = counted_from(config, arm)
    there = results.mitigated.get(arm, {})
    pairs = [(n, there[seed]) for seed, n in results.networks.items() if seed in there]
    counts = np.array([spikes_in_both(n, t, start) for n, t in pairs], dtype=float).reshape(-1, 2)
    data = {
        "spikes": counts[:, 0],
        "treated spikes": counts[:, 1],
        "after": np.array([config.epochs - max(n.solved_or_end, start) for n, _ in pairs], dtype=float),
        "treated after": np.array([config.epochs - max(t.solved_or_end, start) for _, t in pairs], dtype=float),
        "solved": np.array([float(n.solved) for n, _ in pairs]),
        "treated solved": np.array([float(t.curve("test_accuracy")[-1] > SOLVED) for _, t in pairs]),
    }
    epochs = max(1, config.epochs - start)
    hundreds, share = epochs / 100, "share solved, mitigated - base"

    def parts(data: Data) -> Parts:
        return [
            ("", (data["spikes"] - data["treated spikes"]) / hundreds, Bound(">", 0)),
            (share, data["treated solved"] - data["solved"], Bound(">=", -0.1)),
            (
                "epochs after solving, mitigated - base (share)",
                (data["treated after"] - data["after"]) / epochs,
                Bound(">=", -0.1),
            ),
        ]

    def half(data: Data, rng: np.random.Generator) -> Data:
        return {
            **data,
            "treated spikes": rng.binomial(data["spikes"].astype(int), 0.5),
            "treated solved": data["solved"],
            "treated after": data["after"],
        }

    def fewer(data: Data, rng: np.random.Generator) -> Data:
        """A tenth of all seeds no longer solve it."""
        lost = 0.1 / max(0.1, float(data["solved"].mean()))
        return {**half(data, rng), "treated solved": data["solved"] * (rng.random(len(data["solved"])) >= lost)}

    def later(data: Data, rng: np.random.Generator) -> Data:
        apart = data["treated after"] - data["after"]
        moved = (apart - apart.mean())[rng.integers(len(apart), size=len(apart))] - 0.1 * epochs - 1e-9
        return {**half(data, rng), "treated after": data["after"] + moved}

    all_exchanged = exchanged(("spikes", "treated spikes"), ("solved", "treated solved"), ("after", "treated after"))
    when = f" and epoch {start:,}" if start else ""
    predicted: Verdict = "undecided" if arm == MITIGATIONS[1] else "holds"
    return Predicted(
        id, f"a {arm} makes spikes rarer: spikes after both networks of a seed have solved the task{when}, per 100 "
        "epochs, base minus mitigated, all seeds, 0 where one of them never solves it; the share of networks that "
        "solve the task, and that of the epochs after solving it, fall by at most .1", f"{FIRST}; mitigations ours",
        parts, one_of(all_exchanged, fewer, later),
        "the two arms exchanged seed by seed; or half of the spikes, but a tenth of the seeds no longer solve the "
        "task, or a tenth of the epochs after solving is lost", half, "half of the base's spikes, and nothing lost",
        intervals=paired("treated solved", "solved", share),
        chance="0", predicted=predicted, data=data if pairs else None,
        why_not="" if pairs else "this mitigation was not run",
        note=f"spikes after both have solved it {counts[:, 0].sum():g} and {counts[:, 1].sum():g}, in "
        f"{sum(n.solved_at is not None and t.solved_at is not None for n, t in pairs)} seeds; solved "
        f"{data['solved'].mean():.2f} and {data['treated solved'].mean():.2f}" if pairs else "",
    )  # fmt: skip
