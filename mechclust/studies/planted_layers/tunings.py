"""How each model of a seed is tuned from its base, and the jobs of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from mechclust.studies.planted_layers.config import (
    FRESH,
    FROZEN,
    PlantedConfig,
    Span,
    spans_of,
    trained_name,
)
from mechclust.studies.planted_layers.trios import (
    control_name,
    control_sets,
    control_spans,
    multi_name,
    skills_of,
    trios_of,
    where,
)
from mechclust.training import TrainConfig
from tasks import SkillSuite


@dataclass(frozen=True)
class Tuning:
    """How a model is tuned from the base of its seed.

    Attributes:
        steps: optimiser steps.
        order: seed of the order of the data.
        skills: skills to tune on; empty: all seen skills.
        span: the layers that are trained; ``None``: all.
        layer_decay: the learning rate of a block is this times that of the block above it.
    """

    steps: int
    order: int = 0
    skills: tuple[str, ...] = ()
    span: Span | None = None
    layer_decay: float = 1.0

    def suite(self, suite: SkillSuite) -> SkillSuite:
        """The data."""
        return replace(suite, stream_seed=1 + self.order, skills=self.skills)

    def settings(self, config: PlantedConfig) -> TrainConfig:
        """The training."""
        others = () if self.span is None else tuple(
            f"blocks.{i}" for i in range(config.n_layers) if not self.span[0] <= i + 1 <= self.span[1]
        )  # fmt: skip
        frozen = (*dict.fromkeys((*config.tuning.freeze, *(FROZEN if others else ()), *others)),)
        own = self.layer_decay if self.layer_decay != 1 else config.tuning.layer_decay
        return replace(config.tuning, steps=self.steps, freeze=frozen, layer_decay=own)


def tunings(config: PlantedConfig) -> dict[str, Tuning]:
    """Every model that is tuned from the base of a seed, by name, the longest training first."""
    steps = config.tuning.steps
    found = {
        "steps": Tuning(2 * steps, order=config.n_null + FRESH),  # in another order, as the pairs of the null are
        "rates": Tuning(steps, layer_decay=config.layer_decay),
        **{f"order-{k}": Tuning(steps, order=k) for k in range(config.n_null + FRESH)},
        **{trained_name(span): Tuning(steps, span=span) for span in spans_of(config, config.n_layers)},
    }
    if trios_of(config):
        found |= _of_trios(config)
    return dict(sorted(found.items(), key=lambda item: -item[1].steps))


def _of_trios(config: PlantedConfig) -> dict[str, Tuning]:
    """Models of several tasks, and controls, which see their task equally often but in another order."""
    skills, steps = skills_of(config), config.control_steps
    spans = {where(span): span for span in control_spans(config)}
    several = Tuning(steps * len(skills), skills=skills)
    found = {multi_name(name): replace(several, span=span) for name, span in spans.items()}
    found |= {
        multi_name("all"): several,
        multi_name("steps"): replace(several, steps=2 * several.steps),
        multi_name("rates"): replace(several, layer_decay=config.layer_decay),
    }
    for controls in control_sets(config):
        decay = config.layer_decay if controls == "rates" else 1.0
        for skill in skills:
            found[control_name(controls, skill)] = Tuning(
                steps, order=1, skills=(skill,), span=spans.get(controls), layer_decay=decay
            )
    return found


class ModelJob(NamedTuple):
    """One model to train, or the models of a seed to measure."""

    kind: str  # base, tuned, measure, compare
    seed: int
    model: str = ""

    @property
    def name(self) -> str:
        """What progress bars and reports call it."""
        return f"{self.model or self.kind}-seed{self.seed}"

    @property
    def stage(self) -> int:
        """Tuning waits for the base models, measuring for all models."""
        return {"base": 0, "tuned": 1, "measure": 2, "compare": 2}[self.kind]


def jobs(config: PlantedConfig) -> list[ModelJob]:
    """Every model and measurement; a given model is only measured."""
    measures = [ModelJob("measure", seed) for seed in config.seeds]
    if config.model is not None:
        return measures
    tuned = [ModelJob("tuned", seed, name) for seed in config.seeds for name in tunings(config)]
    compared = [ModelJob("compare", seed) for seed in config.seeds if trios_of(config)]
    return [*(ModelJob("base", seed, "base") for seed in config.seeds), *tuned, *measures, *compared]
