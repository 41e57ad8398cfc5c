"""The result of a comparison: its headline, readings, tables, figures and report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from mechclust.commands.compare import readings, tables
from mechclust.commands.compare.measurements import Measurements
from mechclust.commands.result import MeasuredResult, ReportRecord
from mechclust.report.analysis import Analysis
from mechclust.report.panel import Panel
from mechclust.report.reading import Reading
from mechclust.report.text import model_name_text
from probes import ProbeResult

if TYPE_CHECKING:
    import pandas as pd

_ONLY_IN_CSV = ["d_tuned", "d_base", "layers", "largest_low", "largest_high"]


@dataclass(frozen=True, repr=False)
class CompareResult(Measurements, MeasuredResult):
    """Result of ``compare_models``.

    Attributes:
        base: name of the base model.
        tuned: name of the tuned model.
        config: the settings.
        tasks: names.
        cka: ``CKA`` between tuned and base, with axes (site, label), the labels being ``"(all)"`` and the tasks.
        blocks: CKA between the additions of each block of both models to the base's residual stream, or ``None``. It
            decides which layers changed, except the embedding.
        patching: how much of the difference between the models' outputs patching restores, see ``patching_result``, or
            ``None``. It shows which layers matter to the output.
        without_top_pc: ``debiased_cka`` without the largest principal component of each side, or ``None``.
        families: families of base and tuned model if they are known and differ, so that neither was tuned from the
            other.
        notes: notes on the input for readers.
        why_no_blocks: why ``blocks`` was not measured, or ``""`` if it was.
        why_no_patching: why ``patching`` was not measured, or ``""`` if it was.
        tokenization: how the prompts were read, as ``mechclust.models.tokenizers.tokenization_of`` returns it.
        planes: coordinates of prompts in each layer's plane, or ``None``. ``planes.html()`` is the report's map.

    Example:
        >>> result = compare_models("gpt2", "my-gpt2", CompareConfig(Path("prompts.jsonl")), "out")  # doctest: +SKIP
        >>> result.headline  # doctest: +SKIP
    """

    def __repr__(self) -> str:
        models = f"{model_name_text(self.tuned)} against {model_name_text(self.base)}"
        return f"CompareResult({models}, {len(self.cka.coords['site'])} layers, {len(self.tasks)} tasks)"

    @property
    def title(self) -> str:
        """Heading of the report."""
        tuned = model_name_text(self.tuned)
        base = model_name_text(self.base)
        if tuned == base:
            tuned = self.tuned
            base = self.base
        return f"How {tuned} differs from {base}" if self.families else f"What tuning changed: {tuned} against {base}"

    @property
    def headline(self) -> str:
        """The conclusion."""
        return readings.headline(self, self.tables)

    @cached_property
    def readings(self) -> list[Reading]:
        """Readings of where change begins, which layers changed, for which tasks, and of undecided questions."""
        return readings.readings(self, self.tables)

    @property
    def caveats(self) -> list[str]:
        """Notes that a reader needs to understand the numbers."""
        return readings.caveats(self, self.tables["compare"])

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Every table by the name of its file, computed once."""
        return {"compare": self.to_dataframe(), "tasks": self.summary(), "layers": self.by_layer()}

    def to_dataframe(self) -> pd.DataFrame:
        """Return one row per layer and task, and for all prompts together (``"(all)"``).

        The columns are ``layer, site, task, n, d_tuned, d_base, cka, debiased_cka, low, high, null_high,
        without_top_pc, block_cka, block_low, block_high, restored, restored_low, restored_high, rise, rise_low,
        rise_high, chance_restored, matters, change, changed, stands_out``, as far as they were measured.

        ``low`` and ``high``: 95% over prompts or units. ``null_high``: 97.5% of debiased CKA if these are paired at
        random. ``change``: 1 - debiased CKA. ``block_cka``: debiased CKA between the additions of corresponding blocks
        of both models to the base's residual stream, and its 95%. At layer 0, it is the embedding's. ``changed``:
        whether the interval of 1 - ``block_cka`` lies above the tolerance, or the interval of ``change`` if blocks were
        not measured. ``restored``: share of the difference between the models' outputs that patching the tuned model's
        residual stream into the base restores. ``rise``: beyond the layer before. ``chance_restored``: with another
        prompt's stream. ``matters``: whether the interval of ``rise`` lies beyond ``least_restored``. ``changed`` and
        ``stands_out`` are missing without an interval, and ``stands_out`` for all prompts together, which are no task.
        """
        return tables.layer_task_table(self)

    def summary(self) -> pd.DataFrame:
        """Return one row per task, the most changed first.

        ``task, n, change, low, high, stands_out, layers, begins_at, largest, largest_low, largest_high, at_layer,
        changed_layers, stands_out_layers, no_interval_layers``, and with patching ``output_layers``.

        ``change`` is the mean over ``layers``, at which every compared task has an interval (see ``common_layers``), so
        that they are common to all tasks. ``low`` and ``high`` are the means of the layers' ends, at least as wide as
        the interval of the mean. A task without an interval at one of these has no ``low``, ``high`` and
        ``stands_out``. Without a CKA at one, it has no ``change`` either. ``begins_at`` is the first layer, by depth,
        of ``changed_layers``. ``largest`` is the largest change, ``at_layer``. ``output_layers`` are the layers that
        matter to the output.
        """
        return tables.task_table(self)

    def by_layer(self) -> pd.DataFrame:
        """Return one row per layer at which a task has a CKA, by depth.

        The columns are ``layer, site``, ``change`` (mean over the ``tasks`` that have a CKA there), ``least`` and
        ``most`` of any task, and ``most_task``. Further, how many tasks ``changed``, and how many have ``no_interval``,
        so that it cannot be decided.
        """
        return tables.layer_table(self)

    @property
    def shown_table(self) -> pd.DataFrame:
        """The table of tasks, for a terminal."""
        table = self.tables["tasks"]
        return table[[name for name in table if not name.startswith("largest_")]]

    def panels(self) -> list[Panel]:
        """Draw the figures, in the report's order."""
        from mechclust.commands.compare import figures

        return figures.compare_panels(self, self.tables)

    @property
    def results(self) -> dict[str, ProbeResult]:
        """The measurements, by the name of their file."""
        others = {"without_top_pc": self.without_top_pc, "blocks": self.blocks, "patching": self.patching}
        return {"cka": self.cka, **{name: x for name, x in others.items() if x is not None}}

    def _record(self) -> ReportRecord:
        return ReportRecord(
            "compare",
            source=f"Base: {self.base}; tuned: {self.tuned}. Prompts: {self.config.prompts}",
            config={"base": self.base, "tuned": self.tuned, **vars(self.config)},
            results=self.results,
            tables=self.tables,
        )

    def _views(self) -> Mapping[str, str]:
        return {} if self.planes is None else {"Base and tuned": self.planes.html()}

    def _folded_tables(self) -> Mapping[str, pd.DataFrame]:
        titles = {title: name for name, title in tables.TITLES.items() if name in self.tables}
        return {title: self.tables[name].drop(columns=_ONLY_IN_CSV, errors="ignore") for title, name in titles.items()}

    def _analysis(self) -> Analysis:
        return replace(super()._analysis(), notes=[readings.naming_rule(self), *self.caveats])
