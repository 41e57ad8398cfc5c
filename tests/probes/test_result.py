from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from probes import ProbeResult
from probes.result import read_safetensors, write_atomic
from tasks import InputError


@pytest.fixture
def result() -> ProbeResult:
    return ProbeResult(
        probe="Demo",
        values={
            "ari": torch.tensor([[0.1, 0.2], [0.3, math.nan]], dtype=torch.float64),
            "n": torch.tensor(7),
            "label": torch.tensor([2, 5, 1]),
        },
        axes={"ari": ("site", "label"), "n": (), "label": ("example",)},
        coords={"site": ["hook_embed", "blocks.0.hook_z"], "label": ["task", "output"], "example": ["0", "1", "8"]},
        layers={"hook_embed": 0, "blocks.0.hook_z": 1},
        metadata={"n": 3, "versions": {"torch": "2"}},
        notes=["'ari' is NaN: <one> class & no more"],
    )


def test_a_measure_that_does_not_fit_its_axes_is_refused() -> None:
    message = "'ari' has shape (2,); expected (3,) for axes ('site',)"
    with pytest.raises(InputError, match=re.escape(message)):
        ProbeResult("Demo", {"ari": torch.zeros(2)}, {"ari": ("site",)}, {"site": ["a", "b", "c"]})


def test_a_missing_measure_is_told_with_those_that_exist(result: ProbeResult) -> None:
    assert result["n"] == 7
    with pytest.raises(KeyError, match=r"no measure 'p' in this Demo result \(it has ari, n, label\)"):
        result["p"]


def test_sel_takes_named_coordinates(result: ProbeResult) -> None:
    assert result.sel("ari", label="task").tolist() == [0.1, 0.3]
    assert result.sel("ari", site="hook_embed").tolist() == [0.1, 0.2]
    assert float(result.sel("ari", label="output", site="hook_embed")) == 0.2
    assert torch.equal(result.sel("label"), result["label"])


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ({"label": "skill"}, "no label 'skill' in 'ari' (it has task, output)"),
        ({"head": "1"}, "no head '1' in 'ari' (it has axes site, label)"),
    ],
)
def test_sel_tells_what_there_is(result: ProbeResult, at: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        result.sel("ari", **at)


def test_sel_tells_the_axes_of_the_measure(result: ProbeResult) -> None:
    with pytest.raises(InputError, match=r"no example '8' in 'ari' \(it has axes site, label\)"):
        result.sel("ari", example="8")


def test_a_dataframe_has_one_row_a_number(result: ProbeResult) -> None:
    frame = result.to_dataframe()
    assert list(frame.columns) == ["probe", "measure", "site", "layer", "label", "example", "value"]
    assert len(frame) == 4 + 1 + 3
    row = frame[(frame.measure == "ari") & (frame.label == "task") & (frame.site == "blocks.0.hook_z")].iloc[0]
    assert (row["probe"], row["layer"], row["value"]) == ("Demo", 1, 0.3)
    assert math.isnan(frame[(frame.label == "output") & (frame.layer == 1)].value.iloc[0])
    assert frame[frame.measure == "label"].value.tolist() == [2, 5, 1]
    assert frame[frame.measure == "label"].site.isna().all()


def test_a_notebook_shows_the_table_and_the_notes_escaped(result: ProbeResult) -> None:
    html = result._repr_html_()
    assert "<table" in html
    assert "&lt;one&gt; class &amp; no more" in html


def test_save_and_load_keep_everything(result: ProbeResult, tmp_path: Path) -> None:
    path = tmp_path / "new" / "result.safetensors"
    result.save(path)
    loaded = ProbeResult.load(path)
    assert loaded.values.keys() == result.values.keys()
    for name, tensor in result.values.items():
        assert loaded[name].dtype == tensor.dtype
        torch.testing.assert_close(loaded[name], tensor, rtol=0, atol=0, equal_nan=True)
    for name in ("probe", "axes", "coords", "layers", "metadata", "notes"):
        assert getattr(loaded, name) == getattr(result, name)


def test_views_can_be_saved(tmp_path: Path) -> None:
    both = torch.arange(6.0).reshape(2, 3)
    values, axes = {"all": both, "turned": both.T}, {"all": ("a", "b"), "turned": ("b", "a")}
    ProbeResult("Demo", values, axes, {"a": ["0", "1"], "b": ["x", "y", "z"]}).save(tmp_path / "r")
    assert torch.equal(ProbeResult.load(tmp_path / "r")["turned"], both.T)


def test_files_that_are_no_result_are_refused(result: ProbeResult, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no file '.*none'; give the path of a safetensors file"):
        ProbeResult.load(tmp_path / "none")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(InputError, match=r"text' is truncated or not a safetensors file"):
        ProbeResult.load(tmp_path / "text")
    result.save(tmp_path / "result")
    (tmp_path / "half").write_bytes((tmp_path / "result").read_bytes()[:-8])
    with pytest.raises(InputError, match=r"half' is truncated or not a safetensors file"):
        ProbeResult.load(tmp_path / "half")
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(1)}, tmp_path / "other")
    assert read_safetensors(tmp_path / "other")[1] == {}
    with pytest.raises(InputError, match=r"other' is not a probe result; expected a file from ProbeResult.save"):
        ProbeResult.load(tmp_path / "other")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomic(tmp_path / "file", b"old")

    def full_disk(descriptor: int) -> Any:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="no space"):
        write_atomic(tmp_path / "file", b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"
