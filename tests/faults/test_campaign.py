"""The campaign finds what it is for, and a small part of it runs with the slow tests."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.faults import damage, kinds, texts
from tests.faults.__main__ import main, table
from tests.faults.bits import bits, other
from tests.faults.process import Ended, Failed, Process, python, run, sentence
from tests.mechclust.browser import find_browser, need_browser

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_part_of_it_survives() -> None:
    """Rows that are killed while they are saved, whose disk is full, whose files are damaged."""
    asked = [
        "--round",
        "small",
        "--kinds",
        "kills",
        "disks",
        "damage",
        "owners",
        "--only",
        ": save_rows",
        "--jobs",
        "1",
    ]
    done = subprocess.run([sys.executable, "-m", "tests.faults", *asked], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| all | 5 | " in done.stdout
    assert "seed 16, " in done.stdout


def test_names_of_trials_are_distinct_and_need_no_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    for size in ("small", "full"):
        assert main(["--list", "--round", size]) == 0
        names = capsys.readouterr().out.splitlines()
        assert len(set(names)) == len(names)
        assert not any(sign in name for name in names for sign in "'\"$`\\")
    assert {name.split(":")[0] for name in names} == set(kinds.TITLES)


def test_the_table_counts_by_kind() -> None:
    found = [(kinds.TITLES[0], "same bits")] * 3 + [(kinds.TITLES[0], "failed"), (kinds.TITLES[1], "refused")]
    assert table(found).splitlines()[2:] == [
        f"| {kinds.TITLES[0]} | 4 | 3 | 0 | 1 |",
        f"| {kinds.TITLES[1]} | 1 | 0 | 1 | 0 |",
        "| all | 5 | 3 | 1 | 1 |",
    ]


# ---- bits ----


def write(folder: Path) -> None:
    folder.mkdir()
    save_file({"a": torch.arange(4.0), "b": torch.zeros(2)}, folder / "x.safetensors", {"n": "1"})
    (folder / "config.json").write_text('{"seed": 0, "machine": {"date": "2026-01-01"}}')
    (folder / "report.html").write_text("made 2026-01-01 prompt-map-0123456789ab <b>0.5</b>")
    (folder / ".mechclust.lock").touch()


@pytest.mark.parametrize(
    ("name", "before", "after", "differs"),
    [
        ("config.json", '"seed": 0', '"seed": 1', "config.json has other bits"),
        ("config.json", "2026-01-01", "2026-01-02", ""),
        ("report.html", "0.5", "0.6", "report.html has other bits"),
        ("report.html", "0123456789ab", "ba9876543210", ""),
        ("x.safetensors", '"n":"1"', '"n":"2"', "x.safetensors has other bits"),
        (".config.json.host.1.tmp", "", "half", "has .config.json.host.1.tmp besides"),
    ],
)
def test_bits_that_are_compared(tmp_path: Path, name: str, before: str, after: str, differs: str) -> None:
    write(tmp_path / "a")
    write(tmp_path / "b")
    assert other(bits(tmp_path / "b"), bits(tmp_path / "a")) == ""
    path = tmp_path / "b" / name
    data = path.read_bytes() if path.exists() else b""
    path.write_bytes(data.replace(before.encode(), after.encode()) if before else after.encode())
    assert other(bits(tmp_path / "b"), bits(tmp_path / "a")) == differs


def test_a_lost_file_and_a_flipped_number_differ(tmp_path: Path) -> None:
    write(tmp_path / "a")
    write(tmp_path / "b")
    save_file({"a": torch.arange(4.0), "b": torch.tensor([0.0, -0.0])}, tmp_path / "b" / "x.safetensors", {"n": "1"})
    (tmp_path / "b" / "config.json").unlink()
    assert other(bits(tmp_path / "b"), bits(tmp_path / "a")) == "lacks config.json; x.safetensors has other bits"


# ---- processes ----


def test_a_killed_process_has_its_signal_as_code(tmp_path: Path) -> None:
    process = Process(lambda: time.sleep(60), tmp_path)
    assert process.after(0.1)
    assert process.kill(group=True).code == -signal.SIGKILL


def test_a_process_that_hangs_is_found(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="hangs"):
        Process(lambda: time.sleep(60), tmp_path).wait(0.2)


def test_a_refusal_is_one_sentence(tmp_path: Path) -> None:
    from tasks import InputError

    def refuse() -> None:
        raise InputError("x is y; give z")

    assert sentence(run(python(refuse), tmp_path)) == "x is y; give z"
    with pytest.raises(Failed, match="Traceback"):
        sentence(run(python(lambda: 1 / 0), tmp_path))
    with pytest.raises(Failed, match="0 sentences"):
        sentence(Ended(2, b"", b"no mechclust here", 0))


# ---- what the sentences say, followed ----


def test_ways_out_are_followed(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").touch()
    assert damage.follow("'out/a' is damaged; delete it and run the same command again", tmp_path) == "deleted"
    assert not (tmp_path / "out" / "a").exists()
    assert damage.follow("'out' is another; give another folder with --out", tmp_path) == "elsewhere"
    with pytest.raises(Failed, match="nothing to delete"):
        damage.follow("'out/a' is damaged; delete it", tmp_path)
    with pytest.raises(Failed, match="no way out"):
        damage.follow("'out/a' is damaged; we are sorry", tmp_path)


@pytest.mark.parametrize("kind", damage.DAMAGES)
def test_a_damage_damages(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    damage.apply(kind, path, random.Random(0))
    assert not path.is_file() or path.read_bytes() != bytes(100)


def test_a_formula_is_found_and_a_number_is_none(tmp_path: Path) -> None:
    table = tmp_path / "x.csv"
    table.write_text("task,value\n'=1+2,-0.5\n")
    texts.check_cells(table)
    table.write_text("task,value\n=1+2,-0.5\n")
    with pytest.raises(Failed, match="formula"):
        texts.check_cells(table)


@pytest.mark.browser
def test_a_script_is_found_in_the_browser(tmp_path: Path) -> None:
    need_browser()
    page = tmp_path / "page.html"
    page.write_text("<p>&lt;script&gt;window.hacked = 1&lt;/script&gt;</p>")
    texts.check_pages([page])
    for bad in ("<script>window.hacked = 1</script>", "<p onmouseover='window.hacked = 1'>", "<img src=http://a.b/c>"):
        page.write_text(bad)
        with pytest.raises(Failed):
            texts.check_pages([page])


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_missing_browser_is_a_failure_in_ci(
    ci: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setenv("CI", ci)
    assert find_browser() is None
    with pytest.raises(outcome, match="no chromium or no playwright: apt-get install"):
        need_browser()
    with pytest.raises(Failed, match="no chromium or no playwright"):
        texts.check_pages([tmp_path / "page.html"])


def test_nothing_of_the_campaign_is_left() -> None:
    assert not [name for name in os.listdir("/tmp") if name.startswith(f"mechclust-mount-{os.getpid()}")]


def test_the_page_has_a_row_for_each_kind() -> None:
    page = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    recorded = page.partition("<!-- recorded: make faults -->\n")[2].partition("<!-- end -->")[0]
    assert [row.split("|")[1].strip() for row in recorded.splitlines()[2:] if row.startswith("|")] == [
        *kinds.TITLES,
        "all",
    ]
