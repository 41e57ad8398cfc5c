"""Write numbers, layers and tables for terminals, pages, figures, spreadsheets and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tasks.text.visible import shortened

GIB = 2**30
LAYERS = "Layer 0 is hook_embed, and layer l is blocks.{l - 1}.hook_resid_post."


def model_name_text(model: str) -> str:
    """Return a model's name for titles: a hub name, or the last part of a folder.

    Example:
        >>> model_name_text("meta-llama/Llama-3.2-1B"), model_name_text("/data/runs/tuned")
        ('meta-llama/Llama-3.2-1B', 'tuned')
    """
    path = Path(model)
    return path.name if path.is_dir() or path.is_absolute() or len(path.parts) > 2 else model


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


def list_text(names: Iterable[str]) -> str:
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
        return list_text(map(shortened, names))
    return list_text([*map(shortened, names[:most]), f"{len(names) - most} others"])


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


def size_text(n: float) -> str:
    """Return a number of bytes in words.

    Example:
        >>> size_text(3 * 2**30), size_text(2000), size_text(1000 * 2**30)
        ('3 GiB', '1.95 KiB', '1000 GiB')
    """
    units = {"TiB": 2**40, "GiB": GIB, "MiB": 2**20, "KiB": 2**10}
    unit = next((unit for unit, size in units.items() if n >= size), "KiB")
    number = n / units[unit]
    return f"{number:.3g} {unit}" if number < 100 else f"{number:.0f} {unit}"


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


def without_surrogates(text: str) -> str:
    """Return a text without halves of surrogate pairs, which no page can hold."""
    return str(text).encode("utf-8", "surrogatepass").decode("utf-8", "replace")
