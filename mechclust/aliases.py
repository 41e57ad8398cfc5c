"""``mechclust.tasks`` and ``mechclust.probes``: our packages under names that no other file can take.

They are identical to the modules ``tasks`` and ``probes``, and so are their submodules (``mechclust.probes.extend`` is
``probes.extend``). A class is therefore one class, whichever name it was imported by.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

# By its path, since the name ``probes`` may lead to the file that it looks for.
runpy.run_path(str(Path(__file__).parents[1] / "probes" / "shadowing.py"))


class _SameModule(MetaPathFinder, Loader):
    """Imports ``mechclust.probes.x`` as the module ``probes.x``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        ours = fullname.split(".")[:2] in (["mechclust", "tasks"], ["mechclust", "probes"])
        return ModuleSpec(fullname, self) if ours else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(spec.name.removeprefix("mechclust."))
        spec.loader_state = module.__spec__
        # Loaded modules get both names. Importing one again would replace a function of its name, such as
        # ``probes.run``, by the module.
        for name in [name for name in sys.modules if name.startswith(("tasks.", "probes."))]:
            sys.modules.setdefault(f"mechclust.{name}", sys.modules[name])
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the original ``__spec__`` of a module that has already run under its original name."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


sys.meta_path.insert(0, _SameModule())
