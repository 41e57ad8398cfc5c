"""Measurements of models: the parts from which tables, readings and figures are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from mechclust.commands.topics.config import TopicsConfig
from mechclust.commands.topics.findings import findings_of
from mechclust.commands.topics.job import Measured
from mechclust.commands.topics.models import TopicsModel
from mechclust.commands.topics.texts import Texts
from mechclust.evidence import Findings
from mechclust.report.text import model_name_text


@dataclass(frozen=True, eq=False)
class Measurements:
    """Measurements of models and their copies with random weights, with the attributes of ``TopicsResult``."""

    config: TopicsConfig
    models: Sequence[TopicsModel]
    texts: Texts
    trained: Mapping[str, Measured]
    twins: Mapping[str, Sequence[Measured]]
    failed: Mapping[str, str]

    @property
    def thresholds(self) -> list[float]:
        """The thresholds, rising."""
        return sorted(self.config.thresholds)

    @property
    def has_published(self) -> bool:
        """Whether any model is compared with a published row."""
        return any(model.published for model in self.models)

    @property
    def labels(self) -> dict[str, str]:
        """Short names of the models for readers, or their names if short ones are not all different."""
        short = {model.name: model_name_text(model.name) for model in self.models}
        return short if len({*short.values()}) == len(short) else {name: name for name in short}

    @cached_property
    def findings(self) -> Findings:
        """P7 of both tables, and two findings on every model."""
        attention = [measured.attention for measured in self.trained.values()]
        for twins in self.twins.values():
            attention += [twin.attention for twin in twins]
        return findings_of(attention)
