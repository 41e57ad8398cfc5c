"""Figures of matrices over words and of the mixing measure g."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from mechclust.report.axes import direct_labels, step_axis
from mechclust.report.seed_plots import plot_seeds
from mechclust.report.style import BLUE, GREY, MATHTEXT, RED, SOFT, layer_shades
from mechclust.report.subplots import subplots
from mechclust.studies.study import Job
from mechclust.studies.topic_structure.arms import OBJECTIVES, everything_arm
from mechclust.studies.topic_structure.config import EVERYTHING_ROWS, LEAST_GROWTH, TopicStructureConfig
from mechclust.studies.topic_structure.labelling import RIGHT
from mechclust.studies.topic_structure.results import ArmRuns, growth_of, mixing_values, theory_g
from mechclust.studies.topic_structure.run import load_trained
from tasks.topic_documents import N_SPECIAL


def heat_maps_figure(config: TopicStructureConfig, out: Path) -> Figure:
    """Draw word-by-word matrices ordered by topic: embeddings (E1) and values (E2)."""
    embed = load_trained(out, Job("E1", config.seeds[0])).embed.W_E.detach()
    value = load_trained(out, Job("E2", config.seeds[0])).paper_value()
    matrices = {"E1: $W_E^T W_E$": embed @ embed.T, "E2: $W_V$": value}
    per_topic = config.documents.words_per_topic
    topic_middles = np.arange(config.documents.n_topics) * per_topic + per_topic / 2 - 0.5
    topics = list(map(str, range(config.documents.n_topics)))
    figure, axes = subplots(2, size=(5.25, 4.3), grid=None)
    for axis, (title, matrix) in zip(axes, matrices.items(), strict=True):
        words = matrix[N_SPECIAL:, N_SPECIAL:].numpy()
        top = np.percentile(np.abs(words), 99.5)
        image = axis.imshow(words, vmin=-top, vmax=top, cmap="RdBu_r", interpolation="nearest")
        axis.set_xticks(topic_middles, topics)
        axis.set_yticks(topic_middles, topics)
        axis.tick_params(length=0)
        axis.set_title(title, gid=MATHTEXT)
        axis.set(xlabel="word, by topic", ylabel="word, by topic")
        figure.colorbar(image, ax=axis, shrink=0.85, extend="both")
    return figure


def everything_trained_figure(config: TopicStructureConfig, runs: ArmRuns) -> Figure:
    """Draw by how much more than before training ``W_E^T W_E`` separates topics, by step, one panel per loss."""
    figure, axes = subplots(len(OBJECTIVES), 2, size=(4.4, 3.6), sharey=True)
    colors = dict(zip(EVERYTHING_ROWS, (BLUE, RED), strict=True))
    labels: dict[str, list[tuple[float, str, Any]]] = {loss: [] for loss in OBJECTIVES}
    for axis, loss in zip(axes, OBJECTIVES, strict=True):
        for row, color in colors.items():
            trained = runs[everything_arm(loss, row)]
            growth = growth_of(trained, RIGHT)
            assert trained[0].effects is not None
            steps = [int(step) for step in trained[0].effects.coords["step"]]
            plot_seeds(axis, steps, growth, color=color)
            labels[loss].append((float(growth[:, -1].mean()), row, color))
        axis.axhline(LEAST_GROWTH, color=GREY, lw=1.2, ls=":")
        step_axis(axis)
        axis.set(title=loss, xlim=(0, config.everything_steps))
    for axis, loss in zip(axes, OBJECTIVES, strict=True):  # when the limits that both share are final
        direct_labels(axis, labels[loss])
    axes[0].set_ylabel("growth of separation (standard deviations)")
    return figure


def mixing_figure(config: TopicStructureConfig, runs: ArmRuns) -> Figure:
    """Draw the mixing measure g against the number of topics in a document, with this number and that of all topics."""
    figure, (axis,) = subplots(1, size=(5.6, 3.9))
    labels: list[tuple[float, str, Any]] = []
    taus = config.topics_per_document
    by_total = mixing_values(config, runs)
    for color, (total, g) in zip(layer_shades(len(by_total)), by_total.items(), strict=True):
        axis.plot(taus, g.T, "o", color=color, ms=4, alpha=0.6)
        axis.plot(taus, g.mean(axis=0), color=color, lw=1)
        axis.axhline(total, color=color, lw=1, ls=":")
        labels.append((float(g[:, -1].mean()), f"trained, {total} topics", color))
    optimum = {tau: g for tau, g in theory_g(config).items() if taus[0] <= tau <= taus[-1]}
    if optimum:
        axis.plot(list(optimum), list(optimum.values()), color=RED, ls="--")
        labels.append(([*optimum.values()][-1], "population, 10 topics", RED))
    axis.plot(taus, taus, color=GREY, lw=1, ls=":")
    labels.append((float(taus[-1]), "bounds (dotted)", SOFT))
    axis.axhline(1, color=GREY, lw=1.2, ls="--")
    labels.append((1.0, "uniform attention", SOFT))
    axis.set(xlabel="topics in a document", ylabel="g", ylim=(0, None))
    axis.set_xticks(taus)
    direct_labels(axis, labels)
    return figure
