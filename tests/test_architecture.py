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
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("tasks", "probes", "mechclust")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MOST_LINES = 500
OURS = r"(tasks|probes|mechclust)(\.|$)"
WIDE = os.environ | {"COLUMNS": "200"}  # so that import-linter does not wrap its lines


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def parsed(path: Path) -> ast.Module:
    """A file's syntax tree; read only."""
    return ast.parse(path.read_text(encoding="utf-8"))


# ---- imports ----


def lint_imports(root: Path) -> str:
    """What import-linter says of the packages in ``root``, by the contracts of ``pyproject.toml``."""
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True, no_logo=True))"
    done = subprocess.run([sys.executable, "-c", code], cwd=root, env=WIDE, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def test_the_contracts_of_the_house_are_kept() -> None:
    said = lint_imports(ROOT)
    assert " 0 broken" in said, said


TYPE_ONLY = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import {}"
PLANTED = [
    ("tasks/batch.py", "import probes", "mechclust knows probes, probes know tasks"),
    (
        "probes/engine/sites.py",
        "def f():\n    from mechclust.jobs import map_jobs",
        "mechclust knows probes, probes know tasks",
    ),
    ("mechclust/jobs/pool.py", "import mechclust", "The floors of mechclust"),
    ("mechclust/models/build.py", "def f():\n    import mechclust.training", "The floors of mechclust"),
    ("mechclust/report/page.py", "import mechclust.mossa.task_curves", "The floors of mechclust"),
    ("mechclust/new_room/new.py", "", "The floors of mechclust"),
    ("mechclust/commands/clusters/measure.py", "import mechclust.commands.topics.measure", "Commands never meet"),
    ("mechclust/commands/new.py", "import mechclust.commands.clusters", "Commands never meet"),
    ("mechclust/commands/check/batches.py", TYPE_ONLY.format("mechclust.studies.study"), "a user's own model"),
    ("mechclust/commands/topics/measure.py", "import mechclust.studies", "a user's own model"),
    ("mechclust/studies/mossa/figures.py", "import mechclust.studies.task_clusters.findings", "Studies never meet"),
    ("mechclust/studies/new/study.py", "import mechclust.studies.mossa.study", "Studies never meet"),
    ("mechclust/studies/study.py", "import mechclust.studies.registry", "Studies never meet"),
    ("mechclust/studies/mossa/findings.py", "import mechclust.studies.mossa.figures", "Within a study"),
    ("mechclust/studies/new/config.py", "import mechclust.studies.new.study", "Within a study"),
    ("mechclust/training/config.py", TYPE_ONLY.format("mechclust.training.loop"), "No circles between siblings"),
    ("probes/engine/sites.py", "def f():\n    import probes.checks.check_probe", "The floors of probes"),
    ("probes/pairs.py", "", "The floors of probes"),
    ("probes/functional/cka.py", "import probes.functional.rbf_cka", "No circles between siblings"),
]


# Run in a copy of the packages: each line is planted in its file, linted, and taken out again.
PLANT = """
import contextlib, io, json, shutil, sys
from pathlib import Path
from importlinter.cli import lint_imports

said = []
for place, line in json.loads(sys.argv[1]):
    path = Path(place)
    before = path.read_text(encoding="utf-8") if path.exists() else None
    new_room = not path.parent.exists()
    path.parent.mkdir(exist_ok=True)
    new_files = {path, path.parent / "__init__.py", path.parent / "study.py"} if before is None else set()
    made = [new for new in new_files if not new.exists()]
    for new in made:
        new.touch()
    path.write_text(f"{before or ''}\\n\\n{line}\\n", encoding="utf-8")
    with contextlib.redirect_stdout(io.StringIO()) as told:
        lint_imports(cache_dir="cache", no_logo=True)
    said.append(told.getvalue())
    for new in made:
        new.unlink()
    if before is not None:
        path.write_text(before, encoding="utf-8")
    if new_room:
        shutil.rmtree(path.parent)
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], str]:
    """What import-linter says of each planted line."""
    root = tmp_path_factory.mktemp("planted")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    lines = [(place, line) for place, line, _ in PLANTED]
    command = [sys.executable, "-c", PLANT, json.dumps(lines)]
    done = subprocess.run(command, cwd=root, env=WIDE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(zip(lines, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize(("place", "line", "contract"), PLANTED)
def test_the_contracts_see_what_they_forbid(
    planted: dict[tuple[str, str], str], place: str, line: str, contract: str
) -> None:
    """Also in functions, for type checkers, and in rooms that are new."""
    broken = re.findall(r"(?m)^(.+) BROKEN", planted[place, line])
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


def called_name(function: ast.expr) -> str:
    """Return the last part of a called name; "" where what is called has none."""
    return getattr(function, "attr", getattr(function, "id", ""))


def hidden_imports(path: Path) -> Iterator[str]:
    """Imports that the contracts do not see: relative ones, and names that are a text until they run."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield f"{relative(path)} line {node.lineno}: write imports with the package's full name"
        if isinstance(node, ast.Call) and called_name(node.func).endswith(("import_module", "__import__")):
            ours = [a.value for a in node.args if isinstance(a, ast.Constant) and re.match(OURS, str(a.value))]
            if ours:
                yield f"{relative(path)} line {node.lineno}: import {ours[0]}"


def test_imports_are_written_so_that_they_can_be_seen() -> None:
    assert [said for path in FILES for said in hidden_imports(path)] == []


# ---- files and doors ----


def test_a_file_can_be_read_in_one_sitting() -> None:
    lines = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {name: n for name, n in lines.items() if n > MOST_LINES} == {}, "split them by idea"


def test_importing_packages_and_listing_studies_is_light_and_leaves_garbage_collection_on() -> None:
    heavy = ["transformer_lens", "transformers", "pandas", "matplotlib", "datasets", "pyarrow", "sklearn", "wandb"]
    on = "import gc, probes; assert gc.isenabled() and not gc.get_freeze_count()"
    use = "import sys, json, tasks.text.instructions, mechclust.studies; mechclust.studies.registered_studies()"
    code = f"{on}; {use}; print(json.dumps([name for name in {heavy} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def declared_names(path: Path) -> list[str] | None:
    """``__all__`` of a package, read without importing it."""
    for node in parsed(path).body:
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


# ---- names ----

# What is alike in every study and every command, and is rebuilt with them.
STUDIES_AND_COMMANDS = ("mechclust/studies/", "mechclust/commands/", "mechclust/cli_commands/")
TWICE_ON_PURPOSE = {"main", "result_path"}  # a command line; a checkpoint and a study


def public_names(path: Path) -> set[str]:
    """Public classes, functions and constants that a file defines at its top level."""
    names: set[str] = set()
    for node in parsed(path).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def test_no_public_name_has_two_meanings() -> None:
    files_of: dict[str, list[str]] = {}
    for path in FILES:
        for name in public_names(path):
            files_of.setdefault(name, []).append(relative(path))
    twice = {
        name: files
        for name, files in files_of.items()
        if len(files) > 1 and not all(file.startswith(STUDIES_AND_COMMANDS) for file in files)
    }
    assert {name: files for name, files in twice.items() if name not in TWICE_ON_PURPOSE} == {}
