"""Figures of the clustering-head study: all by name, and the figures of the base setting."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechclust.report.style import BLUE, COLORS, RED, direct_labels, median_curve, plain_ticks, subplots
from mechclust.sandbox import sandbox_figure
from mechclust.studies.clustering_heads import arm_figures, intervention_figures, phase_figures
from mechclust.studies.clustering_heads.arm_figures import HEAD_COLORS
from mechclust.studies.clustering_heads.config import SOLVED, ClusteringHeadsConfig
from mechclust.studies.clustering_heads.drawing import GUIDE, name_guide, say_none, title_left
from mechclust.studies.clustering_heads.results import HeadsResults, TrainedNetwork
from mechclust.studies.clustering_heads.shown import sandbox_of, shown_networks
from probes.clustering_head import INTEGER_DEVIATION, TEXTBOOK_WITHIN_RATIO

LEAST_LOSS = 1e-10  # nats, as drawn, since in float32 a smaller loss is often 0


def draw_figures(config: ClusteringHeadsConfig, results: HeadsResults) -> dict[str, Figure]:
    """Draw every figure for which there are runs, in the report's order."""
    drawn = {
        "training": training_figure(config, results),
        "heads": heads_figure(results),
        "spikes": spikes_figure(results),
        "gradients": gradients_figure(config, results),
        **intervention_figures.draw_intervention_figures(config, results),
        **arm_figures.draw_arm_figures(config, results),
    }
    if config.sandbox:
        drawn |= phase_figures.draw_phase_figures(config, results)
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
        say_none(axis, "none", y=0.5)
        return
    curves = np.maximum([network.curve("test_loss") for network in networks], LEAST_LOSS)
    median_curve(axis, range(curves.shape[1]), curves, (0, 0.25), color=color)


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


def spikes_figure(results: HeadsResults) -> Figure:
    """Draw loss, smallest norm and margin of one network over training, with its spikes marked."""
    network = max(results.solved or results.networks.values(), key=_n_spikes)
    epochs = [spike.epoch for spike in network.spikes]
    figure, axes = subplots(3, 1, size=(11, 5 / 3), sharex=True)
    names = {"train_loss": "training loss", "smallest_norm": "least |xi|", "margin": "least margin"}
    for axis, (name, label) in zip(axes, names.items(), strict=True):
        values = network.curve(name)
        axis.plot(values, color=BLUE, lw=0.9)
        axis.plot(epochs, values[epochs], "o", color=RED, ms=4)
        axis.set(ylabel=label, yscale="log")
        plain_ticks(axis)
    title_left(axes[0], f"seed {network.seed}: {len(epochs)} spikes")
    axes[-1].set_xlabel("epoch")
    return figure


def _n_spikes(network: TrainedNetwork) -> int:
    return len(network.spikes)


def gradients_figure(config: ClusteringHeadsConfig, results: HeadsResults) -> Figure:
    """Draw gradient norms by group of parameters over training, on a logarithmic and a linear scale."""
    network = shown_networks(config, results)[0]
    figure, axes = subplots(2, size=(5.5, 3.6))
    groups = network.dynamics.coords["group"][:-1]
    for axis, scale in zip(axes, ("log", "linear"), strict=True):
        labels = []
        for group, values, color in zip(groups, network.curve("gradient_norm").T, COLORS, strict=False):
            axis.plot(values, lw=0.9, color=color)
            labels.append((float(values[-1]), group, color))
        axis.set(xlabel="epoch", yscale=scale, title=f"seed {network.seed}, {scale} scale")
        if scale == "log":
            plain_ticks(axis)
        direct_labels(axis, labels)
    axes[0].set_ylabel("gradient norm")
    return figure
