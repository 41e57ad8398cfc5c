"""On a Ray cluster, whose processes run in another folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.faults.bits import bits, other
from tests.mechclust.commands.mossa import tiny


@pytest.mark.cluster
def test_paths_that_are_relative_to_the_callers_folder(result, base, tasks, out, tmp_path, nodes, monkeypatch):
    shutil.copytree(base, tmp_path / "base")
    shutil.copytree(tasks, tmp_path / "tasks")
    monkeypatch.chdir(tmp_path)
    tiny.run(Path("base"), Path("tasks"), Path("run"), svcca=True, engine="ray", address=nodes.address)
    assert other(bits(tmp_path / "run" / "results"), bits(out / "results")) == ""
