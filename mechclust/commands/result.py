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
class ReportContents:
    """Parts of a report besides its page.

    Attributes:
        command: name of the command.
        source: the subject of the measurements.
        config: the settings.
        results: the measurements, by the name of their file.
        tables: by name, for ``NAME.csv``.
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
        """The conclusion, in at most 25 words."""

    @property
    @abstractmethod
    def readings(self) -> Sequence[Reading]:
        """Conclusions, the most important first."""

    @property
    @abstractmethod
    def caveats(self) -> list[str]:
        """Notes that a reader needs to understand the numbers."""

    @property
    @abstractmethod
    def shown_table(self) -> pd.DataFrame:
        """The table for a terminal."""

    @abstractmethod
    def to_dataframe(self) -> pd.DataFrame:
        """Return every number."""

    @abstractmethod
    def panels(self) -> list[Panel]:
        """Draw the figures, in the report's order."""

    @abstractmethod
    def _contents(self) -> ReportContents:
        """Return the parts of the report besides the page."""

    def _views(self) -> Mapping[str, str]:
        """Return HTML fragments of the page by title, such as maps of prompts."""
        return {}

    def _folded(self) -> Mapping[str, pd.DataFrame]:
        """Return tables by title that the page shows on a click."""
        return {}

    def _analysis(self) -> Analysis:
        """Return the contents of the page."""
        return Analysis(
            headline=self.headline,
            readings=self.readings,
            panels=self.panels(),
            views=self._views(),
            folded={title: table_html(table, number=".3f", missing="–") for title, table in self._folded().items()},
            notes=self.caveats,
        )

    @property
    def sentences(self) -> list[str]:
        """Headline and readings as sentences, the most important first."""
        return [self.headline, *map(str, self.readings)]

    def plot(self) -> Figure:
        """Draw the main figure, the first of ``panels()``."""
        return self.panels()[0].figure

    def _repr_html_(self) -> str:
        return table_html(self.shown_table, self.title, self.sentences, number=".3f", missing="–")

    def write(self, out: str | Path, *, print_figures: bool = False) -> Path:
        """Write tables (CSV), findings, probe results, figures and ``report.html`` into ``out``.

        With ``print_figures``, each figure is a PNG of 300 dots per inch and a PDF.

        Returns:
            The path of ``report.html``.

        Raises:
            InputError: if ``out`` cannot be written, or holds the report of another command.
        """
        contents = self._contents()
        with own_folder(out, contents.command):
            return write_report_page(
                out, title=self.title, analysis=self._analysis(), print_figures=print_figures, **vars(contents)
            )
