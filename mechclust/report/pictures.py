"""Figures as PNG and PDF, for pages and for print, and embedded in HTML."""

from __future__ import annotations

import base64
import io
import warnings
from typing import TYPE_CHECKING, Any

from mechclust.report.html import escaped_html

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PRINT_DPI = 300


def png_bytes(figure: Figure, dpi: int = 130) -> bytes:
    """Return a figure as PNG bytes. Only texts that ``style.MATHTEXT`` marks are read as formulas.

    Args:
        figure: the figure to draw.
        dpi: dots per inch. Few by default, because pages embed their pictures.
    """
    return _drawn(figure, format="png", dpi=dpi)


def pdf_bytes(figure: Figure) -> bytes:
    """Return a figure as PDF bytes: real text, embedded fonts (type 42), no date. Equal figures are equal files."""
    return _drawn(figure, format="pdf", metadata={"CreationDate": None})


def print_pictures(figure: Figure) -> dict[str, bytes]:
    """Return a figure's files for print by their suffix: PNG of 300 dots per inch, and PDF.

    Example:
        >>> from mechclust.report.subplots import subplots
        >>> figure, _ = subplots(1, size=(2, 1))
        >>> {suffix: file[1:4] for suffix, file in print_pictures(figure).items()}
        {'.png': b'PNG', '.pdf': b'PDF'}
    """
    return {".png": png_bytes(figure, _PRINT_DPI), ".pdf": pdf_bytes(figure)}


def _drawn(figure: Figure, **options: Any) -> bytes:
    from mechclust.report.style import styled

    _turn_off_formulas(figure)
    buffer = io.BytesIO()
    with warnings.catch_warnings(), styled():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # it is drawn as a box
        figure.savefig(buffer, **options)
    return buffer.getvalue()


def _turn_off_formulas(figure: Figure) -> None:
    """Turn off formulas in a figure's texts, except those marked ``MATHTEXT`` and matplotlib's own numbers."""
    from matplotlib.cbook import is_math_text
    from matplotlib.text import Text

    from mechclust.report.style import MATHTEXT

    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        words = text.get_text()
        if is_math_text(words) and text.get_gid() != MATHTEXT and not words.startswith("$\\mathdefault{"):
            text.set_parse_math(False)


def picture_html(name: str, picture: bytes, caption: str) -> str:
    """Return a PNG with its caption, embedded in the page."""
    text = escaped_html(caption)
    data = base64.b64encode(picture).decode()
    wide, high = (int.from_bytes(picture[at : at + 4], "big") for at in (16, 20))  # of the PNG, for a least size
    style = f"max-width:100%;--wide:{wide}px;--high:{high}px"
    return (
        f'<figure id="{escaped_html(name)}"><img alt="{text}" style="{style}" src="data:image/png;base64,{data}">'
        f"<figcaption>{text}</figcaption></figure>"
    )
