"""Public names that are imported when they are first used, so that ``import mechclust`` is quick."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def lazily(package: str, file: str) -> Callable[[str], Any]:
    """Return a package's ``__getattr__`` for the names that its file imports ``if TYPE_CHECKING``.

    Args:
        package: its ``__name__``.
        file: its ``__file__``. The imports that type checkers read there are those made at run time, so that each is
            written once.
    """
    places = imported_for_types(Path(file).read_text(encoding="utf-8"))

    def found(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(places[name]), name)
        setattr(sys.modules[package], name, value)  # so that this runs once per name
        return value

    return found


def imported_for_types(source: str) -> dict[str, str]:
    r"""Return each name and its module, from the block ``if TYPE_CHECKING``.

    Example:
        >>> imported_for_types("if TYPE_CHECKING:\n    from a.b import c, d")
        {'c': 'a.b', 'd': 'a.b'}
    """
    blocks = (part for part in ast.parse(source).body if isinstance(part, ast.If))
    lines = (line for block in blocks if ast.unparse(block.test) == "TYPE_CHECKING" for line in block.body)
    imports = (line for line in lines if isinstance(line, ast.ImportFrom) and line.module is not None)
    return {alias.name: str(line.module) for line in imports for alias in line.names}
