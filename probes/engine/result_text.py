"""Show a result as text in a terminal, and as HTML in a notebook."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from typing import TYPE_CHECKING, Any

from probes.engine.result_fields import ResultFields, result_size

if TYPE_CHECKING:
    import pandas as pd

_MAX_ROWS = 24  # rows of a table
_DIGEST_DIGITS = 8  # digits of a model's digest
_FLOAT_FORMAT = "{:.4g}".format


def result_text(result: ResultFields) -> str:
    """Return the numbers of a result as text, with a table for each set of axes."""
    parts = [f"{result.probe} {_metadata_line(result.metadata)}".rstrip()]
    for part in _parts(result):
        parts.append(part if isinstance(part, str) else part.to_string(index=False, float_format=_FLOAT_FORMAT))
    return "\n".join(parts)


def result_html(result: ResultFields) -> str:
    """Return the numbers of a result as HTML, with a table for each set of axes."""
    parts = [f"<p><b>{html.escape(result.probe)}</b> {html.escape(_metadata_line(result.metadata))}</p>"]
    for part in _parts(result):
        if isinstance(part, str):
            parts.append(f"<p>{html.escape(part)}</p>")
        else:
            parts.append(part.to_html(index=False, border=0, float_format=_FLOAT_FORMAT))
    return f"<div>{''.join(parts)}</div>"


def _parts(result: ResultFields) -> Iterator[str | pd.DataFrame]:
    """Yield lines and tables, in the order in which they are shown."""
    for axes, measures in _measures_by_axes(result).items():
        if not axes:
            yield _single_numbers(result, measures)
        elif result_size(result, axes) and not _is_long(result, axes):
            yield _table(result, axes, measures)
            yield from _rows_left_out(result, axes)
    yield from _long_tables(result)
    for note in result.notes:
        yield f"Note: {note}"


def _metadata_line(metadata: Mapping[str, Any]) -> str:
    """Return a line on a result's metadata: short names of models, and all that is a number or a text.

    Example:
        >>> models = {"tuned": "5" * 64, "base": "7" * 64}
        >>> _metadata_line({"examples": "12-0a1b2c3d4e5f6071", "model": models, "versions": {}})
        'examples = 12, model = tuned (55555555) and base (77777777)'
    """
    shown = {name: value for name, value in metadata.items() if isinstance(value, (int, float, str))}
    model = metadata.get("model")
    if isinstance(model, Mapping):
        shown["model"] = " and ".join(f"{name} ({str(digest)[:_DIGEST_DIGITS]})" for name, digest in model.items())
    elif isinstance(model, str):
        shown["model"] = model[:_DIGEST_DIGITS]
    examples = shown.get("examples")
    if isinstance(examples, str):
        shown["examples"] = examples.partition("-")[0]
    texts = {name: f"{value:.4g}" if isinstance(value, float) else f"{value}" for name, value in shown.items()}
    return ", ".join(f"{name} = {text}" for name, text in texts.items())


def _measures_by_axes(result: ResultFields) -> dict[tuple[str, ...], list[str]]:
    measures: dict[tuple[str, ...], list[str]] = {}
    for name, axes in result.axes.items():
        measures.setdefault(tuple(axes), []).append(name)
    return measures


def _is_long(result: ResultFields, axes: tuple[str, ...]) -> bool:
    """Return whether a table is only named because it is long and not the first, such as one of all shuffles."""
    first = next(axes for axes in _measures_by_axes(result) if axes)
    return result_size(result, axes) > _MAX_ROWS and axes != first


def _long_tables(result: ResultFields) -> list[str]:
    return [
        f"{', '.join(measures)}: {result_size(result, axes):,} rows by {', '.join(axes)}; to_dataframe() has them"
        for axes, measures in _measures_by_axes(result).items()
        if axes and _is_long(result, axes)
    ]


def _rows_left_out(result: ResultFields, axes: Sequence[str]) -> list[str]:
    left_out = result_size(result, axes) - _MAX_ROWS
    return [f"and {left_out:,} more rows: to_dataframe() has them all"] if left_out > 0 else []


def _single_numbers(result: ResultFields, measures: Sequence[str]) -> str:
    return ", ".join(f"{name} {result.values[name].item():.4g}" for name in measures)


def _table(result: ResultFields, axes: Sequence[str], measures: Sequence[str]) -> pd.DataFrame:
    """Return the first rows of a table with one row per place and one column per measure, layers next to sites."""
    import pandas as pd

    places = product(*(result.coords[axis] for axis in axes))
    frame = pd.DataFrame(islice(places, _MAX_ROWS), columns=list(axes))
    if axes[0] == "site":
        frame.insert(0, "layer", [result.layers[site] for site in frame["site"]])
    for name in measures:  # a measure may have the name of an axis
        column = result.values[name].flatten()[:_MAX_ROWS].tolist()
        frame.insert(frame.shape[1], name, column, allow_duplicates=True)
    return frame
