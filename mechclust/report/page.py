"""One self-contained HTML page a run."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup, escape

from probes.files import write_atomic

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from mechclust.report.analysis import Analysis, Panel
    from mechclust.report.claims import Claim


def png(figure: Figure) -> bytes:
    """A figure as PNG bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()


def save_panels(panels: Sequence[Panel], folder: Path) -> None:
    """Write every figure as ``folder/name.png``."""
    for panel in panels:
        write_atomic(folder / f"{panel.name}.png", png(panel.figure))


def render_report(
    *, title: str, source: str, analysis: Analysis, facts: Mapping[str, Any], config: Mapping[str, Any]
) -> str:
    """The page: claims, figures, views, notes, configuration, versions. It needs no network.

    Args:
        title: heading.
        source: the paper, or what was measured.
        analysis: claims, figures, HTML views and notes. Everything but the views is escaped.
        facts: date, versions, machine.
        config: the configuration, shown as JSON.
    """
    return (
        _environment()
        .get_template("report.html.jinja")
        .render(
            title=title,
            source=source,
            claims=analysis.claims,
            panels=[{"name": p.name, "caption": p.caption, "png": _base64(p)} for p in analysis.panels],
            views={name: Markup(html) for name, html in analysis.views.items()},
            notes=analysis.notes,
            facts=facts,
            config=json.dumps(config, indent=1),
        )
    )


def claims_html(claims: Sequence[Claim]) -> str:
    """A claims table as it stands in reports, for a notebook."""
    return f"<style>{_STYLE}</style>{_environment().get_template('claims.html.jinja').render(claims=claims)}"


def panel_html(panel: Panel) -> str:
    """A figure with its caption, for a notebook."""
    caption = escape(panel.caption)
    return (
        f'<figure><img alt="{caption}" style="max-width:100%" src="data:image/png;base64,{_base64(panel)}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def analysis_html(analysis: Analysis) -> str:
    """Claims, notes and figures, for a notebook."""
    notes = "".join(f"<li>{escape(note)}</li>" for note in analysis.notes)
    parts = [claims_html(analysis.claims)] if analysis.claims else []
    return "".join([*parts, f"<ul>{notes}</ul>" if notes else "", *map(panel_html, analysis.panels)])


def table_html(title: str, table: pd.DataFrame, notes: Sequence[str] = ()) -> str:
    """A table of numbers with a heading and notes, for a notebook."""
    rows: str = table.to_html(index=False, border=0, float_format=lambda x: f"{x:.4g}", na_rep="")
    below = "".join(f"<p>Note: {escape(note)}</p>" for note in notes)
    return f"<div><p><b>{escape(title)}</b></p>{rows}{below}</div>"


_STYLE = """
.claims td, .claims th { text-align: left; vertical-align: top; }
.claims td.n { text-align: right; white-space: nowrap; }
.claims .small { opacity: .7; font-size: .86em; }
.claims .verdict { font-weight: 600; white-space: nowrap; }
.claims .true { color: #1d7a46; } .claims .false { color: #b3382c; } .claims .none { font-weight: 400; }
"""


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mechclust.report"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["number"] = lambda x: "–" if x is None else f"{x:.3f}"
    return environment


def _base64(panel: Panel) -> str:
    return base64.b64encode(png(panel.figure)).decode()
