"""MOSSA's comparison with a known truth: a model of several tasks, single-task controls, and the base of both."""

from __future__ import annotations

from dataclasses import dataclass

from mechclust.studies.planted_layers.config import PlantedConfig, Span, measured_skills, spans_of

SAME, BELOW, ABOVE, EVERYWHERE, LONGER, DECAYED, ALL_DECAYED = (
    "same layers",
    "E below its controls",
    "E above its controls",
    "all layers",
    "all layers, E twice the steps",
    "rates by layer in E",
    "rates by layer in all",
)
CROSSED = (BELOW, ABOVE)
WHOLE = (EVERYWHERE, LONGER, DECAYED, ALL_DECAYED)  # all layers of both were trained


@dataclass(frozen=True)
class Trio:
    """A model of several tasks (E), its single-task controls, and the base that all are tuned from.

    Attributes:
        column: the kind of comparison; a column in tables.
        tuned: the name of E.
        controls: the name of the set of controls.
        truth: first and last layer in which E was trained.
        shared: first layer in which both E and its controls were trained; below it, one of them equals the base.
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
    """The layers in which E and its controls are trained: some of the spans, spread over the depth."""
    spans = spans_of(config, config.n_layers)
    n = min(config.n_control_spans, len(spans))
    return [spans[i * (len(spans) - 1) // max(n - 1, 1)] for i in range(n)]


def trios_of(config: PlantedConfig) -> list[Trio]:
    """Every trio of a seed; none for a given model."""
    if config.model is not None or not config.n_control_spans:
        return []
    spans, whole = control_spans(config), (1, config.n_layers)
    found = [Trio(SAME, multi_name(where(span)), where(span), span, span[0]) for span in spans]
    if len(spans) > 1:
        low, high = spans[0], spans[-1]
        found.append(Trio(BELOW, multi_name(where(low)), where(high), low, high[0]))
        found.append(Trio(ABOVE, multi_name(where(high)), where(low), high, high[0]))
    for column, tuned, controls in (
        (EVERYWHERE, "all", "all"),
        (LONGER, "steps", "all"),
        (DECAYED, "rates", "all"),
        (ALL_DECAYED, "rates", "rates"),
    ):
        found.append(Trio(column, multi_name(tuned), controls, whole, 1))
    return found


def control_sets(config: PlantedConfig) -> list[str]:
    """The sets of controls of a seed."""
    return list(dict.fromkeys(trio.controls for trio in trios_of(config)))


def where(span: Span) -> str:
    """A span as part of a file name."""
    return f"{span[0]}-{span[1]}"


def multi_name(which: str) -> str:
    """The name of the model E trained in this way."""
    return f"multi-{which}"


def control_name(which: str, skill: str) -> str:
    """The name of a skill's control in a set."""
    return f"control-{which}-{skill}"


def base_name(controls: str) -> str:
    """The file name of the base with a set of controls."""
    return f"base.with-{controls}"


def skills_of(config: PlantedConfig) -> tuple[str, ...]:
    """The measured skills: E is trained on all of them, and each control on one."""
    return tuple(measured_skills(config))
