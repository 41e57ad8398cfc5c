"""Measurements that are kept one by one."""

from pathlib import Path

import pytest
import torch

from mechclust.commands.parts import MeasurementPart
from probes import ProbeResult
from tasks import InputError


def result(value: float) -> ProbeResult:
    return ProbeResult("Demo", {"ari": torch.tensor(value)}, {"ari": ()}, {})


class TestPart:
    def test_is_made_once_and_again_where_it_is_damaged(self, tmp_path):
        made: list[int] = []

        def measure() -> ProbeResult:
            made.append(1)
            return result(0.5)

        part = MeasurementPart(tmp_path / "a.safetensors", "a", measure)
        assert part.kept() is None
        assert float(part.found()["ari"]) == float(part.found()["ari"]) == 0.5
        assert len(made) == 1
        part.path.write_bytes(part.path.read_bytes()[:-1])
        assert float(part.found()["ari"]) == 0.5
        assert len(made) == 2

    def test_a_folder_in_its_place_is_refused(self, tmp_path):
        """Nothing could be written over it, so that every later run would measure again."""
        path = Path(tmp_path) / "a.safetensors"
        path.mkdir()
        with pytest.raises(InputError) as caught:
            MeasurementPart(path, "a", lambda: result(0.5)).found()
        assert str(caught.value) == (
            f"{str(path)!r} is a folder where a measurement is kept; remove it, or give another folder with --out"
        )
