"""Figures of the study: where the heads are, and what they are equivalent for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mechclust.report.style import BLUE, GREY, ORANGE, RED, layer_axis, seed_curve, subplots
from mechclust.studies.heads_in_models.config import (
    OFF,
    PRETRAINED,
    RANDOM,
    TRAINED,
    UNTRAINED,
    HeadsInModelsConfig,
    prompt_subject,
)
from mechclust.studies.heads_in_models.discovery import largest, others
from mechclust.studies.heads_in_models.heads import Heads, switching_heads
from mechclust.studies.heads_in_models.prompts import ORDERS
from mechclust.studies.heads_in_models.together import DONORS

HeadsByModel = Mapping[str, Sequence[Heads]]


def addition(config: HeadsInModelsConfig, arms: Mapping[str, HeadsByModel]) -> Figure:
    """One dot per head and seed: how tightly it clusters by the sum, and how far answers follow the sum."""
    figure, axes = subplots(2 * len(arms), len(arms), size=(3.6, 3.2), sharex="row", sharey="row")
    for i, (title, models) in enumerate(arms.items()):
        above, below = axes[i], axes[len(arms) + i]
        for subject, label, color, marker in (
            (UNTRAINED, "sum", GREY, "o"),
            (TRAINED, OFF, ORANGE, "s"),
            (TRAINED, "sum", BLUE, "o"),
        ):
            name = f"{subject}, {label}"
            _dots(above, config, models[subject], label, "ratio", color, marker, name)
            _dots(below, config, models[subject], label, "selectivity", color, marker, name)
        above.axhline(1, color=GREY, lw=1, ls=":")
        below.axhline(0, color=GREY, lw=1, ls=":")
        above.set(title=title, ylim=(0, 1.1))
        below.set_ylim(-0.3, 1.05)
        below.set_xlabel("block")
    axes[0].set_ylabel("within-ratio / chance")
    axes[len(arms)].set_ylabel("answers changed,\nbetween - within classes")
    axes[len(arms) - 1].legend(frameon=False, fontsize=8, loc="lower left")
    return figure


def _dots(
    axis: Axes,
    config: HeadsInModelsConfig,
    models: Sequence[Heads],
    label: str,
    what: str,
    color: str,
    marker: str,
    name: str,
) -> None:
    """Heads side by side in their layer, seeds on top of one another; filled where the rule calls them."""
    for seed, heads in enumerate(models):
        values = getattr(heads, what)(label)
        called = heads.called(config, label)
        layers, n = values.shape
        x = np.arange(layers)[:, None] + (np.arange(n) - (n - 1) / 2) * 0.7 / n
        for these, face in ((called, color), (~called, "none")):
            axis.scatter(x[these], values[these], s=16, marker=marker, facecolor=face, edgecolor=color, lw=0.8)
        if seed == 0:
            axis.scatter([], [], s=16, marker=marker, color=color, label=name)
    axis.set_xticks(range(layers))


def prompts(config: HeadsInModelsConfig, models: HeadsByModel) -> Figure:
    """Effect of every head, which prompts its outputs are alike for at both endings, and what interchanges carry."""
    figure, (image, alike, causal, together) = subplots(4, columns=2, size=(5.2, 3.9), grid=None)
    effect = np.mean([h.values["effect"] for o in ORDERS for h in models[prompt_subject(PRETRAINED, o)]], axis=0)
    drawn = image.imshow(effect.T, aspect="auto", origin="lower", cmap="viridis")
    figure.colorbar(drawn, ax=image, label="effect (logits)")
    image.xaxis.set_major_locator(MaxNLocator(integer=True))
    image.yaxis.set_major_locator(MaxNLocator(integer=True))
    image.set(title="which heads the answer depends on", xlabel="block, from 0", ylabel="head, from 0")
    for kind, color in ((PRETRAINED, BLUE), (RANDOM, ORANGE)):
        for seed, ends in enumerate(zip(*(models[prompt_subject(kind, order)] for order in ORDERS), strict=True)):
            switching = switching_heads(config, ends)
            first, second = (heads.ratio("asked") for heads in ends)
            _hollow(alike, first, second, switching, color)
            if seed == 0:
                alike.scatter([], [], s=16, color=color, label=kind)
    places, known = range(len(DONORS)), False
    for heads, marker in (
        (h, m) for o, m in zip(ORDERS, "o^", strict=True) for h in models[prompt_subject(PRETRAINED, o)]
    ):
        for shares, face in ((heads.changed, "none"), (heads.carried, BLUE)):
            values = [shares[d] for d in DONORS]
            causal.scatter(places, values, s=20, marker=marker, facecolor=face, edgecolor=BLUE)
            known |= bool(np.isfinite(values).any())
    alike.axhline(1, color=GREY, ls=":", lw=1)
    alike.axvline(1, color=GREY, ls=":", lw=1)
    alike.set(title="within-ratio / chance for the thing asked for", xlim=(0, 1.4), ylim=(0, 1.4))
    alike.set(xlabel=f"{ORDERS[0]} person named last", ylabel=f"{ORDERS[1]} person named last")
    causal.set(title="filled heads interchanged together", ylabel="share of answers", ylim=(-0.03, 1.03))
    if not known:
        causal.text(0.5, 0.5, "no head is filled", ha="center", color=GREY, transform=causal.transAxes)
    causal.set_xticks(places, [d.replace(", ", ",\n").replace(" donors", "\ndonors") for d in DONORS])
    _discovery(together, config, models)
    for axis in (alike, causal, together):
        axis.grid(alpha=0.25)
    alike.legend(frameon=False, fontsize=8, loc="upper right")
    return figure


def _discovery(axis: Axes, config: HeadsInModelsConfig, models: HeadsByModel) -> None:
    """Agreement of the classes discovered with the thing asked for, by number of heads; mean of both endings."""
    sizes = np.array(config.together)
    for kind, name_of, label, color, style in (
        (PRETRAINED, largest, "largest effect, pretrained", BLUE, "-"),
        (PRETRAINED, others, "as many others, pretrained", BLUE, ":"),
        (RANDOM, largest, "largest effect, random weights", ORANGE, "-"),
    ):
        ends = [[_agreements(heads, name_of, sizes) for heads in models[prompt_subject(kind, o)]] for o in ORDERS]
        seed_curve(axis, sizes, np.mean(ends, axis=0), color=color, ls=style, marker="o", ms=3, label=label)
    axis.axhline(0, color=GREY, ls=":", lw=1)
    axis.set_xscale("log")
    axis.set_xticks(sizes, [str(n) for n in sizes])
    axis.set_xticks([], minor=True)
    axis.set(title="classes discovered, and the thing asked for", xlabel="heads interchanged together")
    axis.set(ylabel="adjusted Rand index", ylim=(-0.25, 1.05))
    axis.legend(frameon=False, fontsize=8)


def _agreements(heads: Heads, name_of: Callable[[int], str], sizes: np.ndarray) -> list[float]:
    assert heads.discovery is not None
    return [float(heads.discovery.sel("agreement", set=name_of(n), equivalence="asked")) for n in sizes.tolist()]


def _hollow(axis: Axes, x: np.ndarray, y: np.ndarray, filled: np.ndarray, color: str) -> None:
    """Points, some of them filled."""
    for these, face, above in ((~filled, "none", 2), (filled, color, 3)):
        axis.scatter(x[these], y[these], s=9, facecolor=face, edgecolor=color, lw=0.7, zorder=above)


def instructions(config: HeadsInModelsConfig, models: HeadsByModel) -> Figure:
    """Both papers' structures: clusters of the residual stream by layer, and heads that are alike within tasks."""
    figure, axes = subplots(3, size=(4.2, 3.8))
    for (subject, style), (which, (label, color)) in (
        (s, w) for s in ((TRAINED, "-"), (UNTRAINED, ":")) for w in enumerate((("task", BLUE), ("output", RED)))
    ):
        of = [h.clusters for h in models[subject] if h.clusters is not None]
        values = np.stack([clusters[:, which] for clusters in of])
        seed_curve(axes[0], np.arange(values.shape[1]), values, color=color, ls=style, label=f"{label}, {subject}")
    axes[0].set(title="residual stream at x: clusters", ylabel="adjusted Rand index", ylim=(-0.1, 1.05))
    axes[0].legend(frameon=False, fontsize=8)
    for subject, color in ((UNTRAINED, GREY), (TRAINED, BLUE)):
        _dots(axes[1], config, models[subject], "task", "ratio", color, "o", subject)
        _dots(axes[2], config, models[subject], "task", "selectivity", color, "o", subject)
    axes[1].axhline(1, color=GREY, lw=1, ls=":")
    axes[1].set(title="heads: similarity within a task", ylabel="within-ratio / chance", ylim=(0, 1.1))
    axes[2].axhline(0, color=GREY, lw=1, ls=":")
    axes[2].set(title="heads: answers following the task", ylabel="answers changed, between - within tasks")
    axes[1].legend(frameon=False, fontsize=8)
    layer_axis(axes[0])
    for axis in axes[1:]:
        axis.set_xlabel("block")
    return figure
