"""Figures of the clustering-head study: all by name, and the figures of the base setting."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechclust.evidence.intervals import mean_interval
from mechclust.report.axes import plain_ticks
from mechclust.report.seed_plots import plot_seed_medians
from mechclust.report.style import BLUE, GREEN, GREY, ORANGE, RED
from mechclust.report.subplots import subplots
from mechclust.sandbox import sandbox_figure
from mechclust.studies.clustering_heads.arm_figures import draw_arm_figures
from mechclust.studies.clustering_heads.config import SOLVED, ClusteringHeadsConfig
from mechclust.studies.clustering_heads.detector import INTEGER, NEITHER, PLANAR, TEXTBOOK
from mechclust.studies.clustering_heads.drawing import GUIDE, draw_cloud, name_guide
from mechclust.studies.clustering_heads.fall_figures import gradients_figure, two_falls_figure
from mechclust.studies.clustering_heads.replay import FROZEN
from mechclust.studies.clustering_heads.results import HeadsResults, TrainedNetwork
from mechclust.studies.clustering_heads.shown import sandbox_of, shown_networks
from probes import ProbeResult
from probes.clustering_head import INTEGER_DEVIATION, TEXTBOOK_WITHIN_RATIO

HEAD_COLORS = {TEXTBOOK: BLUE, INTEGER: ORANGE, PLANAR: GREEN, NEITHER: GREY}
_LEAST_LEFT = 1e-6  # of a spike, as drawn
_CONTROL = "attention"
_BEFORE = "before"
_FROZEN_NAMES = {_CONTROL: "attention\n(control)", "wedges": "feed-forward\ngates"}  # others have their own
LEAST_LOSS = 1e-10  # nats, as drawn, since in float32 a smaller loss is often 0


def draw_figures(config: ClusteringHeadsConfig, results: HeadsResults) -> dict[str, Figure]:
    """Draw every figure for which there are runs, in the report's order."""
    drawn = {
        "training": training_figure(config, results),
        "heads": heads_figure(results),
        **draw_arm_figures(config, results),
    }
    if _replays(results):
        drawn["replay"] = replay_figure(results)
    if results.curved and config.sandbox:
        drawn["two_falls"] = two_falls_figure(config, results)
    if results.curved:
        drawn["gradients"] = gradients_figure(config, results)
    if config.sandbox:
        run = sandbox_of(config, shown_networks(config, results)[0], results.folder)
        drawn["sandbox"] = sandbox_figure(run, run.epochs[-1])
    return drawn


def training_figure(config: ClusteringHeadsConfig, results: HeadsResults) -> Figure:
    """Draw test loss over epochs of solved and of other networks, and the distribution of accuracy."""
    figure, (*losses, right) = subplots(3, size=(4.2, 3.4), grid=None)
    networks = list(results.networks.values())
    _test_loss(losses[0], f"above {SOLVED}", results.solved, BLUE)
    _test_loss(losses[1], f"not above {SOLVED}", [network for network in networks if not network.solved], RED)
    for axis in losses:
        axis.axhline(np.log(config.task.p), **GUIDE)
    limits = [axis.get_ylim() for axis in losses if len(axis.lines) > 1]
    for axis in losses:
        axis.set(xlim=(0, config.epochs), ylim=(np.min(limits), np.max(limits)))
        plain_ticks(axis)
    losses[0].set_ylabel("test loss (nats)")
    accuracies = [network.accuracy for network in networks]
    right.hist(accuracies, bins=list(np.linspace(min(0.4, *accuracies), 1, 31)), color=BLUE)
    right.locator_params(axis="y", integer=True)
    right.axvline(SOLVED, **GUIDE)
    right.set(xlabel="test accuracy at the end", ylabel="networks", title=f"all networks ({len(networks)})")
    return figure


def _test_loss(axis: Axes, group: str, networks: list[TrainedNetwork], color: str) -> None:
    axis.set(yscale="log", xlabel="epoch", title=f"{group} ({len(networks)} networks)")
    if not networks:
        axis.text(0.5, 0.5, "none", ha="center", transform=axis.transAxes, color=GREY)
        return
    curves = np.maximum([network.curve("test_loss") for network in networks], LEAST_LOSS)
    plot_seed_medians(axis, range(curves.shape[1]), curves, (0, 0.25), color=color)


def heads_figure(results: HeadsResults) -> Figure:
    """Draw the detector's scores against accuracy."""
    figure, (left, right) = subplots(2, size=(5.5, 4), grid=None, sharex=True)
    for kind, color in HEAD_COLORS.items():
        networks = [network for network in results.networks.values() if network.kind == kind]
        accuracy = [network.accuracy for network in networks]
        style: dict[str, Any] = {"color": color, "alpha": 0.75, "label": f"{kind} ({len(networks)})", "s": 26}
        left.scatter(accuracy, [float(network.head["integer_deviation"]) for network in networks], **style)
        right.scatter(accuracy, [float(network.head["within_ratio"][0, 0, 0]) for network in networks], **style)
    left.axhline(INTEGER_DEVIATION, **GUIDE)
    right.axhline(TEXTBOOK_WITHIN_RATIO, **GUIDE)
    left.set(xlabel="test accuracy at the end", ylabel="deviation from integer weights")
    right.set(xlabel="test accuracy at the end", ylabel="within-ratio of the multiset", yscale="log")
    name_guide(left, INTEGER_DEVIATION, "the detector's threshold")
    plain_ticks(right)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _replays(results: HeadsResults) -> list[ProbeResult]:
    return [network.replay for network in results.networks.values() if len(network.replay["gone"])]


def replay_figure(results: HeadsResults) -> Figure:
    """Draw which spikes disappear when a part is frozen, and the remaining loss of each spike."""
    figure, (left, right) = subplots(2, size=(6, 3.6), grid=None)
    runs = _replays(results)
    means = np.array([run["gone"].numpy().mean(axis=0) for run in runs])
    spread = np.random.default_rng(0).uniform(-0.15, 0.15, means.shape)
    for x, name in enumerate(FROZEN):
        color = _color_of(name)
        left.bar(x, means[:, x].mean(), color=color, alpha=0.3)
        draw_cloud(left, x, means[:, x], spread[:, x], color)
        interval = mean_interval(means[:, x].tolist())
        if interval is not None:
            left.vlines(x, *interval, color=color, lw=2)
    _name_frozen(left, FROZEN)
    left.set(ylabel="share of spikes that disappear", ylim=(0, 1.03))
    losses = [np.column_stack([run["quiet_loss"], run["loss"]]) / run["spike_loss"].numpy()[:, None] for run in runs]
    remaining = np.maximum(np.concatenate(losses), _LEAST_LEFT)
    right.axhline(1, **GUIDE)
    spread = np.random.default_rng(1).uniform(-0.25, 0.25, len(remaining))
    for x, name in enumerate((_BEFORE, *FROZEN)):
        draw_cloud(right, x, remaining[:, x], spread, _color_of(name))
        median = np.median(remaining[:, x])
        right.plot([x - 0.3, x + 0.3], [median, median], color=_color_of(name), lw=2)
    _name_frozen(right, (_BEFORE, *FROZEN))
    right.set(ylabel="loss / loss at the spike", yscale="log")
    return figure


def _color_of(frozen: str) -> str:
    return {_CONTROL: RED, _BEFORE: GREY}.get(frozen, BLUE)


def _name_frozen(axis: Axes, names: tuple[str, ...]) -> None:
    """Name the frozen parts along the x axis."""
    axis.set_xticks(range(len(names)), [_FROZEN_NAMES.get(name, name.replace(" ", "\n")) for name in names], fontsize=8)
