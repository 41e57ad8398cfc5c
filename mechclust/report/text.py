"""Write numbers, layers and tables for terminals, pages, figures, spreadsheets and sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from unicodedata import east_asian_width

from tasks.text.visible import shortened, visible_text

if TYPE_CHECKING:
    import pandas as pd

GIB = 2**30
MAX_CHARACTERS = 300  # of a prompt on a page
_HOOKS = ("site", "base_site", "hook")  # columns that name the hook beside a layer's number
LAYERS = "Layer 0 is hook_embed, and layer l is blocks.{l - 1}.hook_resid_post."
_ANSWERS = {True: "yes", False: "no"}
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # full-width ones too


def interval_text(value: float, ends: Sequence[float], number: str) -> str:
    """Return a number with the ends of its interval in brackets, if it has one.

    Example:
        >>> interval_text(0.62, (0.5, 0.71), ".2f"), interval_text(0.62, (float("nan"), float("nan")), ".2f")
        ('0.62 (0.50 to 0.71)', '0.62')
    """
    low, high = ends
    interval = f" ({low:z{number}} to {high:z{number}})" if low == low and high == high else ""
    return f"{value:z{number}}{interval}"


def short_name(model: str) -> str:
    """Return a model's name for titles: a hub name, or the last part of a folder.

    Example:
        >>> short_name("meta-llama/Llama-3.2-1B"), short_name("/data/runs/tuned")
        ('meta-llama/Llama-3.2-1B', 'tuned')
    """
    path = Path(model)
    return path.name if path.is_dir() or path.is_absolute() or len(path.parts) > 2 else model


def _short_hook(name: str) -> str:
    """Return a hook name without ``hook_``, for narrow tables.

    Example:
        >>> _short_hook("blocks.0.hook_resid_post"), _short_hook("hook_embed")
        ('blocks.0.resid_post', 'embed')
    """
    *place, last = name.split(".")
    return ".".join([*place, last.removeprefix("hook_")])


def table_text(table: pd.DataFrame, number: str) -> str:
    """Return a table for a terminal, without its index.

    Control characters are written out, long texts are cut, and hooks named as by ``_short_hook``.

    Args:
        table: with final column names.
        number: format of floats, such as ``".3f"``.
    """
    hooks = {name: map_texts(table[[name]], _short_hook)[name] for name in _HOOKS if name in table}
    shown = map_texts(in_english(table.assign(**hooks)), shortened)
    return str(shown.to_string(index=False, float_format=f"{{:z{number}}}".format, na_rep="-"))


def in_english(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table for readers: spaces for the underscores of its columns, and ``yes`` and ``no`` for its answers.

    Example:
        >>> import pandas as pd
        >>> in_english(pd.DataFrame({"stands_out": [True, False]})).to_dict("list")
        {'stands out': ['yes', 'no']}
    """
    answers = {name: column.map(_ANSWERS, na_action="ignore") for name, column in table.items() if _is_answer(column)}
    names = {name: name.replace("_", " ") for name in table if isinstance(name, str)}
    return table.assign(**answers).rename(columns=names)


def _is_answer(column: pd.Series) -> bool:
    """Return whether a column holds only yes, no and empty values."""
    held = column.dropna()
    return len(held) > 0 and all(value is True or value is False for value in held.astype(object).tolist())


def table_as_csv(table: pd.DataFrame) -> bytes:
    r"""Return a table as CSV, without its index.

    A text that a spreadsheet would take for a formula begins with ``'``. Control characters are written out, so that
    a row is a line.

    Example:
        >>> import pandas as pd
        >>> table_as_csv(pd.DataFrame({"task": ["=1+2", "sort"], "x": [-1.5, 2.0]}))
        b"task,x\n'=1+2,-1.5\nsort,2.0\n"
    """
    text: str = map_texts(table, _no_formula).to_csv(index=False, lineterminator="\n")
    return text.encode()


def _no_formula(text: str) -> str:
    return f"'{visible_text(text)}" if text.startswith(_FORMULA) else visible_text(text)


def map_texts(table: pd.DataFrame, change: Callable[[str], str]) -> pd.DataFrame:
    """Return a table with ``change`` applied to every text in it, column names included."""
    import pandas as pd

    columns = dict(table.items())
    for name, column in table.items():
        if not pd.api.types.is_numeric_dtype(column):
            values = [change(value) if isinstance(value, str) else value for value in column]
            # Of objects, because pandas would make floats of integers and missing values.
            columns[name] = pd.Series(values, table.index, dtype=object)
    names = {name: change(name) for name in table if isinstance(name, str)}
    return pd.DataFrame(columns).rename(columns=names)


def figure_text(text: str, longest: int = 40) -> str:
    r"""Return a user's text for a figure, in which matplotlib reads no formula and which it shows in legends.

    Control characters are written out, and a long text is cut.

    Example:
        >>> figure_text("cost $_$ x")
        'cost \\$_\\$ x'
    """
    wide = any(east_asian_width(character) in "WF" for character in text)
    text = shortened(text, longest // 2 if wide else longest).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text  # matplotlib has no legend for names that begin so


def ranges_text(layers: Iterable[int]) -> str:
    """Return numbers as ranges, such as ``"0-2, 5"``.

    Example:
        >>> ranges_text([0, 1, 2, 5])
        '0-2, 5'
    """
    parts: list[list[int]] = []
    for layer in layers:
        if parts and layer == parts[-1][-1] + 1:
            parts[-1].append(layer)
        else:
            parts.append([layer])
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def join_words(names: Iterable[str]) -> str:
    """Return texts as a list in words, such as ``"a, b and c"``."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def counted(n: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1.

    Example:
        >>> counted(1, "layer"), counted(2, "layer")
        ('1 layer', '2 layers')
    """
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def first_few(names: Sequence[str], most: int = 6) -> str:
    """Name tasks or other labels, or the first few of many. Long names are cut.

    Example:
        >>> first_few(["a", "b", "c"]), first_few(["a", "b", "c", "d"], most=2)
        ('a, b and c', 'a, b and 2 others')
    """
    if len(names) <= most + 1:
        return join_words(map(shortened, names))
    return join_words([*map(shortened, names[:most]), f"{len(names) - most} others"])


def layers_text(layers: str, place: str = "layer") -> str:
    """Return layers, such as from ``ranges``, or other places in words.

    Example:
        >>> layers_text("3"), layers_text("0-2, 5", "block"), layers_text("")
        ('layer 3', 'blocks 0-2, 5', 'no layer')
    """
    if not layers:
        return f"no {place}"
    return f"{place} {layers}" if layers.isdigit() else f"{place}s {layers}"


def span_text(numbers: Iterable[int]) -> str:
    """Return the least and the greatest number.

    Example:
        >>> span_text([5, 3, 4]), span_text([3, 3])
        ('3 to 5', '3')
    """
    ordered = sorted(numbers)
    return str(ordered[0]) if ordered[0] == ordered[-1] else f"{ordered[0]} to {ordered[-1]}"


def shortened_text(text: str) -> str:
    """Return a text as the page shows it: cut, with an ellipsis, if it is long."""
    return without_surrogates(text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…")


def without_surrogates(text: str) -> str:
    """Return a text without halves of surrogate pairs, which no page can hold."""
    return str(text).encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def size_text(n: float) -> str:
    """Return a number of bytes in words.

    Example:
        >>> size_text(3 * 2**30), size_text(2000)
        ('3 GiB', '1.95 KiB')
    """
    for unit, size in (("GiB", GIB), ("MiB", 2**20)):
        if n >= size:
            return f"{n / size:.3g} {unit}"
    return f"{n / 1024:.3g} KiB"


def duration_text(seconds: float) -> str:
    """Return seconds in words.

    Example:
        >>> duration_text(0.2), duration_text(60), duration_text(600), duration_text(9000)
        ('a second', '60 s', '10 min', '2.5 h')
    """
    if seconds < 1:
        return "a second"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
