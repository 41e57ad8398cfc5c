"""One self-contained HTML page for a run, and its folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from mechclust.evidence.findings import FILE, Findings, findings_bytes
from mechclust.report.analysis import Analysis
from mechclust.report.folder import check_folder, claim_folder, replace_folder_files
from mechclust.report.html import html_template
from mechclust.report.panel import Panel
from mechclust.report.pictures import print_pictures
from mechclust.report.run_record import machine_facts
from mechclust.report.table_text import table_as_csv
from mechclust.web.scripts import script_content_policy
from probes import ProbeResult
from tasks import InputError

if TYPE_CHECKING:
    import pandas as pd

_UNFOLDED_FIGURES = 3  # after the first
_WIDEST_ASPECT = 2.0  # width / height of a figure next to a table


def write_report_page(
    out: str | Path,
    *,
    title: str,
    source: str,
    analysis: Analysis,
    config: Mapping[str, Any],
    facts: Mapping[str, Any] | None = None,
    results: Mapping[str, ProbeResult] | None = None,
    tables: Mapping[str, pd.DataFrame] | None = None,
    command: str = "report",
    print_figures: bool = False,
) -> Path:
    """Write ``report.html`` with ``figures/``, ``results/`` and tables into the folder ``out``.

    Each figure is saved as the page's PNG. Findings are written to ``findings.json`` and ``findings.csv``.
    ``mechclust.json`` lists the files. Files of an earlier report of this command are replaced or deleted.

    Other arguments as ``render_report_page``.

    Args:
        out: the folder.
        config: the configuration. Paths in it are shown as text.
        facts: date, versions, machine, by default the current ones.
        results: measurements by name, for ``results/NAME.safetensors``. A name may have folders (``"seed0/cka"``).
        tables: by name, for ``NAME.csv``.
        command: the reporting command, such as ``"clusters"``, or ``"report"`` for your report.
        print_figures: draw each figure again for print, as PNG (300 dots per inch) and as PDF.

    Returns:
        The path of ``report.html``, which is written last.

    Raises:
        InputError: if ``out`` cannot be written, or holds the report of another command, or files that are not listed
            in its ``mechclust.json`` or were changed.
    """
    out = Path(out)
    check_folder(out, command)
    page = render_report_page(
        title=title, source=source, analysis=analysis, facts=machine_facts() if facts is None else facts, config=config
    )
    contents: dict[str, bytes] = {}
    for panel in analysis.panels:
        pictures = print_pictures(panel.figure) if print_figures else {".png": panel.png}
        contents |= {f"figures/{panel.name}{suffix}": picture for suffix, picture in pictures.items()}
    contents |= {f"results/{name}.safetensors": result.to_bytes() for name, result in (results or {}).items()}
    contents |= {f"{name}.csv": table_as_csv(table) for name, table in (tables or {}).items()}
    if analysis.findings:
        contents[FILE] = findings_bytes(analysis.findings)
        contents["findings.csv"] = table_as_csv(Findings(analysis.findings).to_dataframe())
    contents["report.html"] = page.encode(errors="backslashreplace")
    try:
        claim_folder(out, command)
        replace_folder_files(out, contents)
    except OSError as error:
        raise InputError(
            f"the report could not be written to {str(out)!r} ({error.strerror or error}); free space there, or give "
            "another folder with --out"
        ) from error
    return out / "report.html"


def render_report_page(
    *, title: str, source: str, analysis: Analysis, facts: Mapping[str, Any], config: Mapping[str, Any]
) -> str:
    """Return the page, which needs no network.

    It opens with the conclusion, the first figure, and the findings next to it. Notes, tables, the configuration, and
    figures after the fourth are folded. The browser may run only the scripts of views and folded fragments, and load no
    other resources.

    Args:
        title: heading.
        source: the paper, or the measured inputs.
        analysis: conclusion, findings, figures, HTML views, folded ones and notes. All but views and folded ones is
            escaped.
        facts: date, versions, machine.
        config: the configuration, shown as JSON.
    """
    first, *others = [Markup(panel._repr_html_()) for panel in analysis.panels] or [Markup()]
    captions = [_summary(panel.caption) for panel in analysis.panels]
    return html_template("report").render(
        policy=script_content_policy(*analysis.views.values(), *analysis.folded.values()),
        title=title,
        source=source,
        headline=analysis.headline,
        opening_figure=first,
        wide=bool(analysis.findings) or _is_wide(analysis.panels),
        readings=Markup(analysis.readings_html),
        findings=analysis.findings,
        figures=others[:_UNFOLDED_FIGURES],
        folded_figures=list(zip(captions, [first, *others], strict=False))[1 + _UNFOLDED_FIGURES :],
        views={name: Markup(html) for name, html in analysis.views.items()},
        folded={name: Markup(html) for name, html in analysis.folded.items()},
        notes=analysis.notes,
        figure_names=[panel.name for panel in analysis.panels],
        facts=facts,
        config=json.dumps(config, indent=1, default=os.fspath),
    )


def _is_wide(panels: Sequence[Panel]) -> bool:
    """Return whether the first figure is too wide to be read beside a table."""
    if not panels:
        return True
    width, height = panels[0].figure.get_size_inches()
    return bool(width > _WIDEST_ASPECT * height)


def _summary(caption: str) -> str:
    """Return the first sentence of a caption."""
    return caption.split(". ")[0].rstrip(".")
