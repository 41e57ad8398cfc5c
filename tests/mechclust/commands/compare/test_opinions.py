"""Second opinions: what they measure, and their switches and caps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mechclust.commands.compare import compare_models
from mechclust.commands.sampling import draw_prompts, drawn_of_each
from probes import CKA, load_result
from tests.mechclust.commands.compare.cases import TASKS


def test_without_the_largest_component(gpt2, shaken, apart, out, together):
    result = compare_models(str(gpt2), str(shaken), apart, out)
    values = together(CKA(label="task", remove_top=1))["debiased_cka"]
    table = result.to_dataframe()
    for k, task in enumerate(TASKS, 1):
        rows = table[table["task"] == task]
        assert rows["without_top_pc"].tolist() == pytest.approx(values[:, k].tolist(), abs=1e-5, nan_ok=True)
    assert table.loc[table["task"] == "(all)", "without_top_pc"].isna().all()
    assert any("without the largest principal component" in reading.verdict for reading in result.readings)


def test_table(measured):
    table = measured.tables["second_opinions"]
    by_task = measured.to_dataframe()
    assert set(table["measure"]) == {"debiased_cka", "rbf_cka", "without_top_pc"}
    row = table[(table["layer"] == 2) & (table["measure"] == "rbf_cka")].iloc[0]
    values = by_task[(by_task["layer"] == 2) & (by_task["task"] != "(all)")]
    assert (row["tasks"], row["n_least"], row["n_most"]) == (3, 12, 12)
    assert row["median"] == pytest.approx(values["rbf_cka"].median())
    assert row["differs"] == pytest.approx((values["rbf_cka"] - values["debiased_cka"]).median())


def test_all_off(gpt2, shaken, config, out):
    off = replace(config, blocks=False, n_patched=0, rbf=False, top_pc=False, n_dims=False, purity=False)
    result = compare_models(str(gpt2), str(shaken), off, out)
    assert result.opinions == {}
    assert (result.n_dims, result.purity) == (None, None)
    assert sorted(path.name for path in (out / "results").iterdir()) == ["cka.safetensors"]
    assert not {"rbf_cka", "without_top_pc"} & set(result.to_dataframe())
    page = result.write(out).read_text()
    assert "second opinion" not in page.lower()
    assert "Hidden states of each model by layer" not in page
    assert "second_opinions" not in result.tables


def test_caps(gpt2, shaken, apart, out, together):
    """Of eight prompts a task, drawn by their place: the same as of these prompts alone."""
    caps = dict.fromkeys(("rbf_prompts", "top_pc_prompts", "n_dims_prompts", "purity_prompts"), 8)
    result = compare_models(str(gpt2), str(shaken), replace(apart, rbf=True, **caps), out)
    for name in result.opinions:
        assert getattr(result, name)["n"].tolist() == [8, 8, 8]
        assert load_result(out / "results" / f"{name}.safetensors")["n"].tolist() == [8, 8, 8]
    assert result.n_dims["n"].tolist() == [24, 8, 8, 8]
    assert result.purity.metadata["n_asked"] == 8
    assert result.cka["n"].tolist() == [36, 12, 12, 12]
    whole = compare_models(str(gpt2), str(shaken), replace(apart, rbf=True), out)
    assert not torch.equal(whole.rbf["debiased_rbf_cka"][2], result.rbf["debiased_rbf_cka"][2])
    assert whole.rbf["n"].tolist() == [12, 12, 12]
    said = result.caveats
    assert any("Gaussian kernels (debiased). Prompts per task: at most 8." in sentence for sentence in result.sentences)
    assert "Prompts of second opinions are chosen by their position in the file." in said
    assert "Dimensions are of 24 of 36 prompts, chosen by their position in the file." in said
    assert "Nearest neighbours were found for 8 prompts, among all of them." in said
    row = result.tables["second_opinions"].set_index(["layer", "measure"]).loc[(2, "rbf_cka")]
    assert (row["n_least"], row["n_most"]) == (8, 8)


def test_what_is_drawn():
    of_task = {"a": torch.arange(0, 50, 2), "b": torch.arange(1, 9, 2)}
    some = drawn_of_each(of_task, 10)
    assert some["a"].tolist() == draw_prompts(of_task["a"], 10).tolist()
    assert some["b"].tolist() == of_task["b"].tolist()
    assert set(drawn_of_each(of_task, 5)["a"].tolist()) < set(some["a"].tolist())
    assert drawn_of_each(of_task, None) is of_task
    assert drawn_of_each(of_task, 25) is of_task
