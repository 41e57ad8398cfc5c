"""A result as tables for a notebook. Behind ``ProbeResult._repr_html_``."""

from __future__ import annotations

import html
from itertools import islice, product
from math import prod

from probes.result import ProbeResult

_MOST_ROWS = 24


def html_of(result: ProbeResult) -> str:
    """Measures that share their axes as one table, with what they depend on above and the notes below."""
    by_axes: dict[tuple[str, ...], list[str]] = {}
    for name, axes in result.axes.items():
        by_axes.setdefault(axes, []).append(name)
    facts = ", ".join(f"{k} = {v}" for k, v in result.metadata.items() if isinstance(v, (int, float, str)))
    head = f"<p><b>{html.escape(result.probe)}</b> {html.escape(facts)}</p>"
    tables = [_table(result, axes, names) for axes, names in by_axes.items()]
    return "".join(["<div>", head, *tables, *(f"<p>Note: {html.escape(note)}</p>" for note in result.notes), "</div>"])


def _table(result: ProbeResult, axes: tuple[str, ...], names: list[str]) -> str:
    """A row a place, a column a measure."""
    import pandas as pd

    if not axes:
        cells = (f"{name} {_number(result.values[name].item())}" for name in names)
        return f"<p>{html.escape(', '.join(cells))}</p>"
    n = prod(len(result.coords[axis]) for axis in axes)
    if not n:
        return ""
    places = islice(product(*(result.coords[axis] for axis in axes)), _MOST_ROWS)
    frame = pd.DataFrame(list(places), columns=list(axes))
    if axes[0] == "site":
        frame.insert(0, "layer", [result.layers[site] for site in frame["site"]])
    for name in names:  # a measure may be called like an axis
        column = [_number(value) for value in result.values[name].flatten()[:_MOST_ROWS].tolist()]
        frame.insert(frame.shape[1], name, column, allow_duplicates=True)
    shown: str = frame.to_html(index=False, border=0)
    return shown + (f"<p>and {n - len(frame):,} more rows: to_dataframe() has them all</p>" if n > len(frame) else "")


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
