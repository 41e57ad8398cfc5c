"""Measurements that are kept one by one."""

from pathlib import Path

import pytest
import torch

from mechclust.commands.parts import (
    MeasurementPart,
    merged_results,
    part_path,
    probe_part,
    remove_others,
    shard_rows,
)
from mechclust.commands.settings import EngineSettings
from probes import NDims, ProbeResult, residual, save_rows


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


def of_layer(folder: Path, layer: int, value: float) -> MeasurementPart:
    """A part that measures one layer, with a note."""
    site = f"blocks.{layer}.hook_resid_post"
    found = ProbeResult(
        "Demo",
        {"ari": torch.tensor([value])},
        {"ari": ("site",)},
        {"site": [site]},
        {site: layer},
        {"n": 7},
        [f"layer {layer} is constant"],
    )
    return MeasurementPart(folder / f"{layer}-{value}.safetensors", f"layer {layer}", lambda: found)


def test_a_probe_that_was_measured_holds_no_rows(model, batch, tmp_path):
    rows = save_rows(model, batch, tmp_path / "rows")
    probe = NDims(residual(0), form="rows")
    found = probe_part(tmp_path, "n_dims", probe, {"model": rows}).found()
    assert float(found["n"]) == len(batch)
    assert len(probe.rows) == 0


class TestGroups:
    @pytest.fixture
    def groups(self, tmp_path: Path) -> dict[str, list[MeasurementPart]]:
        return {
            "three": [of_layer(tmp_path, layer, 0.1 * layer) for layer in range(3)],
            "one": [of_layer(tmp_path, 4, 0.9)],
        }

    @pytest.mark.parametrize("notes", [True, False])
    def test_parts_of_a_group_are_merged(self, groups, tmp_path, notes):
        options = {"notes": True} if notes else {}  # the default
        found = merged_results(groups, EngineSettings(), tmp_path, "parts", metadata={"unit": "task"}, **options)
        assert found["three"]["ari"].tolist() == pytest.approx([0.0, 0.1, 0.2])
        assert list(found["three"].layers.values()) == [0, 1, 2]
        assert found["one"]["ari"].tolist() == pytest.approx([0.9])
        assert all(result.metadata == {"n": 7, "unit": "task"} for result in found.values())
        assert len(found["three"].notes) == 3 * notes
        assert len(found["one"].notes) == notes

    @pytest.mark.parametrize("progress", [True, False])
    def test_progress_is_shown_if_it_is_asked_for(self, groups, tmp_path, capsys, progress):
        merged_results(groups, EngineSettings(), tmp_path, "a title", metadata={}, progress=progress)
        assert ("a title" in capsys.readouterr().err) == progress


def test_the_file_of_a_part_is_named_by_all_that_it_depends_on(tmp_path):
    arrays = [torch.arange(3), torch.arange(4)]
    paths = {
        part_path(tmp_path, "cka", ["a", 1], arrays),
        part_path(tmp_path, "rbf", ["a", 1], arrays),
        part_path(tmp_path, "cka", ["a", 2], arrays),
        part_path(tmp_path, "cka", ["a", 1, None], arrays),
        part_path(tmp_path, "cka", ["a", 1], arrays[:1]),
        part_path(tmp_path, "cka", ["a", 1], [arrays[0], arrays[1] + 1]),
    }
    assert len(paths) == 6
    assert part_path(tmp_path, "cka", ["a", 1], arrays) in paths
    assert {path.parent for path in paths} == {tmp_path}
    assert {path.name.split("-")[0] for path in paths} == {"cka", "rbf"}


@pytest.mark.parametrize(
    ("n", "shared", "rows"),
    [(1, False, 128), (8192, False, 128), (8256, False, 129), (1, True, 32), (2048, True, 32), (12_800, True, 200)],
)
def test_shards_are_not_too_small_and_not_too_many(n, shared, rows):
    assert shard_rows(n, shared=shared) == rows


def test_measurements_of_other_settings_are_removed(tmp_path):
    for name in ("a.safetensors", "b.safetensors", "c.csv"):
        (tmp_path / name).touch()
    remove_others(tmp_path, {tmp_path / "a.safetensors"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.safetensors", "c.csv"]
