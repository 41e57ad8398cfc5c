"""A full disk or a folder that cannot be written is told before work starts, by every command that writes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from mechclust.cli import main
from mechclust.command_table import COMMANDS
from mechclust.report.folder import check_writable
from tasks import InputError


class Full:
    """An empty file can be made on a full disk; nothing can be written to it."""

    def __enter__(self) -> Full:
        return self

    def __exit__(self, *_: Any) -> None:
        return None

    def write(self, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def commands(folder: Path) -> dict[str, list[str]]:
    prompts = folder / "prompts.jsonl"
    prompts.write_text('{"prompt": "a b", "task": "x"}\n{"prompt": "b a", "task": "y"}\n')
    (folder / "texts.txt").write_text("a b c\n" * 9)
    own = ["--out", str(folder / "out")]
    return {
        "clusters": ["clusters", "no-model", "--prompts", str(prompts), *own],
        "compare": ["compare", "no-model", "no-other", "--prompts", str(prompts), *own],
        "history": ["history", "no-model", "--revisions", "step0", "step1", "--prompts", str(prompts), *own],
        "topics": ["topics", "no-model", "--corpus", str(folder / "texts.txt"), *own],
        "heads": ["heads", "no-model", *own],
        "mossa": ["mossa", "no-model", "--tasks", str(folder), *own],
        "run": ["run", "task-clusters", "--preset", "smoke", *own],
        "sandbox": ["sandbox", str(folder), "--out", str(folder / "out.html")],
        "report": ["report", str(folder), "--record", str(folder / "out")],
    }


NAMES = ("clusters", "compare", "history", "topics", "heads", "mossa", "run", "sandbox", "report")


def test_these_are_all_commands_that_write(tmp_path: Path) -> None:
    """``check`` and ``list`` only print."""
    assert set(NAMES) == set(commands(tmp_path))
    assert {name.split()[0] for name in NAMES} == set(COMMANDS) - {"check", "list"}


@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk_is_told_before_anything_is_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = commands(tmp_path)[name]
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Full())
    assert main(argv) == 2
    said = capsys.readouterr()
    assert said.err.startswith("mechclust: cannot write to ")
    assert "(No space left on device); " in said.err
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert sorted(tmp_path.iterdir()) == before


def test_what_can_be_written_leaves_nothing(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "deep")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write to '.*file/out' \(Not a directory\); choose another folder"):
        check_writable(tmp_path / "file" / "out")


def test_a_full_output_is_said_in_one_sentence() -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run([sys.executable, "-m", "mechclust", "list"], stdout=full, stderr=subprocess.PIPE)
    assert ended.returncode == 2
    assert ended.stderr.decode().splitlines() == [
        "mechclust: standard output cannot be written (No space left on device); write it to another place"
    ]


@pytest.mark.slow
def test_a_closed_output_is_no_error() -> None:
    ended = subprocess.run(f"{sys.executable} -m mechclust list >&-", shell=True, stderr=subprocess.PIPE)
    assert (ended.returncode, ended.stderr) == (0, b"")
