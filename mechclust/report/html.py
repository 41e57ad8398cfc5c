"""HTML of tables, lists and findings from plain data, for pages and notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from mechclust.evidence.finding import Finding
from mechclust.evidence.measured_numbers import measured_number
from mechclust.report.table_text import map_table_texts, table_in_english
from tasks.text.visible import visible_text

if TYPE_CHECKING:
    import jinja2
    import pandas as pd

_STYLE = """
.findings td, .findings th { text-align: left; vertical-align: top; }
.findings td.n { text-align: right; white-space: nowrap; }
.findings .small { opacity: .7; font-size: .86em; }
.findings .verdict { font-weight: 600; white-space: nowrap; }
.findings .holds { color: #1d7a46; } .findings .does-not-hold { color: #b3382c; }
.findings .undecided, .findings .not-specific { color: #8a6100; } .findings .not-tested { font-weight: 400; }
"""


def escaped_html(text: object) -> Markup:
    """Return a text for a page: escaped, its control characters written out."""
    return escape(visible_text(str(text), keep="\n"))


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
    shown = map_table_texts(table_in_english(table), visible_text)
    rows: str = shown.to_html(index=False, border=0, float_format=f"{{:z{number}}}".format, na_rep=missing)
    above = f"<p><b>{escaped_html(title)}</b></p>" if title else ""
    below = "".join(f"<p>Note: {escaped_html(note)}</p>" for note in notes)
    return f"<div>{above}{rows}{below}</div>"


def list_html(notes: Sequence[str]) -> str:
    """Return a list of sentences, or an empty string if there are none."""
    return f"<ul>{''.join(f'<li>{escaped_html(note)}</li>' for note in notes)}</ul>" if notes else ""


def findings_html(findings: Sequence[Finding]) -> str:
    """Return the table of findings as in reports, or an empty string if there are none."""
    return f"<style>{_STYLE}</style>{html_template('findings').render(findings=findings)}" if findings else ""


def html_template(name: str, package: str = "mechclust.report") -> jinja2.Template:
    """Return a package's template, which escapes its values and writes control characters out."""
    return _environment(package).get_template(f"{name}.html.jinja")


@cache
def _environment(package: str) -> jinja2.Environment:
    """Return a package's templates, each of which is compiled once."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_safe_if_text,
    )
    environment.filters["number"] = _number_or_dash
    environment.filters["digits"] = _digits_or_dash
    return environment


def _safe_if_text(value: object) -> object:
    return escaped_html(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _number_or_dash(x: float | None) -> str:
    return "–" if x is None else measured_number(x)


def _digits_or_dash(x: float | None) -> str:
    return "–" if x is None else f"{x:z.3g}"
