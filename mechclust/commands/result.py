"""The common parts of the results of all commands that measure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechclust.commands.folder import own_folder
from mechclust.report.analysis import Analysis
from mechclust.report.html import table_html
from mechclust.report.page import write_report_page
from mechclust.report.panel import Panel
from mechclust.report.reading import Reading
from probes import ProbeResult

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class ReportRecord:
    """What a report records about its run.

    Attributes:
        command: name of the command, which owns the folder.
        source: the models and inputs measured, as a sentence under the title.
        config: the settings, shown on the page.
        results: measurements, written to ``results/NAME.safetensors``, by NAME.
        tables: written to ``NAME.csv``, by NAME.
    """

    command: str
    source: str
    config: Mapping[str, Any]
    results: Mapping[str, ProbeResult]
    tables: Mapping[str, pd.DataFrame]


class MeasuredResult(ABC):
    """Base class of the result of a command that measures, which a terminal, a notebook and a page show alike."""

    @property
    @abstractmethod
    def title(self) -> str:
        """Heading of the report."""

    @property
    @abstractmethod
    def headline(self) -> str:
        """The main conclusion, in at most 25 words."""

    @property
    @abstractmethod
    def readings(self) -> Sequence[Reading]:
        """One conclusion per measurement, the most important first."""

    @property
    @abstractmethod
    def caveats(self) -> list[str]:
        """Notes that a reader needs to understand the numbers."""

    @property
    @abstractmethod
    def shown_table(self) -> pd.DataFrame:
        """Short table for terminals and notebooks."""

    @abstractmethod
    def to_dataframe(self) -> pd.DataFrame:
        """Return all measured numbers as one table."""

    @abstractmethod
    def panels(self) -> list[Panel]:
        """Draw the figures, in the report's order."""

    @abstractmethod
    def _record(self) -> ReportRecord:
        """Return the command, inputs, settings, measurements and tables to write."""

    def _views(self) -> Mapping[str, str]:
        """Return HTML fragments for the page, by title, such as maps of prompts."""
        return {}

    def _folded_tables(self) -> Mapping[str, pd.DataFrame]:
        """Return tables, by title, that the page hides until clicked."""
        return {}

    def _analysis(self) -> Analysis:
        """Return the conclusions and displays of the page. Override to add findings or other tables."""
        folded = self._folded_tables()
        return Analysis(
            headline=self.headline,
            readings=self.readings,
            panels=self.panels(),
            views=self._views(),
            folded={title: table_html(table, number=".3f", missing="–") for title, table in folded.items()},
            notes=self.caveats,
        )

    @property
    def sentences(self) -> list[str]:
        """Headline and readings as sentences, the most important first."""
        return [self.headline, *map(str, self.readings)]

    def plot(self) -> Figure:
        """Draw all figures and return the first, the main one."""
        return self.panels()[0].figure

    def _repr_html_(self) -> str:
        return table_html(self.shown_table, self.title, self.sentences, number=".3f", missing="–")

    def write(self, out: str | Path, *, print_figures: bool = False) -> Path:
        """Write ``report.html``, tables, measurements and figures into ``out``, and findings if there are any.

        Args:
            out: the folder.
            print_figures: also draw figures for print, as PNG (300 dots per inch) and PDF, instead of the page's PNG.

        Returns:
            The path of ``report.html``.

        Raises:
            InputError: if ``out`` cannot be written, is in use by another process, or holds another command's report or
                files that are not of this command.
        """
        record = self._record()
        with own_folder(out, record.command):
            return write_report_page(
                out,
                title=self.title,
                source=record.source,
                analysis=self._analysis(),
                config=record.config,
                results=record.results,
                tables=record.tables,
                command=record.command,
                print_figures=print_figures,
            )
