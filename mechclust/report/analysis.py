"""The conclusions and displays of a report: figures, findings, views, notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mechclust.evidence import Finding, Findings
from mechclust.report.html import escaped_html, findings_html, list_html, table_html
from mechclust.report.panel import Panel
from mechclust.report.reading import Reading, readings_table


@dataclass(frozen=True, repr=False)
class Analysis:
    """A study's conclusions from its artefacts.

    Attributes:
        findings: tested statements.
        panels: figures in the report's order.
        views: HTML fragments by title, such as attention views.
        notes: caveats for the reader.
        headline: the conclusion, shown first under the title. By default, how many findings hold.
        folded: HTML fragments by title that are opened with a click, such as long tables.
        readings: measurements, shown as a table after the conclusion.

    Example:
        >>> Analysis(notes=["8 seeds"])
        Analysis(0 findings, 0 panels, 1 notes)
    """

    findings: Sequence[Finding] = ()
    panels: Sequence[Panel] = ()
    views: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    headline: str = ""
    folded: Mapping[str, str] = field(default_factory=dict)
    readings: Sequence[Reading] = ()

    def __repr__(self) -> str:
        return f"Analysis({len(self.findings)} findings, {len(self.panels)} panels, {len(self.notes)} notes)"

    def __post_init__(self) -> None:
        if not self.headline:
            object.__setattr__(self, "headline", Findings(self.findings).headline)

    def _repr_html_(self) -> str:
        lead = f"<p><b>{escaped_html(self.headline)}</b></p>" if self.headline else ""
        figures = [panel._repr_html_() for panel in self.panels]
        return "".join([lead, self.readings_html, findings_html(self.findings), list_html(self.notes), *figures])

    @property
    def readings_html(self) -> str:
        """Return the table of readings, or an empty string if there are none."""
        return table_html(readings_table(self.readings)) if self.readings else ""
