"""The common parts of the results of all commands that measure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
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
    def write(self, out: str | Path, *, print_figures: bool = False) -> Path:
        """Write the report into ``out``, its figures for print too if asked, and return the path of its page."""

    @abstractmethod
    def _analysis(self) -> Analysis:
        """Return the contents of the page."""

    @property
    def sentences(self) -> list[str]:
        """Headline and readings as sentences, the most important first."""
        return [self.headline, *map(str, self.readings)]

    def plot(self) -> Figure:
        """Draw the main figure, the first of ``panels()``."""
        return self.panels()[0].figure

    def _repr_html_(self) -> str:
        return table_html(self.shown_table, self.title, self.sentences, number=".3f", missing="–")

    def _write(
        self,
        out: str | Path,
        command: str,
        *,
        source: str,
        config: Mapping[str, Any],
        results: Mapping[str, ProbeResult],
        tables: Mapping[str, pd.DataFrame],
        print_figures: bool,
    ) -> Path:
        """Write the page with its figures, the measurements and the tables.

        Args:
            out: the folder.
            command: name of the command.
            source: the subject of the measurements.
            config: the settings.
            results: the measurements, by the name of their file.
            tables: by name, for ``NAME.csv``.
            print_figures: as in ``write_report_page``.
        """
        with own_folder(out, command):
            return write_report_page(
                out,
                command=command,
                title=self.title,
                source=source,
                analysis=self._analysis(),
                config=config,
                results=results,
                tables=tables,
                print_figures=print_figures,
            )
