"""What a user sees whose file has the name of one of our packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


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


@pytest.mark.parametrize(
    ("place", "code"),
    [
        ("tasks.py", "import probes"),
        ("tasks/__init__.py", "import mechclust"),
        ("probes.py", "from mechclust import train"),
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
    done = run(tmp_path, "import mechclust; print('fine')", checkout)
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
    done = run(tmp_path, "import my_tasks, lib.tasks, mechclust; print('fine')", checkout)
    assert (done.stdout, done.stderr) == ("fine\n", "")
