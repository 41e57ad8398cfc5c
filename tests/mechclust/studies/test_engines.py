"""Every study gives the same bits in this process and on a cluster of two nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mechclust.jobs import Ray
from mechclust.studies import list_studies, run_study

_KEPT = ("models", "results")


def files(out: Path) -> dict[str, bytes]:
    """What a run has measured, by name."""
    found = {str(path.relative_to(out)): path for kind in _KEPT for path in (out / kind).rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in [*found.items(), ("findings.json", out / "findings.json")]}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("study", list_studies(), ids=lambda study: study.name)
def test_smoke_preset_on_ray(study: Any, nodes: Any, tmp_path: Path) -> None:
    config = study.preset("smoke")
    here = run_study(study, config, tmp_path / "here", workers=1)
    there = run_study(study, config, tmp_path / "there", engine=Ray(nodes.address))
    expected, found = files(tmp_path / "here"), files(tmp_path / "there")
    assert sorted(found) == sorted(expected)
    assert [name for name in expected if found[name] != expected[name]] == []
    assert repr(there.findings) == repr(here.findings)  # nan is nan
    assert len(expected) > 4
