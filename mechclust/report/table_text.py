"""Write tables for terminals, pages and spreadsheets."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from tasks.text.visible import shortened, visible_text

if TYPE_CHECKING:
    import pandas as pd


_HOOKS = ("site", "hook")  # columns that name the hook beside a layer's number
_ANSWERS = {True: "yes", False: "no"}
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # full-width ones too


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
    hooks = {name: map_table_texts(table[[name]], _short_hook)[name] for name in _HOOKS if name in table}
    shown = map_table_texts(table_in_english(table.assign(**hooks)), shortened)
    return str(shown.to_string(index=False, float_format=f"{{:z{number}}}".format, na_rep="-"))


def table_in_english(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table for readers: spaces for the underscores of its columns, and ``yes`` and ``no`` for its answers.

    Example:
        >>> import pandas as pd
        >>> table_in_english(pd.DataFrame({"stands_out": [True, False]})).to_dict("list")
        {'stands out': ['yes', 'no']}
    """
    answers = {name: column.map(_ANSWERS, na_action="ignore") for name, column in table.items() if _is_answer(column)}
    names = {name: name.replace("_", " ") for name in table if isinstance(name, str)}
    return table.assign(**answers).rename(columns=names).fillna(math.nan)  # pandas 2 would write None


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
    text: str = map_table_texts(table, _no_formula).to_csv(index=False, lineterminator="\n")
    return text.encode()


def _no_formula(text: str) -> str:
    return f"'{visible_text(text)}" if text.startswith(_FORMULA) else visible_text(text)


def map_table_texts(table: pd.DataFrame, change: Callable[[str], str]) -> pd.DataFrame:
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
