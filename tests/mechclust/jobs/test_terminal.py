"""Bars on a real terminal, of local workers and of a cluster's: they are drawn, closed, and leave nothing behind."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios
from typing import Any

from tests.mechclust.jobs.test_sharded import ROOT

CODE = """
import sys
from pathlib import Path
from mechclust.jobs import Ray, progress, run_sharded, save_rows_sharded
from probes import NDims
from tests.mechclust.jobs.test_sharded import WHOLE, one

if __name__ == "__main__":
    assert sys.stderr.isatty()
    out = Path(sys.argv[2])
    for engine in ("local", Ray(sys.argv[1])):
        name, given = str(len(str(engine))), {"engine": engine, "workers": 1, "timeout": 100, "progress": True}
        run_sharded(one, WHOLE.split(45), NDims(), out=out / f"states{name}", shard_examples=45, **given)
        save_rows_sharded(one, WHOLE.split(45), out / f"rows{name}", **given)
        assert progress._make is progress.tqdm, "bars stay placed"
    assert not list(out.rglob(".*.tmp")), "a token stays"
    print("all done")
"""


def test_bars_in_a_real_terminal(nodes: Any, tmp_path: Any) -> None:
    script = tmp_path / "script.py"
    script.write_text(CODE)
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, (24, 80))
    process = subprocess.Popen(
        [sys.executable, script, nodes.address, tmp_path / "out"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    said = b""
    while True:
        try:
            data = os.read(ours, 4096)
        except OSError:  # its end
            break
        said += data
    os.close(ours)
    text = said.decode(errors="replace")
    assert process.wait() == 0, text
    assert "all done" in text
    assert text.count("measuring") >= 2
    assert text.count("saving rows") >= 2
