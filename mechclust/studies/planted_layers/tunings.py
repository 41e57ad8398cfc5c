"""How each model of a seed is tuned from its base, and the jobs of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from mechclust.studies.planted_layers.config import (
    FRESH,
    FROZEN,
    PlantedConfig,
    measured_skills,
    spans_of,
    trained_name,
)
from mechclust.studies.planted_layers.score import Span
from mechclust.studies.planted_layers.trios import (
    control_name,
    control_sets,
    control_spans,
    multi_name,
    span_name,
    trios_of,
)
from mechclust.training import TrainConfig
from tasks import SkillSuite


@dataclass(frozen=True)
class Tuning:
    """The tuning of a model from the base of its seed.

    Attributes:
        steps: optimiser steps.
        order: seed of the order of the data.
        skills: skills to tune on. Empty means all seen skills.
        span: the layers that are trained, or ``None`` for all.
        layer_decay: factor on the learning rate from each block to the one below.
    """

    steps: int
    order: int = 0
    skills: tuple[str, ...] = ()
    span: Span | None = None
    layer_decay: float = 1.0

    def suite(self, suite: SkillSuite) -> SkillSuite:
        """Return the data."""
        return replace(suite, stream_seed=1 + self.order, skills=self.skills)

    def settings(self, config: PlantedConfig) -> TrainConfig:
        """Return the training."""
        frozen = list(FROZEN)
        if self.span is not None:
            first, last = self.span
            others = [layer for layer in range(1, config.n_layers + 1) if not first <= layer <= last]
            frozen += [f"blocks.{layer - 1}" for layer in others]
        return replace(config.tuning, steps=self.steps, freeze=tuple(frozen), layer_decay=self.layer_decay)


def tunings(config: PlantedConfig) -> dict[str, Tuning]:
    """Return every model that is tuned from the base of a seed, by name, the longest training first."""
    steps = config.tuning.steps
    models = {
        "steps": Tuning(2 * steps, order=config.n_null + FRESH),  # in another order, as the pairs of the null are
        "rates": Tuning(steps, layer_decay=config.layer_decay),
        **{f"order-{k}": Tuning(steps, order=k) for k in range(config.n_null + FRESH)},
        **{trained_name(span): Tuning(steps, span=span) for span in spans_of(config, config.n_layers)},
    }
    if trios_of(config):
        models |= _of_several_tasks(config) | _controls(config)
    return dict(sorted(models.items(), key=_length, reverse=True))


def _length(named: tuple[str, Tuning]) -> int:
    return named[1].steps


def _of_several_tasks(config: PlantedConfig) -> dict[str, Tuning]:
    skills = measured_skills(config)
    tuning = Tuning(config.control_steps * len(skills), skills=skills)
    return {
        **{multi_name(span_name(span)): replace(tuning, span=span) for span in control_spans(config)},
        multi_name("all"): tuning,
        multi_name("steps"): replace(tuning, steps=2 * tuning.steps),
        multi_name("rates"): replace(tuning, layer_decay=config.layer_decay),
    }


def _controls(config: PlantedConfig) -> dict[str, Tuning]:
    """Return the controls, which see their task as often as the model of several tasks does, but in another order."""
    spans = {span_name(span): span for span in control_spans(config)}
    models = {}
    for controls in control_sets(config):
        decay = config.layer_decay if controls == "rates" else 1.0
        tuning = Tuning(config.control_steps, order=1, span=spans.get(controls), layer_decay=decay)
        for skill in measured_skills(config):
            models[control_name(controls, skill)] = replace(tuning, skills=(skill,))
    return models


class ModelJob(NamedTuple):
    """One model to train, or the models of a seed to measure."""

    kind: str  # base, tuned, measure, compare
    seed: int
    model: str = ""

    @property
    def name(self) -> str:
        """Its name in progress bars and reports."""
        return f"{self.model or self.kind}-seed{self.seed}"

    @property
    def stage(self) -> int:
        """The number of its stage: tuning waits for the base models, measuring for all models."""
        return {"base": 0, "tuned": 1, "measure": 2, "compare": 2}[self.kind]


def jobs(config: PlantedConfig) -> list[ModelJob]:
    """Return every model and measurement. A given model is only measured."""
    measurements = [ModelJob("measure", seed) for seed in config.seeds]
    if config.model is not None:
        return measurements
    bases = [ModelJob("base", seed, "base") for seed in config.seeds]
    names = list(tunings(config))
    tuned = [ModelJob("tuned", seed, name) for seed in config.seeds for name in names]
    comparisons = [ModelJob("compare", seed) for seed in config.seeds] if trios_of(config) else []
    return [*bases, *tuned, *measurements, *comparisons]
