"""A disk that fills during a study: one sentence, and with more room the same run ends with the same bits."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
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


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*.safetensors")
    }


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not can_mount(), reason="a small disk is mounted, which needs root")
def test_a_full_disk_during_a_study(tmp_path: Path) -> None:
    out, before, after = (tmp_path / name for name in ("run", "before", "after"))
    out.mkdir()
    preset = ["--preset", "smoke", "--out", str(out), "--workers", "1"]
    command = shlex.join([sys.executable, "-m", "mechclust", "run", "task-clusters", *preset, *FIELDS])
    begun = f"[ $(ls {out}/results/*/*.safetensors | wc -l) -ge 3 ]"
    fill = f"(until {begun}; do sleep .01; done; cat /dev/zero > {out}/other) 2> /dev/null &"
    run = f"{fill} {command} 2> {tmp_path}/said; echo $?; rm {out}/other; cp -a {out} {before}"
    # in a name space of its own, which ends with it; with less than 1 MiB nothing would begin
    call = ["unshare", "-m", "sh", "-c", f"mount -t tmpfs -o size=1300k tmpfs {out} || exit 9; {run}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(call, capture_output=True, text=True, env=environment)
    said = (tmp_path / "said").read_text()
    assert done.stdout == "2\n", said
    assert "Traceback" not in said
    *_, sentence = said.strip().splitlines()
    assert sentence.startswith("mechclust: ")
    assert f"cannot write '{out}/" in sentence
    assert "(No space left on device)" in sentence
    assert sentence.endswith("free space there and run the same command again (what was already written is kept)")
    assert not list(before.rglob("*.tmp"))

    config = configure(STUDY.preset("smoke"), **CHANGES)
    run_study(STUDY, config, shutil.copytree(before, after), workers=1)  # the same, where there is room
    # On a busy machine the disk fills after some steps, and the training's state moves on with the later ones.
    kept = {name: digest for name, digest in digests(before).items() if not name.endswith("state.safetensors")}
    ended = digests(after)
    assert len(kept) >= 3
    assert {name: ended.get(name) for name in kept} == kept
    for job in STUDY.jobs(config):
        STUDY.run_job(config, job, tmp_path / "whole")
    assert ended == digests(tmp_path / "whole")
