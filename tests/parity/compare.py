"""Compare what the two sides observed, and hold the differences against the list of known ones."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

FLOAT64, FLOAT32 = 1e-9, 1e-5
TIMES = ("cells.seconds",)
"""Ends of places whose values are times, which differ between any two runs."""


@dataclass(frozen=True)
class Difference:
    """Something that the two sides give differently.

    Attributes:
        call: the call's name.
        what: where in the observation, such as ``folder.tables.out/clusters.csv.columns``.
        old: what the old side gave; ``missing`` if nothing.
        new: what the new side gave.
    """

    call: str
    what: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.call}: {self.what}: {self.old} -> {self.new}"


@dataclass(frozen=True)
class Known:
    """An entry of the list of differences; ``call`` and ``what`` may be patterns such as ``*.notes``."""

    call: str
    what: str
    reason: str

    def covers(self, difference: Difference) -> bool:
        """Return whether a difference is of this kind."""
        return fnmatchcase(difference.call, self.call) and fnmatchcase(difference.what, self.what)


def read_known(path: Path) -> list[Known]:
    """Read the list of differences."""
    entries = tomllib.loads(path.read_text()).get("difference", [])
    return [Known(entry["call"], entry["what"], entry["reason"]) for entry in entries]


def differences(call: str, old: Any, new: Any) -> list[Difference]:
    """Return the differences of two observations of a call."""
    tolerance = FLOAT64 if isinstance(old, dict) and old.get("precision") == "float64" else FLOAT32
    found = [Difference(call, what, a, b) for what, a, b in _walk("", old, new, tolerance)]
    return [difference for difference in found if not difference.what.endswith(TIMES)]


def unlisted(found: Sequence[Difference], known: Sequence[Known]) -> list[Difference]:
    """Return the differences that no entry covers."""
    return [difference for difference in found if not any(entry.covers(difference) for entry in known)]


def gone(found: Sequence[Difference], known: Sequence[Known], calls: Sequence[str]) -> list[Known]:
    """Return the entries that cover no difference any more, among those of the calls that were run."""
    of_these = [entry for entry in known if any(fnmatchcase(call, entry.call) for call in calls)]
    return [entry for entry in of_these if not any(entry.covers(difference) for difference in found)]


def _walk(where: str, old: Any, new: Any, tolerance: float) -> Iterator[tuple[str, str, str]]:
    """Yield each place at which two observations differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            inside = f"{where}.{key}" if where else key
            if key not in old or key not in new:
                yield inside, _shown(old, key), _shown(new, key)
            else:
                yield from _walk(inside, old[key], new[key], tolerance)
    elif isinstance(old, list) and isinstance(new, list):
        yield from _walk_lists(where, old, new, tolerance)
    elif not _same(old, new, tolerance):
        yield where, _short(old), _short(new)


def _walk_lists(where: str, old: list[Any], new: list[Any], tolerance: float) -> Iterator[tuple[str, str, str]]:
    """Yield one difference for a list of numbers, and the entries on one side only for a list of names."""
    if all(isinstance(each, str) for each in [*old, *new]) and old != new:
        removed, added = [x for x in old if x not in new], [x for x in new if x not in old]
        for name in removed:
            yield f"{where}.{name}", "there", "missing"
        for name in added:
            yield f"{where}.{name}", "missing", "there"
        if not removed and not added:
            yield where, _short(old), _short(new)
    elif len(old) != len(new):
        yield where, f"{len(old)} entries", f"{len(new)} entries"
    else:
        unequal = [i for i in range(len(old)) if any(True for _ in _walk("", old[i], new[i], tolerance))]
        if unequal:
            first = unequal[0]
            told = f"{_short(old[first])} ({len(unequal)} of {len(old)} entries)"
            yield where, told, _short(new[first])


def _same(old: Any, new: Any, tolerance: float) -> bool:
    numbers = (int, float)
    if isinstance(old, numbers) and isinstance(new, numbers) and not isinstance(old, bool):
        return math.isclose(old, new, rel_tol=tolerance, abs_tol=tolerance)
    return bool(old == new) and type(old) is type(new)


def _shown(side: dict[str, Any], key: str) -> str:
    return _short(side[key]) if key in side else "missing"


def _short(value: Any) -> str:
    words = str(value)
    return words if len(words) <= 100 else f"{words[:97]}..."
