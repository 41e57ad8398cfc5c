"""What the colours and shapes of a sandbox mean."""

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

_MOST = 24  # answers or clusters with a key of their own


@dataclass(frozen=True)
class Key:
    """One entry of a legend.

    Attributes:
        text: for people.
        shape: ``"circle"``, ``"square"``, ``"dot"``, ``"arrow"``, ``"spike"`` or ``"hollow"`` (a spike not counted).
        colors: of as many marks.
        edge: the colour around them.
        titles: what each mark is, for people; empty where the text says it.
    """

    text: str
    shape: str
    colors: tuple[str, ...]
    edge: str = "#ffffff"
    titles: tuple[str, ...] = ()


def legend_of(run: SandboxRun, panels: Sequence[SandboxPanel]) -> list[Key]:
    """The keys of what the panels of a run draw, in order."""
    kinds, backgrounds = {panel.of for panel in panels if panel.kind == "plane"}, {panel.background for panel in panels}
    mapped = bool({"map", "lines", "triangle"} & backgrounds)
    found = _classes(run, mapped)
    unused = run.answers[run.n_right :]
    if unused and mapped:
        found.append(Key(f"{', '.join(unused)}: never the right answer", "square", (UNUSED,)))
    if run.support and {"position", "pair"} & kinds:
        found.append(Key("position of the support", "circle", (INK,), INK))
        found.append(Key("other position", "square", (PALE,), INK))
    if "pair" in kinds:
        shades = token_colors(run.n_digits)
        names = tuple(run.sequences.token_names[: run.n_digits])
        found.append(Key(f"token {' '.join(names)}", "circle", tuple(shades), INK, names))
    if "cloud" in backgrounds:
        found.append(Key("other test sequences", "dot", tuple(run_colors(run)[: run.n_right])))
    if any(panel.arrow for panel in panels):
        found.append(Key("query", "arrow", (MARK,)))
    if any(panel.name in ("loss", "spikes") for panel in panels):
        if run.curves.spikes:
            found.append(Key("loss spike", "spike", (SPIKE,)))
        if run.curves.small_spikes:
            found.append(Key("rise of the loss below the floor of spikes", "hollow", ("#ffffff",), SPIKE))
    return found


def _classes(run: SandboxRun, mapped: bool) -> list[Key]:
    """A key for each answer, with its clusters' shades, or for each cluster where these have colours of their own."""
    sequences, shades = run.sequences, cluster_colors(run)
    names = sequences.cluster_names
    if sequences.cluster_answers is None:
        keys = [Key(name, "circle", (shade,)) for name, shade in zip(names, shades, strict=True)]
        if mapped:
            right = zip(run.answers[: run.n_right], run_colors(run), strict=False)
            keys += [Key(f"answer {name}", "square", (color,)) for name, color in right]
    else:
        keys = []
        for answer, text in enumerate(run.answers[: run.n_right]):
            own = [c for c, found in enumerate(sequences.cluster_answers) if found == answer]
            if own:
                colors, titles = tuple(shades[c] for c in own), tuple(names[c] for c in own)
                keys.append(Key(f"answer {text}", "circle", colors, titles=titles))
    more = len(keys) - _MOST
    return keys if more <= 0 else [*keys[:_MOST], Key(f"and {more} more", "dot", ())]
