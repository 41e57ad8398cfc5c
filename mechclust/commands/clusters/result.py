"""The result of ``mechclust clusters``: its headline, readings, tables, figures and report."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from mechclust.commands.clusters import readings
from mechclust.commands.clusters.measurements import Measurements
from mechclust.commands.result import MeasuredResult, ReportRecord
from mechclust.evidence.intervals import value_with_interval
from mechclust.report.panel import Panel
from mechclust.report.reading import Reading
from mechclust.report.text import model_name_text

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = [
    "layer", "site", "label", "ari", "null_low", "null_high", "p_value", "untrained",
    "given_ari", "given_p", "untrained_given", "accuracy", "linear_p", "untrained_accuracy",
    "nearest", "held_out", "held_out_p", "untrained_held_out",
]  # fmt: skip
_WITH_INTERVAL = ("ari", "given_ari", "accuracy")


@dataclass(frozen=True, repr=False)
class ClustersResult(Measurements, MeasuredResult):
    """Result of ``measure_clusters``.

    Attributes:
        model: the model's name.
        config: the settings.
        trained: measures of the model by site and label.
        untrained: these measures of each copy with random weights.
        followed: agreement of the clusters with every label and surface feature.
        given: label or feature whose means were subtracted from the states, or ``None``.
        values: labels and surface features: by name, the value of each prompt.
        shown: contents of the map of the prompts, or ``None`` for no map.
        input_notes: notes on the prompts for readers.
        one_template: tasks whose prompts share one template, so that none is left if it is held out.

    Example:
        >>> result = measure_clusters("gpt2", ClustersConfig(Path("prompts.jsonl")))  # doctest: +SKIP
        >>> result.headline  # doctest: +SKIP
    """

    def __repr__(self) -> str:
        size = f"{len(self.trained.raw.coords['site'])} layers, labels: {reprlib.repr(self.labels)}"
        return f"ClustersResult({model_name_text(self.model)}, {size})"

    @property
    def title(self) -> str:
        """Heading of the report."""
        return f"What the hidden states of {model_name_text(self.model)} cluster by"

    @property
    def headline(self) -> str:
        """The conclusion."""
        return readings.headline(self)

    @cached_property
    def readings(self) -> list[Reading]:
        """Readings of the labels that the clusters follow, and of each measure of each label."""
        return readings.readings(self)

    @property
    def caveats(self) -> list[str]:
        """Notes that a reader needs to understand the numbers."""
        return readings.caveats(self)

    @property
    def shown_table(self) -> pd.DataFrame:
        """The table for a terminal: the main columns by layer and label, values with their intervals."""
        table = self.to_dataframe()
        names = [name for name in _SHOWN if name in table and not table[name].isna().all()]
        shown = table[names].copy()
        for name in _WITH_INTERVAL:
            if name in shown and f"{name}_low" in table:
                values = table[[name, f"{name}_low", f"{name}_high"]].itertuples(index=False)
                shown[name] = [
                    value_with_interval(value, ends, ".3f") if value == value else None for value, *ends in values
                ]
        return shown

    def panels(self) -> list[Panel]:
        """Draw the figures, in the report's order."""
        from mechclust.commands.clusters import figures

        return figures.clusters_panels(self)

    def _record(self) -> ReportRecord:
        return ReportRecord(
            "clusters",
            source=f"Model: {self.model}. Prompts: {self.config.prompts}",
            config={"model": self.model, **vars(self.config)},
            results=self.results,
            tables={"clusters": self.to_dataframe(), "features": self.features},
        )

    def _views(self) -> Mapping[str, str]:
        from mechclust.commands.clusters import figures

        return figures.prompt_views(self)

    def _folded_tables(self) -> Mapping[str, pd.DataFrame]:
        return {
            "By layer": self.shown_table,
            "Agreement of the clusters with labels and surface features": self.features,
        }
