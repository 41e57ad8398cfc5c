"""Write ``docs/public-api.md``, the one list of all public names: ``python docs/public_api.py``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

_PAGE = Path(__file__).with_name("public-api.md")
_MODULES = ("tasks", "probes", "probes.functional", "probes.extend", "mechclust")
_HEAD = """# Public names

These are the names that mechclust promises, in five modules, with the types in their signatures. Everything else can be
imported too, but may change at any time. [Contributing](contributing.md#versions-and-deprecation) explains how public
names change.
"""


def public_names() -> dict[str, list[str]]:
    """Return the names in ``__all__`` of the public modules, sorted."""
    return {name: sorted(importlib.import_module(name).__all__, key=str.lower) for name in _MODULES}


def page() -> str:
    """Return the page's text."""
    parts = [_HEAD]
    for door, names in public_names().items():
        lines = [f"[`{name}`][{door}.{name}]" for name in names]
        parts.append(f"\n## `{door}`\n\n" + ",\n".join(lines) + "\n")
    return "".join(parts)


if __name__ == "__main__":
    sys.path[0] = str(_PAGE.parents[1])  # not this folder, where `probes` are pages
    _PAGE.write_text(page(), encoding="utf-8")
