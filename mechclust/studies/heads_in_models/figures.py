"""Figures of the study: the places of heads, and their equivalences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, product
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mechclust.report.axes import layer_axis
from mechclust.report.seed_plots import plot_seeds
from mechclust.report.style import BLUE, GREY, ORANGE, RED
from mechclust.report.subplots import subplots
from mechclust.studies.heads_in_models.config import (
    OFF,
    PRETRAINED,
    RANDOM,
    TRAINED,
    UNTRAINED,
    HeadsInModelsConfig,
    prompt_subject,
)
from mechclust.studies.heads_in_models.discovery import control_heads, largest_heads
from mechclust.studies.heads_in_models.heads import Heads, switching_heads
from mechclust.studies.heads_in_models.prompts import ORDERS
from mechclust.studies.heads_in_models.together import DONORS

HeadsByModel = Mapping[str, Sequence[Heads]]
_DOT_SIZE = 16  # points squared


class _Look(NamedTuple):
    """Name, colour and marker of some models' dots."""

    name: str
    color: str
    marker: str = "o"


# ---- networks that are trained ----


def addition_figure(config: HeadsInModelsConfig, arms: Mapping[str, HeadsByModel]) -> Figure:
    """Draw one dot per head and seed: how tightly it clusters by the sum, and how far answers follow the sum."""
    figure, axes = subplots(2 * len(arms), len(arms), size=(3.6, 3.2), sharex="row", sharey="row")
    for i, (title, models) in enumerate(arms.items()):
        above = axes[i]
        below = axes[len(arms) + i]
        _dots_by_sum(above, config, models, "ratio")
        _dots_by_sum(below, config, models, "selectivity")
        above.axhline(1, color=GREY, lw=1, ls=":")
        below.axhline(0, color=GREY, lw=1, ls=":")
        above.set(title=title, ylim=(0, 1.1))
        below.set(ylim=(-0.3, 1.05), xlabel="block")
    axes[0].set_ylabel("within-ratio / chance")
    axes[len(arms)].set_ylabel("answers changed,\nbetween - within classes")
    axes[len(arms) - 1].legend(frameon=False, fontsize=8, loc="lower left")
    return figure


def _dots_by_sum(
    axis: Axes, config: HeadsInModelsConfig, models: HeadsByModel, measure: Literal["ratio", "selectivity"]
) -> None:
    """Draw heads by the sum, in trained and untrained networks, and by the sum that does not count."""
    _dots(axis, config, models[UNTRAINED], "sum", measure, _Look(f"{UNTRAINED}, sum", GREY))
    _dots(axis, config, models[TRAINED], OFF, measure, _Look(f"{TRAINED}, {OFF}", ORANGE, "s"))
    _dots(axis, config, models[TRAINED], "sum", measure, _Look(f"{TRAINED}, sum", BLUE))


def _dots(
    axis: Axes,
    config: HeadsInModelsConfig,
    models: Sequence[Heads],
    label: str,
    measure: Literal["ratio", "selectivity"],
    look: _Look,
) -> None:
    """Draw heads side by side in their layer, seeds on top of one another, filled if the rule calls them."""
    for heads in models:
        values = heads.ratio(label) if measure == "ratio" else heads.selectivity(label)
        n_layers, n_heads = values.shape
        beside = (np.arange(n_heads) - (n_heads - 1) / 2) * 0.7 / n_heads
        x = np.arange(n_layers)[:, None] + beside
        _filled_or_open(axis, x, values, heads.called(config, label), look, size=_DOT_SIZE, edge=0.8)
        axis.set_xticks(range(n_layers))
    _legend_entry(axis, look)


def _filled_or_open(
    axis: Axes,
    x: Float[np.ndarray, "layer head"],
    y: Float[np.ndarray, "layer head"],
    filled: Bool[np.ndarray, "layer head"],
    look: _Look,
    *,
    size: float,
    edge: float,
) -> None:
    """Draw points, the filled ones above the open ones."""
    style: dict[str, Any] = {"s": size, "marker": look.marker, "edgecolor": look.color, "lw": edge}
    axis.scatter(x[~filled], y[~filled], facecolor="none", zorder=2, **style)
    axis.scatter(x[filled], y[filled], facecolor=look.color, zorder=3, **style)


def _legend_entry(axis: Axes, look: _Look) -> None:
    axis.scatter([], [], s=_DOT_SIZE, marker=look.marker, color=look.color, label=look.name)


def instructions_figure(config: HeadsInModelsConfig, models: HeadsByModel) -> Figure:
    """Draw both papers' structures: clusters of the residual stream by layer, and heads that are alike within tasks."""
    figure, (clusters, similarity, following) = subplots(3, size=(4.2, 3.8))
    _cluster_curves(clusters, models)
    for subject, color in ((UNTRAINED, GREY), (TRAINED, BLUE)):
        look = _Look(subject, color)
        _dots(similarity, config, models[subject], "task", "ratio", look)
        _dots(following, config, models[subject], "task", "selectivity", look)
    similarity.axhline(1, color=GREY, lw=1, ls=":")
    similarity.set(title="heads: similarity within a task", ylabel="within-ratio / chance", ylim=(0, 1.1))
    similarity.legend(frameon=False, fontsize=8)
    following.axhline(0, color=GREY, lw=1, ls=":")
    following.set(title="heads: answers following the task", ylabel="answers changed, between - within tasks")
    similarity.set_xlabel("block")
    following.set_xlabel("block")
    return figure


def _cluster_curves(axis: Axes, models: HeadsByModel) -> None:
    """Draw clusters of the residual stream by layer, against task and output."""
    labels = (("task", BLUE), ("output", RED))
    for (subject, style), (i, (label, color)) in product(((TRAINED, "-"), (UNTRAINED, ":")), enumerate(labels)):
        curves = [heads.clusters[:, i] for heads in models[subject] if heads.clusters is not None]
        values = np.stack(curves)
        plot_seeds(axis, np.arange(values.shape[1]), values, color=color, ls=style, label=f"{label}, {subject}")
    axis.set(title="residual stream at x: clusters", ylabel="adjusted Rand index", ylim=(-0.1, 1.05))
    axis.legend(frameon=False, fontsize=8)
    layer_axis(axis)


# ---- the pretrained model ----


def prompts_figure(config: HeadsInModelsConfig, models: HeadsByModel) -> Figure:
    """Draw each head's effect, the prompts with similar outputs, and the effects of interchanges."""
    figure, (effects, alike, causal, together) = subplots(4, columns=2, size=(5.2, 3.9), grid=None)
    _draw_effects(figure, effects, models)
    _draw_alike(alike, config, models)
    _draw_interchanged(causal, models)
    _draw_discovered(together, config, models)
    for axis in (alike, causal, together):
        axis.grid(alpha=0.25)
    return figure


def _draw_effects(figure: Figure, axis: Axes, models: HeadsByModel) -> None:
    """Draw the mean effect of every head over seeds and endings."""
    ends = chain.from_iterable(models[prompt_subject(PRETRAINED, order)] for order in ORDERS)
    effect = np.mean([heads.values["effect"] for heads in ends], axis=0)
    drawn = axis.imshow(effect.T, aspect="auto", origin="lower", cmap="viridis")
    figure.colorbar(drawn, ax=axis, label="effect (logits)")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set(title="which heads the answer depends on", xlabel="block, from 0", ylabel="head, from 0")


def _draw_alike(axis: Axes, config: HeadsInModelsConfig, models: HeadsByModel) -> None:
    """Draw how alike each head's outputs are for the thing asked for at both endings."""
    for kind, color in ((PRETRAINED, BLUE), (RANDOM, ORANGE)):
        look = _Look(kind, color)
        for ends in zip(*(models[prompt_subject(kind, order)] for order in ORDERS), strict=True):
            first, second = (heads.ratio("asked") for heads in ends)
            _filled_or_open(axis, first, second, switching_heads(config, ends), look, size=9, edge=0.7)
        _legend_entry(axis, look)
    axis.axhline(1, color=GREY, ls=":", lw=1)
    axis.axvline(1, color=GREY, ls=":", lw=1)
    axis.set(title="within-ratio / chance for the thing asked for", xlim=(0, 1.4), ylim=(0, 1.4))
    axis.set(xlabel=f"{ORDERS[0]} person named last", ylabel=f"{ORDERS[1]} person named last")
    axis.legend(frameon=False, fontsize=8, loc="upper right")


def _draw_interchanged(axis: Axes, models: HeadsByModel) -> None:
    """Draw the shares of answers that change and that become the donor's, by donors."""
    places = range(len(DONORS))
    drawn = False
    for order, marker in zip(ORDERS, "o^", strict=True):
        for heads in models[prompt_subject(PRETRAINED, order)]:
            for shares, face in ((heads.changed, "none"), (heads.carried, BLUE)):
                values = [shares[donors] for donors in DONORS]
                axis.scatter(places, values, s=20, marker=marker, facecolor=face, edgecolor=BLUE)
                drawn |= bool(np.isfinite(values).any())
    axis.set(title="filled heads interchanged together", ylabel="share of answers", ylim=(-0.03, 1.03))
    if not drawn:
        axis.text(0.5, 0.5, "no head is filled", ha="center", color=GREY, transform=axis.transAxes)
    axis.set_xticks(places, [donors.replace(", ", ",\n").replace(" donors", "\ndonors") for donors in DONORS])


def _draw_discovered(axis: Axes, config: HeadsInModelsConfig, models: HeadsByModel) -> None:
    """Draw the agreement of discovered classes with the thing asked for, mean of both endings, by number of heads."""
    sizes = np.array(config.together)
    for kind, name_of, label, color, style in (
        (PRETRAINED, largest_heads, "largest effect, pretrained", BLUE, "-"),
        (PRETRAINED, control_heads, "as many others, pretrained", BLUE, ":"),
        (RANDOM, largest_heads, "largest effect, random weights", ORANGE, "-"),
    ):
        subjects = [prompt_subject(kind, order) for order in ORDERS]
        ends = [[_agreements(heads, name_of, config.together) for heads in models[subject]] for subject in subjects]
        plot_seeds(axis, sizes, np.mean(ends, axis=0), color=color, ls=style, marker="o", ms=3, label=label)
    axis.axhline(0, color=GREY, ls=":", lw=1)
    axis.set_xscale("log")
    axis.set_xticks(sizes, [str(n) for n in sizes])
    axis.set_xticks([], minor=True)
    axis.set(title="classes discovered, and the thing asked for", xlabel="heads interchanged together")
    axis.set(ylabel="adjusted Rand index", ylim=(-0.25, 1.05))
    axis.legend(frameon=False, fontsize=8)


def _agreements(heads: Heads, name_of: Callable[[int], str], sizes: Sequence[int]) -> list[float]:
    assert heads.discovery is not None
    return [float(heads.discovery.sel("agreement", set=name_of(n), equivalence="asked")) for n in sizes]
