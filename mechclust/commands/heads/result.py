"""The result of ``mechclust heads``: its headline, readings, tables, figures and report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from mechclust.commands.heads import readings
from mechclust.commands.heads.measurements import NAMES, Measurements
from mechclust.commands.result import MeasuredResult, ReportRecord
from mechclust.report.panel import Panel
from mechclust.report.reading import Reading
from mechclust.report.text import model_name_text

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = ["text", "role", "heads", "strongest", "score", "chance", "random_weights"]


@dataclass(frozen=True, repr=False)
class HeadsResult(Measurements, MeasuredResult):
    """Result of ``measure_heads``.

    Attributes:
        model: the model's name.
        config: the settings.
        trained: roles of the model, and attention to look at.
        untrained: roles of each copy with random weights.
        tokenization: how texts became tokens.
        input_notes: what a reader must know of the texts.

    Example:
        >>> result = measure_heads("gpt2", HeadsConfig())  # doctest: +SKIP
        >>> result.headline  # doctest: +SKIP
    """

    def __repr__(self) -> str:
        return f"HeadsResult({model_name_text(self.model)}, {self.n_heads} heads on {' and '.join(self.texts)})"

    @property
    def title(self) -> str:
        """Heading of the report."""
        return f"What the attention heads of {model_name_text(self.model)} do"

    @property
    def headline(self) -> str:
        """The conclusion."""
        return readings.headline(self)

    @cached_property
    def readings(self) -> list[Reading]:
        """A reading of each role."""
        return readings.readings(self)

    @property
    def caveats(self) -> list[str]:
        """Notes that a reader needs to understand the numbers."""
        return readings.caveats(self)

    @property
    def shown_table(self) -> pd.DataFrame:
        """The table for a terminal: ``by_role`` with its main columns."""
        table = self.by_role()[_SHOWN]
        table = table.drop(columns=[] if self.untrained else ["random_weights"])
        return table.assign(role=table["role"].map(NAMES))

    def panels(self) -> list[Panel]:
        """Draw the figures, in the report's order."""
        from mechclust.commands.heads import figures

        return figures.heads_panels(self)

    def _record(self) -> ReportRecord:
        texts = ["repeated random tokens", *map(str, self.config.corpus)]
        return ReportRecord(
            "heads",
            source=f"Model: {self.model}. Texts: {', '.join(texts)}",
            config={"model": self.model, **vars(self.config)},
            results=self.results,
            tables={"roles": self.by_role(), "heads": self.by_head(), "scores": self.to_dataframe()},
        )

    def _views(self) -> Mapping[str, str]:
        from mechclust.commands.heads import figures

        return figures.attention_views(self)

    def _folded_tables(self) -> Mapping[str, pd.DataFrame]:
        return {"The strongest heads of each role": self.strongest()}
