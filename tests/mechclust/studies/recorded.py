"""What every study must allow: its findings judged again where only the record of a run is left."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from mechclust.report.archive import pack_folder
from mechclust.studies.record import judge_again


def check_judged_again(out: Path, place: Path) -> None:
    """Judge a run's findings from a record of it, without the run's models, and compare them with the run's own."""
    record = place / "record"
    record.mkdir()
    shutil.copy(out / "config.json", record)
    (record / "results.tar.xz").write_bytes(pack_folder(out / "results"))
    assert len(judge_again(record)) > 0
    assert json.loads((record / "findings.json").read_text()) == json.loads((out / "findings.json").read_text())
