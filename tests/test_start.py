"""The command before its packages are imported."""

from __future__ import annotations

import builtins
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mechclust_start
from mechclust.cli import _COMMANDS, _DESCRIPTION

ROOT = Path(mechclust_start.__file__).parent


@pytest.mark.parametrize("argv", [[], ["-h"], ["--help"]])
def test_help_names_every_command(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert mechclust_start.main(argv) == 0
    said = capsys.readouterr().out
    listed = [line.split()[0] for line in said.splitlines() if line[:2] == "  " and line[2] != " "]
    assert sorted(listed) == sorted(_COMMANDS)
    assert mechclust_start._ABOUT in said
    assert mechclust_start._ABOUT in _DESCRIPTION
    assert max(map(len, said.splitlines())) <= mechclust_start._WIDTH


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, mechclust_start; mechclust_start.main(['--help']); "
        "assert not {'torch', 'mechclust', 'probes', 'tasks', 'tyro'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True)


def test_ctrl_c_while_packages_are_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = builtins.__import__

    def interrupted(name: str, *more: Any) -> Any:
        if name == "mechclust.cli":
            raise KeyboardInterrupt
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", interrupted)
    assert mechclust_start.main(["list"]) == 130
    assert capsys.readouterr().err == "\nmechclust: interrupted; nothing had started\n"
