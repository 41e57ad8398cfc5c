"""Our packages under names that no other file can take, and what a user sees whose file has the name of one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SAME = """
import probes.extend, probes.functional, tasks, tasks.text.corpus
specs = [module.__spec__ for module in (probes, probes.extend, tasks, tasks.text.corpus)]
import mechclust.tasks, mechclust.probes.extend
from mechclust.probes import CKA, functional
from mechclust.probes.functional import linear_cka
from mechclust.tasks.text.corpus import Corpus
from mechclust.probes.engine.run import check_hooked_models
from mechclust.probes.checks.causal_checks import Correct
from mechclust.probes.functional.svcca import svcca_correlation

assert mechclust.tasks is tasks and mechclust.probes is probes
assert mechclust.probes.extend is probes.extend and functional is probes.functional
assert CKA is probes.CKA and linear_cka is probes.functional.linear_cka and Corpus is tasks.Corpus
assert specs == [module.__spec__ for module in (probes, probes.extend, tasks, tasks.text.corpus)]
assert [spec.name for spec in specs] == ["probes", "probes.extend", "tasks", "tasks.text.corpus"]
assert callable(probes.run) and callable(probes.causal_checks) and callable(probes.functional.svcca)
print("the same")
"""
LAZY = """
import mechclust, sys
assert "probes.extend" not in sys.modules
import mechclust.probes.extend
import probes.extend
assert mechclust.probes.extend is probes.extend is sys.modules["probes.extend"]
print("the same")
"""


def run(folder: Path, code: str, checkout: bool) -> subprocess.CompletedProcess[str]:
    """Run ``code`` as a script in ``folder``, with the package as it is installed or with the checkout on the path."""
    (folder / "script.py").write_text(code, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if checkout:
        environment["PYTHONPATH"] = str(ROOT)
    return subprocess.run(
        [sys.executable, "script.py"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(params=[True, False], ids=["checkout", "installed"])
def checkout(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize("code", [SAME, LAZY])
def test_the_second_names_give_the_same_modules(tmp_path: Path, checkout: bool, code: str) -> None:
    done = run(tmp_path, code, checkout)
    assert (done.stdout, done.stderr) == ("the same\n", "")


def test_a_module_that_is_not_there(tmp_path: Path, checkout: bool) -> None:
    done = run(tmp_path, "import mechclust.probes.nothing", checkout)
    assert done.stderr.endswith("ModuleNotFoundError: No module named 'probes.nothing'\n")


@pytest.mark.parametrize(
    ("place", "code"),
    [
        ("tasks.py", "import probes"),
        ("tasks/__init__.py", "import mechclust"),
        ("probes.py", "from mechclust.probes import CKA"),
        ("probes/__init__.py", "import mechclust"),
    ],
)
def test_a_file_beside_the_script_is_named_and_not_run(tmp_path: Path, checkout: bool, place: str, code: str) -> None:
    name = place.split("/")[0].removesuffix(".py")
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    path.write_text("print('it has run')", encoding="utf-8")
    done = run(tmp_path, code, checkout)
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: {str(path)!r} hides mechclust's package {name!r}; rename it, or move it elsewhere"
    )


def test_a_folder_of_data_stands_in_the_way_only_where_python_prefers_it(tmp_path: Path, checkout: bool) -> None:
    """A folder without ``__init__.py`` gives way to a package further back in the path, not to an editable install."""
    (tmp_path / "tasks").mkdir()
    done = run(tmp_path, "import probes; print('fine')", checkout)
    message = f"{str(tmp_path / 'tasks')!r} hides mechclust's package 'tasks'; "
    assert done.stdout == "fine\n" if checkout else message in done.stderr or done.stdout == "fine\n"


@pytest.mark.parametrize("code", ["import tasks, mechclust", "import tasks, probes"])
def test_a_file_that_was_imported_before(tmp_path: Path, checkout: bool, code: str) -> None:
    (tmp_path / "tasks.py").write_text("print('by the user')", encoding="utf-8")
    done = run(tmp_path, code, checkout)
    assert done.stdout == "by the user\n"
    assert f"{str(tmp_path / 'tasks.py')!r} hides mechclust's package 'tasks'" in done.stderr


def test_a_script_that_is_called_tasks(tmp_path: Path) -> None:
    """It is both ``__main__`` and the file that ``import tasks`` would find."""
    (tmp_path / "tasks.py").write_text("import mechclust", encoding="utf-8")
    done = subprocess.run([sys.executable, tmp_path / "tasks.py"], capture_output=True, text=True, check=False)
    assert f"{str(tmp_path / 'tasks.py')!r} hides mechclust's package 'tasks'" in done.stderr


def test_a_module_made_by_hand(tmp_path: Path, checkout: bool) -> None:
    code = "import sys, types; sys.modules['tasks'] = types.ModuleType('tasks'); import mechclust"
    done = run(tmp_path, code, checkout)
    assert "ImportError: a module without a file hides mechclust's package 'tasks'; " in done.stderr


def test_files_of_other_names_and_places_are_left_alone(tmp_path: Path, checkout: bool) -> None:
    (tmp_path / "my_tasks.py").touch()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "tasks.py").touch()
    done = run(tmp_path, "import my_tasks, lib.tasks, mechclust, probes; print('fine')", checkout)
    assert (done.stdout, done.stderr) == ("fine\n", "")
