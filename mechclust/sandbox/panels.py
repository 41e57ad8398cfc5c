"""Define the sandbox's panels, from which figures, films and pages are drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from mechclust.sandbox.curves import Curves
from mechclust.sandbox.examples import Examples
from mechclust.sandbox.places import Place
from tasks import InputError
from tasks.errors import did_you_mean
from tasks.settings import check_different_settings

Of = Literal["token", "position", "pair", "sequence", "neuron"]
Grid = Sequence[Sequence[str]]
_WHAT = {
    "stream": "One point per sequence, at the position read.",
    "output": "What the head writes at the position read, before the output matrix: one point per sequence.",
    "tokens": "What the model starts from at each token, at its first place among the sequences.",
    "positions": "One point per position.",
}
_PLANE = " The plane is the same at every step; its corner says how much of the points' variance lies in it."
_CURVES = {
    "loss": ("Loss", "Mean cross-entropy in nats, logarithmic."),
    "accuracy": ("Accuracy", "Share of sequences answered correctly."),
    "gradient_norms": ("Gradient norms", "Norm of the loss's gradient by group of parameters, logarithmic."),
    "within_ratio": ("Within-ratio", "Variance within clusters over the total variance."),
    "spikes": ("Spike diagnosis", "Smallest norm, and smallest distance to the boundary."),
}


@dataclass(frozen=True)
class SandboxPanel:
    """One panel. Its ``kind`` determines which of the fields below matter.

    Attributes:
        name: short name, to choose it by.
        title: of the drawn panel.
        explanation: one sentence.
        kind: ``"plane"`` draws points, ``"heat"`` a row of numbers for each sequence, ``"curves"`` numbers by epoch,
            those of ``Curves.panels`` under the panel's name.
        points: name of the points or numbers in ``SandboxRun.values``, by default the panel's name.
        of: the kind of its points.
        background: drawn behind the points: ``"circle"`` (all normalised vectors lie on it), ``"cloud"`` (other
            sequences), ``"map"`` (classes over the plane), ``"lines"`` (equal probabilities), ``"triangle"``.
        arrow: whether the query is drawn.
        log: whether the vertical axis is logarithmic.
        columns: names of a heat map's columns, by default positions.
        labels: names of tokens, by default their numbers.
        group: the panels that are switched on and off together, such as a layer's.
    """

    name: str
    title: str
    explanation: str
    kind: Literal["plane", "heat", "curves"] = "plane"
    points: str = ""
    of: Of = "sequence"
    background: Literal["", "circle", "cloud", "map", "lines", "triangle"] = ""
    arrow: bool = False
    log: bool = False
    columns: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    group: str = ""

    def __post_init__(self) -> None:
        if self.kind != "curves" and not self.points:
            object.__setattr__(self, "points", self.name)


def sandbox_panel_grid(
    panels: Iterable[str] | Grid | None, known: Mapping[str, SandboxPanel]
) -> list[list[SandboxPanel]]:
    """Return rows of panels, given a list of names, rows of names, or ``None`` for all of them.

    Args:
        panels: names.
        known: all panels, by name.

    Raises:
        InputError: for no panels, one named twice, or an unknown name.

    Example:
        >>> known = {name: SandboxPanel(name, name, "") for name in "abcde"}
        >>> [[panel.name for panel in row] for row in sandbox_panel_grid(["b", "a"], known)]
        [['b', 'a']]
    """
    if panels is None:
        panels = list(known)
    chosen = [panels] if isinstance(panels, str) else list(panels)
    rows = [[row] if isinstance(row, str) else list(row) for row in chosen]
    names = list(chain.from_iterable(rows))
    if not names:
        raise InputError(f"panels is empty; expected names such as {', '.join(list(known)[:3])}, or None for all")
    for name in names:
        if name not in known:
            raise InputError(f"no panel {name!r} (there are {', '.join(known)}){did_you_mean(str(name), known)}")
    check_different_settings(panels=names)
    if all(isinstance(row, str) for row in chosen):
        columns = _n_columns(len(names))
        rows = [names[i : i + columns] for i in range(0, len(names), columns)]
    return [[known[name] for name in row] for row in rows]


def _n_columns(n_panels: int) -> int:
    """Return the number of panels in a row."""
    if n_panels > 12:
        return 5
    return 4 if n_panels > 4 else 3


def sandbox_panel_of_place(place: Place, examples: Examples, flat: bool) -> SandboxPanel:
    """Return the panel that draws a place. ``flat``: its points have two dimensions only."""
    if place.kind == "heat":
        text = "Attention from the position read to every position, one row per sequence."
        return SandboxPanel(place.name, place.title, text, kind="heat", group=place.group)
    of = {"tokens": "token", "positions": "position"}.get(place.what, "sequence")
    labels = tuple(examples.token_names) if of == "token" else ()
    text = _WHAT[place.what] + ("" if flat else _PLANE)
    return SandboxPanel(place.name, place.title, text, of=of, labels=labels, group=place.group)  # type: ignore[arg-type]


def probability_panel(examples: Examples) -> SandboxPanel:
    """Return the panel of the answers' probabilities."""
    text = "Probability of every answer, one row per sequence; the last column is all other tokens together."
    names = tuple(examples.answer_names)
    return SandboxPanel("probabilities", "Probabilities", text, kind="heat", columns=names, group="answers")


def sandbox_curve_panels(curves: Curves) -> dict[str, SandboxPanel]:
    """Return the panels of the measured curves, by name."""
    panels = {}
    for name, (title, text) in _CURVES.items():
        if curves.panels.get(name):
            log = name in ("loss", "gradient_norms", "spikes")
            panels[name] = SandboxPanel(name, title, text, kind="curves", log=log, group="curves")
    return panels
