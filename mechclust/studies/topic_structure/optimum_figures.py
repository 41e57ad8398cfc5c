"""The figure of the unique optimum: distance of its entries, by documents, length and training step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from mechclust.report.style import BLUE, GREY, RED, log_steps, seed_curve, shades, subplots
from mechclust.studies.topic_structure.arms import DECAYED
from mechclust.studies.topic_structure.config import TopicStructureConfig
from mechclust.studies.topic_structure.results import ArmRuns
from probes import ProbeResult

_WAYS = {"closed": (RED, "the closed form"), "other": (GREY, "others' minimiser"), "own": (BLUE, "its own minimiser")}


def optimum(config: TopicStructureConfig, runs: ArmRuns, minimisers: Sequence[ProbeResult]) -> Figure:
    """Relative distances: the minimiser by number and length of documents, and the trained network by step."""
    figure, (left, right) = subplots(2, size=(5.6, 4.2), sharey=True)
    lengths, documents = config.optimum_lengths, config.optimum_documents
    for color, i in zip(shades(len(lengths)), range(len(lengths)), strict=True):
        values = np.array([found["distance"][i].numpy() for found in minimisers])
        seed_curve(left, documents, values, color=color, marker=".", label=f"{lengths[i]:,} words")
        left.axhline(float(minimisers[0]["population"][i]), color=color, ls=":", lw=1)
    start = np.mean([found["distance"][0, 0] for found in minimisers])
    left.plot(documents, start * (np.array(documents) / documents[0]) ** -0.5, color=GREY, lw=1, ls="--")
    left.set(xscale="log", yscale="log", xlabel="documents", ylabel="relative distance of all entries")
    left.set_title("minimiser: distance from the closed form")
    left.legend(frameon=False, title="document length")
    ways = [run.way for run in runs[DECAYED] if run.way is not None]
    steps = [int(step) for step in ways[0].coords["step"]]
    for name, (color, label) in _WAYS.items():
        seed_curve(right, steps, np.array([way[name].numpy() for way in ways]), color=color, marker=".", label=label)
    log_steps(right)
    right.set(yscale="log", xlim=(0, None))
    right.set_title("trained network: distance from")
    right.legend(frameon=False)
    return figure
