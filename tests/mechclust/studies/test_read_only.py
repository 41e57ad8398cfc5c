"""`mechclust report` on a folder that nobody may write to, and on one with a file in the way."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys

import pytest

from mechclust.cli import main


def test_report_on_a_read_only_folder_is_one_sentence(smoke_run, tmp_path):
    run = shutil.copytree(smoke_run[1], tmp_path / "run")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    command = shlex.join([sys.executable, "-m", "mechclust", "report", str(run)])
    if os.getuid():
        run.chmod(0o555)
    else:  # permissions do not hold root: a mount of its own does
        folder = shlex.quote(str(run))
        command = f"mount --bind {folder} {folder} && mount -o remount,ro,bind {folder} && {command}"
        if subprocess.run(["unshare", "-m", "sh", "-c", command.split(" && /")[0]], capture_output=True).returncode:
            pytest.skip("root may not mount here, and permissions do not hold it")
        command = f"unshare -m sh -c {shlex.quote(command)}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    *_, said = done.stderr.strip().splitlines()
    why = "Permission denied" if os.getuid() else "Read-only file system"
    assert said == (
        f"mechclust: cannot write to {str(run)!r} ({why}); make the folder writable, or report on a copy of it"
    )
    assert "Traceback" not in done.stderr
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_report_where_a_file_is_in_the_way(smoke_run, undrawn, tmp_path, capsys):
    run = shutil.copytree(smoke_run[1], tmp_path / "run")
    shutil.rmtree(run / "figures")
    (run / "figures").write_text("in the way")
    assert main(["report", str(run)]) == 2
    errors = capsys.readouterr().err
    *_, said = errors.strip().splitlines()
    assert said.startswith("mechclust: ")
    assert "figures" in said
    assert "Traceback" not in errors
