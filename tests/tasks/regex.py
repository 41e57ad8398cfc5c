"""Random regular expressions as Python's own."""

from __future__ import annotations

from tasks._regex import RandomRegex


def python_pattern(regex: RandomRegex, names: list[str]) -> str:
    """Such as ``[ab]{1,1}[c]{0,1}``."""
    return "".join(f"[{''.join(names[s] for s in e.symbols)}]{{{e.repeats[0]},{e.repeats[1]}}}" for e in regex.elements)
