"""Templates that are held out: do prompts of one task resemble each other beyond their wording?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mechclust.commands.clusters import ClustersConfig, measure_clusters
from mechclust.commands.clusters.inputs import read_inputs
from mechclust.commands.clusters.verdicts import LabelVerdict
from mechclust.models.resolved import resolve_model
from probes import RowStore
from tests.mechclust.commands.clusters.cases import TASKS, write_prompts

TEMPLATES = 3
LAST_WORD = 7  # token of "w5"
INPUTS = ("w1", "w2", "w3", "w4")


def templated(n_templates=TEMPLATES, tasks=TASKS):
    """Prompts whose last word is their template's, and whose first word is their task's."""
    return [
        {"prompt": f"w{17 + k} {given} w{5 + n_templates * k + template}", "task": task, "input": given}
        for k, task in enumerate(tasks)
        for template in range(n_templates)
        for given in INPUTS
    ]


def words_alone(model):
    """Make every block add nothing, so that the last state is the last word's embedding."""
    for block in model.transformer.h:
        for projection in (block.attn.c_proj, block.mlp.c_proj):
            projection.weight.zero_()
            projection.bias.zero_()
    model.transformer.wpe.weight.zero_()


def words_of_one_task_alike(model):
    """Give the last words of all templates of a task nearly one embedding."""
    words_alone(model)
    embedding = model.transformer.wte.weight
    for k in range(len(TASKS)):
        first = LAST_WORD + TEMPLATES * k
        noise = torch.randn(TEMPLATES, embedding.shape[1], generator=torch.Generator().manual_seed(k))
        embedding[first : first + TEMPLATES] = embedding[first] + 1e-3 * noise


def settings(path, **changes):
    few = {"n_init": 2, "n_permutations": 199, "n_resamples": 20, "n_shuffles": 19, "untrained": 1, "map_prompts": 0}
    return ClustersConfig(path, **{**few, **changes})


@pytest.fixture
def config(tmp_path):
    return settings(write_prompts(tmp_path / "prompts.jsonl", templated()))


@pytest.fixture
def trained(config):
    """Of the trained model alone, for tests that look at no chance level."""
    return replace(config, untrained=0, n_permutations=19)


@pytest.fixture(scope="module")
def only_words(write_checkpoint, tmp_path_factory):
    """A model whose last state is the last word's embedding; read only."""
    return write_checkpoint(tmp_path_factory.mktemp("words"), change=words_alone, n_layer=1)


@pytest.fixture(scope="module")
def wording(only_words, tmp_path_factory):
    """What was measured of it: result, folder; read only."""
    folder = tmp_path_factory.mktemp("wording")
    config = settings(write_prompts(folder / "prompts.jsonl", templated()))
    return measure_clusters(str(only_words), config, folder / "out"), folder / "out"


class TestPlanted:
    def test_wording_alone(self, wording):
        """The plain share is highest, and that of other templates is at chance."""
        table = wording[0].to_dataframe()
        assert (table["nearest"] == 1).all()
        assert (table["held_out"] <= table["held_out_null_high"]).all()
        assert wording[0].verdicts["task"]["held_out"] == LabelVerdict.NOT_SHOWN

    def test_the_task(self, write_checkpoint, tmp_path, config):
        """Both shares are highest, and random weights are at chance."""
        path = write_checkpoint(tmp_path / "m", change=words_of_one_task_alike, n_layer=1)
        result = measure_clusters(str(path), config)
        table = result.to_dataframe()
        assert (table["nearest"] == 1).all()
        assert (table["held_out"] == 1).all()
        assert (table["held_out_null_high"] < 1).all()
        assert (table["untrained_held_out"] < 0.7).all()
        assert result.verdicts["task"]["held_out"] == LabelVerdict.MORE
        assert "neighbour" not in result.headline


class TestTemplates:
    def test_a_task_with_one_template_leaves_nothing(self, shallow, trained):
        """It is said of which task, and nothing is measured."""
        write_prompts(trained.prompts, [*templated(), {"prompt": "w1 w15", "task": "d", "input": "w1"}])
        result = measure_clusters(str(shallow), trained)
        assert "held_out" not in result.to_dataframe()
        (reading,) = (each for each in result.readings if each.value == "undefined")
        assert reading.what == "Nearest neighbour of another template"
        assert "one template only: d." in reading.verdict

    def test_each_task_has_one_template(self, only_words, config):
        """Nothing can tell the task from its wording, which the headline says."""
        write_prompts(config.prompts, templated(n_templates=1))
        result = measure_clusters(str(only_words), replace(config, untrained=0))
        assert result.headline.endswith("Each task has one template only, so wording is not ruled out.")
        assert "held_out" not in result.results

    def test_all_tasks_share_one_template(self, shallow, trained):
        """The task is in the input, and prompts are left out one by one."""
        rows = [{"prompt": f"w3 w{i} w4", "task": TASKS[i % 2], "input": f"w{i}"} for i in range(5, 17)]
        write_prompts(trained.prompts, rows)
        result = measure_clusters(str(shallow), trained)
        assert result.config.units == "none"
        assert result.trained.linear.metadata["parameters"]["folds"] == 5
        assert "wording" not in result.headline

    def test_too_few_for_a_p_value(self, shallow, config):
        """The share is measured, and its verdict is open."""
        write_prompts(config.prompts, templated(n_templates=2, tasks=TASKS[:2]))
        result = measure_clusters(str(shallow), replace(config, untrained=0))
        assert result.config.units == "none"
        assert result.to_dataframe()["held_out"].between(0, 1).all()
        assert result.to_dataframe()["held_out_p"].isna().all()
        assert result.verdicts["task"]["held_out"] == LabelVerdict.TOO_FEW

    def test_without_templates_nothing_is_held_out(self, shallow, alone, trained):
        assert not any("Nearest" in reading.what for reading in alone[0].readings)
        write_prompts(trained.prompts, [{**row, "input": str(i)} for i, row in enumerate(templated())])
        for units in ("none", "auto"):
            assert read_inputs(resolve_model(shallow), replace(trained, units=units)).held_out is None

    def test_a_label_is_held_out_in_their_place(self, shallow, trained):
        rows = [{**row, "form": i // len(INPUTS) % TEMPLATES} for i, row in enumerate(templated())]
        write_prompts(trained.prompts, rows)
        result = measure_clusters(str(shallow), replace(trained, units="input", also=("form",)))
        (reading,) = (each for each in result.readings if each.what == "Nearest neighbour of another 'input'")
        table = result.to_dataframe()
        assert table[table["label"] == "form"]["held_out"].isna().all()
        assert table[table["label"] == "task"]["held_out"].notna().all()
        assert "among all prompts" in reading.value

    def test_page_and_files(self, wording, tmp_path):
        result, out = wording[0], tmp_path / "out"
        page = result.write(out).read_text()
        assert "Nearest neighbour of another template" in page
        for name in ("results/trained/held_out.safetensors", "results/untrained-seed0/nearest.safetensors"):
            assert (out / name).is_file()
        assert (out / "figures" / "nearest_neighbours.png").is_file()
        assert "held_out" in result.shown_table

    def test_the_share_is_that_of_a_loop(self, wording):
        result, out = wording
        tasks = [row["task"] for row in templated()]
        templates = [row["prompt"].split()[-1] for row in templated()]
        for model, curves in (("trained", result.trained), ("untrained-seed0", result.untrained[0])):
            store = RowStore(out / "rows" / model)
            (states,) = store.take(store.index, ["rows/blocks.0.hook_resid_post"]).values()
            shares = {"nearest": [], "held_out": []}
            for i, state in enumerate(states):
                distance = (states - state).norm(dim=1)
                distance[i] = torch.inf
                shares["nearest"].append(tasks[int(distance.argmin())] == tasks[i])
                distance[[template == templates[i] for template in templates]] = torch.inf
                shares["held_out"].append(tasks[int(distance.argmin())] == tasks[i])
            for name, values in shares.items():
                assert float(curves.by_name[name]["neighbour_purity"][1]) == np.mean(values), name
