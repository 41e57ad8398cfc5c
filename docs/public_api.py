"""Writes ``docs/public-api.md``, the one list of all public names: ``python docs/public_api.py``."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
from pathlib import Path
from types import ModuleType

_PAGE = Path(__file__).with_name("public-api.md")
_HEAD = """# Public names

Only the names that these packages list in `__all__` are public: modules inside them may change at any time.
[Contributing](contributing.md#versions-and-deprecation) explains how public names change. This page is written by
`python docs/public_api.py`; a test compares it with the packages.
"""


def doors() -> dict[str, list[str]]:
    """Every package or module with an ``__all__`` that is a door, and the names in it, sorted."""
    found: dict[str, list[str]] = {}
    for root in ("tasks", "probes", "mechclust"):
        package = importlib.import_module(root)
        names = [m.name for m in pkgutil.walk_packages(package.__path__, f"{root}.") if m.ispkg]
        for name in (root, *names, *(["probes.extend"] if root == "probes" else [])):
            module = importlib.import_module(name)
            if hasattr(module, "__all__"):
                found[name] = sorted(module.__all__, key=str.lower)
    return found


def _one_line(module: ModuleType, name: str) -> str:
    """The first sentence of a name's docstring."""
    value = getattr(module, name)
    documented = inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value)
    text = (inspect.getdoc(value) or "").split("\n\n")[0] if documented else ""
    sentence = re.split(r"(?<=[.?])\s(?=[A-Z`(])", " ".join(text.split()), maxsplit=1)[0].replace("``", "`")
    return sentence or f"see {module.__name__}"


def page() -> str:
    """The page's text."""
    parts = [_HEAD]
    for door, names in doors().items():
        module = importlib.import_module(door)
        lines = [f"- [`{name}`][{door}.{name}]: {_one_line(module, name)}" for name in names]
        parts.append(f"\n## `{door}`\n\n" + "\n".join(lines) + "\n")
    return "".join(parts)


if __name__ == "__main__":
    sys.path[0] = str(_PAGE.parents[1])  # not this folder, where `probes` are pages
    _PAGE.write_text(page(), encoding="utf-8")
