"""Figures for other initial weights: which circuits arise, and the second stage alone."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from mechclust.report.analysis import Panel
from mechclust.report.html import table_html
from mechclust.report.style import BLUE, GREEN, GREY, ORANGE, median_curve, subplots
from mechclust.studies.clustering_heads.config import SCRATCH, SECOND_STAGE, SOLVED, TRANSFER, ClusteringHeadsConfig
from mechclust.studies.clustering_heads.detector import head_kind
from mechclust.studies.clustering_heads.results import WEAK, HeadsResults

_CIRCUITS = {"textbook": BLUE, "integer-weight": ORANGE, "planar": GREEN, "neither": GREY, "not solved": "#ececec"}


def start_panels(config: ClusteringHeadsConfig, results: HeadsResults) -> list[Panel]:
    """The figures of the arms that were run."""
    found = []
    if results.started:
        found.append(Panel("starts", starts(config, results), "Circuits at the end of training, from other initial "
                           "weights: share of networks that solve the task with each kind of head. x0.1: the part's "
                           "initial weights are a tenth of the base setting's."))  # fmt: skip
    if results.second_stage:
        found.append(Panel("second_stage", second_stage(config, results), "Left: test accuracy over training, for the "
                           "feed-forward layer alone on the frozen ideal head and for the base setting with the same "
                           "seeds; median, middle half and middle 80% of the networks at each epoch; dotted: "
                           "guessing. Right: share of networks that have solved the task."))  # fmt: skip
    return found


def circuits(results: HeadsResults, arm: str) -> dict[str, int]:
    """Number of networks of an arm, or of the base setting with the same seeds, that end with each circuit."""
    seeds = {seed for found in results.started.values() for seed in found}
    if arm == "base":
        kinds = [n.kind if n.solved else "not solved" for seed, n in results.networks.items() if seed in seeds]
    else:
        ends = results.final.get(arm, {})
        there = {seed: head for seed, head in results.started[arm].items() if seed in ends}
        kinds = [head_kind(head) if ends[seed][1] > SOLVED else "not solved" for seed, head in there.items()]
    return {kind: kinds.count(kind) for kind in _CIRCUITS}


def modulus_table(config: ClusteringHeadsConfig, results: HeadsResults) -> str:
    """HTML: kinds of head at the end by modulus, of networks that solve the task, are weak, or in between."""
    import pandas as pd

    ends = {
        f"p = {config.task.p}": [(n.accuracy, n.kind) for n in results.networks.values()],
        **{
            f"p = {config.task.p + 1}, {name}": [
                (results.final[arm][seed][1], head_kind(head))
                for seed, head in results.next_modulus.get(arm, {}).items()
                if seed in results.final.get(arm, {})
            ]
            for arm, name in ((SCRATCH, "from random weights"), (TRANSFER, f"from solved p = {config.task.p}"))
        },
    }
    groups = {  # more than the first accuracy, at most the second
        f"above {SOLVED}": (SOLVED, 1.0),
        f"{WEAK} or below": (-1.0, WEAK),
        "in between": (WEAK, SOLVED),
    }
    rows = []
    for name, found in ends.items():
        for group, (low, high) in groups.items():
            kinds = [kind for accuracy, kind in found if low < accuracy <= high]
            if kinds:
                counts = {kind: kinds.count(kind) for kind in list(_CIRCUITS)[:-1]}
                rows.append({"networks": name, "test accuracy": group, "n": len(kinds), **counts})
    return table_html(pd.DataFrame(rows)) if results.next_modulus.get(SCRATCH) else ""


def starts(config: ClusteringHeadsConfig, results: HeadsResults) -> Figure:
    """Stacked shares of circuits, one bar per start."""
    arms = ["base", *results.started]
    counts = [circuits(results, arm) for arm in arms]
    kept = [(arm, count) for arm, count in zip(arms, counts, strict=True) if sum(count.values())]
    figure, (axis,) = subplots(1, size=(8, 1.2 + 0.3 * len(kept)), grid=None)
    for row, (_, count) in enumerate(kept):
        left, n = 0.0, sum(count.values())
        for kind, color in _CIRCUITS.items():
            axis.barh(row, count[kind] / n, left=left, color=color, label=kind if row == 0 else None)
            left += count[kind] / n
    names = [f"{arm.removeprefix('start ')} (n = {sum(count.values())})" for arm, count in kept]
    axis.set_yticks(range(len(kept)), names)
    axis.invert_yaxis()
    axis.set(xlabel="share of networks", xlim=(0, 1))
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    return figure


def second_stage(config: ClusteringHeadsConfig, results: HeadsResults) -> Figure:
    """Accuracy of the second stage alone and of the base setting, and the share solved by each epoch."""
    figure, (left, right) = subplots(2, size=(5, 3.6), grid=None)
    alone = results.second_stage
    base = {seed: n for seed, n in results.networks.items() if seed in alone}
    for name, runs, color in (("base setting", base, GREY), (SECOND_STAGE, alone, BLUE)):
        if runs:
            length = max(len(run.curve("test_accuracy")) for run in runs.values())
            curves = np.full((len(runs), length), np.nan)
            for i, run in enumerate(runs.values()):
                curves[i, : len(run.curve("test_accuracy"))] = run.curve("test_accuracy")
            median_curve(left, range(length), curves, (0.1, 0.25), color=color)
            dates = np.array([length if run.solved_at is None else run.solved_at for run in runs.values()])
            right.plot(
                [(dates <= epoch).mean() for epoch in range(length)], color=color, label=f"{name} (n = {len(runs)})"
            )
    left.axhline(1 / config.task.p, color="#555555", ls=":", lw=1)
    left.set(xlabel="epoch", ylabel="test accuracy", ylim=(0.3, 1.03))
    right.set(xlabel="epoch", ylabel="share that have solved the task", ylim=(-0.03, 1.03))
    right.legend(frameon=False)
    return figure
