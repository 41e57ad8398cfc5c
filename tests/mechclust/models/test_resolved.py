"""A model as a caller gave it, and notes on its adapter, without weights."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

from mechclust.models.adapter_fit import adapter_fit_notes
from mechclust.models.resolved import ResolvedModel, resolve_model


def adapters(folder: Path, n: int) -> list[str]:
    """The folders of adapters that name a base."""
    named = []
    for i in range(n):
        path = folder / f"a{i}"
        path.mkdir()
        (path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "meta/other"}))
        named.append(str(path))
    return named


def test_paths_are_valid_in_other_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("base", "lora"):
        Path(name).mkdir()
    assert ResolvedModel("base", "lora").portable == ResolvedModel(str(tmp_path / "base"), str(tmp_path / "lora"))
    assert ResolvedModel("org/name").portable == ResolvedModel("org/name")


def test_the_base_of_an_adapter_is_found_in_other_folders(tmp_path, monkeypatch):
    (named,) = adapters(tmp_path, 1)
    monkeypatch.chdir(tmp_path)
    assert resolve_model(named).portable.base == "meta/other"  # of the hub
    (tmp_path / "meta" / "other").mkdir(parents=True)
    model = resolve_model("a0").portable
    (tmp_path / "elsewhere" / "meta" / "other").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "elsewhere")
    for portable in (model, model.portable, pickle.loads(pickle.dumps(model))):
        assert portable.base == str(tmp_path / "meta" / "other")
        assert portable.folders == [named, portable.base]


def test_three_adapters_of_another_base_are_named_and_others_counted(tmp_path):
    given = adapters(tmp_path, 5)
    (note,) = adapter_fit_notes([ResolvedModel("here/base", adapter) for adapter in given])
    assert note.startswith(f"The adapters {', '.join(map(repr, given[:3]))} and 2 more say that")
    (note,) = adapter_fit_notes([ResolvedModel("here/base", adapter) for adapter in given[:3]])
    assert note.startswith(f"The adapters {', '.join(map(repr, given[:3]))} say that")
