"""A user's own model and prompts: structure that was planted is found, layer by layer."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace

import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from transformers import AutoModelForCausalLM, AutoTokenizer

from mechclust.commands.clusters import measure_clusters
from mechclust.commands.clusters.estimate import Estimate, Statistics
from mechclust.commands.clusters.inputs import read_inputs
from mechclust.models import load_pretrained
from mechclust.models.resolved import resolve_model
from probes import LinearDecodability, RowStore, TaskClusterARI, last_token, residual, run
from tasks import InputError, LabelledPrompts
from tests.mechclust.commands.clusters.cases import (
    TASKS,
    endings_hide_the_task,
    last_word_tells_the_task,
    write_prompts,
)

NAMES = ("rows/hook_embed", "rows/blocks.0.hook_resid_post")  # of a model of one layer
COLUMNS = ["layer", "site", "label", "n_clusters", "ari", "ari_low", "ari_high", "null_low", "null_high", "p_value"]


def assert_same(one, other):
    """Compare all numbers of two models."""
    for name, found in one.by_name.items():
        for key, values in found.values.items():
            torch.testing.assert_close(values, other.by_name[name][key], rtol=0, atol=0, equal_nan=True)


class TestMeasure:
    def test_planted_clusters_are_found(self, measured):
        table = measured[0].to_dataframe()
        assert list(table.columns)[: len(COLUMNS)] == COLUMNS
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

        path = write_checkpoint(tmp_path / "m", change=blind, n_layer=1)
        table = measure_clusters(str(path), replace(config, untrained=1)).to_dataframe()
        assert table["ari"][0] == 0.0
        assert table["untrained"][0] == 1.0

    def test_untrained_models_are_as_many_as_asked_for_and_averaged(self, measured, alone):
        result = measured[0]
        assert len(result.untrained) == 2
        first, second = (curves.raw["ari"][2, 0] for curves in result.untrained)
        assert result.to_dataframe()["untrained"][2] == pytest.approx(float(first + second) / 2)
        assert result.to_dataframe()["untrained_high"][2] == float(max(first, second))
        assert "untrained" not in alone[0].to_dataframe().columns

    def test_another_family(self, write_checkpoint, tmp_path, trained):
        path = write_checkpoint(tmp_path / "llama", "llama", num_hidden_layers=1)
        table = measure_clusters(str(path), trained).to_dataframe()
        assert table["layer"].tolist() == [0, 1]
        assert table["ari"][0] == 1.0
        assert not any(math.isnan(x) for x in table["ari"])


class TestStates:
    """Which hidden state stands for a prompt: that at layer 0 is a word's embedding, without its position."""

    @pytest.fixture
    def words(self, shallow):
        """``words("w1 w2")``: the embeddings of the words."""
        weight = AutoModelForCausalLM.from_pretrained(shallow).transformer.wte.weight.detach()
        return lambda text: torch.stack([weight[2 + int(word[1:])] for word in text.split()])

    @pytest.mark.parametrize("position", ["last", "mean"])
    def test_of_prompts_of_different_lengths(self, shallow, trained, states, words, position):
        """The last token is the last real one, not the padding, and the mean is over real ones."""
        records = [
            {"prompt": " ".join(["w1"] * n + [f"w{10 + k}"]), "task": task}
            for k, task in enumerate(TASKS)
            for n in (1, 5, 9)
        ]
        write_prompts(trained.prompts, records)
        store = states(str(shallow), replace(trained, position=position))
        found = store.take(store.index, ["rows/hook_embed"])["rows/hook_embed"]
        read = {"last": lambda x: x[-1], "mean": lambda x: x.mean(0)}[position]
        torch.testing.assert_close(found, torch.stack([read(words(record["prompt"])) for record in records]))

    def test_chat_template_wraps_every_prompt(self, shallow, tmp_path, trained, states, words):
        path = shutil.copytree(shallow, tmp_path / "chat")
        tokenizer = AutoTokenizer.from_pretrained(path)
        tokenizer.chat_template = (
            "{% for m in messages %}w18 {{ m['content'] }} w19{% endfor %}{% if add_generation_prompt %} w17{% endif %}"
        )
        tokenizer.save_pretrained(path)
        store = states(str(path), replace(trained, chat=True))
        found = store.take(store.index, ["rows/hook_embed"])["rows/hook_embed"]
        torch.testing.assert_close(found, words("w17").expand_as(found))  # every prompt now ends with the same word
        (batch,) = read_inputs(resolve_model(path), replace(trained, chat=True, tokens_per_batch=999)).batches
        texts = [tokenizer.decode(tokens) for tokens in batch.tokens]
        assert texts == [f"w18 {record['prompt']} w19 w17" for record in last_word_tells_the_task()]


class TestModelsInMemory:
    def test_with_hooks_are_measured_as_by_name_on_any_token_budget(self, gpt2, measured):
        """Each number again, and with random weights; the global random state is left alone."""
        known = measured[0]
        model = load_pretrained(gpt2, attention="sdpa").eval()
        before, state = {name: x.clone() for name, x in model.named_parameters()}, torch.get_rng_state()
        result = measure_clusters(model, replace(known.config, tokens_per_batch=999, untrained=1))
        assert torch.equal(state, torch.get_rng_state())
        assert_same(result.trained, known.trained)
        assert_same(result.untrained[0], known.untrained[0])
        assert result.model == str(gpt2)
        assert all(torch.equal(x, before[name]) for name, x in model.named_parameters())

    def test_of_hugging_face_are_measured_as_by_name(self, write_checkpoint, tmp_path, config):
        from transformers import AutoModel

        path = write_checkpoint(tmp_path / "m", "bert", num_hidden_layers=1)
        model, config = AutoModel.from_pretrained(path).eval(), replace(config, untrained=1)
        before = {name: x.clone() for name, x in model.named_parameters()}
        by_name = measure_clusters(str(path), config)
        result = measure_clusters(model, config, tokenizer=AutoTokenizer.from_pretrained(path))
        assert result.to_dataframe().equals(by_name.to_dataframe())
        assert result.model == str(path)
        assert result.sentences == by_name.sentences
        assert all(torch.equal(x, before[name]) for name, x in model.named_parameters())

    def test_without_a_name_are_called_by_their_class(self, shallow, trained, monkeypatch):
        from transformers import BertConfig, BertModel

        shape = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 8, "intermediate_size": 8}
        model = BertModel(BertConfig(vocab_size=30, max_position_embeddings=16, **shape)).eval()
        with pytest.raises(InputError, match=r"'BertModel' has no tokenizer to read prompts; .* or tokenizer="):
            measure_clusters(model, trained)
        monkeypatch.setattr("mechclust.commands.clusters.measure._measure", lambda title, *_, **__: title)
        assert measure_clusters(model, trained, tokenizer=AutoTokenizer.from_pretrained(shallow)) == "BertModel"

    def test_a_tokenizer_for_a_model_that_has_hooks(self, shallow, trained, states):
        model = load_pretrained(AutoModelForCausalLM.from_pretrained(shallow))
        assert model.tokenizer is None
        store = states(model, trained, tokenizer=AutoTokenizer.from_pretrained(shallow))
        by_name = states(str(shallow), trained)
        assert store.index.tolist() == list(range(27))
        torch.testing.assert_close(*(each.take(each.index, list(NAMES)) for each in (store, by_name)))


def save_adapter(model, folder, **options):
    peft = pytest.importorskip("peft")
    lora = peft.LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True, **options)
    peft.get_peft_model(AutoModelForCausalLM.from_pretrained(model), lora).save_pretrained(folder)
    return folder


class TestAdapters:
    def test_is_named_and_taken_out_of_a_model_in_memory(self, shallow, tmp_path, trained, states):
        """The weights are the caller's: left in, a second call would add it again."""
        lora = save_adapter(shallow, tmp_path / "lora", init_lora_weights=False)
        model, tokenizer = AutoModelForCausalLM.from_pretrained(shallow), AutoTokenizer.from_pretrained(shallow)
        before = {name: x.clone() for name, x in model.named_parameters()}
        tuned = replace(trained, adapter=lora)
        one, again = (states(model, tuned, tokenizer=tokenizer) for _ in range(2))
        assert all(torch.equal(x, before[name]) for name, x in model.named_parameters())
        by_name = measure_clusters(str(shallow), tuned, tmp_path / "out")
        stores = one, again, RowStore(tmp_path / "out" / "rows" / "trained"), states(str(shallow), trained)
        assert len({store.model for store in stores[:3]}) == 1
        assert stores[0].model != stores[3].model
        first, second, named, base = (store.take(store.index, list(NAMES)) for store in stores)
        for name in NAMES:
            assert torch.equal(first[name], second[name])
            assert torch.equal(first[name], named[name])
        assert not torch.equal(first[NAMES[1]], base[NAMES[1]])
        assert by_name.model == f"{shallow} with {lora}"
        assert not any("says that it was trained for" in note for note in by_name.caveats)

    def test_an_adapter_of_another_base_is_noted(self, shallow, tmp_path, trained):
        """Its weights fit, so that nothing else would tell."""
        settings = save_adapter(shallow, tmp_path / "lora") / "adapter_config.json"
        other = {"base_model_name_or_path": "somewhere/another-gpt2"}
        settings.write_text(json.dumps(json.loads(settings.read_text()) | other))
        config = replace(trained, adapter=tmp_path / "lora")
        notes = read_inputs(config.resolve(str(shallow)), config).notes
        (told,) = (note for note in notes if "'somewhere/another-gpt2'" in note)
        assert "says that it was trained for" in told
        assert f"measured on {str(shallow)!r}" in told

    def test_refused_before_the_model_is_loaded(self, gpt2, tmp_path, config):
        with pytest.raises(InputError, match=r"no adapter in .* give a local folder that peft saved"):
            measure_clusters(str(gpt2), replace(config, adapter=tmp_path))


class TestWhatIsFollowed:
    @pytest.fixture(scope="class")
    def blind(self, write_checkpoint, tmp_path_factory):
        """A model in which the last word is large and the task's word, one before, small."""

        def change(model):
            weight = model.transformer.wte.weight
            weight[14:17] *= 30

        return write_checkpoint(tmp_path_factory.mktemp("blind"), change=change, n_layer=1)

    @pytest.fixture
    def hidden(self, trained):
        write_prompts(trained.prompts, endings_hide_the_task())
        return trained

    @pytest.fixture(scope="class")
    def found(self, blind, alone, tmp_path_factory):
        """Result; read only."""
        prompts = write_prompts(tmp_path_factory.mktemp("hidden") / "prompts.jsonl", endings_hide_the_task())
        return measure_clusters(str(blind), replace(alone[0].config, prompts=prompts, units="auto", also=("ending",)))

    def test_endings_are_found_and_taken_out(self, found):
        result = found
        assert result.followed.best(["task"]) == "ending"
        assert result.followed.same_as("ending") == ["last word", "last token"]
        assert result.given == "ending"
        assert result.headline.startswith("The clusters follow the label 'ending' (not compared with random weights).")
        (followed,) = (reading for reading in result.readings if reading.what == "Clusters follow")
        assert followed.verdict.endswith(
            "Nearly the same in these prompts: the prompts' last word and the prompts' last token."
        )
        table = result.to_dataframe()
        assert set(table["given"]) == {"ending"}
        features = result.features
        assert features[features["name"] == "last word"]["ami"].min() > 0.99
        assert list(features.columns) == [
            "layer", "site", "name", "kind", "n_values", "ami", "ari", "untrained", "untrained_high",
            "p_value", "p_corrected",
        ]  # fmt: skip

    def test_of_a_further_label_nothing_may_be_left(self, found):
        table = found.to_dataframe().set_index("label")
        assert table.loc["ending", "given_ari"].isna().all()
        assert table.loc["task", "given_ari"].notna().all()
        assert "Nothing is left of 'ending' in these prompts: the label 'ending' determines it." in found.caveats

    def test_equals_the_probes_run_by_hand(self, blind, found):
        model = load_pretrained(blind)
        prompts = LabelledPrompts.from_file(found.config.prompts)
        batches = list(prompts.batches(lambda x: model.tokenizer(x)["input_ids"]))
        few = {"at": residual(), "readout": last_token(), "n_init": 2, "n_permutations": 49, "also": ["ending"]}
        probe = TaskClusterARI(**few)
        given = TaskClusterARI(**{**few, "also": []}, given="ending")
        linear = LinearDecodability(at=residual(), readout=last_token(), also=["ending"], n_shuffles=19)
        expected, left, classes = run(model, batches, [probe, given, linear])
        found = found.trained
        for name in ("ari", "null_high", "p_value"):
            assert torch.equal(found.raw[name], expected[name])
            assert torch.equal(found.given[name][:, :1], left[name])
        assert torch.equal(found.linear["accuracy"], classes["accuracy"])
        assert torch.equal(found.linear["p_value"], classes["p_value"])

    def test_what_is_given_may_be_named(self, measured):
        assert measured[0].given == "first word"
        assert "Given the prompts' first word: the mean state of each of its 3 values" in " ".join(measured[0].caveats)

    def test_what_tells_the_task_is_not_taken_out(self, alone):
        """The last word tells it: clusters are the tasks, and the last word as much."""
        result = alone[0]
        assert result.given is None
        assert result.followed.best(["task"]) == "task"
        assert "Nearly the same in these prompts: the prompts' last word and the prompts' last token." in " ".join(
            result.sentences
        )

    def test_within_and_preparation_reach_the_probe_and_nothing_is_given(self, blind, hidden):
        options = {"within": "ending", "standardise": True, "pca": 4, "cosine": True, "drop_outliers": 50.0}
        none = measure_clusters(str(blind), replace(hidden, **options, given="none"))
        assert none.given is none.trained.given is None
        assert "given_ari" not in none.to_dataframe()
        parameters = none.trained.raw.metadata["parameters"]
        assert "ending" in str(parameters["within"])
        assert "standardise=True" in str(parameters["preprocess"])
        assert "drop_outliers=50.0" in str(parameters["preprocess"])

    def test_within_and_what_is_followed_may_tell_the_task_together(self, blind, hidden):
        """Then nothing is taken out."""
        records = [record for record in endings_hide_the_task() if record["prompt"].startswith(("w0", "w1"))]
        places = {}
        for record in records:
            key = record["ending"], record["task"]
            places[key] = places.get(key, -1) + 1
            record["pair"] = f"{record['task']}{record['ending']}" if record["ending"] else str(places[key])
        write_prompts(hidden.prompts, records)
        result = measure_clusters(str(blind), replace(hidden, within="pair", given="auto"))
        assert result.given is None or "task" in result.trained.given.coords["label"]

    def test_notes_name_the_layer(self, shallow, trained):
        """At layer 0 there are as many states as last words, for more clusters than that."""
        result = measure_clusters(str(shallow), replace(trained, also=("first",), n_clusters=9))
        assert result.to_dataframe()["n_clusters"].tolist() == 4 * [9]
        told = [note for note in result.caveats if "distinct states" in note]
        assert told == [
            f"Layer 0: 3 distinct states for 9 clusters of '{label}', so that each is a cluster of its own."
            for label in ("task", "first")
        ]


class TestFolder:
    def test_rows_are_kept_and_not_measured_again(self, gpt2, measured, tmp_path):
        first, out = measured[0], shutil.copytree(measured[1], tmp_path / "out")
        assert sorted(path.name for path in (out / "rows").iterdir()) == [
            "trained", "untrained-seed0", "untrained-seed1",
        ]  # fmt: skip
        before = {path: path.stat().st_mtime_ns for path in (out / "rows").rglob("*.safetensors")}
        assert before
        again = measure_clusters(str(gpt2), first.config, out)
        assert again.to_dataframe().equals(first.to_dataframe())
        assert {path: path.stat().st_mtime_ns for path in (out / "rows").rglob("*.safetensors")} == before

    def test_labels_may_change_and_rows_stay(self, gpt2, trained, alone, begun):
        records = [{**record, "new": i % 2} for i, record in enumerate(last_word_tells_the_task())]
        write_prompts(trained.prompts, records)
        shards = {path: path.stat().st_mtime_ns for path in (begun / "rows/trained").glob("shard-*/*")}
        found = measure_clusters(str(gpt2), replace(trained, also=("new",)), begun)
        assert shards == {path: path.stat().st_mtime_ns for path in shards}
        table = found.to_dataframe().set_index("label")
        assert table.loc["task", "ari"].tolist() == alone[0].to_dataframe()["ari"].tolist()
        clusters = found.trained.raw.sel("cluster", label="new").numpy()
        index = [adjusted_rand_score([record["new"] for record in records], of_layer) for of_layer in clusters]
        assert table.loc["new", "ari"].tolist() == pytest.approx(index, abs=1e-12)

    def test_none_leaves_nothing_behind(self, shallow, trained, tmp_path, monkeypatch):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        monkeypatch.setattr("mechclust.commands.clusters.measure._measure", lambda *_, **__: None)
        measure_clusters(str(shallow), trained)
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith("mechclust-")] == []

    def test_prompts_are_tokenized_once(self, shallow, config, monkeypatch):
        calls = []
        from tasks import LabelledPrompts as Prompts

        batches = Prompts.batches
        monkeypatch.setattr(Prompts, "batches", lambda *args, **kw: calls.append(1) or batches(*args, **kw))
        monkeypatch.setattr("mechclust.commands.clusters.measure._measure", lambda *args, **kw: None)
        measure_clusters(str(shallow), config)
        assert len(calls) == 1


class TestShown:
    def test_map_of_all_or_some(self, gpt2, trained, alone, begun):
        result = alone[0]
        assert result.shown.planes.shape == (3, 27, 2)
        assert result.shown.clusters.shape == (3, 27)
        some = measure_clusters(str(gpt2), replace(trained, map_prompts=10), begun).shown
        assert len(some.places) == len(some.texts) == some.planes.shape[1] == some.clusters.shape[1] == 10
        assert some.texts == [result.shown.texts[i] for i in some.places]
        assert (some.clusters == result.shown.clusters[:, some.places]).all()

    def test_clusters_are_those_of_the_index(self, alone):
        result = alone[0]
        index = [adjusted_rand_score(result.values["task"], clusters) for clusters in result.shown.clusters]
        assert result.to_dataframe()["ari"].tolist() == pytest.approx(index, abs=1e-12)


class TestEstimate:
    def test_says_what_it_will_take(self, gpt2, config, monkeypatch, capsys):
        monkeypatch.setattr("mechclust.commands.clusters.measure._save_states", lambda *_, **__: {})
        monkeypatch.setattr("mechclust.commands.clusters.measure._measure", lambda *_, **__: None)
        measure_clusters(str(gpt2), config, progress=True)
        said = capsys.readouterr().err.splitlines()[0]
        assert said.startswith("27 prompts of 81 tokens (0% padding); 3 models; hidden states: ")
        assert "of memory per layer; forward passes: at least " in said
        assert "; measuring: about " in said

    def test_numbers(self, gpt2, config):
        inputs = read_inputs(resolve_model(gpt2), config)
        config = replace(config, untrained=1, given="none")
        found = Estimate.from_inputs(inputs, config)
        expected = Statistics(clusters=[3], n_starts=2 + 20 // 2, classes=[3], labelings=1 + 19 // 2, folds=5)
        assert Statistics.from_inputs(inputs, config) == expected
        assert Statistics.from_inputs(inputs, replace(config, given="auto")).clusters == [3, 3]
        assert Statistics.from_inputs(inputs, replace(config, n_clusters=2)).clusters == [2]
        assert found.text(None, found.measuring / 180).endswith("measuring: about 3 min")
        assert "at least 2.0 h" in found.text(found.operations / 7201)
        assert "at least 3 min" in found.text(found.operations / 180)

    def test_a_layer_that_does_not_fit_is_refused_before_the_model_is_loaded(self, gpt2, config, monkeypatch):
        monkeypatch.setattr("mechclust.commands.settings.load_pretrained", None)
        with pytest.raises(
            InputError, match=r"^measuring a layer takes about .* GiB \(27 prompts\), more than max_memory"
        ):
            measure_clusters(str(gpt2), replace(config, max_memory=1e-6))
