"""Figures of what comes after the two stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from operator import attrgetter
from typing import TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechclust.report.axes import direct_labels, plain_ticks
from mechclust.report.seed_plots import plot_seeds
from mechclust.report.style import COLORS, GREY, SOFT
from mechclust.report.subplots import subplots
from mechclust.studies.topic_structure.arms import OBJECTIVES, beyond_arm, beyond_documents
from mechclust.studies.topic_structure.beyond.findings import OPTIMIZERS
from mechclust.studies.topic_structure.beyond.results import BeyondRun, BeyondRuns, Curve, label_of
from mechclust.studies.topic_structure.config import TopicStructureConfig

_RATIO = "attention, same topic / different topics"
_OWN = "attention, same word / other words of the topic"
_RANK = "effective rank of the scores"
_EXPLAINED = "attention explained by topics, minus random topics (95%)"

_Label: TypeAlias = tuple[float, str, str]  # last value of a curve, its name, its colour
_CurveOf: TypeAlias = Callable[[BeyondRun], Curve]

_CURVES: dict[str, _CurveOf] = {
    _RATIO: attrgetter("ratio"),
    _OWN: attrgetter("own"),
    _RANK: attrgetter("rank"),
    _EXPLAINED: attrgetter("explained_above_random"),
}


def after_training_figure(config: TopicStructureConfig, runs: BeyondRuns) -> Figure:
    """Draw the published documents by step: attention, and rank and topics of the attention among all words."""
    names = [beyond_arm(optimizer, objective=loss) for loss, optimizer in product(OBJECTIVES, OPTIMIZERS)]
    chance = {_RATIO: 1.0, _OWN: 1.0, _RANK: _rank_before_training(runs, names), _EXPLAINED: 0.0}
    figure, axes = subplots(len(_CURVES), 2, size=(5.6, 3.3))
    for axis, (title, curve) in zip(axes, _CURVES.items(), strict=True):
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
    plot_seeds(axis, runs[0].steps, values, color=color, marker=".", ms=4)
    return float(values[:, -1].mean()), name, color


def _step_axis(axis: Axes, config: TopicStructureConfig) -> None:
    axis.axvline(config.beyond.after, color=SOFT, ls=":", lw=1.2)
    axis.set_xscale("symlog", linthresh=min(config.beyond.measured))
    axis.set(xlim=(0, config.beyond.steps), xlabel="training step")
