"""The command before its packages are imported."""

from __future__ import annotations

import builtins
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from mechclust import cli
from mechclust.__main__ import _WIDTH, main
from mechclust.command_table import ABOUT, COMMANDS

ROOT = Path(cli.__file__).parents[1]
HEAVY = ("transformer_lens", "transformers", "matplotlib", "pandas", "datasets", "pyarrow", "sklearn", "scipy", "PIL")


def loaded_by(argv: list[str]) -> set[str]:
    """Return the packages that a command line imports."""
    code = (
        "import sys, json\n"
        "from contextlib import redirect_stdout, suppress\n"
        "from mechclust.__main__ import main\n"
        "with suppress(SystemExit), redirect_stdout(sys.stderr):\n"
        "    main(json.loads(sys.argv[1]))\n"
        "print(json.dumps([name for name in sys.modules if '.' not in name]))"
    )
    command = [sys.executable, "-c", code, json.dumps(argv)]
    return set(json.loads(subprocess.run(command, check=True, cwd=ROOT, capture_output=True).stdout))


@pytest.mark.parametrize("argv", [[], ["-h"], ["--help"]])
def test_help_names_every_command(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 0
    said = capsys.readouterr().out
    listed = [line.split()[0] for line in said.splitlines() if line[:2] == "  " and line[2] != " "]
    assert listed == list(COMMANDS)
    assert ABOUT in said
    assert max(map(len, said.splitlines())) <= _WIDTH


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"mechclust {version('mechclust')}\n"


def test_help_imports_nothing_heavy() -> None:
    assert not loaded_by(["--help"]) & {"torch", "numpy", "probes", "tasks", "tyro", *HEAVY}


def test_a_commands_help_imports_only_what_its_options_need() -> None:
    loaded = loaded_by(["clusters", "--help"])
    assert "torch" in loaded
    assert not loaded & set(HEAVY)


@pytest.mark.parametrize("module", ["mechclust.cli", "mechclust.cli_commands.list"])
def test_ctrl_c_while_packages_are_imported(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = builtins.__import__

    def interrupted(name: str, *more: Any) -> Any:
        if name == module:
            raise KeyboardInterrupt
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", interrupted)
    monkeypatch.setattr(cli, "import_module", interrupted)
    assert main(["list"]) == 130
    assert capsys.readouterr().err == "\nmechclust: interrupted; nothing had started\n"
