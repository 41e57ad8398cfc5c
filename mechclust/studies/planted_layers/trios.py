"""What MOSSA compares, with a known truth: a model of several tasks, single-task controls, and the base of both."""

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
        column: what is asked; in tables a column.
        tuned: the name of E.
        controls: which set of controls.
        truth: first and last layer in which E was trained.
        shared: first layer in which both E and its controls were: below it one of them is the base.
    """

    column: str
    tuned: str
    controls: str
    truth: Span
    shared: int

    @property
    def name(self) -> str:
        """What its file is called."""
        return f"{self.tuned}.with-{self.controls}"


def control_spans(config: PlantedConfig) -> list[Span]:
    """In which layers E and its controls are trained: some of the spans, spread over the depth."""
    spans = spans_of(config, config.n_layers)
    n = min(config.n_control_spans, len(spans))
    return [spans[i * (len(spans) - 1) // max(n - 1, 1)] for i in range(n)]


def trios_of(config: PlantedConfig) -> list[Trio]:
    """Every trio of a seed; of a given model, none."""
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
    """A span in names of files."""
    return f"{span[0]}-{span[1]}"


def multi_name(which: str) -> str:
    """The model E that was trained there or so."""
    return f"multi-{which}"


def control_name(which: str, skill: str) -> str:
    """The control of a skill in a set."""
    return f"control-{which}-{skill}"


def base_name(controls: str) -> str:
    """What the file of the base with a set of controls is called."""
    return f"base.with-{controls}"


def skills_of(config: PlantedConfig) -> tuple[str, ...]:
    """What E is trained on, and each of the controls on one of them: the skills that are measured."""
    return tuple(measured_skills(config))
