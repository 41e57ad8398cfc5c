"""Figures of the topic-structure study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechclust.report.style import (
    BLUE,
    GREEN,
    GREY,
    MATHTEXT,
    RED,
    SOFT,
    direct_labels,
    log_steps,
    plain_ticks,
    seed_curve,
    shades,
    subplots,
)
from mechclust.studies.study import Job
from mechclust.studies.topic_structure.config import ROWS, TopicStructureConfig, documents_of
from mechclust.studies.topic_structure.results import PUBLISHED, THEORY_G, ArmRuns, by_row, mixing_values
from mechclust.studies.topic_structure.run import load_trained
from probes.hooks import forward, record
from tasks.topic_documents import N_SPECIAL

_COLORS = {"W_V": RED, "W_K": BLUE, "W_Q": GREEN}
_PATTERN = "blocks.0.attn.hook_pattern"


def heat_maps(config: TopicStructureConfig, out: Path) -> Figure:
    """Word-by-word matrices ordered by topic: embeddings (E1), values (E2), attention (E4a theory, E4b)."""
    seed, v = config.seeds[0], config.documents.words_per_topic
    theory = f"E4a theory T{config.topics[0]} tau{config.topics_per_document[0]}"
    embed = load_trained(out, Job("E1", seed)).embed.W_E.detach()
    entries = {
        "E1: $W_E^T W_E$": embed @ embed.T,
        "E2: $W_V$": load_trained(out, Job("E2", seed)).paper_value(),
    }
    attention = {
        "E4a: mean attention, squared loss": _mean_attention(config, out, Job(theory, seed)),
        "E4b: mean attention, cross-entropy": _mean_attention(config, out, Job("E4b Adam .003", seed)),
    }
    figure, axes = subplots(4, 2, size=(5.25, 4.3), grid=None)
    for axis, (title, matrix) in zip(axes, {**entries, **attention}.items(), strict=True):
        words = matrix[N_SPECIAL:, N_SPECIAL:].numpy()
        signed = title in entries
        top = float(np.nanpercentile(np.abs(words), 99.5 if signed else 97)) or 1.0
        colors: dict[str, Any] = {"cmap": "RdBu_r", "vmin": -top} if signed else {"cmap": "viridis", "vmin": 0.0}
        image = axis.imshow(words, vmax=top, interpolation="nearest", **colors)
        topics = np.arange(len(words) // v)
        axis.set_xticks(topics * v + v / 2 - 0.5, topics)
        axis.set_yticks(topics * v + v / 2 - 0.5, topics)
        axis.tick_params(length=0)
        x, y = ("word", "word") if signed else ("key", "query")
        axis.set_title(title, gid=MATHTEXT)
        axis.set(xlabel=f"{x}, by topic", ylabel=f"{y}, by topic")
        figure.colorbar(image, ax=axis, shrink=0.85, extend="both" if signed else "max")
    return figure


@torch.no_grad()
def _mean_attention(config: TopicStructureConfig, out: Path, job: Job) -> torch.Tensor:
    """``[d_vocab d_vocab]`` mean attention from one word to another in unmasked documents; NaN where none met."""
    model, task = load_trained(out, job), documents_of(config, job)
    total = torch.zeros(task.d_vocab**2, dtype=torch.float64)
    count = torch.zeros(task.d_vocab**2, dtype=torch.float64)
    for batch in task.text("dev", *config.text):
        with record(model, [_PATTERN]) as seen:
            forward(model, batch)
        pair = (batch.tokens[:, :, None] * task.d_vocab + batch.tokens[:, None, :]).flatten()
        total.index_add_(0, pair, seen[_PATTERN][0][:, 0].double().flatten())
        count.index_add_(0, pair, torch.ones_like(pair, dtype=torch.float64))
    return (total / count).reshape(task.d_vocab, task.d_vocab)


def norms(runs: ArmRuns) -> Figure:
    """Weight norms over training, one panel per arm of E3, with the end of stage 1."""
    shown = {name.removeprefix("E3 "): seeds[0] for name, seeds in runs.items() if name.startswith("E3 ")}
    figure, axes = subplots(len(shown), 3, size=(3.5, 3.2))
    for axis, (name, run) in zip(axes, shown.items(), strict=True):
        for weight, color in _COLORS.items():
            axis.plot(run.norms[weight], color=color, ls="--" if weight == "W_Q" else "-")
        if run.stages.boundary is not None:
            axis.axvline(run.stages.boundary, color="#555555", ls=":", lw=1.2)
        verdict = "two stages" if run.stages.holds else "not two stages"
        axis.set_title(f"{name}\n{verdict}: {100 * run.stages.early:.0f}% of $W_V$'s way", fontsize=9, gid=MATHTEXT)
        axis.set(xlabel="training step", ylim=(0, None))
        direct_labels(axis, [(float(run.norms[weight][-1]), weight, color) for weight, color in _COLORS.items()])
    for axis in axes[::3]:
        axis.set_ylabel("Frobenius norm")
    return figure


def ratios(runs: ArmRuns) -> Figure:
    """Same-topic over different-topic attention over training, one panel for E4a and E4b, one line per arm."""
    titles = {"E4a": "E4a: $W_V$ the stage-1 block, frozen", "E4b": "E4b: all trained"}
    colors = dict(zip(ROWS, shades(len(ROWS)), strict=True))
    figure, axes = subplots(2, size=(5.75, 4.4), sharey=True)
    of: dict[Axes, list[tuple[float, str, Any]]] = {}
    for axis, (experiment, title) in zip(axes, titles.items(), strict=True):
        labels: list[tuple[float, str, Any]] = []
        for row, seeds in by_row(runs, experiment).items():
            values = np.array([[float(r["overall_ratio"]) for r in run.attention.values()] for run in seeds])
            style = {"color": colors[row.removesuffix(" scaled")], "ls": "--" if row.endswith("scaled") else "-"}
            seed_curve(axis, list(seeds[0].attention), values, marker=".", **style)
            labels.append((float(values[:, -1].mean()), row, style["color"]))
        for row, (_, same, different) in PUBLISHED.items():
            axis.axhline(same / different, color=colors[row], ls=":", lw=1)
        published = [same / different for _, same, different in PUBLISHED.values()]
        labels.append((float(np.median(published)), "published (dotted)", SOFT))
        axis.axhline(1, color=GREY, lw=0.8)
        log_steps(axis)
        axis.set_title(title, gid=MATHTEXT)
        axis.set(yscale="log", xlim=(0, None))
        axis.grid(alpha=0.25, which="both")
        plain_ticks(axis)
        of[axis] = labels
    for axis, labels in of.items():
        direct_labels(axis, labels, size=7.5)
    axes[0].set_ylabel("attention, same topic / different topic")
    return figure


def mixing(config: TopicStructureConfig, runs: ArmRuns) -> Figure:
    """The mixing measure g against the number of topics in a document, one colour per number of topics."""
    figure, (axis,) = subplots(1, size=(5.6, 3.9))
    labels: list[tuple[float, str, Any]] = []
    g, taus = mixing_values(config, runs), config.topics_per_document
    for color, (n, values) in zip(shades(len(g)), g.items(), strict=True):
        axis.plot(taus, values.T, "o", color=color, ms=4, alpha=0.6)
        axis.plot(taus, values.mean(axis=0), color=color, lw=1)
        labels.append((float(values[:, -1].mean()), f"trained, {n} topics", color))
    if 10 in g:
        axis.plot(list(THEORY_G), list(THEORY_G.values()), color=RED, ls="--")
        labels.append((list(THEORY_G.values())[-1], "population, 10 topics", RED))
    axis.set(xlabel="topics in a document", ylabel="g", ylim=(0, None))
    axis.set_xticks(taus)
    direct_labels(axis, labels)
    return figure
