"""No command overwrites a file that it did not write, and each refuses before any work."""

from __future__ import annotations

import pytest

from mechclust.cli import main

# Nothing that they name is there: a folder is refused before anything is read.
COMMANDS = {
    "clusters": ["clusters", "none", "--prompts", "none.jsonl"],
    "compare": ["compare", "none", "none", "--prompts", "none.jsonl"],
    "heads": ["heads", "none"],
    "history": ["history", "none", "--prompts", "none.jsonl"],
    "mossa": ["mossa", "none", "--tasks", "none", "--preset", "small"],
    "run": ["run", "task-clusters", "--preset", "smoke"],
    "topics": ["topics", "none", "--corpus", "none.txt"],
}


@pytest.mark.parametrize(
    ("command", "name"), [*((command, "report.html") for command in COMMANDS), ("heads", "figures/mine.png")]
)
def test_files_of_others_stay(command, name, tmp_path, capsys):
    path = tmp_path / "out" / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    assert main([*COMMANDS[command], "--out", str(tmp_path / "out")]) == 2
    assert repr(str(tmp_path / "out")) in capsys.readouterr().err
    assert [p.read_text() for p in (tmp_path / "out").rglob("*") if p.is_file() and p.name[0] != "."] == ["mine"]


@pytest.mark.parametrize(
    "command",
    ["heads gpt2 --corpus read", "topics bert --corpus read"],
)
@pytest.mark.parametrize("out", ["read", "read/deep/out", "link/out"])
def test_no_results_in_a_folder_that_is_read(command, out, tmp_path, capsys, monkeypatch):
    """They would be read the next time."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "read").mkdir()
    (tmp_path / "link").symlink_to("read")
    assert main([*command.split(), "--out", out]) == 2
    assert f"'{out}' lies in 'read', which is read; give another folder with --out" in capsys.readouterr().err
    assert list((tmp_path / "read").iterdir()) == []


@pytest.mark.parametrize(("suffix", "linked"), [(".html", False), (".png", False), (".gif", True)])
def test_the_sandbox_writes_a_new_file_only(suffix, linked, tmp_path, capsys):
    mine, out = tmp_path / f"mine{suffix}", tmp_path / f"out{suffix}"
    mine.write_text("mine")
    if linked:
        out.symlink_to(mine)
    else:
        out.write_text("mine")
    assert main(["sandbox", "none", "--out", str(out)]) == 2
    assert repr(str(out)) in capsys.readouterr().err
    assert out.is_symlink() == linked
    assert mine.read_text() == out.read_text() == "mine"
