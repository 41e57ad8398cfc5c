"""Networks that start with the ideal head or its positions: H8, H9."""

from __future__ import annotations

import numpy as np

from mechclust.report.draws import Data, coins, exchanged
from mechclust.evidence.bounds import Bound, Verdict
from mechclust.studies.clustering_heads.config import IDEAL_POSITIONS, SOLVED
from mechclust.studies.clustering_heads.predicted import Predicted, paired
from mechclust.studies.clustering_heads.results import HeadsResults, is_textbook
from mechclust.studies.clustering_heads.solved_findings import FIRST


def start_findings(results: HeadsResults) -> list[Predicted]:
    """H8, H8b, H9, H9b."""
    return [*_second_stage(results), *_ideal_positions(results)]


def _second_stage(results: HeadsResults) -> list[Predicted]:
    runs = results.second_stage
    solved = np.array([float(run.curve("test_accuracy")[-1] > SOLVED) for run in runs.values()])
    pairs = [(n, runs[seed]) for seed, n in results.networks.items() if seed in runs]
    dates = np.array([[n.solved_or_end, alone.solved_or_end] for n, alone in pairs], dtype=float).reshape(-1, 2)
    why = "" if runs else "the second stage was not run"

    def sooner(data: Data, rng: np.random.Generator) -> Data:
        return {**data, "alone": data["base"] * rng.uniform(0.1, 0.8, len(data["base"]))}

    return [
        Predicted(
            "H8", "the feed-forward layer alone, on the frozen ideal head: share of networks that solve the task",
            f"{FIRST}; second stage alone", lambda data: [("", data["solved"], Bound(">=", 0.85))],
            coins("solved", chance=(0.6, 0.85)),
            "the probability of solving at the upper bound of H1, for networks that learn both parts, or at this bound",
            coins("solved", chance=0.95), "95 of 100 networks solve it", shares=True,
            predicted="holds", data={"solved": solved} if runs else None, why_not=why,
            chance="0.25 to 0.6, the base setting's share",
            note=f"the base setting with these seeds: {np.mean([n.solved for n, _ in pairs]):.2f}" if pairs else "",
        ),
        Predicted(
            "H8b", "the second stage alone is solved sooner (epoch at which the base setting solves the task minus "
            "that of the second stage, same seeds; the last epoch if it never does)", "ours",
            lambda data: [("", data["base"] - data["alone"], Bound(">", 0))],
            exchanged(("base", "alone")), "the two arms exchanged seed by seed",
            sooner, "a tenth to four fifths of the base setting's epoch", chance="0",
            predicted="holds", data={"base": dates[:, 0], "alone": dates[:, 1]} if pairs else None,
            why_not=why or ("" if pairs else "no seed was trained in both ways"),
            note=f"medians {np.median(dates[:, 0]):g} and {np.median(dates[:, 1]):g}" if pairs else "",
        ),
    ]  # fmt: skip


def _ideal_positions(results: HeadsResults) -> list[Predicted]:
    heads, ends = results.started.get(IDEAL_POSITIONS, {}), results.final.get(IDEAL_POSITIONS, {})
    pairs = [
        (n.solved, ends[seed][1] > SOLVED, n.textbook, is_textbook(heads[seed]))
        for seed, n in results.networks.items()
        if seed in heads and seed in ends
    ]
    columns = np.array(pairs, dtype=float).reshape(-1, 4).T
    why = "" if pairs else "no network started with ideal positions"

    def finding(id: str, what: str, predicted: Verdict, before: np.ndarray, after: np.ndarray) -> Predicted:
        def more(data: Data, rng: np.random.Generator) -> Data:
            chances = {"before": 0.3, "after": 0.8}
            return {name: (rng.random(len(data[name])) < chance).astype(float) for name, chance in chances.items()}

        return Predicted(
            id, f"networks that start with the ideal position embeddings {what} more often than the same seeds in the "
            "base setting (difference of shares)", f"{FIRST}; ours",
            lambda data: [("", data["after"] - data["before"], Bound(">", 0))],
            exchanged(("before", "after")), "the two arms exchanged seed by seed", intervals=paired("after", "before"),
            planted=more, planted_what="8 in 10 of them, and 3 in 10 in the base setting", chance="0",
            predicted=predicted, data={"before": before, "after": after} if pairs else None, why_not=why,
            note=f"{after.mean():.2f} and {before.mean():.2f}" if pairs else "",
        )  # fmt: skip

    return [
        finding("H9", "solve the task", "holds", columns[0], columns[1]),
        finding("H9b", "have a textbook head", "undecided", columns[2], columns[3]),
    ]
