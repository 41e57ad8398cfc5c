"""The walls of the house: which package knows which, and what its door is."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(path for package in ("tasks", "probes", "mechclust") for path in (ROOT / package).rglob("*.py"))
MAY_NOT_KNOW = {"tasks": {"probes", "mechclust"}, "probes": {"mechclust"}, "mechclust": set()}
MOST_LINES = 350


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported(path: Path) -> set[str]:
    """Top-level packages that a file imports, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)} line {node.lineno}: write imports with the package's full name"
            names.add(node.module or "")
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_imports_go_one_way(path: Path) -> None:
    wrong = imported(path) & MAY_NOT_KNOW[path.relative_to(ROOT).parts[0]]
    assert not wrong, f"{relative(path)} imports {sorted(wrong)}; imports go tasks <- probes <- mechclust"


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_a_file_can_be_read_in_one_sitting(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines < MOST_LINES, f"{relative(path)} has {lines} lines; split it by idea"


def test_importing_probes_is_light() -> None:
    heavy = ["transformer_lens", "pandas", "matplotlib", "wandb"]
    code = f"import sys, json, probes; print(json.dumps([name for name in {heavy} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def declared_names(path: Path) -> list[str] | None:
    """``__all__`` of a package, read without importing it."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return None


DOORS = {path: names for path in FILES if path.name == "__init__.py" and (names := declared_names(path)) is not None}


def test_the_packages_have_doors() -> None:
    assert {"tasks/__init__.py", "probes/__init__.py", "probes/functional/__init__.py"} <= set(map(relative, DOORS))


@pytest.mark.parametrize("path", DOORS, ids=relative)
def test_a_door_is_sorted_and_leads_somewhere(path: Path) -> None:
    names = DOORS[path]
    assert names == sorted(set(names))
    package = importlib.import_module(".".join(path.relative_to(ROOT).parent.parts))
    missing = [name for name in names if not hasattr(package, name)]
    assert not missing, f"{relative(path)} promises {missing}, which it does not have"
