"""Figures of what comes after the two stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechclust.report.style import BLUE, COLORS, GREY, RED, direct_labels, plain_ticks, seed_curve, subplots
from mechclust.studies.study import Job
from mechclust.studies.topic_structure.arms import OBJECTIVES, arms, beyond_arm, beyond_documents, documents_of
from mechclust.studies.topic_structure.beyond.findings import OPTIMIZERS
from mechclust.studies.topic_structure.beyond.results import BeyondRuns, label_of
from mechclust.studies.topic_structure.config import TopicStructureConfig
from mechclust.studies.topic_structure.run import load_trained
from mechclust.studies.topic_structure.tables import word_scores


def after(config: TopicStructureConfig, runs: BeyondRuns) -> Figure:
    """The published documents, by step: attention, and rank and topics of the attention among all words."""
    names = [beyond_arm(optimizer, objective=objective) for objective in OBJECTIVES for optimizer in OPTIMIZERS]
    figure, axes = subplots(4, 2, size=(5.6, 3.3))
    panels: Mapping[str, Any] = {
        "attention, same topic / different topics": lambda run: run.ratio,
        "attention, same word / other words of the topic": lambda run: run.own,
        "effective rank of the scores": lambda run: run.scores["rank"],
        "attention explained by topics, minus random topics (95%)": lambda run: (
            run.table["explained"] - run.table["explained_null"]
        ),
    }
    for axis, (title, curve) in zip(axes, panels.items(), strict=True):
        labels = _curves(config, axis, runs, dict(zip(names, names, strict=True)), curve)
        if "rank" in title:
            axis.set_yscale("log")
            plain_ticks(axis)
            axis.axhline(np.mean([curve(run)[0] for name in names for run in runs[name]]), color=GREY, ls="--", lw=1.2)
        else:
            axis.axhline(0 if "random" in title else 1, color=GREY, ls="--", lw=1.2)
        axis.set_title(title)
        direct_labels(axis, labels)
    return figure


def documents(config: TopicStructureConfig, runs: BeyondRuns) -> Figure:
    """The ratio by step for all kinds of documents, one panel per optimiser."""
    figure, axes = subplots(2, size=(5.6, 3.8), sharey=True)
    labels = {}
    for axis, optimizer in zip(axes, OPTIMIZERS, strict=True):
        names = {beyond_arm(optimizer, of): of for of in beyond_documents(config)}
        labels[axis] = _curves(config, axis, runs, names, lambda run: run.ratio)
        axis.axhline(1, color=GREY, ls="--", lw=1.2)
        axis.set_title(optimizer)
    for axis, of in labels.items():
        direct_labels(axis, of)
    axes[0].set_ylabel("attention, same topic / different topics")
    return figure


def _curves(
    config: TopicStructureConfig, axis: Axes, runs: BeyondRuns, names: Mapping[str, str], curve: Any
) -> list[tuple[float, str, Any]]:
    """One curve for each arm in ``names``, with its label there; returns the labels to write."""
    labels = []
    for i, (name, label) in enumerate(names.items()):
        color = COLORS[i % len(COLORS)]
        values = np.stack([curve(run) for run in runs[name]])
        seed_curve(axis, runs[name][0].steps, values, color=color, marker=".", ms=4)
        labels.append((float(values[:, -1].mean()), label_of(label), color))
    axis.axvline(config.beyond.after, color="#555555", ls=":", lw=1.2)
    axis.set_xscale("symlog", linthresh=min(config.beyond.measured))
    axis.set(xlim=(0, config.beyond.steps), xlabel="training step")
    return labels


def ends(config: TopicStructureConfig, runs: BeyondRuns) -> Figure:
    """Both ratios of attention at two steps, one point per seed and arm."""
    names = list(runs)
    figure, axes = subplots(2, size=(5.2, 0.9 + 0.36 * len(names)), sharey=True, grid="x")
    panels: Sequence[tuple[str, Any]] = [
        ("attention, same topic / different topics", lambda run: run.ratio),
        ("attention, same word / other words of the topic", lambda run: run.own),
    ]
    steps = [(config.beyond.after, BLUE, "o", -0.14), (config.beyond.steps, RED, "D", 0.14)]
    for axis, (title, curve) in zip(axes, panels, strict=True):
        for y, name in enumerate(names):
            for step, color, marker, side in steps:
                values = [run.at(curve(run), step) for run in runs[name]]
                label = f"step {step:,}" if y == 0 else None
                place = np.full(len(values), y + side)
                axis.plot(values, place, ls="", marker=marker, ms=4.5, color=color, alpha=0.6, mew=0, label=label)
                axis.plot([np.mean(values)] * 2, [y + side - 0.1, y + side + 0.1], color=color, lw=1.6)
        axis.set_xlabel(title)
        axis.axvline(1, color=GREY, ls="--", lw=1.2)
    axes[0].set_yticks(range(len(names)), [label_of(name) for name in names])
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def score_tables(config: TopicStructureConfig, out: Path) -> Figure:
    """Attention scores between words at the end of training, rows centred, words ordered by topic; first seed."""
    seed = config.seeds[0]
    names = list(arms(config))
    figure, axes = subplots(len(names), 4, size=(2.9, 2.9), grid=None)
    for axis, name in zip(axes, names, strict=True):
        job = Job(name, seed)
        scores, task = word_scores(load_trained(out, job)).numpy(), documents_of(config, job)
        scores = scores - scores.mean(axis=1, keepdims=True)
        top = float(np.nanpercentile(np.abs(scores), 99)) or 1.0
        image = axis.imshow(scores, cmap="RdBu_r", vmin=-top, vmax=top, interpolation="nearest")
        first = np.arange(task.n_topics) * (task.n_words / task.n_topics)
        for ticks in (axis.set_xticks, axis.set_yticks):
            ticks(first, [str(topic) for topic in range(task.n_topics)])
        axis.tick_params(length=0)
        axis.set_title(label_of(name), fontsize=9)
        figure.colorbar(image, ax=axis, shrink=0.7, extend="both", location="bottom")
    for axis in axes[::4]:
        axis.set_ylabel("query, by first topic")
    return figure
