"""What a sandbox can show: one list of panels that figures, films and pages are all drawn from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tasks import InputError
from tasks.errors import nearest

Of = Literal["token", "position", "pair", "sequence", "neuron"]
Grid = Sequence[Sequence[str]]


@dataclass(frozen=True)
class SandboxPanel:
    """One panel. Its ``kind`` says which of the fields below matter.

    Attributes:
        name: what it is asked for by.
        title: for people, short.
        explanation: for people, one sentence.
        kind: ``"plane"`` draws points, ``"heat"`` the attention pattern, ``"curves"`` numbers by epoch.
        points: name of the points in ``SandboxRun.values``, or ``"simplex"``; by default the panel's own name.
        of: what a point is.
        background: drawn behind the points: ``"circle"`` (all normalised vectors lie on it), ``"cloud"`` (other
            sequences), ``"map"`` (classes over the plane), ``"lines"`` (equal probabilities), ``"triangle"``.
        arrow: whether the query is drawn.
        curves: fields of ``Curves``; by default the panel's own name.
        log: whether the vertical axis is logarithmic.
    """

    name: str
    title: str
    explanation: str
    kind: Literal["plane", "heat", "curves"] = "plane"
    points: str = ""
    of: Of = "sequence"
    background: Literal["", "circle", "cloud", "map", "lines", "triangle"] = ""
    arrow: bool = False
    curves: tuple[str, ...] = ()
    log: bool = False

    def __post_init__(self) -> None:
        if self.kind == "plane" and not self.points:
            object.__setattr__(self, "points", self.name)
        if self.kind == "curves" and not self.curves:
            object.__setattr__(self, "curves", (self.name,))


_EVERY = (
    SandboxPanel(
        "token_embeddings",
        "Token embeddings",
        "Rows of E: one point per token. Answers are read off against the same rows.",
        of="token",
    ),
    SandboxPanel(
        "position_embeddings",
        "Position embeddings",
        "Rows of P: circles are positions of the support, squares are spurious.",
        of="position",
    ),
    SandboxPanel(
        "sums",
        "Token + position",
        "E[x] + P[t]: every token at every position; circles on the support, squares off it.",
        of="pair",
    ),
    SandboxPanel(
        "normalized",
        "Normalised, with the query",
        "What attention reads, z = norm(E[x] + P[t]), and the query as an arrow: the further a point lies along "
        "it, the more attention it draws.",
        of="pair",
        background="circle",
        arrow=True,
    ),
    SandboxPanel(
        "values",
        "Values V z",
        "What each token at each position contributes; a sequence's embedding is their mean under attention.",
        of="pair",
    ),
    SandboxPanel(
        "attention",
        "Attention",
        "Weight of every position, one row per followed sequence; the line ends the support.",
        kind="heat",
    ),
    SandboxPanel(
        "xi",
        "Sequence embeddings ξ",
        "One point per sequence; equivalent sequences share a colour, and a clustering head puts them on one point. "
        "Small dots are sequences of the test set.",
        background="cloud",
    ),
    SandboxPanel(
        "class_map",
        "Class map p(y | ξ)",
        "What the rest of the network answers for any ξ: the likeliest answer, paler where it is unsure.",
        points="xi",
        background="map",
    ),
    SandboxPanel(
        "xi_normalized",
        "norm(ξ)",
        "What the feed-forward layer reads: only the direction of ξ is left.",
        background="circle",
    ),
    SandboxPanel(
        "receptors",
        "Receptors",
        "The direction each feed-forward neuron listens to (rows of W1), coloured by the answer it argues for.",
        of="neuron",
    ),
    SandboxPanel(
        "assemblers",
        "Assemblers",
        "The direction each feed-forward neuron writes (columns of W2), coloured by the answer it argues for.",
        of="neuron",
    ),
    SandboxPanel("mlp_out", "Feed-forward output", "What the feed-forward layer adds to ξ."),
    SandboxPanel(
        "output",
        "Output with residual",
        "ξ plus what the feed-forward layer adds: what is compared with the rows of E.",
    ),
    SandboxPanel(
        "level_lines",
        "Output level lines",
        "Lines of p(y) = .5, .75 and .95 over the output plane, one colour per answer, and the outputs.",
        points="output",
        background="lines",
    ),
    SandboxPanel("simplex", "Probabilities", "p(y) in a triangle; a corner is a sure answer.", background="triangle"),
    SandboxPanel(
        "loss",
        "Loss",
        "Mean cross-entropy in nats, logarithmic.",
        kind="curves",
        curves=("train_loss", "test_loss"),
        log=True,
    ),
    SandboxPanel(
        "accuracy",
        "Accuracy",
        "Share of sequences answered rightly.",
        kind="curves",
        curves=("train_accuracy", "test_accuracy"),
    ),
    SandboxPanel(
        "gradient_norms",
        "Gradient norms",
        "Norm of the loss's gradient by group of parameters, logarithmic.",
        kind="curves",
        log=True,
    ),
    SandboxPanel(
        "within_ratio",
        "Within-ratio",
        "Variance of ξ within clusters over its total variance: 0 when equivalent sequences share a point.",
        kind="curves",
    ),
    SandboxPanel(
        "spikes",
        "Spike diagnosis",
        "The smallest norm of ξ, where normalisation is steep, and the smallest distance of a cluster to the "
        "decision boundary; triangles are loss spikes.",
        kind="curves",
        curves=("smallest_norm", "margin"),
        log=True,
    ),
)
PANELS = {panel.name: panel for panel in _EVERY}


def panel_grid(panels: Iterable[str] | Grid | None) -> list[list[SandboxPanel]]:
    """Rows of panels from a list of names, rows of names, or ``None`` for all of them.

    Raises:
        InputError: for no panels, one asked for twice, or a name there is none of.

    Example:
        >>> [[panel.name for panel in row] for row in panel_grid(["xi", "class_map", "loss"])]
        [['xi', 'class_map', 'loss']]
    """
    asked = list(PANELS) if panels is None else [panels] if isinstance(panels, str) else list(panels)
    rows = [[row] if isinstance(row, str) else list(row) for row in asked]
    names = [name for row in rows for name in row]
    if not names:
        raise InputError(f"panels is empty; expected names such as {', '.join(list(PANELS)[:3])}, or None for all")
    for name in names:
        if name not in PANELS:
            raise InputError(f"no panel {name!r} (there are {', '.join(PANELS)}){nearest(str(name), PANELS)}")
        if names.count(name) > 1:
            raise InputError(f"panel {name!r} is asked for twice; expected each once")
    if all(isinstance(row, str) for row in asked):
        across = min(len(names), 5 if len(names) > 12 else 4 if len(names) > 4 else 3)
        rows = [names[i : i + across] for i in range(0, len(names), across)]
    return [[PANELS[name] for name in row] for row in rows]
