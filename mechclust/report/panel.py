"""A figure of a report, with its caption."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from mechclust.report.pictures import picture_html, png_bytes
from tasks.text.visible import quoted

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Panel:
    """One figure of a report, with its caption.

    Example:
        >>> from matplotlib.figure import Figure
        >>> Panel("loss", Figure(), "The loss over training")
        Panel('loss', 'The loss over training')
    """

    name: str
    figure: Figure
    caption: str

    def __repr__(self) -> str:
        return f"Panel({self.name!r}, {quoted(self.caption)})"

    @cached_property
    def png(self) -> bytes:
        """The figure as PNG bytes, drawn once."""
        return png_bytes(self.figure)

    def _repr_html_(self) -> str:
        return picture_html(self.name, self.png, self.caption)
