"""A user's own model and prompts: structure that was planted is found, layer by layer."""

from __future__ import annotations

import csv
import html
import json
import math
import shutil
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mechclust.commands.clusters import ClustersConfig, ClustersResult, measure_clusters, write_clusters_report
from mechclust.models import load_pretrained, save_model
from probes import ProbeResult, TaskClusterARI, last_token, load_result, residual, run
from probes.functional.task_cluster_ari import n_relabellings
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
        """The last token is the last real one, not the padding, and layer 0 is its embedding without position."""
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

    @pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
    def test_is_refused(self, write_checkpoint, tmp_path, long, family):
        with pytest.raises(InputError) as refused:
            measure_clusters(str(write_checkpoint(tmp_path / family, family)), long)
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

    def test_one_prompt_per_class(self, config):
        """Any model clusters these perfectly, an untrained one too: 1.000 with a p of 1."""
        config.prompts.write_text('{"prompt": "w1", "task": "sort"}\n{"prompt": "w2", "task": "count"}\n')
        assert self.refused(config) == (
            f"{config.prompts} has 2 prompts for 2 classes of 'task', so that each prompt would be its own "
            "cluster, in any model; give several of each"
        )
        records = [{"prompt": f"w{i}", "task": "ab"[i % 2], "id": i} for i in range(6)]
        config.prompts.write_text("".join(json.dumps(record) + "\n" for record in records))
        assert "has 6 prompts for 6 classes of 'id'" in self.refused(config, also=("id",))
        assert "has 2 prompts for 2 classes of 'task'" in self.refused(config, max_rows=2)

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


class TestFewPrompts:
    @pytest.mark.parametrize(
        ("sizes", "p"), [([1, 1], 1), ([2, 2], 1 / 3), ([1, 2], 1 / 3), ([2, 2, 2], 1 / 15), ([3, 3], 1 / 10)]
    )
    def test_how_often_chance_gives_the_very_classes(self, sizes, p):
        """Counted: every order of the labels, and how many of these part the prompts as the classes do."""
        labels = [k for k, size in enumerate(sizes) for _ in range(size)]
        orders = [[order.index(x) for x in order] for order in permutations(labels)]
        same = sum(order == [labels.index(x) for x in labels] for order in orders)
        assert 1 / n_relabellings(labels) == pytest.approx(same / len(orders)) == pytest.approx(p)

    def test_are_noted(self, gpt2, config):
        records = [{"prompt": f"w1 w{10 + k}", "task": t} for k, t in enumerate("aabb")]
        config.prompts.write_text("".join(json.dumps(record) + "\n" for record in records))
        notes = measure_clusters(str(gpt2), config).notes
        assert notes[0] == (
            "4 prompts are too few for 'task': clusters that are exactly its classes come about by chance with p = "
            "0.33; give more."
        )
        records = [{"prompt": f"w1 w{10 + k}", "task": t} for k, t in enumerate("aaaaabbbbbcd")]
        config.prompts.write_text("".join(json.dumps(record) + "\n" for record in records))
        notes = measure_clusters(str(gpt2), config).notes
        assert notes[0] == "Of 4 classes of 'task', 2 classes have a single prompt, which cannot form a cluster."
        assert "too few" not in " ".join(notes)


class TestSentences:
    """What is said of numbers that are given."""

    LAYERS = ["hook_embed", *(f"blocks.{i}.hook_resid_post" for i in range(3))]

    def said(self, ari, p, untrained=(0.1, 0.2, 0.3, 0.25), n_permutations=1000, n_untrained=1):
        def result(values, p):
            arrays = {"ari": values, "null_low": [-0.05] * 4, "null_high": [0.06] * 4, "p_value": p}
            return ProbeResult(
                probe="TaskClusterARI",
                values={name: torch.tensor(x, dtype=torch.float64)[:, None] for name, x in arrays.items()},
                axes=dict.fromkeys(arrays, ("site", "label")),
                coords={"site": self.LAYERS, "label": ["task"]},
                layers={site: i for i, site in enumerate(self.LAYERS)},
                metadata={"n": 40, "n_clusters": {"task": 4}},
            )

        config = ClustersConfig(Path("p.jsonl"), n_permutations=n_permutations)
        return ClustersResult("m", config, result(ari, p), n_untrained * [result(untrained, p)]).sentences

    def test_layers_above_chance_corrected_for_their_number(self):
        """.02 and .03 are above chance at a layer alone; of four layers, .03 is not."""
        first, second = self.said([0.01, 0.9, 0.5, 0.1], [0.4, 0.001, 0.02, 0.2])
        assert first == (
            "By 'task', hidden states cluster above chance at layers 1-2 of 0-3 (p of at most 0.05, corrected for the "
            "4 layers looked at); the highest adjusted Rand index is 0.900, at layer 1 (chance: -0.050 to 0.060; p = "
            "0.001)."
        )
        assert second == (
            "An untrained model of the same shape gives 0.200 at that layer and, at layer 2, 0.300, its highest."
        )
        (first, *_) = self.said([0.01, 0.9, 0.5, 0.1], [0.4, 0.001, 0.03, 0.2])
        assert "above chance at layer 1 of 0-3" in first
        (first, *_) = self.said([0.2, 0.9, 0.5, 0.1], 4 * [0.001])
        assert "above chance at every layer (" in first

    def test_the_embedding_alone(self):
        *_, last = self.said([0.8, 0.9, 0.5, 0.1], [0.001, 0.001, 0.4, 0.2])
        assert last == (
            "Layer 0, the embedding, is one of them (index 0.800): there the words themselves (with their places, "
            "where the model adds these first) tell the classes of 'task' apart, before context is read."
        )

    def test_no_better_than_untrained(self):
        _, second = self.said([0.0, 0.29, 0.1, 0.1], [0.9, 0.001, 0.3, 0.2], n_untrained=2)
        assert second == (
            "2 untrained models of the same shape give, on average, 0.200 at that layer and, at layer 2, 0.300, their "
            "highest: as much without any training."
        )
        assert len(self.said([0.0, 0.29, 0.1, 0.1], [0.9, 0.001, 0.3, 0.2], n_untrained=0)) == 1

    def test_nothing_above_chance_and_what_that_does_not_mean(self):
        """.02 at one of four layers is what chance gives in one of thirteen experiments."""
        first, _, last = self.said([-0.0001, 0.03, 0.05, 0.01], [0.9, 0.3, 0.02, 0.5], untrained=[0.0] * 4)
        assert first == (
            "By 'task', no layer is shown to cluster above chance: the highest adjusted Rand index is 0.050, at layer "
            "2 (chance: -0.050 to 0.060; p = 0.02), and the smallest p, corrected for the 4 layers looked at, is 0.08."
        )
        assert last.startswith("That does not mean that the layers hold nothing of 'task': k-means finds what")
        (first, *_) = self.said([-0.0001, -0.03, -0.05, -0.01], [0.9] * 4)
        assert "-0.000" not in first

    def test_too_few_relabellings_to_tell(self):
        *_, last = self.said([0.9, 0.1, 0.1, 0.1], [0.05, 0.3, 0.2, 0.5], n_permutations=19)
        assert last == (
            "19 relabellings are too few to tell for 4 layers: no p can be below 0.05; give --n-permutations 1000."
        )

    def test_an_index_that_is_nowhere(self):
        assert self.said([math.nan] * 4, [math.nan] * 4) == ["By 'task', no layer has an index; the notes say why."]
        (first, *_) = self.said([math.nan, 0.9, 0.1, 0.1], [math.nan, 0.001, 0.3, 0.2])
        assert "above chance at layer 1 of 1-3 (p of at most 0.05, corrected for the 3 layers looked at)" in first


class TestModelsInMemory:
    @pytest.fixture(params=["gpt2", "bert"])
    def checkpoint(self, request, write_checkpoint, tmp_path):
        return write_checkpoint(tmp_path / "m", request.param)

    def test_are_measured_as_by_name(self, checkpoint, config):
        from transformers import AutoModel

        tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        by_name = measure_clusters(str(checkpoint), config)
        hooked = load_pretrained(checkpoint, attention="sdpa")
        for model, options in ((hooked, {}), (AutoModel.from_pretrained(checkpoint), {"tokenizer": tokenizer})):
            model.eval()
            before = {name: x.clone() for name, x in model.named_parameters()}
            result = measure_clusters(model, config, **options)
            assert result.to_dataframe().equals(by_name.to_dataframe())
            assert result.model == str(checkpoint)
            assert result.sentences == by_name.sentences
            assert all(torch.equal(x, before[name]) for name, x in model.named_parameters())

    def test_without_a_name_are_called_by_their_class(self, gpt2, config):
        from transformers import BertConfig, BertModel

        shape = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 8, "intermediate_size": 8}
        model = BertModel(BertConfig(vocab_size=30, max_position_embeddings=16, **shape)).eval()
        with pytest.raises(InputError, match=r"'BertModel' has no tokenizer to read prompts; .* or tokenizer="):
            measure_clusters(model, config)
        assert measure_clusters(model, config, tokenizer=AutoTokenizer.from_pretrained(gpt2)).model == "BertModel"


class TestAdapters:
    def test_is_named_and_taken_out_of_a_model_in_memory(self, gpt2, tmp_path, config):
        """The weights are the caller's: left in, a second call would add it again."""
        peft = pytest.importorskip("peft")
        lora = peft.LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False)
        peft.get_peft_model(AutoModelForCausalLM.from_pretrained(gpt2), lora).save_pretrained(tmp_path / "lora")
        model, tokenizer = AutoModelForCausalLM.from_pretrained(gpt2), AutoTokenizer.from_pretrained(gpt2)
        before = {name: x.clone() for name, x in model.named_parameters()}
        tuned = replace(config, adapter=tmp_path / "lora")
        one, again = (measure_clusters(model, tuned, tokenizer=tokenizer) for _ in range(2))
        by_name, base = measure_clusters(str(gpt2), tuned), measure_clusters(str(gpt2), config)
        assert all(torch.equal(x, before[name]) for name, x in model.named_parameters())
        assert one.trained.metadata["model"] == again.trained.metadata["model"] != base.trained.metadata["model"]
        assert one.to_dataframe().equals(again.to_dataframe())
        assert one.to_dataframe().equals(by_name.to_dataframe())
        assert by_name.model == f"{gpt2} with {tmp_path / 'lora'}"

    def test_a_tokenizer_for_a_model_that_has_hooks(self, gpt2, config):
        model = load_pretrained(AutoModelForCausalLM.from_pretrained(gpt2))
        assert model.tokenizer is None
        found = measure_clusters(model, config, tokenizer=AutoTokenizer.from_pretrained(gpt2))
        assert found.to_dataframe()["ari"][0] == 1.0

    def test_refused_before_the_model_is_loaded(self, gpt2, tmp_path, config):
        with pytest.raises(InputError, match=r"no adapter in .* give a local folder that peft saved"):
            measure_clusters(str(gpt2), replace(config, adapter=tmp_path))


class TestTokens:
    def test_unknown_words_and_repeated_prompts_are_told(self, gpt2, config):
        rows = [{"prompt": f"what is w{i}", "task": task} for i in (1, 2, 3) for task in "ab"]
        config.prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
        notes = measure_clusters(str(gpt2), config).notes
        assert any(note.startswith("67% of the tokens are <unk>: the tokenizer does not know these") for note in notes)
        assert any(note.startswith("3 prompts repeat an earlier one word for word, and intervals") for note in notes)

    def test_classes_of_which_nothing_was_drawn_are_told(self, gpt2, config):
        notes = measure_clusters(str(gpt2), replace(config, max_rows=4, seed=0)).notes
        drawn = [note for note in notes if note.startswith("Of 3 classes of 'task', the prompts that were drawn have")]
        assert len(drawn) <= 1
        assert any("clusters: 3 for 'task'" in note for note in notes) == (not drawn)

    def test_truncation_keeps_what_stands_before_a_text(self, write_checkpoint, tmp_path, config, monkeypatch):
        """A beginning of sequence that was asked for stays."""
        path = write_checkpoint(tmp_path / "m", n_positions=4)
        tokenizer = AutoTokenizer.from_pretrained(path)
        tokenizer.bos_token = "w0"
        tokenizer.save_pretrained(path)
        config.prompts.write_text(
            '{"prompt": "w1 w2 w3 w4 w5", "task": "a"}\n{"prompt": "w1 w2 w3 w4 w6", "task": "b"}\n'
            '{"prompt": "w7 w2 w3 w4 w5", "task": "a"}\n{"prompt": "w7 w2 w3 w4 w6", "task": "b"}\n'
        )
        seen = []
        monkeypatch.setattr(
            "mechclust.commands.clusters.measure.run",
            lambda model, batches, *rest, **options: seen.extend(batches) or run(model, batches, *rest, **options),
        )
        measure_clusters(str(path), replace(config, bos="yes", too_long="truncate", untrained=0))
        assert [tokenizer.decode(row) for row in seen[0].tokens[:2]] == ["w0 w3 w4 w5", "w0 w3 w4 w6"]

    def test_a_pad_token_beyond_the_embedding(self, gpt2, tmp_path, config):
        """As where a padding token was added to the tokenizer and not to the model."""
        path = shutil.copytree(gpt2, tmp_path / "m")
        tokenizer = AutoTokenizer.from_pretrained(path)
        tokenizer.add_special_tokens({"pad_token": "[ADDED]"})
        tokenizer.save_pretrained(path)
        records = [{"prompt": f"w1 w2 w{10 + k}"[3 * i :], "task": t} for k, t in enumerate("ab") for i in range(2)]
        config.prompts.write_text("".join(json.dumps(record) + "\n" for record in records))
        padded, plain = (measure_clusters(str(p), config).to_dataframe() for p in (path, gpt2))
        assert padded.equals(plain)

    def test_a_tokenizer_of_another_model(self, write_checkpoint, tmp_path, config):
        path = write_checkpoint(tmp_path / "m", "gpt2", vocab_size=13)
        with pytest.raises(InputError) as refused:
            measure_clusters(str(path), config)
        assert str(refused.value) == (
            f"{config.prompts}: prompt 10 has token id 13 and the model 13 token embeddings; save the tokenizer that "
            "belongs to the model"
        )


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
        result, report = written
        page = report.read_text()
        assert page.count("data:image/png;base64,") == 1
        assert "Task clusters in" in page
        assert "27 prompts, hidden state at the last prompt token" in page
        assert "blocks.1.hook_resid_post" in page
        assert "untrained" in page
        assert "n_permutations" in page
        assert "http" not in page
        said = html.unescape(page)
        assert all(sentence in said for sentence in [*result.sentences, *result.notes])
        assert said.index(result.sentences[0]) < said.index("27 prompts, hidden state") < said.index("<img")
        assert "-0.000" not in page

    def test_the_figure_shows_every_value(self, gpt2, config):
        """Also an index below the chance interval."""
        result = measure_clusters(str(gpt2), config)
        values = {**result.trained.values, "ari": torch.full_like(result.trained["ari"], -0.4)}
        from mechclust.commands.clusters.report import _figure

        (axis,) = _figure(replace(result, trained=replace(result.trained, values=values))).axes
        assert axis.get_ylim()[0] < -0.4

    def test_hostile_labels_are_escaped(self, gpt2, config, tmp_path):
        hostile = "<img src=x onerror=alert(1)>"
        records = [
            {"prompt": f"w1 w{10 + k}", "task": t, hostile: k // 2} for k, t in enumerate((hostile, "b", "c", "b"))
        ]
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
