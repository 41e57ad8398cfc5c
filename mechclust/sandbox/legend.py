"""Explain the colours and shapes of a sandbox, and draw them as a legend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mechclust.report.figure_text import figure_text
from mechclust.sandbox.colors import (
    INK,
    MARK,
    PALE,
    SPIKE,
    UNUSED,
    cluster_colors,
    run_colors,
    token_colors,
)
from mechclust.sandbox.panels import SandboxPanel
from mechclust.sandbox.run import SandboxRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAX_KEYS = 24  # of answers or clusters
_SHAPES = {"circle": "o", "square": "s", "dot": ".", "arrow": r"$\rightarrow$", "spike": "v", "hollow": "v"}
_LEGEND_LINE = 110  # letters of a legend's line


@dataclass(frozen=True)
class LegendKey:
    """One entry of a legend.

    Attributes:
        text: for people.
        shape: ``"circle"``, ``"square"``, ``"dot"``, ``"arrow"``, ``"spike"`` or ``"hollow"`` (a spike not counted).
        colors: of as many marks.
        edge: the colour around them.
        titles: a name for each mark. Empty if the text suffices.
    """

    text: str
    shape: str
    colors: tuple[str, ...]
    edge: str = "#ffffff"
    titles: tuple[str, ...] = ()


def legend_of(run: SandboxRun, panels: Sequence[SandboxPanel]) -> list[LegendKey]:
    """Return the keys for the panels of a run, in order."""
    kinds = {panel.of for panel in panels if panel.kind == "plane"}
    backgrounds = {panel.background for panel in panels}
    mapped = bool({"map", "lines", "triangle"} & backgrounds)
    keys = _class_keys(run)
    unused = run.answers[run.n_right :]
    if unused and mapped:
        keys.append(LegendKey(f"{', '.join(unused)}: never the right answer", "square", (UNUSED,)))
    if run.support and {"position", "pair"} & kinds:
        keys.append(LegendKey("position of the support", "circle", (INK,), INK))
        keys.append(LegendKey("other position", "square", (PALE,), INK))
    if "pair" in kinds:
        shades = token_colors(run.n_digits)
        names = tuple(run.sequences.token_names[: run.n_digits])
        keys.append(LegendKey(f"token {' '.join(names)}", "circle", tuple(shades), INK, names))
    if "cloud" in backgrounds:
        keys.append(LegendKey("other test sequences", "dot", tuple(run_colors(run)[: run.n_right])))
    if any(panel.arrow for panel in panels):
        keys.append(LegendKey("query", "arrow", (MARK,)))
    if any(panel.name in ("loss", "spikes") for panel in panels):
        if run.curves.spikes:
            keys.append(LegendKey("loss spike", "spike", (SPIKE,)))
        if run.curves.small_spikes:
            keys.append(LegendKey("rise of the loss below the floor of spikes", "hollow", ("#ffffff",), SPIKE))
    return keys


def _class_keys(run: SandboxRun) -> list[LegendKey]:
    """Return a key for each answer with its clusters' shades, or for each cluster if clusters have no answers."""
    sequences = run.sequences
    shades = cluster_colors(run)
    names = sequences.cluster_names
    if sequences.cluster_answers is None:
        keys = [LegendKey(name, "circle", (shade,)) for name, shade in zip(names, shades, strict=True)]
    else:
        keys = []
        for answer, text in enumerate(run.answers[: run.n_right]):
            clusters = [c for c, of_cluster in enumerate(sequences.cluster_answers) if of_cluster == answer]
            if clusters:
                colors = tuple(shades[c] for c in clusters)
                titles = tuple(names[c] for c in clusters)
                keys.append(LegendKey(f"answer {text}", "circle", colors, titles=titles))
    more = len(keys) - _MAX_KEYS
    return keys if more <= 0 else [*keys[:_MAX_KEYS], LegendKey(f"and {more} more", "dot", ())]


def draw_legend(figure: Figure, run: SandboxRun, panels: Sequence[SandboxPanel]) -> None:
    """Draw the legend under the panels."""
    keys = legend_of(run, panels)
    handles: list[Any] = [_handle(key) for key in keys]
    texts = [figure_text(key.text, 60) for key in keys]
    if not keys:
        return
    from matplotlib.legend_handler import HandlerTuple

    across = max(1, min(len(keys), int(_LEGEND_LINE * len(panels) ** 0.5 / 3 / (max(map(len, texts)) + 4))))
    width = max(len(key.colors) for key in keys)
    figure.legend(
        handles,
        texts,
        loc="outside lower center",
        ncols=across,
        fontsize=7,
        frameon=False,
        labelcolor=INK,
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0)},
        handlelength=max(1.2, 0.9 * width),
    )


def _handle(key: LegendKey) -> tuple[Any, ...]:
    from matplotlib.lines import Line2D

    look: dict[str, Any] = {"marker": _SHAPES[key.shape], "ls": "", "ms": 10 if key.shape == "arrow" else 6}
    return tuple(Line2D([], [], mfc=color, mec=key.edge, mew=0.6, **look) for color in key.colors) or (
        Line2D([], [], ls=""),
    )
