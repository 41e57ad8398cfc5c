"""MOSSA's comparison with a known truth: a model of several tasks, single-task controls, and the base of both."""

from __future__ import annotations

from dataclasses import dataclass

from mechclust.studies.planted_layers.config import PlantedConfig, spans_of
from mechclust.studies.planted_layers.score import Span

SAME = "same layers"
BELOW = "E below its controls"
ABOVE = "E above its controls"
EVERYWHERE = "all layers"
LONGER = "all layers, E twice the steps"
DECAYED = "rates by layer in E"
ALL_DECAYED = "rates by layer in all"
CROSSED = (BELOW, ABOVE)
WHOLE = (EVERYWHERE, LONGER, DECAYED, ALL_DECAYED)  # all layers of both were trained


@dataclass(frozen=True)
class Trio:
    """A model of several tasks (E), its single-task controls, and the base that all are tuned from.

    Attributes:
        column: the kind of comparison, a column in tables.
        tuned: the name of E.
        controls: the name of the set of controls.
        truth: first and last layer in which E was trained.
        shared: first layer by which both E and its controls have changed. Below it, one of them equals the base.
    """

    column: str
    tuned: str
    controls: str
    truth: Span
    shared: int

    @property
    def name(self) -> str:
        """Its name in file names."""
        return f"{self.tuned}.with-{self.controls}"


def control_spans(config: PlantedConfig) -> list[Span]:
    """Return the layers in which E and its controls are trained: some of the spans, spread over the depth."""
    spans = spans_of(config, config.n_layers)
    n = min(config.n_control_spans, len(spans))
    return [spans[i * (len(spans) - 1) // max(n - 1, 1)] for i in range(n)]


def trios_of(config: PlantedConfig) -> list[Trio]:
    """Return every trio of a seed. A given model has none."""
    if config.model is not None or not config.n_control_spans:
        return []
    spans = control_spans(config)
    trios = [_trio_of_spans(SAME, span, span) for span in spans]
    if len(spans) > 1:
        trios += [_trio_of_spans(BELOW, spans[0], spans[-1]), _trio_of_spans(ABOVE, spans[-1], spans[0])]
    everywhere = (1, config.n_layers)
    return [
        *trios,
        Trio(EVERYWHERE, multi_name("all"), "all", everywhere, 1),
        Trio(LONGER, multi_name("steps"), "all", everywhere, 1),
        Trio(DECAYED, multi_name("rates"), "all", everywhere, 1),
        Trio(ALL_DECAYED, multi_name("rates"), "rates", everywhere, 1),
    ]


def _trio_of_spans(column: str, tuned: Span, controls: Span) -> Trio:
    """Return a trio whose E and controls were trained in these layers."""
    shared = max(tuned[0], controls[0])
    return Trio(column, multi_name(span_name(tuned)), span_name(controls), tuned, shared)


def control_sets(config: PlantedConfig) -> list[str]:
    """Return the names of the sets of controls of a seed."""
    return list(dict.fromkeys(trio.controls for trio in trios_of(config)))


def span_name(span: Span) -> str:
    """Return a span as part of a file name."""
    return f"{span[0]}-{span[1]}"


def multi_name(training: str) -> str:
    """Return the name of the model E trained in this way."""
    return f"multi-{training}"


def control_name(controls: str, skill: str) -> str:
    """Return the name of a skill's control in a set."""
    return f"control-{controls}-{skill}"


def base_name(controls: str) -> str:
    """Return the file name of the base with a set of controls."""
    return f"base.with-{controls}"
