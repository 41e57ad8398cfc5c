"""What is concluded and shown: figures, claims, views, notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mechclust.report.claims import Claim

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Panel:
    """One figure of a report, with what it shows."""

    name: str
    figure: Figure
    caption: str

    def _repr_html_(self) -> str:
        from mechclust.report.page import panel_html

        return panel_html(self)


@dataclass(frozen=True)
class Analysis:
    """What a study concludes from its artefacts.

    Attributes:
        claims: tested statements.
        panels: figures in the report's order.
        views: HTML fragments by title, such as attention views.
        notes: what a reader must know.
    """

    claims: Sequence[Claim]
    panels: Sequence[Panel] = ()
    views: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def _repr_html_(self) -> str:
        from mechclust.report.page import analysis_html

        return analysis_html(self)
