"""A disk that fills during a study: one sentence, and with more room the same command ends with the same bits."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mechclust.studies import configure, get_study, run_study

STUDY = get_study("task-clusters")
FIELDS = ["--arms", "private", "--training.steps", "4", "--no-tsne", "--n-permutations", "5"]
CHANGES = {"arms": ("private",), "training.steps": 4, "tsne": False, "n_permutations": 5}


def can_mount() -> bool:
    tried = ["unshare", "-m", "sh", "-c", "mount -t tmpfs tmpfs /mnt"]
    return os.getuid() == 0 and subprocess.run(tried, capture_output=True).returncode == 0


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.safetensors")}


@pytest.mark.timeout(300)
def test_a_full_disk_during_a_study(tmp_path: Path) -> None:
    out, before, after = (tmp_path / name for name in ("run", "before", "after"))
    out.mkdir()
    preset = ["--preset", "smoke", "--out", str(out), "--workers", "1"]
    command = shlex.join([sys.executable, "-m", "mechclust.cli", "run", "task-clusters", *preset, *FIELDS])
    keep = f"cp -a {shlex.quote(str(out))}"
    second = f"{keep} {before}; {command} > {tmp_path}/claims 2> {tmp_path}/second; echo second $?; {keep} {after}"
    place = shlex.quote(str(out))
    if can_mount():  # in a name space of its own, which ends with it
        script = (
            f"mount -t tmpfs -o size=200k tmpfs {place} || exit 9; {command} > {tmp_path}/claims 2> {tmp_path}/first; echo first $?; "
            f"mount -o remount,size=64m {place} || exit 9; {second}"
        )
        call, why = ["unshare", "-m", "sh", "-c", script], "No space left on device"
    else:  # no file may be longer than that
        call = ["sh", "-c", f"(ulimit -f 300; {command}) > {tmp_path}/claims 2> {tmp_path}/first; echo first $?; {second}"]
        why = "File too large"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(call, capture_output=True, text=True, env=environment)
    said = (tmp_path / "first").read_text()
    assert done.stdout.split() == ["first", "2", "second", "0"], said + (tmp_path / "second").read_text()
    assert "Traceback" not in said
    *_, sentence = said.strip().splitlines()
    assert sentence.startswith("mechclust: ")
    assert f"cannot write '{out}/models/private-seed0/" in sentence
    assert f"({why})" in sentence
    if why.startswith("No space"):
        assert sentence.endswith("make room there and give the same command again, what was written before is kept")
    assert not list(before.rglob("*.tmp"))

    kept, ended = contents(before), contents(after)
    assert len(kept) >= 3  # what was measured before the training
    assert {name: ended.get(name) for name in kept} == kept
    times = {name: (folder / name).stat().st_mtime_ns for folder in (before,) for name in kept}
    assert {name: (after / name).stat().st_mtime_ns for name in kept} == times
    run_study(STUDY, configure(STUDY.preset("smoke"), **CHANGES), tmp_path / "whole", workers=1)
    assert ended == contents(tmp_path / "whole")
