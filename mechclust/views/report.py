"""One self-contained HTML page a run."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

from probes.result import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mechclust.studies.study import Analysis, Panel


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
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mechclust.views"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["number"] = lambda x: "–" if x is None else f"{x:.3f}"
    return environment.get_template("report.html.jinja").render(
        title=title,
        source=source,
        claims=analysis.claims,
        panels=[
            {"name": p.name, "caption": p.caption, "png": base64.b64encode(png(p.figure)).decode()}
            for p in analysis.panels
        ],
        views={name: Markup(html) for name, html in analysis.views.items()},
        notes=analysis.notes,
        facts=facts,
        config=json.dumps(config, indent=1),
    )
