"""Figures of what comes after the two stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechclust.report.style import COLORS, GREY, direct_labels, plain_ticks, seed_curve, subplots
from mechclust.studies.study import Job
from mechclust.studies.topic_structure.arms import OBJECTIVES, arms, beyond_arm, beyond_documents, documents_of
from mechclust.studies.topic_structure.beyond.findings import OPTIMIZERS
from mechclust.studies.topic_structure.beyond.results import BeyondRun, BeyondRuns, Curve, label_of
from mechclust.studies.topic_structure.config import TopicStructureConfig
from mechclust.studies.topic_structure.drawing import DARK, word_table
from mechclust.studies.topic_structure.run import load_trained
from mechclust.studies.topic_structure.tables import word_scores

_RATIO = "attention, same topic / different topics"
_OWN = "attention, same word / other words of the topic"
_RANK = "effective rank of the scores"
_EXPLAINED = "attention explained by topics, minus random topics (95%)"

_Label: TypeAlias = tuple[float, str, str]  # last value of a curve, its name, its colour
_CurveOf: TypeAlias = Callable[[BeyondRun], Curve]

_RATIO_CURVES: dict[str, _CurveOf] = {_RATIO: attrgetter("ratio"), _OWN: attrgetter("own")}
_TABLE_CURVES: dict[str, _CurveOf] = {_RANK: attrgetter("rank"), _EXPLAINED: attrgetter("explained_above_random")}


def after_training_figure(config: TopicStructureConfig, runs: BeyondRuns) -> Figure:
    """Draw the published documents by step: attention, and rank and topics of the attention among all words."""
    names = [beyond_arm(optimizer, objective=loss) for loss, optimizer in product(OBJECTIVES, OPTIMIZERS)]
    chance = {_RATIO: 1.0, _OWN: 1.0, _RANK: _rank_before_training(runs, names), _EXPLAINED: 0.0}
    curves = _RATIO_CURVES | _TABLE_CURVES
    figure, axes = subplots(len(curves), 2, size=(5.6, 3.3))
    for axis, (title, curve) in zip(axes, curves.items(), strict=True):
        labels = [_arm_curve(axis, runs[name], curve, label_of(name), COLORS[i]) for i, name in enumerate(names)]
        _step_axis(axis, config)
        if title == _RANK:
            axis.set_yscale("log")
            plain_ticks(axis)
        axis.axhline(chance[title], color=GREY, ls="--", lw=1.2)
        axis.set_title(title)
        direct_labels(axis, labels)
    return figure


def _rank_before_training(runs: BeyondRuns, names: Iterable[str]) -> float:
    return float(np.mean([[run.rank[0] for run in runs[name]] for name in names]))


def documents_figure(config: TopicStructureConfig, runs: BeyondRuns) -> Figure:
    """Draw the ratio by step for all kinds of documents, one panel per optimiser."""
    figure, axes = subplots(len(OPTIMIZERS), size=(5.6, 3.8), sharey=True)
    labels: dict[str, list[_Label]] = {optimizer: [] for optimizer in OPTIMIZERS}
    for axis, optimizer in zip(axes, OPTIMIZERS, strict=True):
        for i, kind in enumerate(beyond_documents(config)):
            of_kind = runs[beyond_arm(optimizer, kind)]
            labels[optimizer].append(_arm_curve(axis, of_kind, attrgetter("ratio"), kind, COLORS[i % len(COLORS)]))
        _step_axis(axis, config)
        axis.axhline(1, color=GREY, ls="--", lw=1.2)
        axis.set_title(optimizer)
    for axis, optimizer in zip(axes, OPTIMIZERS, strict=True):  # when the limits that both share are final
        direct_labels(axis, labels[optimizer])
    axes[0].set_ylabel(_RATIO)
    return figure


def _arm_curve(axis: Axes, runs: Iterable[BeyondRun], curve: _CurveOf, name: str, color: str) -> _Label:
    """Draw a curve of an arm's networks, and return its label."""
    runs = list(runs)
    values = np.stack([curve(run) for run in runs])
    seed_curve(axis, runs[0].steps, values, color=color, marker=".", ms=4)
    return float(values[:, -1].mean()), name, color


def _step_axis(axis: Axes, config: TopicStructureConfig) -> None:
    axis.axvline(config.beyond.after, color=DARK, ls=":", lw=1.2)
    axis.set_xscale("symlog", linthresh=min(config.beyond.measured))
    axis.set(xlim=(0, config.beyond.steps), xlabel="training step")


def score_tables_figure(config: TopicStructureConfig, out: Path) -> Figure:
    """Draw attention scores between words at the end of training, rows centred, words ordered by topic; first seed."""
    names = list(arms(config))
    figure, axes = subplots(len(names), 4, size=(2.9, 2.9), grid=None)
    for axis, name in zip(axes, names, strict=True):
        job = Job(name, config.seeds[0])
        task = documents_of(config, job)
        scores = word_scores(load_trained(out, job)).numpy()
        scores = scores - scores.mean(axis=1, keepdims=True)
        topic_starts = np.arange(task.n_topics) * (task.n_words / task.n_topics)
        image = word_table(axis, scores, 99, topic_starts)
        axis.set_title(label_of(name), fontsize=9)
        figure.colorbar(image, ax=axis, shrink=0.7, extend="both", location="bottom")
    for axis in axes[::4]:
        axis.set_ylabel("query, by first topic")
    return figure
