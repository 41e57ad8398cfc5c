"""What a sandbox can show: one list of panels that figures, films and pages are all drawn from."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tasks import InputError

Of = Literal["token", "position", "pair", "sequence", "neuron"]
Grid = Sequence[Sequence[str]]


@dataclass(frozen=True)
class Panel:
    """One panel. Its ``kind`` says which of the fields below matter.

    Attributes:
        name: what it is asked for by.
        title: for people, short.
        explanation: for people, one sentence.
        kind: ``"plane"`` draws points, ``"heat"`` the attention pattern, ``"curves"`` numbers by epoch.
        points: name of the points in ``SandboxRun.values``, or ``"simplex"``.
        of: what a point is.
        reach: name of the points whose extent gives the axes; by default the points themselves.
        background: drawn behind the points: ``"circle"`` (all normalised vectors lie on it), ``"cloud"`` (other
            sequences), ``"map"`` (classes over the plane), ``"lines"`` (equal probabilities), ``"triangle"``.
        arrow: whether the query is drawn.
        curves: fields of ``Curves``.
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


PANELS: dict[str, Panel] = {
    panel.name: panel
    for panel in (
        Panel(
            "token_embeddings",
            "Token embeddings",
            "Rows of E: one point a token. Answers are read off against the same rows.",
            points="token_embeddings",
            of="token",
        ),
        Panel(
            "position_embeddings",
            "Position embeddings",
            "Rows of P: circles are positions of the support, squares are spurious.",
            points="position_embeddings",
            of="position",
        ),
        Panel(
            "sums",
            "Token + position",
            "E[x] + P[t]: every token at every position; circles on the support, squares off it.",
            points="sums",
            of="pair",
        ),
        Panel(
            "normalized",
            "Normalised, with the query",
            "What attention reads, z = norm(E[x] + P[t]), and the query as an arrow: the further a point lies along "
            "it, the more attention it draws.",
            points="normalized",
            of="pair",
            background="circle",
            arrow=True,
        ),
        Panel(
            "values",
            "Values V z",
            "What each token at each position contributes; a sequence's embedding is their mean under attention.",
            points="values",
            of="pair",
        ),
        Panel(
            "attention",
            "Attention",
            "Weight of every position, a row a followed sequence; the line ends the support.",
            kind="heat",
        ),
        Panel(
            "xi",
            "Sequence embeddings ξ",
            "One point a sequence; equivalent sequences share a colour, and a clustering head puts them on one point. "
            "Small dots are sequences of the test set.",
            points="xi",
            background="cloud",
        ),
        Panel(
            "class_map",
            "Class map p(y | ξ)",
            "What the rest of the network answers for any ξ: the likeliest answer, paler where it is unsure.",
            points="xi",
            background="map",
        ),
        Panel(
            "xi_normalized",
            "norm(ξ)",
            "What the feed-forward layer reads: only the direction of ξ is left.",
            points="xi_normalized",
            background="circle",
        ),
        Panel(
            "receptors",
            "Receptors",
            "The direction each feed-forward neuron listens to (rows of W1), coloured by the answer it argues for.",
            points="receptors",
            of="neuron",
        ),
        Panel(
            "assemblers",
            "Assemblers",
            "The direction each feed-forward neuron writes (columns of W2), coloured by the answer it argues for.",
            points="assemblers",
            of="neuron",
        ),
        Panel(
            "mlp_out",
            "Feed-forward output",
            "What the feed-forward layer adds to ξ.",
            points="mlp_out",
        ),
        Panel(
            "output",
            "Output with residual",
            "ξ plus what the feed-forward layer adds: what is compared with the rows of E.",
            points="output",
        ),
        Panel(
            "level_lines",
            "Output level lines",
            "Lines of p(y) = .5, .75 and .95 over the output plane, a colour an answer, and the outputs.",
            points="output",
            background="lines",
        ),
        Panel(
            "simplex",
            "Probabilities",
            "p(y) in a triangle; a corner is a sure answer.",
            points="simplex",
            background="triangle",
        ),
        Panel(
            "loss",
            "Loss",
            "Mean cross-entropy in nats, logarithmic.",
            kind="curves",
            curves=("train_loss", "test_loss"),
            log=True,
        ),
        Panel(
            "accuracy",
            "Accuracy",
            "Share of sequences answered rightly.",
            kind="curves",
            curves=("train_accuracy", "test_accuracy"),
        ),
        Panel(
            "gradient_norms",
            "Gradient norms",
            "Norm of the loss's gradient by group of parameters, logarithmic.",
            kind="curves",
            curves=("gradient_norms",),
            log=True,
        ),
        Panel(
            "within_ratio",
            "Within-ratio",
            "Variance of ξ within clusters over its total variance: 0 when equivalent sequences share a point.",
            kind="curves",
            curves=("within_ratio",),
        ),
        Panel(
            "spikes",
            "Spike diagnosis",
            "The smallest norm of ξ, where normalisation is steep, and the smallest distance of a cluster to the "
            "decision boundary; triangles are loss spikes.",
            kind="curves",
            curves=("smallest_norm", "margin"),
            log=True,
        ),
    )
}


def panel_grid(panels: Iterable[str] | Grid | None) -> list[list[Panel]]:
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
            near = difflib.get_close_matches(str(name), PANELS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InputError(f"no panel {name!r} (there are {', '.join(PANELS)}){hint}")
        if names.count(name) > 1:
            raise InputError(f"panel {name!r} is asked for twice; expected each once")
    if all(isinstance(row, str) for row in asked):
        across = min(len(names), 5 if len(names) > 12 else 4 if len(names) > 4 else 3)
        rows = [names[i : i + across] for i in range(0, len(names), across)]
    return [[PANELS[name] for name in row] for row in rows]
