"""What a study measures, it measures once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mechclust.studies.kept import measure_once
from probes import ProbeResult
from tests.damage import WAYS


def result(value: float) -> ProbeResult:
    return ProbeResult("Demo", {"x": torch.tensor(value)}, {"x": ()}, {}, metadata={"n": 3})


def never() -> ProbeResult:
    raise AssertionError("measured again")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "x.safetensors"
    measure_once(path, lambda: result(1.0))
    return path


def test_is_measured_once(path: Path) -> None:
    found = measure_once(path, never)
    assert float(found["x"]) == 1
    assert found.metadata == {"n": 3}


@pytest.mark.parametrize("damage", WAYS)
def test_and_again_where_it_is_lost(path: Path, damage: object) -> None:
    before = path.read_bytes()
    damage(path)  # type: ignore[operator]
    measure_once(path, lambda: result(1.0))
    assert path.read_bytes() == before
