"""Measurements of a suite: the parts from which tables, readings and figures are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from mechclust.commands.topics.suite.config import SuiteConfig
from mechclust.commands.topics.suite.findings import findings_of
from mechclust.commands.topics.suite.job import Measured
from mechclust.commands.topics.suite.models import SuiteModel
from mechclust.commands.topics.suite.texts import Texts
from mechclust.evidence import Findings


@dataclass(frozen=True, eq=False)
class Measurements:
    """Measurements of encoders and their random twins, with the attributes of ``SuiteResult``."""

    config: SuiteConfig
    models: Sequence[SuiteModel]
    texts: Texts
    trained: Mapping[str, Measured]
    twins: Mapping[str, Sequence[Measured]]
    failed: Mapping[str, str]

    @property
    def thresholds(self) -> list[float]:
        """The thresholds, rising."""
        return sorted(self.config.thresholds)

    @cached_property
    def findings(self) -> Findings:
        """P7 of both tables, and two findings on every encoder."""
        attention = [measured.attention for measured in self.trained.values()]
        for twins in self.twins.values():
            attention += [twin.attention for twin in twins]
        return findings_of(attention)
