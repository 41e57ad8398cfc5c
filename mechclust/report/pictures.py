"""Figures as files for print: PNG of 300 dots per inch, and PDF with its fonts embedded."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING

from mechclust.report.html import png_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mechclust.report.analysis import Panel

_PRINT_DPI = 300


def pdf_bytes(figure: Figure) -> bytes:
    """Return a figure as PDF bytes: real text, embedded fonts (type 42), no date. Equal figures are equal files."""
    from mechclust.report.style import styled, without_formulas

    buffer = io.BytesIO()
    with warnings.catch_warnings(), styled():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # it is drawn as a box
        without_formulas(figure).savefig(buffer, format="pdf", metadata={"CreationDate": None})
    return buffer.getvalue()


def print_files(panel: Panel) -> dict[str, bytes]:
    """Return a panel's files by their suffix.

    Example:
        >>> from mechclust.report.analysis import Panel
        >>> from mechclust.report.style import subplots
        >>> figure, _ = subplots(1, size=(2, 1))
        >>> {suffix: file[1:4] for suffix, file in print_files(Panel("empty", figure, "")).items()}
        {'.png': b'PNG', '.pdf': b'PDF'}
    """
    return {".png": png_bytes(panel.figure, _PRINT_DPI), ".pdf": pdf_bytes(panel.figure)}
