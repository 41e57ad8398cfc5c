"""Controls that are adapters on one resident base, layer groups from them, and clusters of tasks."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mechclust.cli import main
from mechclust.commands.compare import CompareConfig, compare_models
from mechclust.commands.compare.readings import naming_rules
from mechclust.commands.compare.task_clusters import ClustersOfTasks
from mechclust.models import load_pretrained
from probes import RowStore
from tasks import InputError
from tests.mechclust.commands.compare.cases import records, write_prompts

TASKS = tuple("abcdef")
CLUSTERS = """[clusters]
letters = ["a", "b", "c"]
signs = ["d", "e"]

[held_out]
tasks = ["f"]
"""


def save_adapter(base, path, seed, noise):
    """On blocks 2 and 3 alone: what all have in common, and something of its own."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj", "down_proj"], layers_to_transform=[2, 3])
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    common, own = (torch.Generator().manual_seed(s) for s in (0, seed))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora" in name:
                draw = torch.randn(weight.shape, generator=common)
                weight.copy_(draw + noise * torch.randn(weight.shape, generator=own))
    model.save_pretrained(path)
    return model


@pytest.fixture(scope="session")
def llama(write_checkpoint, tmp_path_factory):
    """``base``, the adapter ``tuned``, and one for each task, in a folder called as the task. Read only."""
    folder = tmp_path_factory.mktemp("llama")
    base = write_checkpoint(folder / "base", "llama", num_hidden_layers=4)
    save_adapter(base, folder / "tuned", 1, 0.05)
    for seed, task in enumerate(TASKS, 2):
        save_adapter(base, folder / task, seed, 0.1)
    return folder


@pytest.fixture(scope="session")
def asked(tmp_path_factory):
    """What is asked for: prompts, clusters, small numbers."""
    folder = tmp_path_factory.mktemp("asked")
    write_prompts(folder / "prompts.jsonl", records(TASKS))
    (folder / "clusters.toml").write_text(CLUSTERS)
    return CompareConfig(
        folder / "prompts.jsonl", min_per_task=8, n_resamples=20, n_permutations=0, clusters=folder / "clusters.toml"
    )


@pytest.fixture(scope="session")
def controlled(llama, asked, tmp_path_factory):
    """All six tasks with their controls, as adapters: the result, its folder, and what was loaded. Read only."""
    out, loads = tmp_path_factory.mktemp("controlled"), []

    def loading(model, **options):
        loads.append(str(model))
        return load_pretrained(model, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mechclust.commands.settings.load_pretrained", loading)
        controls = (*(f"{task}={llama / task}" for task in "abc"), *(str(llama / task) for task in "def"))
        config = replace(asked, controls=controls)
        result = compare_models(str(llama / "base"), str(llama / "tuned"), config, out)
    return result, out, loads


class TestAdaptersAsControls:
    def test_the_base_is_loaded_once(self, controlled, llama):
        """And twice for what blocks add, with the adapter of the tuned model and without."""
        assert controlled[2] == 3 * [str(llama / "base")]
        assert sorted(controlled[0].controls) == list(TASKS)

    @pytest.mark.parametrize("model", ["base", "tuned", "a", "f"])
    def test_states_are_those_of_the_model_with_the_adapter(self, controlled, llama, asked, model):
        """As Hugging Face and peft have them, whichever adapters were in before."""
        peft = pytest.importorskip("peft")
        name = f"control-{model}" if model in TASKS else model
        store = RowStore(controlled[1] / "rows" / name)
        texts = [json.loads(line)["prompt"] for line in asked.prompts.read_text().splitlines()]
        tokens = AutoTokenizer.from_pretrained(llama / "base")(texts, return_tensors="pt")["input_ids"][store.index]
        plain = AutoModelForCausalLM.from_pretrained(llama / "base")
        if model != "base":
            plain = peft.PeftModel.from_pretrained(plain, llama / model)
        with torch.no_grad():
            expected = plain(tokens, output_hidden_states=True).hidden_states[3][:, -1]
        found = store.take(store.index, ["rows/blocks.2.hook_resid_post"])["rows/blocks.2.hook_resid_post"]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)

    def test_a_control_alone_has_the_same_bits(self, controlled, llama, asked, tmp_path):
        config = replace(asked, controls=(f"f={llama / 'f'}",), blocks=False, n_patched=0)
        compare_models(str(llama / "base"), str(llama / "tuned"), config, tmp_path)
        stores = [RowStore(folder / "rows" / "control-f") for folder in (controlled[1], tmp_path)]
        for site in stores[0].sites:
            one, other = (store.take(store.index, [f"rows/{site}"])[f"rows/{site}"] for store in stores)
            assert torch.equal(one, other)

    def test_one_of_another_shape_is_refused_before_a_prompt_is_read(
        self, llama, asked, write_checkpoint, tmp_path, out
    ):
        wide = write_checkpoint(tmp_path / "wide", "llama", num_hidden_layers=4, intermediate_size=48)
        save_adapter(wide, tmp_path / "a", 1, 0.1)
        config = replace(asked, controls=(f"b={llama / 'b'}", str(tmp_path / "a")))
        with pytest.raises(InputError) as refused:
            compare_models(str(llama / "base"), str(llama / "tuned"), config, out)
        said = str(refused.value)
        assert said.startswith(f"control {str(llama / 'base')!r} with the adapter {str(tmp_path / 'a')!r}: ")
        assert "has the shape [2, 48], not [2, 32]; give the base that it was trained for" in said
        assert not list((out / "rows").glob("*/*.safetensors"))

    def test_one_that_names_another_base_is_told(self, llama, asked, tmp_path, out):
        renamed = shutil.copytree(llama / "a", tmp_path / "a")
        named = json.loads((renamed / "adapter_config.json").read_text())
        (renamed / "adapter_config.json").write_text(json.dumps({**named, "base_model_name_or_path": "meta/other"}))
        config = replace(asked, controls=(str(renamed), str(llama / "b")), blocks=False, n_patched=0)
        notes = compare_models(str(llama / "base"), str(llama / "tuned"), config, out).notes
        assert [note for note in notes if "trained for" in note] == [
            f"The adapter {str(renamed)!r} says that it was trained for 'meta/other', and is measured on "
            f"{str(llama / 'base')!r}: the weights fit, but only you can know whether the base is the same."
        ]


class TestLayerGroups:
    def test_layers_before_the_adapters_are_shared(self, controlled):
        """Blocks 0 and 1 are the same in all models; behind these, tuned and controls share what the base lacks."""
        groups = controlled[0].groups
        assert groups.curves.layers == ("1", "2", "3", "4")
        assert groups.curves.seen.tasks == TASKS[:5]
        assert groups.curves.median("base")[:2] == pytest.approx(1)
        assert (groups.curves.gap[2:] > 0.02).all()
        assert (groups.interval.groups.shared, groups.interval.shared_end) == (range(1, 3), None)  # of 5 tasks
        (reading,) = (reading for reading in controlled[0].readings if reading.what.startswith("Layer groups"))
        assert reading.what == "Layer groups, from the controls of 5 tasks"
        assert reading.value.startswith("shared 1-2, ")

    def test_the_curves_are_those_of_the_controls(self, controlled):
        result = controlled[0]
        table = result.control_table().set_index(["task", "layer"])
        curves = result.groups.curves
        for k, task in enumerate(curves.tasks):
            assert curves.base[k].tolist() == table.loc[task]["control_base"].tolist()[1:]
            assert curves.tuned[k].tolist() == table.loc[task]["control_tuned"].tolist()[1:]
        dims = [result.n_dims.sel("n_dims", site=f"tuned/blocks.{i}.hook_resid_post", label="(all)") for i in range(4)]
        assert curves.dims["tuned"].tolist() == [float(x) for x in dims]

    def test_table(self, controlled):
        table = controlled[0].tables["layer_groups"]
        columns = ["group", "first_layer", "last_layer", "end_low", "end_high", "tuned_alone", "tasks"]
        assert list(table.columns) == columns
        assert table["group"].tolist() == ["shared", "transition", "inherited"]
        assert table.iloc[0][["group", "first_layer", "last_layer", "tasks"]].tolist() == ["shared", "1", "2", 5]
        assert table.iloc[0][["end_low", "end_high"]].isna().all()

    def test_rule(self, controlled, llama, asked, tmp_path):
        assert "95% of the tuned model's maximum dimensions" in " ".join(naming_rules(controlled[0]))
        without = replace(controlled[0], n_dims=None)
        assert "before the spread leaves .02 of its minimum" in " ".join(naming_rules(without))
        assert without.groups.curves.dims == {}

    def test_three_controls_are_too_few(self, controlled):
        some = {task: controlled[0].controls[task] for task in "abc"}
        groups = replace(controlled[0], controls=some).groups
        assert groups.table() is None
        assert groups.why_none == "tasks with a control: 3, and medians and their spread need at least 4"
        held_out = replace(controlled[0], controls={t: controlled[0].controls[t] for t in "abcf"}).groups
        assert held_out.why_none.startswith("tasks with a control: 3 (without the held-out f)")

    def test_without_controls_nothing_is_said(self, measured):
        assert measured.groups is None
        assert "layer_groups" not in measured.tables
        assert not any("ayer groups" in sentence for sentence in measured.sentences)


@pytest.fixture(scope="module")
def noise(llama, asked, tmp_path_factory):
    """The tuned model and its controls are the base with noise."""
    folder = tmp_path_factory.mktemp("noise")
    for seed, name in enumerate(["tuned", *TASKS], 50):
        save_adapter(llama / "base", folder / name, seed, 0.3)
    config = replace(asked, controls=tuple(str(folder / task) for task in TASKS), clusters=None)
    return compare_models(str(llama / "base"), str(folder / "tuned"), config, folder / "out")


@pytest.mark.slow
class TestNoiseForTuning:
    """Nothing was learnt."""

    def test_no_layer_is_said_to_form_representations_of_tasks(self, noise):
        said = " ".join(noise.sentences)
        assert noise.groups.interval.groups.transition or noise.groups.interval.groups.refinement  # they are named
        assert "representations of tasks" not in said
        assert "whether the controls learnt their tasks" in said

    def test_layers_above_the_transition_are_inherited(self, noise):
        assert "refinement" not in " ".join([*noise.sentences, *naming_rules(noise)]).lower()
        assert noise.tables["layer_groups"]["group"].iloc[-1] == "inherited"


class TestClusters:
    def test_medians_and_ranges_over_tasks(self, controlled):
        result = controlled[0]
        table = result.tables["clusters"].set_index("cluster")
        change = result.summary().set_index("task")["change"]
        assert sorted(table.index) == ["letters", "signs"]
        for cluster, tasks in (("letters", list("abc")), ("signs", list("de"))):
            values = change[tasks]
            row = table.loc[cluster]
            assert (row["tasks"], row["change_tasks"]) == (len(tasks), len(tasks))
            found = row[["change", "change_least", "change_most"]].tolist()
            assert found == pytest.approx([values.median(), values.min(), values.max()])
        assert table["change"].is_monotonic_decreasing
        by_layer = result.tables["clusters_by_layer"].set_index(["cluster", "layer"])
        controls = result.control_table().set_index(["layer", "task"])
        row, of_tasks = by_layer.loc[("letters", 3)], controls.loc[3].loc[list("abc")]
        for column in ("control_base", "control_tuned", "gain"):
            values = of_tasks[column]
            found = [row[column], row[f"{column}_least"], row[f"{column}_most"]]
            assert found == pytest.approx([values.median(), values.min(), values.max()])
        assert "Tasks in no cluster's numbers: f. Held out: f." in result.sentences

    def test_a_label_of_the_prompts(self, gpt2, shaken, apart, undrawn, out):
        rows = [{**row, "cluster": "one" if row["task"] == "a" else "two"} for row in records()]
        write_prompts(apart.prompts, rows)
        result = compare_models(str(gpt2), str(shaken), apart, out)
        assert result.clusters.of_task == {"a": "one", "b": "two", "c": "two"}
        assert result.tables["clusters"].set_index("cluster")["tasks"].to_dict() == {"one": 1, "two": 2}
        page = result.write(out).read_text()
        assert 'id="clusters"' in page
        assert "Debiased CKA between the tuned and the base model, by cluster of tasks" in page

    def test_none(self, measured):
        assert measured.clusters == ClustersOfTasks()
        assert "clusters" not in measured.tables

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ('[clusters]\nx = ["a", "g"]', "'g' (there are a, b, c)"),
            ('[clusters]\nx = ["a"]\ny = ["b", "a"]', "'a'"),
            ('[clusters]\nx = "a"', "expected a list of names"),
            ("[clusters\n", "is not TOML"),
            ("[held_out]\ntasks = []", "has no clusters; give a table [clusters] with"),
        ],
    )
    def test_files_that_are_refused(self, gpt2, shaken, config, out, tmp_path, text, said, monkeypatch):
        monkeypatch.setattr("mechclust.commands.settings.load_pretrained", None)  # no weights are loaded
        (tmp_path / "clusters.toml").write_text(text)
        with pytest.raises(InputError) as refused:
            compare_models(str(gpt2), str(shaken), replace(config, clusters=tmp_path / "clusters.toml"), out)
        assert said in str(refused.value)
        assert str(tmp_path / "clusters.toml") in str(refused.value)

    def test_a_task_with_two_labels_is_refused(self, gpt2, shaken, config, out):
        write_prompts(config.prompts, [{**row, "cluster": "xy"[i % 2]} for i, row in enumerate(records())])
        with pytest.raises(InputError) as refused:
            compare_models(str(gpt2), str(shaken), config, out)
        assert str(refused.value) == (
            f"{config.prompts}: prompts of the task 'a' have the clusters 'x' and 'y'; give every prompt of a task the "
            "same, or give clusters of tasks with --clusters"
        )


def test_the_report(controlled, tmp_path):
    page = controlled[0].write(tmp_path).read_text()
    for name in ("layer_groups", "clusters", "controls"):
        assert (tmp_path / "figures" / f"{name}.png").exists()
        assert (tmp_path / f"{name}.csv").exists()
        assert f'id="{name}"' in page
    assert "Layer groups are read from medians over tasks" in page
    assert (tmp_path / "results" / "without_top_pc.safetensors").exists()


def test_command(llama, asked, out, capsys):
    argv = ["compare", str(llama / "base"), str(llama / "tuned"), "--prompts", str(asked.prompts), "--out", str(out)]
    controls = ["--controls", *(str(llama / task) for task in "abcd")]
    options = ["--clusters", str(asked.clusters), "--no-n-dims"]
    less = ["--min-per-task", "8", "--n-resamples", "20", "--n-permutations", "0", "--map-prompts", "0"]
    assert main([*argv, *controls, *options, *less]) == 0
    printed = capsys.readouterr().out
    assert "- Layer groups, from the controls of 4 tasks: shared 1-2, " in printed
    assert "- Cluster letters, layer" in printed
    assert np.isfinite(float((out / "clusters.csv").read_text().splitlines()[1].split(",")[2]))
    assert not list((out / "results").glob("n_dims*"))
