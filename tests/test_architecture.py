"""The walls of the house: which package knows which, and what its door is."""

from __future__ import annotations

import ast
import graphlib
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("tasks", "probes", "mechclust")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MOST_LINES = 500
OURS = r"(tasks|probes|mechclust)(\.|$)"
NAMES_BY_TEXT = {"mechclust/aliases.py"}  # which gives its two packages their second names


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# ---- imports ----


def lint_imports(root: Path) -> str:
    """What import-linter says of the packages in ``root``, by the contracts of ``pyproject.toml``."""
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True, no_logo=True))"
    environment = os.environ | {"COLUMNS": "200"}
    done = subprocess.run([sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def test_the_contracts_of_the_house_are_kept() -> None:
    said = lint_imports(ROOT)
    assert " 0 broken" in said, said


TYPE_ONLY = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import {}"
PLANTED = [
    ("tasks/batch.py", "import probes", "mechclust knows probes, probes know tasks"),
    (
        "probes/sites.py",
        "def f():\n    from mechclust.jobs import map_jobs",
        "mechclust knows probes, probes know tasks",
    ),
    ("mechclust/jobs/pool.py", "import mechclust", "The floors of mechclust"),
    ("mechclust/models/build.py", "def f():\n    import mechclust.training", "The floors of mechclust"),
    ("mechclust/report/claims.py", "import mechclust.attention.view", "The floors of mechclust"),
    ("mechclust/new_room/new.py", "", "The floors of mechclust"),
    ("mechclust/commands/clusters/measure.py", "import mechclust.commands.topics.measure", "Commands never meet"),
    ("mechclust/commands/new.py", "import mechclust.commands.clusters", "Commands never meet"),
    ("mechclust/commands/check/batches.py", TYPE_ONLY.format("mechclust.studies.study"), "a user's own model"),
    ("mechclust/commands/topics/measure.py", "import mechclust.studies", "a user's own model"),
    ("mechclust/studies/mossa/figures.py", "import mechclust.studies.task_clusters.claims", "Studies never meet"),
    ("mechclust/studies/new/study.py", "import mechclust.studies.mossa.study", "Studies never meet"),
    ("mechclust/studies/study.py", "import mechclust.studies.registry", "Studies never meet"),
    ("mechclust/studies/mossa/claims.py", "import mechclust.studies.mossa.figures", "Within a study"),
    ("mechclust/studies/new/config.py", "import mechclust.studies.new.study", "Within a study"),
    ("mechclust/training/config.py", TYPE_ONLY.format("mechclust.training.loop"), "No circles between siblings"),
    ("probes/sites.py", "def f():\n    import probes.testing", "No circles between siblings"),
]


@pytest.mark.parametrize(("place", "line", "contract"), PLANTED)
def test_the_contracts_see_what_they_forbid(tmp_path: Path, place: str, line: str, contract: str) -> None:
    """Also in functions, for type checkers, and in rooms that are new."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    path = tmp_path / place
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        (path.parent / "__init__.py").touch()
        (path.parent / "study.py").touch()
        path.touch()
    path.write_text(f"{path.read_text(encoding='utf-8')}\n\n{line}\n", encoding="utf-8")
    broken = re.findall(r"(?m)^(.+) BROKEN", lint_imports(tmp_path))
    assert [name for name in broken if contract in name], broken


def test_there_is_no_circle_of_modules() -> None:
    """The doors included: a file never imports the ``__init__`` of a package that it stands in."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    graphlib.TopologicalSorter(
        {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    ).prepare()
    upwards = [
        f"{name} imports {above}"
        for name in sorted(graph.modules)
        for above in sorted(graph.find_modules_directly_imported_by(name))
        if name.startswith(f"{above}.")
    ]
    assert upwards == []


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_imports_are_written_so_that_they_can_be_seen(path: Path) -> None:
    """With the package's full name, and never as a text that only runs: the contracts see neither."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)} line {node.lineno}: write imports with the package's full name"
        if isinstance(node, ast.Call) and re.search(r"(import_module|__import__)$", ast.unparse(node.func)):
            ours = [a.value for a in node.args if isinstance(a, ast.Constant) and re.match(OURS, str(a.value))]
            assert not ours or relative(path) in NAMES_BY_TEXT, f"{relative(path)} line {node.lineno}: import {ours[0]}"


# ---- files and doors ----


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_a_file_can_be_read_in_one_sitting(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MOST_LINES, f"{relative(path)} has {lines} lines; split it by idea"


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
