"""What a study keeps is of the models that it has."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from mechclust.studies.kept import load_if_current, measure_once
from probes import ProbeResult, load_result
from tests.damage import WAYS


def result(value: float) -> ProbeResult:
    return ProbeResult("Demo", {"x": torch.tensor(value)}, {"x": ()}, {}, metadata={"n": 3})


def never() -> ProbeResult:
    raise AssertionError("measured again")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "x.safetensors"
    measure_once(path, lambda: result(1.0), {"a": "3fa", "b": "9bc"})
    return path


def test_is_measured_once(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = measure_once(path, never, {"b": "9bc", "a": "3fa"})
    assert float(found["x"]) == 1
    assert found.metadata == {"n": 3, "model": {"a": "3fa", "b": "9bc"}}


@pytest.mark.parametrize("damage", WAYS)
def test_and_again_where_it_is_lost(path: Path, damage: object) -> None:
    before = path.read_bytes()
    damage(path)  # type: ignore[operator]
    measure_once(path, lambda: result(1.0), {"a": "3fa", "b": "9bc"})
    assert path.read_bytes() == before


@pytest.mark.parametrize("model", ["3fa", {"a": "3fa", "b": "000"}, {"a": "3fa"}], ids=str)
def test_and_again_of_another_model(path: Path, model: str | dict[str, str]) -> None:
    with pytest.warns(UserWarning, match="measured again") as warned:
        assert load_if_current(path, model) is None
    assert str(warned[0].message) == (
        f"{str(path)!r} was measured on another model than the present one; it is measured again"
    )
    with pytest.warns(UserWarning, match="measured again"):
        measure_once(path, lambda: result(2.0), model)
    assert float(load_result(path)["x"]) == 2
    assert float(measure_once(path, never, model)["x"]) == 2
