"""The second opinion: what it measures, and its switch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mechclust.commands.compare import compare_models
from mechclust.commands.sampling import draw_prompts, drawn_of_each, prompts_at
from probes import CKA
from tasks import LabelledPrompts
from tests.mechclust.commands.compare.cases import TASKS


def test_without_the_largest_component(measured, together):
    values = together(CKA(label="task", remove_top=1))["debiased_cka"]
    table = measured.to_dataframe()
    for k, task in enumerate(TASKS, 1):
        rows = table[table["task"] == task]
        assert rows["without_top_pc"].tolist() == pytest.approx(values[:, k].tolist(), abs=1e-5, nan_ok=True)
    assert table.loc[table["task"] == "(all)", "without_top_pc"].isna().all()
    assert any("without the largest principal component" in reading.verdict for reading in measured.readings)


def test_all_off(gpt2, shaken, config, out, undrawn):
    off = replace(config, blocks=False, n_patched=0, top_pc=False, map_prompts=0)
    result = compare_models(str(gpt2), str(shaken), off, out)
    assert result.without_top_pc is None
    assert sorted(path.name for path in (out / "results").iterdir()) == ["cka.safetensors"]
    assert "without_top_pc" not in result.to_dataframe()
    page = result.write(out).read_text()
    assert "second opinion" not in page.lower()
    assert result.planes is None
    assert "prompt-map" not in page
    assert "Base and tuned</h2>" not in page


def test_what_is_drawn():
    of_task = {"a": torch.arange(0, 50, 2), "b": torch.arange(1, 9, 2)}
    some = drawn_of_each(of_task, 10)
    assert some["a"].tolist() == draw_prompts(of_task["a"], 10).tolist()
    assert some["b"].tolist() == of_task["b"].tolist()
    assert set(drawn_of_each(of_task, 5)["a"].tolist()) < set(some["a"].tolist())
    assert drawn_of_each(of_task, None) is of_task
    assert drawn_of_each(of_task, 25) is of_task
    prompts = LabelledPrompts(["a", "b", "c"], {"task": ["x", "y", "z"]}, "file")
    assert prompts_at(prompts, [0, 2]) == LabelledPrompts(["a", "c"], {"task": ["x", "z"]}, "file, 2 prompts drawn")
    assert prompts_at(prompts, range(3)).source == "file"


def test_units_are_drawn_in_turn():
    """Of 8 units with 25 prompts each, 32 prompts are 4 of each. Without units, some tasks would lack one."""
    unit = np.arange(4000) // 25
    for start in range(0, 4000, 200):
        index = torch.arange(start, start + 200)
        some = draw_prompts(index, 32, unit[start : start + 200])
        assert np.unique(unit[some], return_counts=True)[1].tolist() == [4] * 8
        assert torch.equal(some, drawn_of_each({"a": index}, 32, unit)["a"])
        fewer = draw_prompts(index, 8, unit[start : start + 200])
        assert set(fewer.tolist()) < set(some.tolist())
    alone = torch.arange(50)
    assert torch.equal(draw_prompts(alone, 10, np.arange(50)), draw_prompts(alone, 10))
    assert draw_prompts(torch.arange(9), 8, np.array([0] * 8 + [1])).tolist()[-1] == 8
