"""A user's own model and prompts: structure that was planted is found, layer by layer."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace

import pytest
import torch

from mechclust.commands.clusters import ClustersConfig, measure_clusters, write_clusters_report
from mechclust.models import load_pretrained, save_model
from probes import TaskClusterARI, last_token, load_result, residual, run
from tasks import InputError, LabelledPrompts

TASKS = ("a", "b", "c")
COLUMNS = ["layer", "site", "label", "ari", "null_low", "null_high", "p_value"]


def last_word_tells_the_task():
    """27 prompts: the last word is the task's, the first word runs through all with every task."""
    return [
        {"prompt": f"w{first} w{middle} w{10 + k}", "task": task, "first": first}
        for k, task in enumerate(TASKS)
        for first in range(3)
        for middle in (4, 5, 6)
    ]


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in last_word_tells_the_task()))
    return path


@pytest.fixture
def config(prompts):
    return ClustersConfig(prompts, n_init=2, n_permutations=49, batch_size=10)


class TestMeasure:
    def test_planted_clusters_are_found(self, gpt2, config):
        table = measure_clusters(str(gpt2), replace(config, also=("first",))).to_dataframe()
        assert list(table.columns) == [*COLUMNS, "untrained"]
        assert table["layer"].tolist() == [0, 1, 2, 0, 1, 2]
        assert table["site"].tolist() == 2 * ["hook_embed", "blocks.0.hook_resid_post", "blocks.1.hook_resid_post"]
        embedding = table[table["layer"] == 0].set_index("label")
        assert embedding.loc["task", "ari"] == 1.0
        assert embedding.loc["task", "untrained"] == 1.0
        assert embedding.loc["task", "p_value"] == pytest.approx(1 / 50)
        assert abs(embedding.loc["first", "ari"]) < 0.1  # at the last token, the first word is not in the embedding
        assert embedding.loc["task", "null_low"] <= 0 <= embedding.loc["task", "null_high"] < 0.3

    def test_untrained_is_another_model(self, write_checkpoint, tmp_path, config):
        """Training made the tasks' words one word: only the untrained embedding tells them apart."""

        def blind(model):
            model.transformer.wte.weight[12:15] = model.transformer.wte.weight[12]

        path = write_checkpoint(tmp_path / "m", change=blind)
        table = measure_clusters(str(path), config).to_dataframe()
        assert table["ari"][0] == 0.0
        assert table["untrained"][0] == 1.0

    def test_untrained_models_are_as_many_as_asked_for_and_averaged(self, gpt2, config):
        result = measure_clusters(str(gpt2), replace(config, untrained=2))
        assert len(result.untrained) == 2
        first, second = (r["ari"][2, 0] for r in result.untrained)
        assert result.to_dataframe()["untrained"][2] == pytest.approx(float(first + second) / 2)
        assert "untrained" not in measure_clusters(str(gpt2), replace(config, untrained=0)).to_dataframe().columns

    def test_equals_the_probe_run_by_hand(self, gpt2, config, prompts):
        model = load_pretrained(gpt2)
        batches = LabelledPrompts.from_jsonl(prompts).batches(lambda text: model.tokenizer(text)["input_ids"])
        probe = TaskClusterARI(at=residual(), readout=last_token(), n_init=2, n_permutations=49)
        expected = run(model, batches, probe)
        found = measure_clusters(str(gpt2), replace(config, untrained=0)).trained
        assert torch.equal(found["ari"], expected["ari"])
        assert torch.equal(found["null_high"], expected["null_high"])

    def test_does_not_depend_on_the_batch_size(self, gpt2, config):
        few, many = (measure_clusters(str(gpt2), replace(config, batch_size=n, untrained=0)).trained for n in (4, 99))
        assert torch.equal(few["ari"], many["ari"])

    def test_is_reproducible_and_leaves_the_random_state_alone(self, gpt2, config):
        first = measure_clusters(str(gpt2), config).to_dataframe()
        before = torch.get_rng_state()
        assert measure_clusters(str(gpt2), config).to_dataframe().equals(first)
        assert torch.equal(before, torch.get_rng_state())

    @pytest.mark.parametrize("family", ["llama", "bert"])
    def test_other_families(self, write_checkpoint, tmp_path, config, family):
        table = measure_clusters(str(write_checkpoint(tmp_path / family, family)), config).to_dataframe()
        assert table["layer"].tolist() == [0, 1, 2]
        assert table["ari"][0] == 1.0
        assert not any(math.isnan(x) for x in table["ari"])

    def test_mean_over_tokens_sees_every_word(self, gpt2, config):
        """Where the last word says nothing, the mean of the embeddings still tells the tasks apart."""
        records = [
            {"prompt": f"w{10 + k} w{10 + k} w{word} w0", "task": task}
            for k, task in enumerate(TASKS)
            for word in (4, 5, 6)
        ]
        config.prompts.write_text("".join(json.dumps(record) + "\n" for record in records))
        last, mean = (measure_clusters(str(gpt2), replace(config, position=p)).to_dataframe() for p in ("last", "mean"))
        assert last["ari"][0] == 0.0
        assert mean["ari"][0] == 1.0

    def test_prompts_of_different_lengths(self, gpt2, config):
        """The last token is the last real one, not the padding."""
        records = [
            {"prompt": " ".join(["w1"] * n + [f"w{10 + k}"]), "task": task}
            for k, task in enumerate(TASKS)
            for n in (1, 5, 9)
        ]
        config.prompts.write_text("".join(json.dumps(record) + "\n" for record in records))
        assert measure_clusters(str(gpt2), config).to_dataframe()["ari"][0] == 1.0

    def test_chat_template_wraps_every_prompt(self, gpt2, tmp_path, config):
        import shutil

        from transformers import AutoTokenizer

        path = shutil.copytree(gpt2, tmp_path / "chat")
        tokenizer = AutoTokenizer.from_pretrained(path)
        tokenizer.chat_template = (
            "{% for m in messages %}w18 {{ m['content'] }} w19{% endfor %}{% if add_generation_prompt %} w17{% endif %}"
        )
        tokenizer.save_pretrained(path)
        plain, chat = (
            measure_clusters(str(path), replace(config, chat=c)).to_dataframe()["ari"][0] for c in (False, True)
        )
        assert plain == 1.0
        assert chat == 0.0  # every prompt now ends with the same word

    def test_max_rows(self, gpt2, config):
        assert measure_clusters(str(gpt2), replace(config, max_rows=12, untrained=0)).trained.metadata["n"] == 12


class TestTooLong:
    @pytest.fixture
    def long(self, config):
        """Twenty words for a context of sixteen; the task is in the last word."""
        records = [{"prompt": f"w{i} " * 19 + f"w{10 + k}", "task": t} for k, t in enumerate(TASKS) for i in (1, 2)]
        config.prompts.write_text("".join(json.dumps(record) + "\n" for record in records))
        return config

    def test_is_refused(self, gpt2, long):
        with pytest.raises(InputError) as refused:
            measure_clusters(str(gpt2), long)
        assert str(refused.value) == (
            f"{long.prompts}: prompt 1 has 20 tokens, more than the model's context of 16; shorten it, "
            "or choose too_long='truncate' (--too-long truncate) to keep its end"
        )

    @pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
    def test_is_truncated_from_the_left_when_asked(self, write_checkpoint, tmp_path, long, family):
        path = write_checkpoint(tmp_path / family, family)
        assert measure_clusters(str(path), replace(long, too_long="truncate")).to_dataframe()["ari"][0] == 1.0

    def test_of_roberta_counts_its_position_offset(self, write_checkpoint, tmp_path, long, tl_major):
        if tl_major >= 4:  # 18 positions, of which two are set aside
            path = write_checkpoint(tmp_path / "roberta", "roberta")
            with pytest.raises(InputError, match="more than the model's context of 16"):
                measure_clusters(str(path), long)
            assert measure_clusters(str(path), replace(long, too_long="truncate")).to_dataframe()["ari"][0] == 1.0


class TestRefusals:
    @pytest.fixture(autouse=True)
    def no_model(self, monkeypatch):
        """All of these are refused before a model is loaded."""

        def never(*args, **kwargs):
            raise AssertionError("loaded a model")

        monkeypatch.setattr("mechclust.commands.settings.load_pretrained", never)

    def refused(self, config, **changes):
        with pytest.raises(InputError) as error:
            measure_clusters("somewhere", replace(config, **changes))
        return str(error.value)

    def test_unknown_label(self, config):
        assert self.refused(config, also=("language",)) == (
            f"{config.prompts} has no label 'language' (it has task, first)"
        )

    def test_one_task_only(self, config):
        config.prompts.write_text('{"prompt": "w1", "task": "sort"}\n{"prompt": "w2", "task": "sort"}\n')
        assert self.refused(config) == f"{config.prompts} has one task only ('sort'); clustering needs at least 2"

    def test_fewer_prompts_than_classes(self, config):
        assert self.refused(config, max_rows=2) == (
            f"{config.prompts} has fewer prompts than classes of 'task' (3); give several of each"
        )

    def test_no_such_device(self, config):
        assert self.refused(config, device="warp") == "no device 'warp'; expected cpu, cuda, cuda:1 or mps"

    @pytest.mark.parametrize(
        "changes",
        [{"n_init": 0}, {"n_permutations": 0}, {"batch_size": 0}, {"seed": -1}, {"max_rows": 0}, {"untrained": -1}],
    )
    def test_numbers_that_nothing_can_be_measured_with(self, config, changes):
        (name, value), *_ = changes.items()
        assert f"{name} is {value}; expected at least" in self.refused(config, **changes)


class TestMoreRefusals:
    def test_no_chat_template(self, gpt2, config):
        with pytest.raises(InputError, match=r"^this model's tokenizer has no chat template; leave out --chat$"):
            measure_clusters(str(gpt2), replace(config, chat=True))

    def test_a_model_of_ours_has_no_tokenizer(self, model, tmp_path, config):
        path = tmp_path / "ours.safetensors"
        save_model(model, path)
        with pytest.raises(InputError, match="tokenizer"):
            measure_clusters(str(path), config)


@pytest.fixture(scope="module")
def written(gpt2, tmp_path_factory):
    folder = tmp_path_factory.mktemp("clusters")
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in last_word_tells_the_task()))
    config = ClustersConfig(path, also=("first",), n_init=2, n_permutations=49, untrained=2)
    result = measure_clusters(str(gpt2), config)
    report = write_clusters_report(result, folder / "deep" / "out")
    return result, report


class TestReport:
    def test_files(self, written):
        report = written[1]
        files = sorted(str(p.relative_to(report.parent)) for p in report.parent.rglob("*") if p.is_file())
        assert files == [
            "clusters.csv",
            "figures/ari_by_layer.png",
            "report.html",
            "results/trained.safetensors",
            "results/untrained-seed0.safetensors",
            "results/untrained-seed1.safetensors",
        ]

    def test_csv_is_the_table(self, written):
        result, report = written
        with (report.parent / "clusters.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert list(rows[0]) == [*COLUMNS, "untrained"]
        assert [float(row["ari"]) for row in rows] == pytest.approx(result.to_dataframe()["ari"].tolist())
        assert [row["label"] for row in rows] == 3 * ["task"] + 3 * ["first"]

    def test_results_are_what_was_measured(self, written):
        result, report = written
        loaded = load_result(report.parent / "results/trained.safetensors")
        assert torch.equal(loaded["ari"], result.trained["ari"])
        assert loaded.metadata["n"] == 27
        untrained = load_result(report.parent / "results/untrained-seed1.safetensors")
        assert torch.equal(untrained["ari"], result.untrained[1]["ari"])

    def test_report_shows_figure_table_and_settings(self, written):
        page = written[1].read_text()
        assert page.count("data:image/png;base64,") == 1
        assert "Task clusters in" in page
        assert "27 prompts, hidden state at the last prompt token" in page
        assert "blocks.1.hook_resid_post" in page
        assert "untrained" in page
        assert "n_permutations" in page
        assert "http" not in page

    def test_hostile_labels_are_escaped(self, gpt2, config, tmp_path):
        hostile = "<img src=x onerror=alert(1)>"
        records = [{"prompt": f"w1 w{10 + k}", "task": t, hostile: k} for k, t in enumerate((hostile, "b", "c", "b"))]
        config.prompts.write_text("".join(json.dumps(record) + "\n" for record in records))
        result = measure_clusters(str(gpt2), replace(config, also=(hostile,), untrained=0))
        page = write_clusters_report(result, tmp_path / "out").read_text()
        assert hostile not in page
        assert "&lt;img src=x" in page

    def test_a_folder_that_cannot_be_written(self, written, config, tmp_path):
        (tmp_path / "file").write_text("")
        out = tmp_path / "file" / "out"
        with pytest.raises(InputError) as refused:
            write_clusters_report(written[0], out)
        assert str(refused.value) == (
            f"cannot write to {str(out)!r} (Not a directory); choose another folder with --out"
        )
