"""Figures of varied settings and of the curriculum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechclust.evidence.intervals import share_interval
from mechclust.report.axes import plain_ticks, plot_band
from mechclust.report.seed_plots import plot_seed_medians
from mechclust.report.style import BLUE, GREEN, GREY, ORANGE
from mechclust.report.subplots import subplots
from mechclust.studies.clustering_heads.config import (
    ABLATIONS,
    CURRICULUM,
    SCRATCH,
    SOLVED,
    ClusteringHeadsConfig,
    Curriculum,
    arms,
)
from mechclust.studies.clustering_heads.drawing import GUIDE, REMARK, SHARE_SOLVED, draw_cloud, name_guide
from mechclust.studies.clustering_heads.results import HeadsResults
from probes import ProbeResult

LINEAR_LOSS = 2.0  # nats up to which the scale of the loss on straight lines is linear
_LOSS_TICKS = (0, 0.5, 1, 2, 5, 10, 20, 50, 100)  # nats
_SETTINGS = {
    "batch": "batch size",
    "lr": "learning rate",
    "width": "feed-forward width",
    "discount": "factor on the feed-forward learning rate",
    "dropout": "dropout of the feed-forward layer",
    "bias": "biases of the feed-forward layer",
}


def draw_arm_figures(config: ClusteringHeadsConfig, results: HeadsResults) -> dict[str, Figure]:
    """Draw the figures of the arms that were run."""
    drawn = {}
    if any(_varied(config, results).values()):
        drawn["ablations"] = ablations_figure(config, results)
    if results.curriculum:
        drawn["curriculum"] = curriculum_figure(config.curriculum, results.curriculum)
    return drawn


def _varied(config: ClusteringHeadsConfig, results: HeadsResults) -> dict[str, dict[float, list[float]]]:
    """Return the final test accuracies by kind of ablation and ascending value, of ablations that were run."""
    varied: dict[str, dict[float, list[float]]] = {kind: {} for kind in ABLATIONS}
    for arm in arms(config).values():
        if arm.kind in ABLATIONS and arm.name in results.final:
            value = float(arm.name.removeprefix(arm.kind))
            varied[arm.kind][value] = _tests(results.final[arm.name])
    return {kind: dict(sorted(tests_by_value.items())) for kind, tests_by_value in varied.items()}


def _tests(final: Mapping[int, tuple[float, float]]) -> list[float]:
    return [test for _, test in final.values()]


def ablations_figure(config: ClusteringHeadsConfig, results: HeadsResults) -> Figure:
    """Draw accuracy, and the share that solves the task (with its 95% interval), against each varied setting."""
    base = dict(zip(ABLATIONS, (config.batch_size, config.lr, config.d_mlp, 1.0, 0.0, 1.0), strict=True))
    varied = _varied(config, results)
    if varied["bias"]:
        varied["bias"][base["bias"]] = _base_accuracies(config, results)
    figure, axes = subplots(len(base), 2, size=(5.5, 3), sharey=True)
    for axis, (kind, tests_by_value) in zip(axes, varied.items(), strict=True):
        _ablation(axis, kind, tests_by_value)
        axis.axhline(1 / config.task.p, **GUIDE)
        axis.axvline(base[kind], **GUIDE)
        axis.set(xlabel=_SETTINGS[kind], ylim=(-0.03, 1.03))
        if kind == "bias":
            axis.set_xticks((0, 1), ("none", "base"))
            axis.set_xlim(-0.5, 1.5)
        elif kind != "dropout":
            axis.set_xscale("log")
            plain_ticks(axis, "x")
    for axis in axes[::2]:
        axis.set_ylabel("test accuracy")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def _base_accuracies(config: ClusteringHeadsConfig, results: HeadsResults) -> list[float]:
    """Return test accuracies of the base setting, with the ablations' seeds if there are any."""
    same_seeds = results.final.get("dropout 0") or results.final.get(f"batch {config.batch_size:g}")
    return _tests(same_seeds) if same_seeds else [network.accuracy for network in results.networks.values()]


def _ablation(axis: Axes, kind: str, tests_by_value: Mapping[float, Sequence[float]]) -> None:
    """Draw every network, the mean accuracy, and the share that solves the task."""
    values = list(tests_by_value)
    for value, tests in tests_by_value.items():
        axis.plot([value] * len(tests), tests, "o", color=BLUE, alpha=0.25, ms=4, mew=0)
    means = [np.mean(tests) for tests in tests_by_value.values()]
    solved = [[float(test > SOLVED) for test in tests] for tests in tests_by_value.values()]
    shares = np.array([np.mean(outcomes) for outcomes in solved])
    low, high = np.array([share_interval(outcomes) for outcomes in solved]).reshape(-1, 2).T
    if kind == "bias":  # two settings, without values between them
        axis.plot(values, means, "_", color=BLUE, ms=22, mew=2)
        axis.errorbar(values, shares, np.abs([low - shares, high - shares]), fmt="s", color=ORANGE, ms=5, capsize=4)
    else:
        marker = "_" if len(values) == 1 else ""  # a single value has no line
        axis.plot(values, means, color=BLUE, marker=marker, ms=22, label="mean accuracy")
        axis.plot(values, shares, color=ORANGE, ls="--", marker=marker, ms=22, label=f"{SHARE_SOLVED}, 95% interval")
        plot_band(axis, values, low, high, color=ORANGE, alpha=0.2, lw=0)
    counts = sorted({len(tests) for tests in tests_by_value.values()})
    seeds = f"{' or '.join(map(str, counts))} seed{'' if counts == [1] else 's'} per value"
    axis.set_title(seeds if counts else "not run", loc="right", **REMARK)


def curriculum_figure(c: Curriculum, results: Mapping[int, ProbeResult]) -> Figure:
    """Draw accuracy by arm and split, and the loss between the two solutions and along the way to each."""
    figure, (left, right) = subplots(2, size=(5, 3.9), grid=None)
    runs = list(results.values())
    _curriculum_accuracies(left, c, runs)
    _losses_on_lines(right, runs)
    return figure


def _curriculum_accuracies(axis: Axes, c: Curriculum, runs: Sequence[ProbeResult]) -> None:
    colors = {"train": ORANGE, "test": BLUE}
    spread = np.random.default_rng(0).uniform(-0.25, 0.25, len(runs))
    labels = []
    for x, (arm, split) in enumerate(product((SCRATCH, CURRICULUM), colors)):
        accuracies = np.array([float(run.sel("accuracy", arm=arm, split=split)) for run in runs])
        axis.bar(x, np.mean(accuracies > SOLVED), color=colors[split], alpha=0.35)
        draw_cloud(axis, x, accuracies, spread, colors[split])
        labels.append(f"{arm},\n{split}")
    axis.axhline(1 / c.p, **GUIDE)
    name_guide(axis, 1 / c.p, "chance")
    axis.set_xticks(range(len(labels)), labels)
    axis.set(ylabel=f"accuracy, p = {c.p} (bars: {SHARE_SOLVED})", ylim=(0, 1.03))


def _losses_on_lines(axis: Axes, runs: Sequence[ProbeResult]) -> None:
    lines = {
        "from scratch to curriculum": (np.stack([run["line"].numpy() for run in runs]), BLUE),
        "the same, neurons matched": (np.stack([run["matched_line"].numpy() for run in runs]), GREEN),
        "from halfway to the end": (np.concatenate([run["own_line"].numpy() for run in runs]), GREY),
    }
    places = [float(place) for place in runs[0].coords["place"]]
    for name, (losses, color) in lines.items():
        plot_seed_medians(axis, places, losses, (0.25,), color=color, label=name)
    axis.set(xlabel="position on the straight line", ylabel="training loss (nats)")
    axis.set_yscale("symlog", linthresh=LINEAR_LOSS)
    ticks = [loss for loss in _LOSS_TICKS if loss <= axis.get_ylim()[1]]
    axis.set_yticks(ticks, [f"{loss:g}" for loss in ticks])
    axis.minorticks_off()
    axis.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
