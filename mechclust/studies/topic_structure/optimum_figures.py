"""The figure of the unique optimum: distance of its entries, by documents, length and training step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechclust.report.axes import step_axis
from mechclust.report.seed_plots import plot_seeds
from mechclust.report.style import BLUE, GREY, RED, layer_shades
from mechclust.report.subplots import subplots
from mechclust.studies.topic_structure.arms import DECAYED
from mechclust.studies.topic_structure.config import TopicStructureConfig
from mechclust.studies.topic_structure.results import ArmRuns, TrainedRun, ways_of
from probes import ProbeResult

_WAYS = {"closed": (RED, "the closed form"), "other": (GREY, "others' minimiser"), "own": (BLUE, "its own minimiser")}


def optimum_figure(config: TopicStructureConfig, runs: ArmRuns, minimisers: Sequence[ProbeResult]) -> Figure:
    """Draw relative distances: the minimiser by number and length of documents, and the trained network by step."""
    figure, (left, right) = subplots(2, size=(5.6, 4.2), sharey=True)
    _from_closed_form(left, config, minimisers)
    _over_training(right, runs[DECAYED])
    return figure


def _from_closed_form(axis: Axes, config: TopicStructureConfig, minimisers: Sequence[ProbeResult]) -> None:
    documents = np.array(config.optimum_documents)
    distances = np.array([result["distance"].numpy() for result in minimisers])
    limits = minimisers[0]["population"].tolist()
    for place, color in enumerate(layer_shades(len(limits))):
        label = f"{config.optimum_lengths[place]:,} words"
        plot_seeds(axis, documents, distances[:, place], color=color, marker=".", label=label)
        axis.axhline(limits[place], color=color, ls=":", lw=1)
    start = distances[:, 0, 0].mean()
    axis.plot(documents, start * (documents / documents[0]) ** -0.5, color=GREY, lw=1, ls="--")
    axis.set(xscale="log", yscale="log", xlabel="documents", ylabel="relative distance of all entries")
    axis.set_title("minimiser: distance from the closed form")
    axis.legend(frameon=False, title="document length")


def _over_training(axis: Axes, runs: Sequence[TrainedRun]) -> None:
    assert runs[0].way is not None
    steps = [int(step) for step in runs[0].way.coords["step"]]
    curves = ways_of(runs)
    for name, (color, label) in _WAYS.items():
        plot_seeds(axis, steps, curves[name], color=color, marker=".", label=label)
    step_axis(axis)
    axis.set(yscale="log", xlim=(0, None))
    axis.set_title("trained network: distance from")
    axis.legend(frameon=False)
