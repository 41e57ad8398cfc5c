"""HTML of figures, tables and claims from plain data: what pages and notebooks are made of."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import escape

from mechclust.report.text import number_format

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_STYLE = """
.claims td, .claims th { text-align: left; vertical-align: top; }
.claims td.n { text-align: right; white-space: nowrap; }
.claims .small { opacity: .7; font-size: .86em; }
.claims .verdict { font-weight: 600; white-space: nowrap; }
.claims .true { color: #1d7a46; } .claims .false { color: #b3382c; } .claims .none { font-weight: 400; }
"""


def png(figure: Figure) -> bytes:
    """A figure as PNG bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()


def picture_html(name: str, picture: bytes, caption: str) -> str:
    """A PNG with its caption, without a file beside the page."""
    text, data = escape(caption), base64.b64encode(picture).decode()
    wide = int.from_bytes(picture[16:20], "big")  # of the PNG, for pages that set a least width
    style = f"max-width:100%;--wide:{wide}px"
    return (
        f'<figure id="{escape(name)}"><img alt="{text}" style="{style}" src="data:image/png;base64,{data}">'
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
    rows: str = table.to_html(index=False, border=0, float_format=number_format(number), na_rep=missing)
    above = f"<p><b>{escape(title)}</b></p>" if title else ""
    below = "".join(f"<p>Note: {escape(note)}</p>" for note in notes)
    return f"<div>{above}{rows}{below}</div>"


def list_html(notes: Sequence[str]) -> str:
    """A list of sentences; nothing for none."""
    return f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul>" if notes else ""


def claims_html(claims: Sequence[Any]) -> str:
    """A table of objects with the attributes of a ``Claim``, as it stands in reports; nothing for none."""
    return f"<style>{_STYLE}</style>{template('claims').render(claims=claims)}" if claims else ""


def template(name: str, package: str = "mechclust.report") -> jinja2.Template:
    """A package's template, which escapes what it is given."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(package), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["number"] = lambda x: "–" if x is None else f"{x:z.3f}"
    return environment.get_template(f"{name}.html.jinja")
