"""The result of ``mechclust history``: its headline, readings, tables, figures and report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from mechclust.commands.history import readings
from mechclust.commands.history.changes import mean_over_layers
from mechclust.commands.history.curves import Curve
from mechclust.commands.history.measurements import Measurements
from mechclust.commands.result import MeasuredResult, ReportRecord
from mechclust.evidence.intervals import value_with_interval
from mechclust.report.panel import Panel
from mechclust.report.reading import Reading
from mechclust.report.table_text import table_text
from mechclust.report.text import model_name_text

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class HistoryResult(Measurements, MeasuredResult):
    """Results for a whole series of checkpoints.

    Attributes:
        model: the model's name.
        config: the settings.
        series: the checkpoints, in training order.
        findings: defects of some of them, which are left out of all conclusions.
        results: the probes' results, by ``"NAME/CHECKPOINT"``.
        curves: by name: ``clusters``, ``cka_last``, ``cka_first``, ``cka_previous``, ``heads``, ``topics``, and for
            other probes the name of the probe and its measure, such as ``LinearDecodability_accuracy``.
        planes: hidden states in fixed planes, for the page, or ``None``.
        attention: for each checkpoint, patterns as bytes, by prompt number.
        words: tokens of these prompts, by prompt number.
        input_notes: anything a reader should know about the inputs.
        starts_random: whether the first checkpoint without findings is known to have random weights.

    Example:
        >>> config = HistoryConfig(Path("prompts.jsonl"), revisions=("step0", "step1000"))  # doctest: +SKIP
        >>> result = measure_history("EleutherAI/pythia-70m", config)  # doctest: +SKIP
        >>> result.headline, result.to_dataframe()  # doctest: +SKIP
    """

    def __repr__(self) -> str:
        return (
            f"HistoryResult({model_name_text(self.model)}, {len(self.series)} checkpoints, {len(self.flagged)} flagged)"
        )

    def __str__(self) -> str:
        return "\n".join([table_text(self.shown_table, ".3f"), "", *self.sentences])

    @property
    def title(self) -> str:
        """Heading of the report."""
        return f"The training history of {model_name_text(self.model)}"

    @cached_property
    def headline(self) -> str:
        """The conclusion."""
        return readings.headline(self)

    @cached_property
    def readings(self) -> list[Reading]:
        """Readings of integrity, of the first checkpoint, and of when layers cross chance."""
        return readings.readings(self)

    @property
    def caveats(self) -> list[str]:
        """Notes that a reader needs to understand the numbers."""
        return readings.caveats(self)

    def to_dataframe(self) -> pd.DataFrame:
        """Return one row per measure, checkpoint and layer.

        The columns are ``measure, checkpoint, step, flagged, layer, site, value, value_low, value_high, null_low,
        null_high, p_value, n``. They hold the value with its 95% interval over prompts, units or documents, the chance
        interval, the p-value and the number of examples.
        """
        import pandas as pd

        tables = []
        steps = pd.array([checkpoint.step for checkpoint in self.series], dtype="Int64")
        is_flagged = np.isin(range(len(self.series)), list(self.flagged))
        for curve in self.curves.values():
            n_layers = len(curve.layers)
            columns = {
                "measure": curve.name,
                "checkpoint": np.repeat(np.array(self.names, dtype=object), n_layers),
                "step": steps.repeat(n_layers),
                "flagged": np.repeat(is_flagged, n_layers),
                "layer": np.tile(curve.layers, len(self.series)),
                "site": list(curve.sites) * len(self.series),
                "value": curve.value.ravel(),
                "value_low": curve.value_low.ravel(),
                "value_high": curve.value_high.ravel(),
                "null_low": curve.low.ravel(),
                "null_high": curve.high.ravel(),
                "p_value": curve.p.ravel(),
                "n": np.repeat(curve.n, n_layers),
            }
            tables.append(pd.DataFrame(columns))
        return pd.concat(tables, ignore_index=True)

    @property
    def shown_table(self) -> pd.DataFrame:
        """One row per checkpoint: findings, and each measure's mean over layers (if tested, the largest) in words."""
        import pandas as pd

        rows = []
        for i, name in enumerate(self.names):
            kinds = dict.fromkeys(finding.kind for finding in self.findings if i in finding.checkpoints)
            row: dict[str, Any] = {"checkpoint": name, "findings": ", ".join(kinds) or "none"}
            for key, curve in self.summarised.items():
                row[key] = self._over_layers(curve, i) if np.isfinite(curve.value[i]).any() else None
            rows.append(row)
        return pd.DataFrame(rows)

    def _over_layers(self, curve: Curve, at: int) -> str:
        value, ends = mean_over_layers(curve, at)
        if curve.name in self.tested:
            layer = int(np.nanargmax(curve.value[at]))
            value = curve.value[at, layer]
            ends = (curve.value_low[at, layer], curve.value_high[at, layer])
        return value_with_interval(value, ends, ".3f")

    def panels(self) -> list[Panel]:
        """Draw the figures, in the report's order."""
        from mechclust.commands.history import figures

        return figures.history_panels(self)

    def _record(self) -> ReportRecord:
        names = self.names
        tables = {"history": self.to_dataframe()}
        if len(self.crossings):
            tables["crossings"] = self.crossings
        return ReportRecord(
            "history",
            source=f"{len(names)} checkpoints, {names[0]} to {names[-1]}. Prompts: {self.config.prompts}",
            config={"model": self.model, **vars(self.config)},
            results=self.results,
            tables=tables,
        )

    def _views(self) -> Mapping[str, str]:
        from mechclust.commands.history.slider import slider

        html = slider(self)
        return {} if html is None else {"Step by step": html}

    def _folded_tables(self) -> Mapping[str, pd.DataFrame]:
        folded = {
            "Each checkpoint: the mean over layers (the largest value, if tested against chance)": self.shown_table
        }
        if len(self.crossings):
            folded["When each layer crosses chance"] = self.crossings
        return folded
