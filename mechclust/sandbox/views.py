"""Make the panels of a model of any size."""

from __future__ import annotations

from mechclust.sandbox.curves import SERIES, Curves
from mechclust.sandbox.examples import Examples
from mechclust.sandbox.panels import SandboxPanel
from mechclust.sandbox.places import Place

_WHAT = {
    "stream": "One point per sequence, at the position read.",
    "output": "What the head writes at the position read, before the output matrix: one point per sequence.",
    "tokens": "What the model starts from at each token, at its first place among the sequences.",
    "positions": "One point per position.",
}
_PLANE = " The plane is the same at every step; its corner says how much of the points' variance lies in it."
_CURVES = {
    "loss": ("Loss", "Mean cross-entropy in nats, logarithmic.", ("train_loss", "test_loss", "followed_loss")),
    "accuracy": (
        "Accuracy",
        "Share of sequences answered correctly.",
        ("train_accuracy", "test_accuracy", "followed_accuracy"),
    ),
    "gradient_norms": ("Gradient norms", "Norm of the loss's gradient by group of parameters, logarithmic.", ()),
    "within_ratio": ("Within-ratio", "Variance within clusters over the total variance.", ()),
    "spikes": ("Spike diagnosis", "Smallest norm, and smallest distance to the boundary.", ("smallest_norm", "margin")),
}


def panel_of(place: Place, examples: Examples, flat: bool) -> SandboxPanel:
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


def curve_panels(curves: Curves) -> dict[str, SandboxPanel]:
    """Return the panels of the measured curves, by name."""
    measured = {name for name in SERIES if getattr(curves, name) is not None}
    measured |= {"gradient_norms"} if curves.gradient_norms else set()
    panels = {}
    for name, (title, text, series) in _CURVES.items():
        if measured & set(series or (name,)):
            log = name in ("loss", "gradient_norms", "spikes")
            panels[name] = SandboxPanel(name, title, text, kind="curves", curves=series, log=log, group="curves")
    return panels
