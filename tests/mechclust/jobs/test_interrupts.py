"""Ctrl-C many times and fast, as an impatient hand gives it: to all processes of the terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_fast_repeated_ctrl_c_prints_no_traceback_and_leaves_no_worker(tmp_path):
    touch = f"__import__('pathlib').Path({str(tmp_path)!r}, str(__import__('os').getpid())).touch()"
    job = f"[{touch}, __import__('time').sleep(500)]"
    script = tmp_path / "driver.py"
    script.write_text(
        "import sys\n"
        "from mechclust import cli\n"
        "from mechclust.jobs import map_jobs\n"
        f"cli.app.cli = lambda **options: map_jobs(eval, [{job!r}] * 2, 2, progress='all jobs')\n"
        "if __name__ == '__main__':\n"
        "    sys.exit(cli.main(['list']))\n"
    )
    process = subprocess.Popen(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    begin = time.monotonic()
    while not any(path.name.isdigit() for path in tmp_path.iterdir()):  # the second may still be starting
        assert time.monotonic() - begin < 120
        assert process.poll() is None
        time.sleep(0.05)
    signals = 0
    while process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        signals += 1
        time.sleep(0.002)
    said = process.communicate()[0]
    assert signals > 3
    assert "Traceback" not in said
    assert said.endswith("mechclust: interrupted\n")
    assert process.returncode == 130
    for path in tmp_path.iterdir():
        assert not (path.name.isdigit() and Path(f"/proc/{path.name}").exists())
