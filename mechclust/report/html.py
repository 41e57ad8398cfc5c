"""HTML of figures, tables and findings from plain data, for pages and notebooks."""

from __future__ import annotations

import base64
import io
import re
import warnings
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from mechclust.evidence.finding import Finding
from mechclust.evidence.tables import measured_number, measured_text, verdict_text
from mechclust.report.text import in_english, number_format, with_texts
from tasks.text.visible import visible_text

if TYPE_CHECKING:
    import jinja2
    import pandas as pd
    from matplotlib.figure import Figure

_SCRIPT = re.compile(r"<script\b[^>]*>(.*?)</script", re.DOTALL | re.IGNORECASE)
_STYLE = """
.findings td, .findings th { text-align: left; vertical-align: top; }
.findings td.n { text-align: right; white-space: nowrap; }
.findings .small { opacity: .7; font-size: .86em; }
.findings .verdict { font-weight: 600; white-space: nowrap; }
.findings .holds { color: #1d7a46; } .findings .does-not-hold { color: #b3382c; }
.findings .undecided, .findings .not-specific { color: #8a6100; } .findings .not-tested { font-weight: 400; }
"""


def png_bytes(figure: Figure, dpi: int = 130) -> bytes:
    """Return a figure as PNG bytes. Only texts that ``style.MATHTEXT`` marks are read as formulas.

    Args:
        figure: the figure to draw.
        dpi: dots per inch. Few by default, because pages embed their pictures.
    """
    from mechclust.report.style import styled, without_formulas

    buffer = io.BytesIO()
    with warnings.catch_warnings(), styled():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # it is drawn as a box
        without_formulas(figure).savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def escaped_text(text: object) -> Markup:
    """Return a text for a page: escaped, its control characters written out."""
    return escape(visible_text(str(text), keep="\n"))


def content_policy(*fragments: str, images: str = "data:") -> str:
    """Return a Content-Security-Policy that lets a page run only these fragments' scripts, and load no other resources.

    Args:
        fragments: HTML of ours whose scripts may run.
        images: allowed sources of pictures.
    """
    scripts = dict.fromkeys(_SCRIPT.findall("\n".join(fragments)))
    hashes = [base64.b64encode(sha256(_as_read(script)).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src {images}; base-uri 'none'; "
        "form-action 'none'"
    )


def _as_read(script: str) -> bytes:
    """Return a script as a browser reads it from the page."""
    return script.replace("\r\n", "\n").replace("\r", "\n").encode(errors="backslashreplace")


def picture_html(name: str, picture: bytes, caption: str) -> str:
    """Return a PNG with its caption, embedded in the page."""
    text = escaped_text(caption)
    data = base64.b64encode(picture).decode()
    wide = int.from_bytes(picture[16:20], "big")  # of the PNG, for pages that set a least width
    style = f"max-width:100%;--wide:{wide}px"
    return (
        f'<figure id="{escaped_text(name)}"><img alt="{text}" style="{style}" src="data:image/png;base64,{data}">'
        f"<figcaption>{text}</figcaption></figure>"
    )


def table_html(
    table: pd.DataFrame, title: str = "", notes: Iterable[str] = (), *, number: str = ".4g", missing: str = ""
) -> str:
    """Return a table of numbers, with its heading and notes.

    Args:
        table: with final column names. Its index is not shown.
        title: heading.
        notes: a paragraph for each.
        number: format of floats, such as ``".3f"``.
        missing: text of a missing value.
    """
    shown = with_texts(in_english(table), visible_text)
    rows: str = shown.to_html(index=False, border=0, float_format=number_format(number), na_rep=missing)
    above = f"<p><b>{escaped_text(title)}</b></p>" if title else ""
    below = "".join(f"<p>Note: {escaped_text(note)}</p>" for note in notes)
    return f"<div>{above}{rows}{below}</div>"


def list_html(notes: Sequence[str]) -> str:
    """Return a list of sentences, or an empty string if there are none."""
    return f"<ul>{''.join(f'<li>{escaped_text(note)}</li>' for note in notes)}</ul>" if notes else ""


def findings_html(findings: Sequence[Finding]) -> str:
    """Return the table of findings as in reports, or an empty string if there are none."""
    return f"<style>{_STYLE}</style>{page_template('findings').render(findings=findings)}" if findings else ""


def page_template(name: str, package: str = "mechclust.report") -> jinja2.Template:
    """Return a package's template, which escapes its values and writes control characters out."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_safe_if_text,
    )
    environment.filters["number"] = _number_or_dash
    environment.filters["digits"] = _digits_or_dash
    environment.filters["measured_text"] = measured_text
    environment.filters["verdict_text"] = verdict_text
    return environment.get_template(f"{name}.html.jinja")


def _safe_if_text(value: object) -> object:
    return escaped_text(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _number_or_dash(x: float | None) -> str:
    return "–" if x is None else measured_number(x)


def _digits_or_dash(x: float | None) -> str:
    return "–" if x is None else f"{x:z.3g}"
