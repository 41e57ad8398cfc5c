"""Figures and tables of the topic-structure study."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure

from mechclust.models import load_model
from mechclust.studies.topic_structure.stages import two_stages
from mechclust.studies.topic_structure.study import ROWS, Job, TopicStructureConfig, documents_of
from probes.hooks import forward
from tasks.topic_documents import N_SPECIAL

if TYPE_CHECKING:
    from mechclust.studies.topic_structure.claims import Runs

_COLORS = {"W_V": "#c8553d", "W_K": "#1b6ca8", "W_Q": "#2f9e77"}


def heat_maps(config: TopicStructureConfig, out: Path) -> Figure:
    """Word-by-word matrices ordered by topic: embeddings (E1), values (E2), attention (E4a theory, E4b)."""
    seed = config.seeds[0]
    theory = f"E4a theory T{config.topics[0]} tau{config.topics_per_document[0]}"
    embed = _model(out, Job("E1", seed)).embed.W_E.detach()
    matrices = {
        "E1: $W_E^T W_E$": embed @ embed.T,
        "E2: $W_V$": _model(out, Job("E2", seed)).paper_value(),
        "E4a: mean attention, squared loss": _mean_attention(config, out, Job(theory, seed)),
        "E4b: mean attention, cross-entropy": _mean_attention(config, out, Job("E4b Adam .003", seed)),
    }
    v = config.documents.words_per_topic
    figure = Figure(figsize=(10.5, 8.6), layout="constrained")
    for axis, (title, matrix) in zip(figure.subplots(2, 2).ravel(), matrices.items(), strict=True):
        words = matrix[N_SPECIAL:, N_SPECIAL:].numpy()
        signed = "attention" not in title
        top = float(np.nanpercentile(np.abs(words), 99.5 if signed else 97)) or 1.0
        low = -top if signed else 0.0
        shown = axis.imshow(words, cmap="RdBu_r" if signed else "viridis", vmin=low, vmax=top, interpolation="nearest")
        ticks = np.arange(len(words) // v)
        axis.set(title=title, xticks=ticks * v + v / 2 - 0.5, yticks=ticks * v + v / 2 - 0.5)
        axis.set_xticklabels(ticks)
        axis.set_yticklabels(ticks)
        axis.tick_params(length=0)
        axis.set_xlabel("key, by topic" if not signed else "word, by topic")
        axis.set_ylabel("query, by topic" if not signed else "word, by topic")
        figure.colorbar(shown, ax=axis, shrink=0.85, extend="both" if signed else "max")
    return figure


def _model(out: Path, job: Job) -> Any:
    return load_model(out / "models" / f"{job.name}.safetensors")


@torch.no_grad()
def _mean_attention(config: TopicStructureConfig, out: Path, job: Job) -> torch.Tensor:
    """``[d_vocab d_vocab]`` mean attention from one word to another in unmasked documents; NaN where none met."""
    model, task = _model(out, job), documents_of(config, job)
    total = torch.zeros(task.d_vocab**2, dtype=torch.float64)
    count = torch.zeros(task.d_vocab**2, dtype=torch.float64)
    for batch in task.text("dev", *config.text):
        kept: list[torch.Tensor] = []
        with model.hooks(fwd_hooks=[("blocks.0.attn.hook_pattern", lambda x, hook, kept=kept: kept.append(x))]):
            forward(model, batch)
        pair = (batch.tokens[:, :, None] * task.d_vocab + batch.tokens[:, None, :]).flatten()
        total.index_add_(0, pair, kept[0][:, 0].double().flatten())
        count.index_add_(0, pair, torch.ones_like(pair, dtype=torch.float64))
    return (total / count).reshape(task.d_vocab, task.d_vocab)


def norms(runs: Runs) -> Figure:
    """Weight norms over training, an arm of E3 a panel, with the end of stage 1."""
    columns = 3
    figure = Figure(figsize=(10.5, 3.2 * -(-len(runs) // columns)), layout="constrained")
    axes = figure.subplots(-(-len(runs) // columns), columns, squeeze=False).ravel()
    for axis in axes[len(runs) :]:
        axis.remove()
    for axis, (name, seeds) in zip(axes, runs.items(), strict=False):
        run = seeds[0]
        for weight, color in _COLORS.items():
            axis.plot(run.norms[weight], color=color, label=weight, ls="--" if weight == "W_Q" else "-")
        found = two_stages(run.norms)
        if found.boundary is not None:
            axis.axvline(found.boundary, color="#555555", ls=":", lw=1.2)
        verdict = "two stages" if found.holds else "not two stages"
        axis.set_title(f"{name.removeprefix('E3 ')}\n{verdict}: {100 * found.early:.0f}% of $W_V$'s way", fontsize=9)
        axis.set(xlabel="training step", ylim=(0, None))
        axis.grid(alpha=0.25)
    for axis in axes[::columns]:
        axis.set_ylabel("Frobenius norm")
    figure.axes[0].legend(frameon=False)
    return figure


def ratios(runs: Runs) -> Figure:
    """Same-topic over different-topic attention over training, a line a row, an arm a panel."""
    from mechclust.studies.topic_structure.claims import PUBLISHED

    arms = {"E4a": "E4a: $W_V$ the stage-1 block, frozen", "E4b": "E4b: all trained"}
    colors = dict(zip(ROWS, matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(ROWS))), strict=True))
    figure = Figure(figsize=(11.5, 4.4), layout="constrained")
    for axis, (experiment, title) in zip(figure.subplots(1, 2, sharey=True), arms.items(), strict=True):
        for name, seeds in runs.items():
            row = name.removeprefix(f"{experiment} ")
            if not name.startswith(f"{experiment} ") or row.removesuffix(" scaled") not in ROWS:
                continue
            steps = list(seeds[0].attention)
            values = np.array([[float(r["overall_ratio"]) for r in run.attention.values()] for run in seeds])
            style: dict[str, Any] = {
                "color": colors[row.removesuffix(" scaled")],
                "ls": "--" if row.endswith("scaled") else "-",
            }
            axis.plot(steps, values.mean(axis=0), marker=".", label=row, **style)
            if len(seeds) > 1:
                axis.fill_between(steps, values.min(axis=0), values.max(axis=0), color=style["color"], alpha=0.15, lw=0)
        for row, (_, same, different) in PUBLISHED.items():
            axis.axhline(same / different, color=colors[row], ls=":", lw=1)
        axis.axhline(1, color="#999999", lw=0.8)
        axis.set_xscale("symlog", linthresh=1)
        axis.set_yscale("log")
        axis.set(title=title, xlabel="training step", xlim=(0, None))
        axis.grid(alpha=0.25, which="both")
    figure.axes[0].set_ylabel("attention, same topic / different topic")
    handles, labels = figure.axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False)
    return figure


def mixing(g: Mapping[int, np.ndarray], config: TopicStructureConfig) -> Figure:
    """The mixing measure g against the number of topics in a document, a colour a number of topics."""
    from mechclust.studies.topic_structure.claims import THEORY_G

    figure = Figure(figsize=(5.6, 3.9), layout="constrained")
    axis = figure.subplots()
    taus = config.topics_per_document
    colors = matplotlib.colormaps["viridis"](np.linspace(0.1, 0.75, len(g)))
    for color, (n, values) in zip(colors, g.items(), strict=True):
        for seed in values:
            axis.plot(taus, seed, "o", color=color, ms=4, alpha=0.6)
        axis.plot(taus, values.mean(axis=0), color=color, lw=1, label=f"trained, {n} topics")
    if 10 in g:
        axis.plot(list(THEORY_G), list(THEORY_G.values()), color="#c8553d", ls="--", label="population, 10 topics")
    axis.set(xlabel="topics in a document", ylabel="g", ylim=(0, None))
    axis.set_xticks(taus)
    axis.grid(alpha=0.25)
    axis.legend(frameon=False)
    return figure


def attention_table(runs: Runs) -> str:
    """HTML: mean attention by bucket at the end (mean and standard deviation over seeds), beside the published."""
    from mechclust.studies.topic_structure.claims import PUBLISHED

    rows = []
    for name, seeds in runs.items():
        experiment, _, row = name.partition(" ")
        published = PUBLISHED.get(row.removesuffix(" scaled"))
        if not experiment.startswith("E4") or published is None:
            continue
        means = np.array([run.means for run in seeds])
        spread = means.std(axis=0, ddof=1) if len(seeds) > 1 else np.full(3, np.nan)
        cells = [
            f"{m:.5f}" + (f" ± {s:.5f}" if np.isfinite(s) else "") for m, s in zip(means.mean(0), spread, strict=True)
        ]
        ratio = float(np.mean([run.ratio for run in seeds]))
        theirs = [f"{x:.5f}" for x in published]
        rows.append([experiment, row, *cells, f"{ratio:.3f}", *theirs, f"{published[1] / published[2]:.2f}"])
    heads = ["same word", "same topic", "different topic", "ratio"]
    head = "".join(f"<th>{h}</th>" for h in ("", "optimiser", *heads, *(f"paper: {h}" for h in heads)))
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
