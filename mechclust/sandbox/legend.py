"""Explain the colours and shapes of a sandbox."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mechclust.sandbox.panels import SandboxPanel
from mechclust.sandbox.run import SandboxRun
from mechclust.sandbox.style import (
    INK,
    MARK,
    PALE,
    SPIKE,
    UNUSED,
    cluster_colors,
    run_colors,
    token_colors,
)

_MAX_KEYS = 24  # of answers or clusters


@dataclass(frozen=True)
class Key:
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


def legend_of(run: SandboxRun, panels: Sequence[SandboxPanel]) -> list[Key]:
    """Return the keys for the panels of a run, in order."""
    kinds = {panel.of for panel in panels if panel.kind == "plane"}
    backgrounds = {panel.background for panel in panels}
    mapped = bool({"map", "lines", "triangle"} & backgrounds)
    keys = _class_keys(run, mapped)
    unused = run.answers[run.n_right :]
    if unused and mapped:
        keys.append(Key(f"{', '.join(unused)}: never the right answer", "square", (UNUSED,)))
    if run.support and {"position", "pair"} & kinds:
        keys.append(Key("position of the support", "circle", (INK,), INK))
        keys.append(Key("other position", "square", (PALE,), INK))
    if "pair" in kinds:
        shades = token_colors(run.n_digits)
        names = tuple(run.sequences.token_names[: run.n_digits])
        keys.append(Key(f"token {' '.join(names)}", "circle", tuple(shades), INK, names))
    if "cloud" in backgrounds:
        keys.append(Key("other test sequences", "dot", tuple(run_colors(run)[: run.n_right])))
    if any(panel.arrow for panel in panels):
        keys.append(Key("query", "arrow", (MARK,)))
    if any(panel.name in ("loss", "spikes") for panel in panels):
        if run.curves.spikes:
            keys.append(Key("loss spike", "spike", (SPIKE,)))
        if run.curves.small_spikes:
            keys.append(Key("rise of the loss below the floor of spikes", "hollow", ("#ffffff",), SPIKE))
    return keys


def _class_keys(run: SandboxRun, mapped: bool) -> list[Key]:
    """Return a key for each answer with its clusters' shades, or for each cluster if clusters have no answers."""
    sequences = run.sequences
    shades = cluster_colors(run)
    names = sequences.cluster_names
    if sequences.cluster_answers is None:
        keys = [Key(name, "circle", (shade,)) for name, shade in zip(names, shades, strict=True)]
        if mapped:
            right = zip(run.answers[: run.n_right], run_colors(run), strict=False)
            keys += [Key(f"answer {name}", "square", (color,)) for name, color in right]
    else:
        keys = []
        for answer, text in enumerate(run.answers[: run.n_right]):
            clusters = [c for c, of_cluster in enumerate(sequences.cluster_answers) if of_cluster == answer]
            if clusters:
                colors = tuple(shades[c] for c in clusters)
                titles = tuple(names[c] for c in clusters)
                keys.append(Key(f"answer {text}", "circle", colors, titles=titles))
    more = len(keys) - _MAX_KEYS
    return keys if more <= 0 else [*keys[:_MAX_KEYS], Key(f"and {more} more", "dot", ())]
