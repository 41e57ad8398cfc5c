"""The result of a MOSSA run: its headline, readings, findings, tables, figures and report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from mechclust.commands.mossa import readings, tables
from mechclust.commands.mossa.measurements import Measurements
from mechclust.commands.result import MeasuredResult, ReportRecord
from mechclust.evidence.families import family_notes
from mechclust.report.analysis import Analysis
from mechclust.report.panel import Panel
from mechclust.report.reading import Reading
from mechclust.report.text import model_name_text

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_SOURCE = (
    "Zhao, Ziser & Cohen, Layer by Layer: Uncovering Where Multi-Task Learning Happens in Instruction-Tuned Large "
    "Language Models (EMNLP 2024, arXiv 2410.20008)"
)


@dataclass(frozen=True, repr=False)
class MossaResult(Measurements, MeasuredResult):
    """Result of ``run_mossa``.

    Attributes:
        base: name of the base model.
        config: the settings.
        tasks: measured tasks, cluster by cluster.
        clusters: cluster of each task, or ``None``.
        held_out: for each task, whether it was left out of the multi-task model.
        n_train: training examples that each task's control saw, or NaN if it was trained elsewhere.
        readability: grades of each task by index, empty if not known.
        of_task: by task and ``"ROLE.PROBE"``, such as ``"tuned.cka"``, see ``jobs.TaskJob``.
        of_model: by ``"base"`` and ``"tuned"``: ``dims``, ``projection`` and ``purity`` over all seen tasks.
        trained: the adapters that were trained here, by model.
        failed: why a model's training was given up, by model.
        n_layers: number of blocks.
        d: width.
        notes: remarks for the reader.
        clusters_there: names of all clusters of the collection, in the order of the numbers that pictures carry. By
            default, those with measured tasks.
        unmeasured: held-out tasks that were not measured. The notes say why.

    Example:
        >>> result = run_mossa("google/gemma-3-270m", MossaConfig(tasks=Path("flan")), "runs/mossa")  # doctest: +SKIP
        >>> result.headline, result.curves().seen.gap  # doctest: +SKIP
    """

    def __repr__(self) -> str:
        return f"MossaResult({model_name_text(self.base)}, {self.n_layers} layers, {len(self.tasks)} tasks)"

    @property
    def title(self) -> str:
        """Heading of the report."""
        return f"Which layers of {model_name_text(self.base)} hold which tasks"

    @property
    def headline(self) -> str:
        """The conclusion, in at most 25 words."""
        return readings.headline(self)

    @cached_property
    def readings(self) -> list[Reading]:
        """Readings of learning, of layers, clusters and tasks, and of the findings."""
        return readings.readings(self, self.tables)

    @property
    def caveats(self) -> list[str]:
        """Notes that a reader needs to understand the numbers."""
        return [*readings.caveats(self), *family_notes(self.findings)]

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Every table by the name of its file, computed once."""
        return tables.tables_of(self)

    def to_dataframe(self) -> pd.DataFrame:
        """Return one row per number.

        The columns are ``task, cluster, held_out, layer`` (from 1, or ``final norm``), ``hook, measure, role, value``.
        The value is the similarity of the role's model with the task's control. For ``other-1`` and so on, it is the
        similarity of the tuned model with a control of another task. See ``jobs.TaskJob``.
        """
        return self.tables["curves"]

    @property
    def shown_table(self) -> pd.DataFrame:
        """The table for a terminal: layer groups."""
        return tables.groups_table(self)

    def panels(self) -> list[Panel]:
        """Draw the figures, in the report's order."""
        from mechclust.commands.mossa import figures

        return figures.mossa_panels(self)

    def plot(self) -> Figure:
        """Draw the main figure: similarity with the controls by layer."""
        from mechclust.commands.mossa.curve_figures import boxes_figure
        from mechclust.report.style import styled

        with styled():
            return boxes_figure(self)

    def _record(self) -> ReportRecord:
        return ReportRecord(
            "mossa",
            source=f"Base: {self.base}. Tasks: {self.config.tasks}. After {_SOURCE}",
            config={"base": self.base, **asdict(self.config)},
            results=self.results,
            tables=self.tables,
        )

    def _folded_tables(self) -> Mapping[str, pd.DataFrame]:
        return tables.shown_tables(self, self.tables)

    def _analysis(self) -> Analysis:
        return replace(super()._analysis(), findings=self.findings)
