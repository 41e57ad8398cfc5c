"""Figures of the topic-structure study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from mechclust.report.style import GREY, MATHTEXT, RED, SOFT, direct_labels, shades, subplots
from mechclust.studies.study import Job
from mechclust.studies.topic_structure.arms import OBJECTIVES, documents_of, reading_arm
from mechclust.studies.topic_structure.config import ROWS, TopicStructureConfig
from mechclust.studies.topic_structure.follow import PATTERN
from mechclust.studies.topic_structure.results import THEORY_G, ArmRuns, effect_of, mixing_values
from mechclust.studies.topic_structure.run import load_trained
from probes.engine.hooks import forward, record
from tasks.topic_documents import N_SPECIAL

_JOINT = "one-hot visible trained cross-entropy"


def heat_maps(config: TopicStructureConfig, out: Path) -> Figure:
    """Word-by-word matrices ordered by topic: embeddings (E1), values (E2), attention (E4a theory, E4)."""
    seed, v = config.seeds[0], config.documents.words_per_topic
    theory = f"E4a theory T{config.topics[0]} tau{config.topics_per_document[0]}"
    joint = _JOINT if _JOINT in config.readings else config.readings[0]
    embed = load_trained(out, Job("E1", seed)).embed.W_E.detach()
    entries = {
        "E1: $W_E^T W_E$": embed @ embed.T,
        "E2: $W_V$": load_trained(out, Job("E2", seed)).paper_value(),
    }
    attention = {
        "E4a: mean attention, squared loss": _mean_attention(config, out, Job(theory, seed)),
        "E4: mean attention, cross-entropy": _mean_attention(config, out, Job(reading_arm(joint, "Adam .003"), seed)),
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
    """``[d_vocab d_vocab]`` mean attention from one word to another in unmasked documents; NaN if they never met."""
    model, task = load_trained(out, job), documents_of(config, job)
    total = torch.zeros(task.d_vocab**2, dtype=torch.float64)
    count = torch.zeros(task.d_vocab**2, dtype=torch.float64)
    for batch in task.text("dev", *config.text):
        with record(model, [PATTERN]) as seen:
            forward(model, batch)
        pair = (batch.tokens[:, :, None] * task.d_vocab + batch.tokens[:, None, :]).flatten()
        total.index_add_(0, pair, seen[PATTERN][0][:, 0].double().flatten())
        count.index_add_(0, pair, torch.ones_like(pair, dtype=torch.float64))
    return (total / count).reshape(task.d_vocab, task.d_vocab)


def everything_trained(config: TopicStructureConfig, runs: ArmRuns, out: Path) -> Figure:
    """``W_E^T W_E`` between words when everything is trained, one panel per loss, optimiser and rate."""
    seed, v = config.seeds[0], config.documents.words_per_topic
    figure, axes = subplots(len(OBJECTIVES) * len(ROWS), len(ROWS), size=(2.5, 2.9), grid=None)
    panels = [(loss, row) for loss in OBJECTIVES for row in ROWS]
    for axis, (loss, row) in zip(axes, panels, strict=True):
        embed = load_trained(out, Job(f"E1b {loss} {row}", seed)).embed.W_E.detach()
        words = (embed @ embed.T)[N_SPECIAL:, N_SPECIAL:].double().numpy()
        off = words[~np.eye(len(words), dtype=bool)]
        top = float(np.percentile(np.abs(off), 99)) or 1.0
        image = axis.imshow(words, cmap="RdBu_r", vmin=-top, vmax=top, interpolation="nearest")
        first = runs[f"E1b {loss} {row}"][:1]
        effect, before = effect_of(first)[0], effect_of(first, start=True)[0]
        axis.set_title(f"{row}, {loss}\n{effect:+.2f} SD, untrained {before:+.2f}", fontsize=9)
        topics = np.arange(len(words) // v)
        axis.set_xticks(topics * v + v / 2 - 0.5, topics)
        axis.set_yticks(topics * v + v / 2 - 0.5, topics)
        axis.tick_params(length=0)
        figure.colorbar(image, ax=axis, shrink=0.7, extend="both", location="bottom")
    for axis in axes[:: len(ROWS)]:
        axis.set_ylabel("word, by topic")
    return figure


def mixing(config: TopicStructureConfig, runs: ArmRuns) -> Figure:
    """The mixing measure g against the number of topics in a document, with this number and that of all topics."""
    figure, (axis,) = subplots(1, size=(5.6, 3.9))
    labels: list[tuple[float, str, Any]] = []
    g, taus = mixing_values(config, runs), config.topics_per_document
    for color, (n, values) in zip(shades(len(g)), g.items(), strict=True):
        axis.plot(taus, values.T, "o", color=color, ms=4, alpha=0.6)
        axis.plot(taus, values.mean(axis=0), color=color, lw=1)
        axis.axhline(n, color=color, lw=1, ls=":")
        labels.append((float(values[:, -1].mean()), f"trained, {n} topics", color))
    if 10 in g:
        axis.plot(list(THEORY_G), list(THEORY_G.values()), color=RED, ls="--")
        labels.append((list(THEORY_G.values())[-1], "population, 10 topics", RED))
    axis.plot(taus, taus, color=GREY, lw=1, ls=":")
    labels.append((float(taus[-1]), "bounds (dotted)", SOFT))
    axis.axhline(1, color=GREY, lw=1.2, ls="--")
    labels.append((1.0, "uniform attention", SOFT))
    axis.set(xlabel="topics in a document", ylabel="g", ylim=(0, None))
    axis.set_xticks(taus)
    direct_labels(axis, labels)
    return figure
