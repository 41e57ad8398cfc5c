"""Numbers, layers and tables as they stand in terminals, pages and sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


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


def table_text(table: pd.DataFrame, number: str) -> str:
    """A table for a terminal, without its index.

    Args:
        table: with its columns as they are to be read.
        number: format of floats, such as ``".3f"``.
    """
    return str(table.to_string(index=False, float_format=number_format(number), na_rep="-"))


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
