"""Refuse to start if a file of the user's shadows our packages.

A script's own folder comes first in Python's search, so ``import tasks`` finds a ``tasks.py`` next to it. Importing
this module looks up the names ``tasks`` and ``probes`` without running their files. It needs only the standard library:
``mechclust`` runs it by its path before it uses the two names.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path


def _refuse_another(name: str) -> None:
    """Raise an ``ImportError`` if ``import name`` does not give the package next to this one."""
    if name in sys.modules:  # imported already (a module made by hand has neither a file nor a specification)
        origin = getattr(sys.modules[name], "__file__", None)
        folders = getattr(sys.modules[name], "__path__", ())
    else:
        spec = find_spec(name)
        if spec is None:
            return  # Python's own message is the best one
        origin = spec.origin
        folders = spec.submodule_search_locations or ()
    path = Path(origin) if origin else next(map(Path, folders), None)  # a folder without __init__.py has no file
    if path is None or path.resolve() != Path(__file__).resolve().parents[1] / name / "__init__.py":
        what = "a module without a file" if path is None else repr(str(path))
        raise ImportError(
            f"{what} hides mechclust's package {name!r}; rename it, or move it elsewhere",
            name=name,
            path=None if path is None else str(path),
        )


for _name in ("tasks", "probes"):
    _refuse_another(_name)
