"""The report of ``mechclust history``: its page, figures, slider and tables."""

from __future__ import annotations

from pathlib import Path

from mechclust.commands.folder import own_folder
from mechclust.commands.history.figures import layers_figure, map_figure, steps_figure
from mechclust.commands.history.result import HistoryResult
from mechclust.commands.history.slider import slider
from mechclust.report.analysis import Analysis, Panel
from mechclust.report.html import table_html
from mechclust.report.page import write_report
from mechclust.report.style import styled
from mechclust.report.text import short_name

_HATCHED = "Hatched: central 95% of the chance distribution."
_WIDEST = "Hatched: central 95% of the chance distribution, the widest of all checkpoints."
_CROSSED = " Checkpoints with findings are crossed out."
_FLAGGED = " Checkpoints with findings are red and hollow."


def write_history_report(result: HistoryResult, out: str | Path) -> Path:
    """Write ``history.csv``, ``crossings.csv``, the probe results, the figures and ``report.html`` into ``out``.

    Raises:
        InputError: if ``out`` cannot be written, or holds the report of another command.

    Example:
        >>> write_history_report(result, "runs/history")  # doctest: +SKIP
    """
    with own_folder(out, "history"):
        return _write(result, out)


def _write(result: HistoryResult, out: str | Path) -> Path:
    numbers = {"number": ".3f", "missing": "–"}
    first, last = result.series[0].name, result.series[-1].name
    over = "Each checkpoint: the mean over layers (the largest value, if tested against chance)"
    folded = {over: table_html(result.shown_table, **numbers)}
    tables = {"history": result.to_dataframe()}
    if len(result.crossings):
        folded["When each layer crosses chance"] = table_html(result.crossings, **numbers)
        tables["crossings"] = result.crossings
    views = {}
    if (view := slider(result)) is not None:
        views["Step by step"] = view
    return write_report(
        out,
        command="history",
        title=f"The training history of {short_name(result.model)}",
        source=f"{len(result.series)} checkpoints, {first} to {last}. Prompts: {result.config.prompts}",
        analysis=Analysis(lead=result.lead, panels=_panels(result), views=views, folded=folded, notes=result.notes),
        config={"model": result.model, **vars(result.config)},
        results=result.results,
        tables=tables,
    )


@styled()
def _panels(result: HistoryResult) -> list[Panel]:
    panels = []
    for name, curve in result.curves.items():
        if not curve.measured:
            continue
        told = f"{curve.title[0].upper()}{curve.title[1:]}"
        crossed, hollow = (_CROSSED, _FLAGGED) if result.flagged else ("", "")
        captions = {
            "map": f"{told}, {curve.place} by checkpoint.{crossed}",
            "steps": f"The same by checkpoint, one panel per {curve.place}. {_HATCHED}{hollow}",
            "layers": f"The same by {curve.place}, at most eight checkpoints, dark to light. {_WIDEST}{hollow}",
        }
        panels.append(Panel(f"{name}_map", map_figure(result, curve), captions["map"]))
        panels.append(Panel(f"{name}_by_checkpoint", steps_figure(result, curve), captions["steps"]))
        panels.append(Panel(f"{name}_by_layer", layers_figure(result, curve), captions["layers"]))
    return panels
