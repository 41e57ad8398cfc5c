"""A user's own base and tuned model: what tuning changed is found, task by task, and nothing where nothing changed."""

from __future__ import annotations

import copy
import csv
import json
import os
import shutil
import subprocess
import sys
import weakref
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import mechclust.commands.compare.measure
from mechclust.cli import main
from mechclust.commands.compare import CompareConfig, compare_models, write_compare_report
from mechclust.commands.compare.inputs import read_inputs
from mechclust.commands.compare.report import what_to_know
from mechclust.commands.compare.result import CompareResult, ranges, standing_out
from mechclust.models import load_pretrained, save_model
from mechclust.models.tokenizers import check_read_alike
from probes import CKA, RBFCKA, RowStore, load_result, mean, run
from probes.functional import linear_cka
from tasks import InputError, LabelledPrompts

TASKS = ("a", "b", "c")


def records(tasks=TASKS, n=12):
    """The last word is the task's, as a common suffix would be."""
    return [{"prompt": f"w{i % 4} w{4 + i // 4} w{10 + k}", "task": t} for k, t in enumerate(tasks) for i in range(n)]


def write_prompts(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def prompts(tmp_path):
    return write_prompts(tmp_path / "prompts.jsonl", records())


@pytest.fixture
def config(prompts):
    return CompareConfig(prompts, min_per_task=8, n_resamples=20, n_permutations=0, rbf=False, batch_size=8)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def shake(model):
    """Another second block: layers 0 and 1 stay as they were."""
    draw = torch.Generator().manual_seed(0)
    for weight in model.transformer.h[1].parameters():
        weight += 0.5 * torch.randn(weight.shape, generator=draw)


@pytest.fixture(scope="module")
def shaken(write_checkpoint, tmp_path_factory):
    """The ``gpt2`` checkpoint with another second block; read only."""
    return write_checkpoint(tmp_path_factory.mktemp("shaken"), change=shake)


@pytest.fixture(scope="module")
def measured(gpt2, shaken, tmp_path_factory):
    """The two compared, with everything; read only."""
    folder = tmp_path_factory.mktemp("measured")
    path = write_prompts(folder / "prompts.jsonl", records())
    config = CompareConfig(path, min_per_task=8, n_resamples=20, n_permutations=9, batch_size=8)
    return compare_models(str(gpt2), str(shaken), config, folder / "out")


@pytest.fixture(scope="module")
def together(gpt2, shaken, measured):
    """What a probe finds in both models at once."""
    models = {"tuned": load_pretrained(shaken), "base": load_pretrained(gpt2)}
    tokenizer, texts = models["base"].tokenizer, LabelledPrompts.from_jsonl(measured.config.prompts)
    return lambda probe: run(models, texts.batches(lambda text: tokenizer(text)["input_ids"]), probe)


class TestRule:
    def found(self, change, spread=0.02, tolerance=0.01, factor=1.5):
        change = np.array(change)
        return standing_out(change, change - spread, change + spread, tolerance=tolerance, factor=factor).tolist()

    def test_two_groups(self):
        assert self.found([0.05, 0.8, 0.1, 0.5]) == [False, True, False, True]
        assert self.found([0.3, 0.1]) == [True, False]

    def test_the_natural_break_is_not_the_widest_gap(self):
        assert self.found([0.96, 0.41, 0.20, 0.19]) == [True, True, False, False]

    def test_intervals_that_meet(self):
        assert self.found([0.5, 0.5, 0.1, 0.1], spread=0.19) == [True, True, False, False]
        assert not any(self.found([0.5, 0.5, 0.1, 0.1], spread=0.21))

    def test_less_than_the_factor(self):
        assert not any(self.found([0.5, 0.5, 0.4, 0.4]))
        assert self.found([0.5, 0.5, 0.4, 0.4], factor=1.2) == [True, True, False, False]

    def test_up_to_the_tolerance_nothing_stands_out(self):
        assert not any(self.found([0.009, 1e-9, 1e-12], spread=0))
        assert self.found([0.02, 1e-9, 1e-12], spread=0) == [True, False, False]
        assert not any(self.found([0.02, 1e-9, 1e-12], spread=0, tolerance=0.1))

    def test_no_change_and_no_value(self):
        assert not any(self.found([0.0, 0.0, 0.0], spread=0))
        assert self.found([np.nan, 0.9, 0.1]) == [False, True, False]
        assert self.found([np.nan, 0.9, np.nan]) == [False, False, False]

    def test_negative_cka(self):
        assert self.found([1.1, 1.05, 0.2]) == [True, True, False]

    def test_ranges(self):
        assert [ranges(x) for x in ([], [3], [0, 1, 2, 4, 6, 7])] == ["", "3", "0-2, 4, 6-7"]


class TestMeasure:
    def test_equals_the_probe_on_both_models_at_once(self, measured, together):
        expected = together(CKA(label="task", n_resamples=20, n_permutations=9))
        assert measured.cka.coords == {**expected.coords, "label": ["(all)", *TASKS]}
        for measure in ("cka", "debiased_cka", "debiased_cka_low", "debiased_cka_null_high"):
            torch.testing.assert_close(measured.cka[measure], expected[measure], rtol=0, atol=1e-5, equal_nan=True)
        assert measured.cka["n"].tolist() == [36, 12, 12, 12]
        rbf = together(RBFCKA(label="task"))["debiased_rbf_cka"][:, 1:]
        torch.testing.assert_close(measured.rbf["debiased_rbf_cka"], rbf, rtol=0, atol=1e-5, equal_nan=True)

    def test_table(self, measured):
        table = measured.to_dataframe()
        assert list(table.columns) == [
            "layer", "site", "task", "n", "d_tuned", "d_base", "cka", "debiased_cka", "low", "high", "null_high",
            "rbf_cka", "change", "changed", "stands_out",
        ]  # fmt: skip
        assert table["layer"].tolist() == 4 * [0, 1, 2]
        assert table["task"].tolist() == [t for t in ("(all)", *TASKS) for _ in range(3)]
        same, other = (table[(table["layer"] == layer) & (table["task"] != "(all)")] for layer in (1, 2))
        assert same["debiased_cka"].tolist() == pytest.approx([1, 1, 1])
        assert not same["changed"].any()
        assert other["changed"].all()
        assert (other["low"] <= other["debiased_cka"]).all()
        assert (other["change"] == 1 - other["debiased_cka"]).all()
        assert (table["null_high"].dropna() < 0.9).all()

    def test_which_layer_changed(self, measured):
        assert measured.summary()["changed_layers"].tolist() == ["2", "2", "2"]
        assert measured.summary()["at_layer"].tolist() == [2, 2, 2]
        layers = measured.by_layer()
        assert layers["layer"].tolist() == [2, 1]  # no CKA at layer 0
        assert layers["changed"].tolist() == [3, 0]
        assert layers["change"][1] == pytest.approx(0)
        assert layers["most"][0] == pytest.approx(measured.summary()["largest"].max())
        assert measured.sentences[0].startswith("Layers that changed for at least one task: 2 of 0-2; most at layer 2 ")

    def test_identical_checkpoints(self, gpt2, config, out):
        result = compare_models(str(gpt2), str(shutil.copytree(gpt2, out / "copy")), config, out)
        assert not result.changed.any()
        assert not result.stands_out.any()
        assert np.nanmax(np.abs(result.change)) < 1e-12
        assert not result.summary()["stands_out"].any()
        assert result.sentences == [
            "No layer changed: at every layer and for every task, the 95% interval of 1 - CKA reaches down to the "
            "tolerance of 0.01."
        ]

    def test_bfloat16_against_float32(self, gpt2, config, out):
        config = replace(config, tuned_dtype="bfloat16", tuned_device="cpu")
        result = compare_models(str(gpt2), str(gpt2), config, out)
        assert not result.changed.any()
        assert 0 < np.nanmax(np.abs(result.change)) < 0.01
        rows = RowStore(out / "rows" / "tuned").take(torch.arange(3), ["rows/hook_embed"])
        assert rows["rows/hook_embed"].dtype == torch.bfloat16

    def test_another_width(self, gpt2, write_checkpoint, tmp_path, config, out):
        wide = write_checkpoint(tmp_path / "wide", n_embd=24)
        result = compare_models(str(gpt2), str(wide), config, out)
        assert result.diagonal
        assert set(zip(result.to_dataframe()["d_tuned"], result.to_dataframe()["d_base"], strict=True)) == {(24, 16)}
        assert "d = 24 (tuned) and 16 (base)" in what_to_know(result)[0]

    def test_constant_states_have_no_cka(self, measured):
        table = measured.to_dataframe()
        assert table[table["layer"] == 0].set_index("task")["debiased_cka"].isna().to_dict() == {
            "(all)": False, "a": True, "b": True, "c": True,
        }  # fmt: skip
        said = what_to_know(measured)
        assert any(note.startswith("Layer 0 has no CKA for a, b and c: the prompts' hidden") for note in said)
        assert "n = 36 prompts of 3 tasks (12 each), hidden state at the last prompt token" in said[0]
        assert any("n is below 10 d for every label: there the biased form" in note for note in said)
        both = measured.to_dataframe().dropna()
        row = both.loc[(both["rbf_cka"] - both["debiased_cka"]).abs().idxmax()]
        assert said[-2].endswith(
            f"the two differ most at layer 2 for {row['task']}: {row['debiased_cka']:.2f} and {row['rbf_cka']:.2f}."
        )

    def test_mean_over_tokens(self, gpt2, shaken, config, out, together):
        result = compare_models(str(gpt2), str(shaken), replace(config, position="mean"), out)
        expected = together(CKA(readout=mean(), label="task"))["debiased_cka"]
        torch.testing.assert_close(result.cka["debiased_cka"], expected, rtol=0, atol=1e-9)

    def test_layers_in_groups(self, gpt2, shaken, measured, config, out, monkeypatch):
        """As many layers at a time as fit change nothing; nor do batches."""
        monkeypatch.setattr(mechclust.commands.compare.measure, "_GROUPS", 1)
        n, d = 36, 16
        tight = replace(config, max_memory=2.01 * n * 2 * d * 4 / 2**30, batch_size=5)
        found = compare_models(str(gpt2), str(shaken), tight, out)
        for name, measure in (("cka", "debiased_cka_low"), ("n_dims", "n_dims")):
            expected = getattr(measured, name)
            assert getattr(found, name).coords["label"] == expected.coords["label"]
            places = [getattr(found, name).coords["site"].index(site) for site in expected.coords["site"]]
            values = getattr(found, name)[measure][places]
            torch.testing.assert_close(values, expected[measure], rtol=0, atol=1e-4, equal_nan=True)

    def test_at_most_so_many_of_a_task(self, gpt2, shaken, config, out):
        """Which are drawn does not depend on the other tasks, and the index is the place in the file."""
        config = replace(config, max_per_task=8)
        result = compare_models(str(gpt2), str(shaken), config, out)
        assert result.cka["n"].tolist() == [24, 8, 8, 8]
        drawn = RowStore(out / "rows" / "base").index.tolist()
        assert [sum(12 * k <= i < 12 * k + 12 for i in drawn) for k in range(3)] == [8, 8, 8]
        write_prompts(config.prompts, [*records("ab"), *records(["c"], 9)])
        fewer = read_inputs(str(gpt2), str(shaken), config, out / "fewer").of_task()
        assert torch.cat([fewer["a"], fewer["b"]]).tolist() == drawn[:16]
        assert fewer["c"].tolist() != drawn[16:]

    def test_leaves_the_random_state_alone_and_is_reproducible(self, gpt2, shaken, measured, config, out):
        before = torch.get_rng_state()
        again = compare_models(str(gpt2), str(shaken), replace(measured.config, prompts=config.prompts), out)
        assert torch.equal(torch.get_rng_state(), before)
        assert again.to_dataframe().equals(measured.to_dataframe())

    def test_the_tuned_models_chat_template_is_for_both(self, gpt2, shaken, config, tmp_path, out):
        from transformers import AutoTokenizer

        path = shutil.copytree(shaken, tmp_path / "chat")
        tokenizer = AutoTokenizer.from_pretrained(path)
        tokenizer.chat_template = "{% for m in messages %}w18 {{ m['content'] }}{% endfor %} w19"
        tokenizer.save_pretrained(path)
        chat = read_inputs(str(gpt2), str(path), replace(config, chat=True), out).batches
        write_prompts(config.prompts, [{**row, "prompt": f"w18 {row['prompt']} w19"} for row in records()])
        by_hand = read_inputs(str(gpt2), str(path), config, out).batches  # the same tokens: not refused
        assert all(torch.equal(one.tokens, other.tokens) for one, other in zip(chat, by_hand, strict=True))
        assert chat[0].tokens[0].tolist() == [20, 2, 6, 12, 21]


@pytest.fixture(scope="module")
def deep(write_checkpoint, tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("deep"), n_layer=3)


@pytest.fixture(scope="module")
def layers(gpt2, deep, measured, tmp_path_factory):
    return compare_models(str(gpt2), str(deep), measured.config, tmp_path_factory.mktemp("layers"))


class TestOtherLayers:
    def test_every_layer_with_every_other(self, layers, gpt2, deep, config):
        models = {"tuned": load_pretrained(deep), "base": load_pretrained(gpt2)}
        encode = models["base"].tokenizer
        batches = LabelledPrompts.from_jsonl(config.prompts).batches(lambda text: encode(text)["input_ids"])
        expected = run(models, batches, CKA(label="task", pairs="all"))["debiased_cka"]
        assert expected.shape == (4, 3, 4)
        torch.testing.assert_close(layers.cka["debiased_cka"], expected, rtol=0, atol=1e-5, equal_nan=True)

    def test_the_table_names_the_layer_most_alike(self, layers):
        table, values = layers.to_dataframe(), layers.cka["debiased_cka"]
        assert not layers.diagonal
        assert not {"low", "high", "changed"} & set(table.columns)
        refused = r"^the models' layers are not the same, so .*; read to_dataframe\(\)$"
        for measure in ("change", "changed", "stands_out"):
            with pytest.raises(InputError, match=refused):
                getattr(layers, measure)
        for measure in (layers.summary, layers.by_layer):
            with pytest.raises(InputError, match=refused):
                measure()
        assert table[(table["layer"] == 0) & (table["task"] != "(all)")]["base_layer"].isna().all()
        for row in table[table["layer"] > 0].itertuples():
            k = layers.cka.coords["label"].index(row.task)
            at = layers.cka.coords["site"].index(row.site)
            assert row.debiased_cka == float(values[at, :, k][~values[at, :, k].isnan()].max())
            assert row.base_layer == layers.cka.layers[row.base_site]
            assert row.debiased_cka == float(layers.cka.sel("debiased_cka", site=row.site, other_site=row.base_site)[k])

    def test_command(self, layers, gpt2, deep, config, out, capsys):
        argv = ["compare", str(gpt2), str(deep), "--prompts", str(config.prompts), "--min-per-task", "8"]
        assert main([*argv, "--out", str(out)]) == 0
        printed = capsys.readouterr().out
        assert printed.split("\n")[0].split() == [
            "layer", "task", "n", "base_layer", "cka", "debiased_cka", "change",
        ]  # fmt: skip
        assert all(f"\n- {sentence}\n" in printed for sentence in layers.sentences)
        page = (out / "report.html").read_text()
        assert "The models do not have the same layers (4 in the tuned one and 3 in the base one" in page
        assert "every_layer_with_every_other" in page
        assert "The rule" not in page
        assert "second opinion" not in page
        assert not {"<NA>", "nan", "NaN"} & set((printed + page.split("Every layer")[1]).replace("<", " <").split())
        assert [p.name for p in out.glob("*.csv")] == ["compare.csv"]
        assert layers.sentences[1].startswith("Over all prompts, tuned layers are most like these base layers (CKA): ")


class TestResume:
    @pytest.fixture(autouse=True)
    def small_shards(self, monkeypatch):
        monkeypatch.setattr(mechclust.commands.compare.measure, "_SHARD_ROWS", 8)

    def test_an_interrupted_comparison_goes_on(self, gpt2, shaken, measured, config, out, monkeypatch):
        """Killed while the tuned model's rows were written; then the same call again."""
        import probes.stores

        passed: list[int] = []
        original = probes.stores.run

        def counting(model, batches, probe):
            if len(passed) == limit:
                raise KeyboardInterrupt
            passed.append(sum(map(len, batches)))
            return original(model, batches, probe)

        monkeypatch.setattr("probes.stores.run", counting)
        limit = 7
        with pytest.raises(KeyboardInterrupt):
            compare_models(str(gpt2), str(shaken), config, out)
        assert sum(passed) == 36 + 2 * 8
        limit = -1
        resumed = compare_models(str(gpt2), str(shaken), config, out)
        assert sum(passed) == 2 * 36  # no prompt twice
        again = compare_models(str(gpt2), str(shaken), replace(config, n_resamples=20, tolerance=0.02), out)
        assert sum(passed) == 2 * 36
        for measure in resumed.cka.values:
            torch.testing.assert_close(resumed.cka[measure], measured.cka[measure], rtol=0, atol=1e-5, equal_nan=True)
        assert torch.equal(again.cka["cka"].nan_to_num(9), resumed.cka["cka"].nan_to_num(9))

    def test_interrupted_command(self, monkeypatch, capsys, tmp_path):
        def stopped(*args, **kwargs):
            raise KeyboardInterrupt

        monkeypatch.setattr("mechclust.cli.compare_models", stopped)
        out = tmp_path / "out"
        assert main(["compare", "x", "y", "--prompts", "p.jsonl", "--out", str(out)]) == 130
        assert capsys.readouterr().err == (
            f"\nmechclust: interrupted; hidden states so far are in {out / 'rows'}; the same command goes on\n"
        )

    @pytest.mark.parametrize("change", ["prompt", "label", "fewer"])
    def test_other_prompts_are_not_mixed_in(self, gpt2, shaken, config, out, change, monkeypatch):
        read_inputs(str(gpt2), str(shaken), config, out)  # begins the folder
        rows = records()
        changed = {
            "prompt": [{"prompt": "w1 w2 w3", "task": "a"}, *rows[1:]],
            "label": [{**rows[0], "task": "b"}, *rows[1:]],
            "fewer": rows[1:],
        }[change]
        write_prompts(config.prompts, changed)
        monkeypatch.setattr("mechclust.commands.compare.measure.load_pretrained", None)
        with pytest.raises(InputError) as refused:
            compare_models(str(gpt2), str(shaken), config, out)
        assert str(refused.value) == (
            f"{str(out)!r} holds hidden states of other prompts, tasks or tokens; give the same, "
            "or another folder with --out"
        )

    def test_another_model_is_not_mixed_in(self, gpt2, measured, config, out):
        shutil.copytree(measured.config.prompts.parent / "out", out)
        with pytest.raises(InputError) as refused:
            compare_models(str(gpt2), str(gpt2), config, out)
        assert str(refused.value) == (
            f"tuned {str(gpt2)!r}: {str(out / 'rows' / 'tuned')!r} holds rows of another model; give a new folder, "
            "or delete this one"
        )


class TestControls:
    def test_controls_that_are_one_of_the_models(self, gpt2, shaken, config, tmp_path, out, monkeypatch):
        """And one model is in memory at a time."""
        alive: list[weakref.ref] = []

        def loading(path, **options):
            assert not [model for model in alive if model() is not None]
            model = load_pretrained(path, **options)
            alive.append(weakref.ref(model))
            return model

        monkeypatch.setattr("mechclust.commands.compare.measure.load_pretrained", loading)
        named = shutil.copytree(shaken, tmp_path / "c")
        config = replace(config, controls=(f"a={gpt2}", str(named)))
        result = compare_models(str(gpt2), str(shaken), config, out)
        assert len(alive) == 4
        table = result.control_table()
        assert table["task"].tolist() == 3 * ["a"] + 3 * ["c"]
        assert table["n"].tolist() == 6 * [12]
        at = table.set_index(["task", "layer"])
        assert at.loc[("a", 2), "control_base"] == pytest.approx(1)
        assert at.loc[("c", 2), "control_tuned"] == pytest.approx(1)
        overall = result.to_dataframe().set_index(["task", "layer"])["debiased_cka"]
        assert at.loc[("a", 2), "control_tuned"] == pytest.approx(overall["a", 2])  # over its own task's prompts only
        assert at.loc[("c", 2), "control_base"] == pytest.approx(overall["c", 2])
        assert at.loc[("c", 2), "gain"] == pytest.approx(1 - overall["c", 2])
        assert (at["control_tuned_low"].dropna() <= at["control_tuned_high"].dropna()).all()
        gain = [at.loc[(task, 2), "gain"] for task in "ac"]
        assert f"Against 2 controls, the tuned model is more like a model of the task alone than the base is, in the " \
            f"median by {max(0, np.median(gain)):.2f}" in result.sentences[-1]  # fmt: skip
        page = write_compare_report(result, out).read_text()
        assert 'id="controls"' in page
        assert (out / "controls.csv").exists()
        found = load_result(out / "results" / "control-c-tuned.safetensors")
        assert found.coords["label"] == ["c"]
        assert RowStore(out / "rows" / "control-c").index.tolist() == list(range(24, 36))

    def test_a_task_with_an_odd_name(self, gpt2, shaken, config, out):
        odd = "../x = y"
        write_prompts(config.prompts, records([odd, "b"]))
        with pytest.raises(InputError, match="no task of the prompts for the control"):
            read_inputs(str(gpt2), str(shaken), replace(config, controls=(f"{odd}={gpt2}",)), out)
        write_prompts(config.prompts, records(["../x", "b"]))
        inputs = read_inputs(str(gpt2), str(shaken), replace(config, controls=(f"../x={gpt2}",)), out)
        assert [model.name for model in inputs.checkpoints] == ["base", "tuned", "control-..%2Fx"]


class TestRefusals:
    @pytest.fixture(autouse=True)
    def no_model(self, monkeypatch):
        """All of these are refused before any weights are loaded."""

        def never(*args, **kwargs):
            raise AssertionError("loaded a model")

        monkeypatch.setattr("mechclust.commands.compare.measure.load_pretrained", never)

    @pytest.fixture
    def refused(self, gpt2, shaken, config, out):
        def run(base=None, tuned=None, **changes):
            with pytest.raises(InputError) as error:
                compare_models(str(base or gpt2), str(tuned or shaken), replace(config, **changes), out)
            return str(error.value)

        return run

    def test_one_task_only(self, refused, prompts):
        write_prompts(prompts, records("a"))
        assert refused() == (
            f"{prompts} has one task only ('a'); comparing what a model's tasks became takes at least 2"
        )

    def test_too_few_prompts(self, refused, prompts):
        assert refused(min_per_task=20) == (
            f"{prompts} has fewer than 20 prompts of 'a' (n = 12), 'b' (n = 12), 'c' (n = 12); give more, leave the "
            "task out, or lower --min-per-task"
        )
        write_prompts(prompts, [*records("ab"), *records("c", 3)])
        assert refused(min_per_task=4) == (
            f"{prompts} has fewer than 4 prompts of 'c' (n = 3); give more, leave the task out"
        )

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"min_per_task": 3}, "min_per_task is 3; expected at least 4, the fewest that debiased CKA takes"),
            ({"max_per_task": 5}, "max_per_task is 5, below min_per_task = 8"),
            ({"n_resamples": 5}, "n_resamples is 5; expected at least 20"),
            ({"n_permutations": -1}, "n_permutations is -1; expected at least 0"),
            ({"batch_size": 0}, "batch_size is 0; expected at least 1"),
            ({"seed": -1}, "seed is -1; expected at least 0"),
            ({"tolerance": 0.0}, "tolerance is 0.0; expected a change of CKA between 0 and 1, such as 0.01"),
            ({"factor": 1.0}, "factor is 1.0; expected a number above 1, such as 1.5"),
            ({"device": "warp"}, "no device 'warp'; expected cpu, cuda, cuda:1 or mps"),
            ({"tuned_device": "warp"}, "no device 'warp'; expected cpu, cuda, cuda:1 or mps"),
        ],
    )
    def test_settings(self, refused, change, said):
        assert refused(**change) == said

    def test_controls(self, refused, gpt2, tmp_path):
        empty = tmp_path / "b"
        empty.mkdir()
        ways = "give TASK=MODEL, or a directory called as the task"
        for control in (str(gpt2), f"d={gpt2}"):
            assert refused(controls=(control,)) == (
                f"no task of the prompts for the control {control!r} (they have a, b, c); {ways}"
            )
        assert refused(controls=(str(empty),)) == (
            f"{str(empty)!r} has no config.json; give a directory written by save_pretrained, with model and tokenizer"
        )
        shutil.copy(gpt2 / "config.json", empty)
        assert refused(controls=(str(empty),)) == (
            f"{str(empty)!r} has a config.json but no weights (model.safetensors); "
            "save the model there with save_pretrained"
        )
        assert refused(controls=(f"b={gpt2}", str(empty))) == (
            f"{str(gpt2)!r} and {str(empty)!r} are both controls of 'b'; give one per task"
        )

    def test_a_control_of_other_layers(self, refused, write_checkpoint, tmp_path, gpt2, shaken):
        deep = write_checkpoint(tmp_path / "deep", n_layer=3)
        assert refused(controls=(f"a={deep}",)) == (
            f"control {str(deep)!r} has 3 layers and tuned {str(shaken)!r} 2; give controls tuned from the same base, "
            "or leave them out"
        )

    def test_no_such_model(self, refused, tmp_path):
        none = tmp_path / "none"
        assert refused(tuned=none) == (
            f"no model directory {str(none)!r}; give a local directory or a hub name such as 'gpt2'"
        )

    def test_a_model_of_ours_has_no_tokenizer(self, refused, model, tmp_path):
        save_model(model, tmp_path / "ours.safetensors")
        assert refused(base=tmp_path / "ours.safetensors") == (
            f"{str(tmp_path / 'ours.safetensors')!r} has no tokenizer to read prompts; give a Hugging Face checkpoint"
        )

    def test_no_chat_template(self, refused, shaken):
        assert refused(chat=True) == f"the tokenizer of tuned {str(shaken)!r} has no chat template; leave out --chat"

    def test_a_prompt_over_the_shorter_context(self, refused, write_checkpoint, tmp_path, prompts):
        short = write_checkpoint(tmp_path / "short", n_positions=2)
        assert refused(tuned=short) == (
            f"{prompts}: prompt 1 has 3 tokens, more than the model's context of 2; shorten it, "
            "or choose too_long='truncate' (--too-long truncate) to keep its end"
        )

    def test_fewer_embeddings_than_tokens(self, refused, write_checkpoint, tmp_path):
        small = write_checkpoint(tmp_path / "small", vocab_size=12)
        assert refused(tuned=small) == (
            f"tuned {str(small)!r} has 12 token embeddings, and its tokenizer gives id 14; "
            "save the tokenizer that belongs to the model"
        )

    def test_memory(self, refused):
        assert refused(max_memory=1e-6) == (
            "comparing a layer takes 4.29e-06 GiB (36 prompts x 16 and 16 dimensions), more than max_memory = 1e-06; "
            "give fewer prompts (--max-per-task) or raise --max-memory"
        )

    def test_memory_of_kernels(self, refused, monkeypatch):
        monkeypatch.setattr("mechclust.commands.compare.inputs.CKA.memory", lambda *args, **kwargs: 0)
        assert refused(rbf=True, max_memory=1e-7) == (
            "CKA with Gaussian kernels takes 5.36e-07 GiB for the 12 prompts of a task, more than max_memory = 1e-07; "
            "give fewer (--max-per-task), raise --max-memory, or leave it out (--no-rbf)"
        )

    def test_disk(self, refused, out, monkeypatch):
        usage = namedtuple("usage", "free")
        monkeypatch.setattr("shutil.disk_usage", lambda path: usage(10_000))
        assert refused(tuned_dtype="bfloat16") == (
            "the hidden states of 2 models take 9.66e-06 GiB on disk (36 prompts x 3 layers x 16 dimensions) and "
            f"{str(out)!r} has 9.31e-06 GiB free; give fewer prompts (--max-per-task), or another folder with --out"
        )

    def test_a_folder_that_cannot_be_written(self, gpt2, shaken, config, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match=r"cannot write to .* \(Not a directory\)"):
            compare_models(str(gpt2), str(shaken), config, tmp_path / "file" / "out")


class TestTokenizers:
    def retokenized(self, path, change):
        """A checkpoint whose tokenizer has another vocabulary."""
        file = path / "tokenizer.json"
        content = json.loads(file.read_text())
        change(content["model"]["vocab"])
        file.write_text(json.dumps(content))
        return path

    @pytest.fixture
    def other(self, shaken, tmp_path):
        return shutil.copytree(shaken, tmp_path / "other")

    @pytest.fixture
    def refused(self, gpt2, other, config, out, monkeypatch):
        def run():
            monkeypatch.setattr("mechclust.commands.compare.measure.load_pretrained", None)  # no weights are loaded
            with pytest.raises(InputError) as error:
                compare_models(str(gpt2), str(other), config, out)
            return str(error.value)

        return run

    def test_other_ids(self, gpt2, other, prompts, refused):
        def swap(words):
            words["w3"], words["w10"] = words["w10"], words["w3"]

        self.retokenized(other, swap)
        assert refused() == (
            f"{prompts}: prompt 1 is not the same tokens to base {str(gpt2)!r} and tuned {str(other)!r} (token 3 is "
            "'w10', id 12, and 'w10', id 5); compare models with one tokenizer"
        )

    def test_the_same_ids_for_other_tokens(self, gpt2, other, prompts, refused):
        def rename(words):
            del words["w6"]
            words["v6"] = 8

        self.retokenized(other, rename)
        assert refused() == (
            f"{prompts}: prompt 9 is not the same tokens to base {str(gpt2)!r} and tuned {str(other)!r} (token 2 is "
            "'w6', id 8, and '<unk>', id 1); compare models with one tokenizer"
        )

    def test_the_first_prompt_that_differs_is_named(self):
        class Fake:
            def __init__(self, names):
                self.names = names

            def __len__(self):
                return len(self.names)

            def convert_ids_to_tokens(self, i):
                return self.names[i]

            def get_vocab(self):
                return {name: i for i, name in enumerate(self.names)}

        def encode(text):
            return [len(word) - 1 for word in text.split()]

        readers = {"base 'x'": (Fake("abc"), encode), "tuned 'y'": (Fake("abd"), encode)}
        with pytest.raises(InputError) as error:
            check_read_alike({"prompt 1": "v vv", "prompt 2": "v vvv"}, readers)
        assert str(error.value) == (
            "prompt 2 is not the same tokens to base 'x' and tuned 'y' (token 2 is 'c', id 2, and 'd', id 2); "
            "compare models with one tokenizer"
        )
        readers["tuned 'y'"] = (Fake("abc"), lambda text: encode(text)[:1])
        with pytest.raises(InputError, match=r"prompt 1 is not .* \(2 and 1 tokens\); compare"):
            check_read_alike({"prompt 1": "v vv"}, readers)

    def test_tokens_that_no_prompt_uses_may_differ(self, gpt2, other, config, out):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(other)
        tokenizer.add_tokens(["<user>", "<model>"])
        tokenizer.save_pretrained(other)
        assert list(read_inputs(str(gpt2), str(other), config, out).notes) == [
            f"The vocabularies of base {str(gpt2)!r} and tuned {str(other)!r} differ in 2 tokens, which no prompt uses."
        ]


def test_activations_that_are_not_finite(gpt2, write_checkpoint, tmp_path, config, out):
    def spoil(model):
        model.transformer.wte.weight[13] = float("nan")  # w11, the last word of task b

    bad = write_checkpoint(tmp_path / "bad", change=spoil)
    with pytest.raises(InputError) as refused:
        compare_models(str(gpt2), str(bad), config, out)
    assert str(refused.value) == (
        f"tuned {str(bad)!r}: NaN or infinity in the activations at 'hook_embed' for example index 12; "
        "find its cause in the model or leave the example out"
    )


@pytest.fixture(scope="module")
def written(measured, tmp_path_factory):
    return measured, write_compare_report(measured, tmp_path_factory.mktemp("report"))


class TestReport:
    def test_files(self, written):
        folder = written[1].parent
        files = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
        assert files == {
            "report.html", "compare.csv", "tasks.csv", "layers.csv", "figures/cka_by_layer.png",
            "figures/change_by_task_and_layer.png", "figures/dimensions_and_purity.png", "results/cka.safetensors",
            "results/rbf.safetensors", "results/n_dims.safetensors", "results/purity.safetensors",
        }  # fmt: skip

    def test_csv_and_results_are_what_was_measured(self, written):
        result, report = written
        with (report.parent / "compare.csv").open() as file:
            rows = list(csv.DictReader(file))
        found = [float(row["debiased_cka"] or "nan") for row in rows]
        assert found == pytest.approx(result.to_dataframe()["debiased_cka"].tolist(), nan_ok=True)
        loaded = load_result(report.parent / "results" / "cka.safetensors")
        assert loaded.coords == result.cka.coords
        assert torch.equal(loaded["debiased_cka_low"].nan_to_num(9), result.cka["debiased_cka_low"].nan_to_num(9))

    def test_page(self, written):
        result, report = written
        page = report.read_text()
        assert page.count("data:image/png;base64,") == 3
        assert "The rule: a layer changed for a task where the 95% interval" in page
        assert "it does not see a rotation, a common scale or a shift" in page
        assert "min_per_task" in page
        assert "http" not in page
        for sentence in result.sentences:
            assert sentence.split(",")[0] in page

    def test_every_table_is_computed_once(self, measured, tmp_path, monkeypatch):
        computed = []
        for name in ("to_dataframe", "summary", "by_layer"):
            method = getattr(CompareResult, name)
            counting = lambda self, name=name, method=method: computed.append(name) or method(self)  # noqa: E731
            monkeypatch.setattr(CompareResult, name, counting)
        result = replace(measured)
        write_compare_report(result, tmp_path)
        assert result.sentences[0] in result._repr_html_()
        assert sorted(computed) == ["by_layer", "summary", "to_dataframe"]

    def test_many_tasks_and_hostile_names(self, measured, tmp_path):
        hostile = "<img src=x onerror=alert(1)>"
        tasks = [hostile, *(f"task {k}" for k in range(11))]
        places = [0, *(1 + k % 3 for k in range(12))]

        def again(found, labels, places):
            """The labels' values once more, under other names."""
            axes = found.axes
            values = {m: x[..., places] if "label" in axes[m] else x for m, x in found.values.items()}
            return replace(found, values=values, coords={**found.coords, "label": labels})

        cka, n_dims = (again(x, ["(all)", *tasks], places) for x in (measured.cka, measured.n_dims))
        rbf = again(measured.rbf, tasks, [k % 3 for k in range(12)])
        result = replace(measured, tasks=tasks, tuned=hostile, cka=cka, rbf=rbf, n_dims=n_dims)
        page = write_compare_report(result, tmp_path).read_text()
        assert hostile not in page
        assert "&lt;img src=x" in page

    def test_a_folder_that_cannot_be_written(self, written, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match="cannot write to"):
            write_compare_report(written[0], tmp_path / "file" / "out")


SYMBOLS, ORDINALS = 8, ("first", "second", "third", "fourth")
WORDS = ["<pad>", "<unk>", *ORDINALS, *(f"s{i}" for i in range(SYMBOLS))]


def examples(draw, task, n):
    """Four symbols and the instruction, which of them to repeat; and the symbols' numbers."""
    symbols = torch.randint(SYMBOLS, (n, 4), generator=draw)
    return torch.cat([symbols + 2 + len(ORDINALS), torch.full((n, 1), 2 + task)], dim=1), symbols


def fit(model, answer, steps, lr, seed):
    draw, optimizer = torch.Generator().manual_seed(seed), torch.optim.AdamW(model.parameters(), lr=lr)
    for _ in range(steps):
        parts = [examples(draw, task, 16) for task in range(4)]
        wanted = torch.cat([2 + len(ORDINALS) + symbols[:, answer[k]] for k, (_, symbols) in enumerate(parts)])
        logits = model(torch.cat([tokens for tokens, _ in parts])).logits[:, -1]
        loss = torch.nn.functional.cross_entropy(logits, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@pytest.fixture(scope="module")
def tuned_on_two_of_four(tmp_path_factory):
    """A base that repeats the symbol asked for, and the same tuned to new answers in two tasks: ``first`` and
    ``second`` are swapped. The other two are rehearsed, as they are where a model must not forget."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("two of four")
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", pad_token="<pad>")
    shape = {"n_layer": 3, "n_head": 2, "n_embd": 32, "n_positions": 8, "bos_token_id": 0, "eos_token_id": 0}
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        base = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=len(WORDS), **shape, **dropout))
    assert fit(base, (0, 1, 2, 3), 250, 5e-3, 1) < 0.1
    tuned = copy.deepcopy(base)
    assert fit(tuned, (1, 0, 2, 3), 150, 1e-3, 2) < 0.1
    for name, model in (("base", base), ("tuned", tuned)):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    draw = torch.Generator().manual_seed(99)
    rows = [
        {"prompt": " ".join(WORDS[i] for i in tokens), "task": name}
        for task, name in enumerate(ORDINALS)
        for tokens in examples(draw, task, 60)[0].tolist()
    ]
    write_prompts(folder / "prompts.jsonl", rows)
    return folder


@pytest.fixture(scope="module")
def command(tuned_on_two_of_four):
    """The command as a user gives it: what it printed, and its folder."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    argv = [sys.executable, "-m", "mechclust.cli", "compare", "base", "tuned", "--prompts", "prompts.jsonl"]
    done = subprocess.run(
        [*argv, "--n-resamples", "40", "--n-permutations", "5"],
        capture_output=True, text=True, env=environment, cwd=tuned_on_two_of_four, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done, tuned_on_two_of_four / "runs" / "compare"


class TestCommand:
    def test_finds_the_two_tasks_that_were_tuned(self, command):
        with (command[1] / "tasks.csv").open() as file:
            found = {row["task"]: row for row in csv.DictReader(file)}
        assert {task for task, row in found.items() if row["stands_out"] == "True"} == {"first", "second"}
        assert all(found[task]["stands_out_layers"] == "1-3" for task in ("first", "second"))
        assert all(found[task]["stands_out_layers"] == "" for task in ("third", "fourth"))
        assert min(float(found[task]["change"]) for task in ("first", "second")) > 0.4
        assert max(float(found[task]["change"]) for task in ("third", "fourth")) < 0.15

    def test_what_it_prints(self, command):
        lines = command[0].stdout.splitlines()
        assert lines[0].split()[:6] == ["task", "n", "change", "low", "high", "stands_out"]
        assert {line.split()[0] for line in lines[1:3]} == {"first", "second"}
        assert any(line.startswith("- Over all layers, ") and " stand out (mean 1 - CKA" in line for line in lines)
        assert lines[-1] == f"report: {Path('runs/compare/report.html')}"
        bars = ("base: hidden states", "tuned: hidden states", "comparing layers")
        assert all(bar in command[0].stderr for bar in bars)

    def test_values_are_those_of_the_states(self, command, tuned_on_two_of_four):
        """Against Hugging Face's own hidden states."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        folder = tuned_on_two_of_four
        rows = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]
        texts = [row["prompt"] for row in rows if row["task"] == "third"]
        states = []
        for name in ("tuned", "base"):
            tokens = AutoTokenizer.from_pretrained(folder / name)(texts, return_tensors="pt")["input_ids"]
            model = AutoModelForCausalLM.from_pretrained(folder / name)
            with torch.no_grad():
                states.append(model(tokens, output_hidden_states=True).hidden_states[2][:, -1])
        result = load_result(command[1] / "results" / "cka.safetensors")
        found = result.sel("debiased_cka", site="blocks.1.hook_resid_post", label="third")
        assert float(found) == pytest.approx(float(linear_cka(*states, debiased=True)), abs=1e-5)

    def test_help(self, capsys):
        with pytest.raises(SystemExit) as end:
            main(["compare", "--help"])
        assert end.value.code in (0, None)
        said = capsys.readouterr().out
        assert all(option in said for option in ("--prompts", "--controls", "--tolerance", "--tuned-dtype", "--no-rbf"))

    def test_bad_input_is_one_sentence(self, tmp_path, capsys):
        none = tmp_path / "none.jsonl"
        assert main(["compare", "x", "y", "--prompts", str(none), "--out", str(tmp_path / "out")]) == 2
        assert capsys.readouterr().err == (f"mechclust: no prompts file {str(none)!r}; give the path of a JSONL file\n")
        assert not (tmp_path / "out").exists()
