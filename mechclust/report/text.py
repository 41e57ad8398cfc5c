"""Numbers, layers and tables as they stand in terminals, pages, figures, spreadsheets and sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from unicodedata import east_asian_width

from tasks.text.visible import short, visible

if TYPE_CHECKING:
    import pandas as pd

_Value = TypeVar("_Value")
HOOKS = ("site", "base_site", "hook")  # columns that name the hook beside a layer's number
LAYERS = "Layer 0 is hook_embed, and layer l is blocks.{l - 1}.hook_resid_post."
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # full-width ones too


def number_format(number: str) -> Callable[[float], str]:
    """A function from a number to its text in a format such as ``".3f"``; what rounds to zero has no sign.

    Example:
        >>> number_format(".2f")(-0.001)
        '0.00'
    """
    return lambda x: format(x, f"z{number}")


def short_name(model: str) -> str:
    """What titles call a model: a hub name as it is, of a folder its last part.

    Example:
        >>> short_name("meta-llama/Llama-3.2-1B"), short_name("/data/runs/tuned")
        ('meta-llama/Llama-3.2-1B', 'tuned')
    """
    path = Path(model)
    return path.name if path.is_dir() or path.is_absolute() or len(path.parts) > 2 else model


def short_hook(name: str) -> str:
    """A hook name for narrow tables, which leave out ``hook_``.

    Example:
        >>> short_hook("blocks.0.hook_resid_post"), short_hook("blocks.0.attn.hook_pattern"), short_hook("hook_embed")
        ('blocks.0.resid_post', 'blocks.0.attn.pattern', 'embed')
    """
    *place, last = name.split(".")
    return ".".join([*place, last.removeprefix("hook_")])


def table_text(table: pd.DataFrame, number: str) -> str:
    """A table for a terminal, without its index. Control characters are written out, long texts cut, and hooks named
    as by ``short_hook``.

    Args:
        table: with its columns as they are to be read.
        number: format of floats, such as ``".3f"``.
    """
    hooks = {name: with_texts(table[[name]], short_hook)[name] for name in HOOKS if name in table}
    shown = with_texts(table.assign(**hooks), short)
    return str(shown.to_string(index=False, float_format=number_format(number), na_rep="-"))


def csv(table: pd.DataFrame) -> bytes:
    r"""A table as CSV, without its index.

    A text that a spreadsheet would take for a formula begins with ``'``; control characters are written out, so that
    a row is a line.

    Example:
        >>> import pandas as pd
        >>> csv(pd.DataFrame({"task": ["=1+2", "sort"], "x": [-1.5, 2.0]}))
        b"task,x\n'=1+2,-1.5\nsort,2.0\n"
    """
    text: str = with_texts(table, _no_formula).to_csv(index=False, lineterminator="\n")
    return text.encode()


def _no_formula(text: str) -> str:
    return f"'{visible(text)}" if text.startswith(_FORMULA) else visible(text)


def with_texts(table: pd.DataFrame, change: Callable[[str], str]) -> pd.DataFrame:
    """A table with every text in it, columns' names too, put through ``change``; numbers stay."""
    import pandas as pd

    def changed(value: _Value) -> _Value | str:
        return change(value) if isinstance(value, str) else value

    texts = [name for name in table if not pd.api.types.is_numeric_dtype(table[name])]
    # Of objects: pandas would make floats of integers and missing values.
    columns = {name: pd.Series([*map(changed, table[name])], table.index, dtype=object) for name in texts}
    return pd.DataFrame({**dict(table.items()), **columns}).rename(columns=changed)


def figure_text(text: str, longest: int = 40) -> str:
    r"""A user's text for a figure: what matplotlib reads as a formula, or leaves out of legends, stands there as it is.

    Control characters are written out, and a long text is cut.

    Example:
        >>> figure_text("cost $_$ x")
        'cost \\$_\\$ x'
    """
    wide = any(east_asian_width(character) in "WF" for character in text)
    text = short(text, longest // 2 if wide else longest).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text  # matplotlib has no legend for names that begin so


def ranges(layers: Iterable[int]) -> str:
    """Such as ``"0-2, 5"``.

    Example:
        >>> ranges([0, 1, 2, 5])
        '0-2, 5'
    """
    parts: list[list[int]] = []
    for layer in layers:
        if parts and layer == parts[-1][-1] + 1:
            parts[-1].append(layer)
        else:
            parts.append([layer])
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def join(names: Iterable[str]) -> str:
    """Such as ``"a, b and c"``."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
