"""Weights that are cut off are found before the first model of several is measured."""

import json
import os
import shutil

import pytest

from mechclust.cli import main
from mechclust.models.resolved import resolve_model
from mechclust.models.whole_weights import check_whole_weights
from tasks import InputError


@pytest.mark.parametrize("size", [0, 4, 100, 5000])
def test_a_file_that_is_cut_off(gpt2, tmp_path, size):
    copy = shutil.copytree(gpt2, tmp_path / "copy")
    check_whole_weights([resolve_model(gpt2), resolve_model(copy), resolve_model("gpt2")])
    os.truncate(copy / "model.safetensors", size)
    with pytest.raises(InputError, match=r"model.safetensors' are damaged or cut off"):
        check_whole_weights([resolve_model(gpt2), resolve_model(copy)])


@pytest.mark.parametrize("command", ["history", "compare"])
def test_nothing_is_measured(gpt2, tmp_path, capsys, command):
    names = ("checkpoint-1", "checkpoint-2", "checkpoint-3")
    for name in names:
        shutil.copytree(gpt2, tmp_path / name)
    os.truncate(tmp_path / names[-1] / "model.safetensors", 2000)
    prompts = tmp_path / "prompts.jsonl"
    rows = [{"prompt": f"w{i % 7} w{i % 6}", "task": "ab"[i % 2]} for i in range(40)]
    prompts.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    models = [str(tmp_path)] if command == "history" else [str(tmp_path / name) for name in names[1:]]
    out = tmp_path / "out"
    assert main([command, *models, "--prompts", str(prompts), "--out", str(out)]) == 2
    assert "checkpoint-3/model.safetensors' are damaged or cut off" in capsys.readouterr().err
    assert not out.exists()
