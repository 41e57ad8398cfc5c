"""Refuses to start where a file of the user's stands in the way of our packages.

A script's own folder comes first in Python's search, so a ``tasks.py`` or ``probes.py`` beside it is what ``import
tasks`` finds. Importing this module looks where the two names lead, without running what is there. It knows nothing
but the standard library: ``mechclust`` runs it by its path, before the names ``tasks`` and ``probes`` are used.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path


def _refuse_another(name: str) -> None:
    """Raise an ``ImportError`` where ``import name`` gives another module than the package beside this one."""
    if name in sys.modules:  # imported already; a module made by hand has neither a file nor a specification
        origin = getattr(sys.modules[name], "__file__", None)
        folders = getattr(sys.modules[name], "__path__", ())
    elif spec := find_spec(name):
        origin, folders = spec.origin, spec.submodule_search_locations or ()
    else:
        return  # Python's own message is the best one
    found = Path(origin) if origin else next(map(Path, folders), None)  # a folder without __init__.py has no file
    if found is None or found.resolve() != Path(__file__).resolve().parents[1] / name / "__init__.py":
        what = "a module without a file" if found is None else repr(str(found))
        raise ImportError(
            f"{what} hides mechclust's package {name!r}; rename it, or move it elsewhere",
            name=name,
            path=None if found is None else str(found),
        )


for _name in ("tasks", "probes"):
    _refuse_another(_name)
