"""HTML of figures, tables and findings from plain data: what pages and notebooks are made of."""

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
from mechclust.evidence.tables import measured_number, verdict_text, with_interval
from mechclust.report.text import number_format, with_texts
from tasks.text.visible import visible

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


def png(figure: Figure, dpi: int = 130) -> bytes:
    """A figure as PNG bytes. No text in it is read as a formula but those that ``style.MATHTEXT`` marks.

    Args:
        figure: what to draw.
        dpi: dots per inch; few by default, as pages hold their pictures.
    """
    from mechclust.report.style import styled, without_formulas

    buffer = io.BytesIO()
    with warnings.catch_warnings(), styled():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a box stands there
        without_formulas(figure).savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def safe(text: object) -> Markup:
    """A text for a page: escaped, its control characters written out."""
    return escape(visible(str(text), keep="\n"))


def content_policy(*fragments: str, images: str = "data:") -> str:
    """What a page may do, for its Content-Security-Policy: run the scripts of these fragments, and load nothing.

    Any other script that got into the page, in an element or an attribute, is not run by the browser.

    Args:
        fragments: HTML of ours whose scripts are to run.
        images: whence pictures may come.
    """
    scripts = dict.fromkeys(script for fragment in fragments for script in _SCRIPT.findall(fragment))
    hashes = [base64.b64encode(sha256(_as_read(script)).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{found}'" for found in hashes) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src {images}; base-uri 'none'; "
        "form-action 'none'"
    )


def _as_read(script: str) -> bytes:
    """A script as a browser takes it out of the page."""
    return script.replace("\r\n", "\n").replace("\r", "\n").encode(errors="backslashreplace")


def picture_html(name: str, picture: bytes, caption: str) -> str:
    """A PNG with its caption, without a file beside the page."""
    text, data = safe(caption), base64.b64encode(picture).decode()
    wide = int.from_bytes(picture[16:20], "big")  # of the PNG, for pages that set a least width
    style = f"max-width:100%;--wide:{wide}px"
    return (
        f'<figure id="{safe(name)}"><img alt="{text}" style="{style}" src="data:image/png;base64,{data}">'
        f"<figcaption>{text}</figcaption></figure>"
    )


def table_html(
    table: pd.DataFrame, title: str = "", notes: Iterable[str] = (), *, number: str = ".4g", missing: str = ""
) -> str:
    """A table of numbers, with a heading above and notes below it where they are given.

    Args:
        table: with its columns as they are to be read; its index is not shown.
        title: heading.
        notes: a paragraph for each.
        number: format of floats, such as ``".3f"``.
        missing: what stands where there is no value.
    """
    shown = with_texts(table, visible)
    rows: str = shown.to_html(index=False, border=0, float_format=number_format(number), na_rep=missing)
    above = f"<p><b>{safe(title)}</b></p>" if title else ""
    below = "".join(f"<p>Note: {safe(note)}</p>" for note in notes)
    return f"<div>{above}{rows}{below}</div>"


def list_html(notes: Sequence[str]) -> str:
    """A list of sentences; nothing for none."""
    return f"<ul>{''.join(f'<li>{safe(note)}</li>' for note in notes)}</ul>" if notes else ""


def findings_html(findings: Sequence[Finding]) -> str:
    """Return the table of findings as it stands in reports; nothing for none."""
    return f"<style>{_STYLE}</style>{template('findings').render(findings=findings)}" if findings else ""


def template(name: str, package: str = "mechclust.report") -> jinja2.Template:
    """A package's template, which escapes what it is given and writes control characters out."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) or not isinstance(value, str) else safe(value),
    )
    environment.filters["number"] = lambda x: "–" if x is None else measured_number(x)
    environment.filters["digits"] = lambda x: "–" if x is None else f"{x:z.3g}"
    environment.filters["with_interval"] = with_interval
    environment.filters["verdict_text"] = verdict_text
    return environment.get_template(f"{name}.html.jinja")
