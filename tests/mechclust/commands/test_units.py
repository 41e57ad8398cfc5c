"""Which prompts belong together: found from their templates, or given as a label."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mechclust import ClustersConfig, CompareConfig, HistoryConfig, compare_models, measure_clusters, measure_history
from mechclust.commands.compare.inputs import read_inputs
from mechclust.commands.units import TEMPLATE, Units, few_units, repeated_prompt_notes, templates_of, units_of
from tasks import InputError, LabelledPrompts

SHIPPED = Path(__file__).parents[3] / "examples" / "prompts" / "instructions.jsonl"


def prompts(n_tasks: int, n_templates: int, n_inputs: int = 4) -> LabelledPrompts:
    """Prompts with ``n_templates`` templates for each task."""
    rows = [(t, k, i) for t in range(n_tasks) for k in range(n_templates) for i in range(n_inputs)]
    return LabelledPrompts(
        [f"task {t}, wording {k}: word{i}." for t, k, i in rows],
        {"task": [str(t) for t, _, _ in rows], "input": [f"word{i}" for _, _, i in rows]},
    )


def test_templates_of_the_shipped_prompts_are_found() -> None:
    shipped = LabelledPrompts.from_file(SHIPPED)
    units = units_of(shipped, "auto")
    assert units.label == TEMPLATE
    assert len(set(units.values or ())) == 260
    assert all("{input}" in template for template in units.values or ())
    assert units.added_to(shipped).labels[TEMPLATE] == units.values


def test_templates_are_used_if_they_can_be_tested() -> None:
    assert units_of(prompts(6, 2), "auto").label == TEMPLATE
    single = units_of(prompts(6, 1), "auto")
    assert single.label is None
    assert "fewer than 20 relabellings" in single.sentence
    assert "too small" in single.sentence


def test_how_many_templates_would_do_is_only_said_without_within() -> None:
    """Within inputs, those of each input would have to be exchanged often enough."""
    given = prompts(2, 2)
    assert "(4 for each task would do)" in units_of(given, "auto").sentence
    within = units_of(given, "auto", within="input").sentence
    assert "fewer than 20 relabellings" in within
    assert "would do" not in within
    assert "would do" not in units_of(prompts(1, 2), "auto").sentence  # nothing is exchanged with one class


def test_without_an_input_nothing_is_found_and_it_is_said() -> None:
    plain = LabelledPrompts(["a b", "c d"], {"task": ["x", "y"]})
    assert units_of(plain, "auto").label is None
    assert "independent" in units_of(plain, "auto").sentence
    own = LabelledPrompts(["say a", "tell b"], {"task": ["x", "y"], "input": ["a", "b"]})
    assert "no two share a template" in units_of(own, "auto").sentence


def test_one_template_for_all_is_no_unit() -> None:
    rows = [(task, i) for task in "xy" for i in range(10)]
    one = LabelledPrompts(
        [f"Review: {task}{i}. Sentiment:" for task, i in rows],
        {"task": [task for task, _ in rows], "input": [f"{task}{i}" for task, i in rows]},
    )
    for compared_in in (None, one.labels["task"]):
        units = units_of(one, "auto", compared_in=compared_in)
        assert units == Units(None, None, "Prompts are taken as independent: all share one template.")


def test_a_label_or_none_overrides() -> None:
    given = prompts(3, 2)
    assert units_of(given, "none").label is None
    assert units_of(given, "input").label == "input"
    with pytest.raises(InputError, match="no label 'inpt'"):
        units_of(given, "inpt")
    with pytest.raises(InputError, match="the label that is measured"):
        units_of(given, "task")
    same = replace(given, labels={**given.labels, "same": ["x"] * len(given)})
    with pytest.raises(InputError, match="--units is 'same', but it has one value only; give another label, or none"):
        units_of(same, "same")


def test_units_of_unequal_sizes_cannot_be_paired() -> None:
    template = [f"t{k}" for k in range(8) for _ in range(k + 1)]
    given = LabelledPrompts([f"p{i}" for i in range(36)], {"task": ["x"] * 36, "template": template})
    said = units_of(given, "auto", relabelled=None, compared_in=["x"] * 36).sentence
    assert "because those of 'x' with equally many prompts can be paired in too few ways" in said


def test_repeats_of_one_template_are_no_warning() -> None:
    twice = LabelledPrompts(["a b", "a b", "c d"], {"task": ["x", "x", "y"], "template": ["1", "1", "2"]})
    assert repeated_prompt_notes(twice, units_of(twice, "template")) == []
    (note,) = repeated_prompt_notes(twice, units_of(twice, "none"))
    assert note.startswith("1 prompt repeats an earlier one")


def test_an_input_is_replaced_as_a_word() -> None:
    assert templates_of(["say it", "say a!", "say 'b c'"], ["", "a", "b c"]) == [
        "say it",
        "say {input}!",
        "say '{input}'",
    ]


def test_a_group_with_fewer_units_than_cka_needs_is_named() -> None:
    enough = [f"u{i}" for i in range(8)]
    assert few_units(enough, ["x"] * 8) == ""
    assert few_units([*enough, *enough[:7]], [*["x"] * 8, *["y"] * 7]) == "'y' has 7 of them, and CKA needs 8"
    assert few_units([*enough, *enough[:7]], [*["x"] * 8, *[None] * 7]) == ""
    assert few_units(["u", "v", "u"], ["x", "y", "x"], least=1) == ""
    assert few_units(["u", "v", "u"], ["x", "y", "x"], least=2) == "'x' has 1 of them, and CKA needs 2"


def test_units_of_prompts_that_are_not_measured_are_not_counted() -> None:
    given = prompts(2, 12)
    drawn = [i for i in range(len(given)) if i % 48 < 40]  # ten templates of each task
    groups = [given.labels["task"][i] if i in set(drawn) else None for i in range(len(given))]
    found = units_of(given, "auto", relabelled=None, compared_in=groups)
    assert found.sentence == "Prompts share 20 templates, which are taken as independent units."
    assert len(set(found.of(drawn).values or ())) == 20
    assert Units(None, None, "").of(drawn).values is None
    labelled = replace(given, labels={**given.labels, "form": templates_of(given.prompts, given.labels["input"])})
    assert units_of(labelled, "form", relabelled=None, compared_in=groups).sentence.endswith("there are 20 units.")
    alone = [group if i % 4 == 0 else None for i, group in enumerate(groups)]
    assert units_of(given, "auto", relabelled=None, compared_in=alone).label is None


def test_classes_with_one_unit_are_named() -> None:
    units = Units("form", ["f", "g", "f", "f", "g"], "", held_out=["f", "g", "f", "f", "g"])
    assert units.with_one(["b", "a", "c", "b", "c"]) == ["a", "b"]
    assert Units(None, None, "").with_one(["a", "b"]) == []
    assert (units.name, Units(None, None, "").name) == ("form", TEMPLATE)
    assert units.codes.tolist() == [0, 1, 0, 0, 1]
    assert Units(None, None, "").codes is None


def test_a_prompt_without_its_input_as_a_word_is_its_own_template() -> None:
    texts = ["say cat", "say dog", "tell cats", "tell a", "go"]
    given = LabelledPrompts(texts, {"task": list("abaab"), "input": ["cat", "dog", "cat", "a", ""]})
    assert units_of(given, "auto", relabelled=None).sentence == (
        "Prompts share 4 templates, which are taken as independent units."
    )
    named = LabelledPrompts(texts, {"task": list("abaab"), "template": list("ttuvv"), "input": ["cat"] * 5})
    assert units_of(named, "auto", relabelled=None).sentence == (
        "Prompts share 3 templates, which are taken as independent units."
    )


@pytest.fixture
def shared_templates(tmp_path):
    """A file of prompts in which each of two tasks has eight templates, with three inputs each."""
    path = tmp_path / "templates.jsonl"
    rows = [
        {"prompt": f"w{1 + task} w{3 + k} w{11 + i}", "task": f"t{task}", "input": f"w{11 + i}", "other": f"o{k}"}
        for task in range(2)
        for k in range(8)
        for i in range(3)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def other(shallow, tmp_path_factory):
    """Another checkpoint of the same shape; read only."""
    folder = shutil.copytree(shallow, tmp_path_factory.mktemp("models") / "other1")
    weights = load_file(folder / "model.safetensors")
    draw = torch.Generator().manual_seed(1)
    changed = {name: x + 0.1 * torch.randn(x.shape, generator=draw) for name, x in weights.items()}
    save_file(changed, folder / "model.safetensors", {"format": "pt"})
    return folder


HIDDEN_STATES_ALONE = {"blocks": False, "n_patched": 0, "top_pc": False, "map_prompts": 0}


class TestCommands:
    """Each command finds the templates, gives them to its probes, says so, and can be told otherwise."""

    def test_clusters(self, shallow, shared_templates, tmp_path):
        few = {"n_init": 1, "n_permutations": 39, "n_resamples": 20, "n_shuffles": 19, "untrained": 0}
        config, out = ClustersConfig(shared_templates, map_prompts=0, **few), tmp_path / "out"
        found = measure_clusters(str(shallow), config, out)
        assert found.trained.raw.metadata["parameters"]["units"] == TEMPLATE
        assert found.trained.linear.metadata["parameters"]["units"] == TEMPLATE
        assert any("16 templates, which are taken as independent" in note for note in found.caveats)
        alone = measure_clusters(str(shallow), replace(config, units="none"), out)
        assert alone.trained.raw.metadata["parameters"]["units"] is None
        assert (alone.trained.raw["ari"] == found.trained.raw["ari"]).all()
        named = measure_clusters(str(shallow), replace(config, units="other"), out)
        assert named.trained.raw.metadata["parameters"]["units"] == "other"

    def test_compare(self, shallow, other, shared_templates, tmp_path):
        config = CompareConfig(shared_templates, n_resamples=20, n_permutations=19, **HIDDEN_STATES_ALONE)
        found = compare_models(str(shallow), str(other), config, tmp_path / "out")
        assert found.cka.metadata["parameters"]["units"] == TEMPLATE
        assert any("16 templates" in note for note in found.caveats)
        assert any("95% over units ('template')" in note for note in found.caveats)
        alone = compare_models(str(shallow), str(other), replace(config, units="none"), tmp_path / "alone")
        torch.testing.assert_close(alone.cka["cka"], found.cka["cka"], equal_nan=True)
        assert not torch.equal(alone.cka["cka_low"].nan_to_num(), found.cka["cka_low"].nan_to_num())
        assert not torch.equal(alone.cka["debiased_cka"].nan_to_num(), found.cka["debiased_cka"].nan_to_num())

    @pytest.mark.parametrize("n_permutations", [0, 19])
    def test_compare_with_too_few_templates_of_a_task(self, shallow, other, tmp_path, n_permutations):
        """They are taken as independent, and it is said why; a label that is given is refused before work starts."""
        path = tmp_path / "few.jsonl"
        rows = [
            {"prompt": f"w{1 + task} w{3 + k} w{11 + i}", "task": f"t{task}", "input": f"w{11 + i}", "other": f"o{k}"}
            for task, n_templates in (("0", 8), ("1", 3))
            for task in [int(task)]
            for k in range(n_templates)
            for i in range(8)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        config = CompareConfig(path, n_resamples=20, n_permutations=n_permutations, **HIDDEN_STATES_ALONE)
        found = compare_models(str(shallow), str(other), config, tmp_path / "out")
        assert found.cka.metadata["parameters"]["units"] is None
        assert any("'t1' has 3 of them, and CKA needs 8" in note for note in found.caveats)
        with pytest.raises(InputError, match="--units is 'other', but 't1' has 3 of them"):
            compare_models(str(shallow), str(other), replace(config, units="other"), tmp_path / "refused")
        assert not (tmp_path / "refused").exists()

    def test_compare_counts_repeats_among_the_prompts_that_it_draws(self, shallow, other, tmp_path):
        path = tmp_path / "twice.jsonl"
        rows = [{"prompt": f"w{1 + i % 15} w{3 + task}", "task": f"t{task}"} for task in range(2) for i in range(30)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        config = CompareConfig(path, min_per_task=4, max_per_task=4, **HIDDEN_STATES_ALONE)
        inputs = read_inputs(str(shallow), str(other), config, tmp_path / "out")
        drawn = [rows[i]["prompt"] for index in inputs.of_task().values() for i in index.tolist()]
        assert len(drawn) == len(set(drawn))
        assert not [note for note in inputs.notes if "an earlier one" in note]

    def test_history(self, shallow, other, shared_templates, tmp_path):
        few = {"n_init": 1, "n_permutations": 39, "n_resamples": 20, "cka_permutations": 19, "map_prompts": 0}
        config = HistoryConfig(shared_templates, checkpoints=(shallow, other), **few)
        found = measure_history(str(shallow), config, tmp_path / "out")
        assert any("16 templates" in note for note in found.caveats)
        assert found.config.unit_label == TEMPLATE
        table = found.to_dataframe()
        assert set(table[table["measure"] == "cka_first"]["n"]) == {48}
        respelled = Path(f"{tmp_path}/./out")
        assert measure_history(Path(os.path.relpath(shallow)), config, respelled).headline == found.headline
