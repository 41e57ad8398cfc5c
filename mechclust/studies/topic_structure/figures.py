"""Figures of matrices over words and of the mixing measure g."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from mechclust.report.style import (
    GREY,
    MATHTEXT,
    ORANGE,
    RED,
    SOFT,
    direct_labels,
    layer_shades,
    log_steps,
    seed_curve,
    subplots,
)
from mechclust.studies.study import Job
from mechclust.studies.topic_structure.arms import OBJECTIVES, attention_arm, documents_of, everything_arm, theory_arm
from mechclust.studies.topic_structure.config import LEAST_GROWTH, ROWS, TopicStructureConfig
from mechclust.studies.topic_structure.drawing import color_limit, topic_middles, word_table
from mechclust.studies.topic_structure.labelling import RIGHT
from mechclust.studies.topic_structure.results import THEORY_G, ArmRuns, TrainedRun, growth_of, mixing_values
from mechclust.studies.topic_structure.run import load_trained
from tasks.topic_documents import N_SPECIAL

_Tokens = Float[Tensor, "d_vocab d_vocab"]


def heat_maps_figure(config: TopicStructureConfig, runs: ArmRuns, out: Path) -> Figure:
    """Draw word-by-word matrices ordered by topic: embeddings (E1), values (E2), attention (E4a theory, E4)."""
    seed = config.seeds[0]
    theory = theory_arm(config.topics[0], config.topics_per_document[0])
    entries = {
        "E1: $W_E^T W_E$": _embedding_products(out, Job("E1", seed)),
        "E2: $W_V$": load_trained(out, Job("E2", seed)).paper_value(),
    }
    attention = {
        "E4a: mean attention, squared loss": _mean_attention(config, out, Job(theory, seed)),
        "E4: mean attention, cross-entropy": _kept_attention(runs[attention_arm("Adam .003")][0]),
    }
    figure, axes = subplots(4, 2, size=(5.25, 4.3), grid=None)
    for axis, (title, matrix) in zip(axes, {**entries, **attention}.items(), strict=True):
        words = _words(matrix)
        signed = title in entries
        top = color_limit(words, 99.5 if signed else 97)
        ticks = topic_middles(len(words), config.documents.words_per_topic)
        image = word_table(axis, words, top, ticks, signed=signed)
        axis.set_title(title, gid=MATHTEXT)
        axis.set_xlabel("word, by topic" if signed else "key, by topic")
        axis.set_ylabel("word, by topic" if signed else "query, by topic")
        figure.colorbar(image, ax=axis, shrink=0.85, extend="both" if signed else "max")
    return figure


def _embedding_products(out: Path, job: Job) -> _Tokens:
    embed = load_trained(out, job).embed.W_E.detach()
    return embed @ embed.T


def _words(matrix: _Tokens) -> Float[np.ndarray, "n n"]:
    return matrix[N_SPECIAL:, N_SPECIAL:].numpy()


def _mean_attention(config: TopicStructureConfig, out: Path, job: Job) -> _Tokens:
    """Return mean attention from one word to another in unmasked documents; NaN if they never met."""
    model = load_trained(out, job)
    measured = [model.attention_between_tokens(batch) for batch in documents_of(config, job).text("dev", *config.text)]
    sums, pairs = (torch.stack(tables).sum(dim=0) for tables in zip(*measured, strict=True))
    return sums / pairs


def _kept_attention(run: TrainedRun) -> _Tokens:
    """Return mean attention from one word to another in whole documents, as E4 keeps it."""
    assert run.words is not None
    return (run.words["sum"] / run.words["pairs"])[-1]


def everything_trained_figure(config: TopicStructureConfig, runs: ArmRuns) -> Figure:
    """Draw by how much more than before training ``W_E^T W_E`` separates topics, by step, one panel per loss."""
    figure, axes = subplots(len(OBJECTIVES), 2, size=(4.4, 3.6), sharey=True)
    colors = dict(zip(ROWS, [*layer_shades(3), ORANGE, RED], strict=True))
    for axis, loss in zip(axes, OBJECTIVES, strict=True):
        labels = []
        for row, color in colors.items():
            trained = runs[everything_arm(loss, row)]
            growth = growth_of(trained, RIGHT)
            assert trained[0].effects is not None
            steps = [int(step) for step in trained[0].effects.coords["step"]]
            seed_curve(axis, steps, growth, color=color)
            labels.append((float(growth[:, -1].mean()), row, color))
        axis.axhline(LEAST_GROWTH, color=GREY, lw=1.2, ls=":")
        log_steps(axis)
        axis.set_title(loss)
        direct_labels(axis, labels)
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
    if 10 in by_total:
        optimum = list(THEORY_G.values())
        axis.plot(list(THEORY_G), optimum, color=RED, ls="--")
        labels.append((optimum[-1], "population, 10 topics", RED))
    axis.plot(taus, taus, color=GREY, lw=1, ls=":")
    labels.append((float(taus[-1]), "bounds (dotted)", SOFT))
    axis.axhline(1, color=GREY, lw=1.2, ls="--")
    labels.append((1.0, "uniform attention", SOFT))
    axis.set(xlabel="topics in a document", ylabel="g", ylim=(0, None))
    axis.set_xticks(taus)
    direct_labels(axis, labels)
    return figure
