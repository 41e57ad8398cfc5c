"""One model and a small corpus, as a user without a suite file begins: names, models in memory, words and refusals."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from mechclust.cli import main
from mechclust.commands.topics import TopicsConfig, TopicsModel, measure_topics
from mechclust.commands.topics import texts as topic_texts
from mechclust.models import load_pretrained
from tasks import InputError
from tests.mechclust.commands.refusals import refusal
from tests.mechclust.commands.topics.cases import plant, wordpiece, write_planted_corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_planted_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def bert(write_checkpoint, tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("models") / "planted", "bert", change=plant, num_hidden_layers=1)


@pytest.fixture(scope="module")
def config(corpus):
    """Of 20 words, the smallest threshold keeps one per topic."""
    return TopicsConfig(
        (corpus,), n_topics=3, passes=3, no_below=1, no_above=1.0, weights="counts", topic_seeds=(0, 1),
        thresholds=(0.01, 0.1, 0.2), max_length=16, resamples=20, untrained=2,
    )  # fmt: skip


@pytest.fixture(scope="module")
def few(config):
    """The same of one topic model, at one threshold and without random weights."""
    return replace(config, topic_seeds=(0,), thresholds=(0.2,), untrained=0)


@pytest.fixture(scope="module")
def found(bert, config):
    """Read only."""
    return measure_topics(str(bert), config)


@pytest.fixture(scope="module")
def bare(bert, few, corpus, tmp_path_factory):
    """With few settings, and with a file in which there is no word: result, file; read only."""
    (path := tmp_path_factory.mktemp("wordless") / "none.txt").write_text("12\n")
    return measure_topics(str(bert), replace(few, corpus=(path, corpus))), path


def assert_measured_alike(one, other):
    """Compare all numbers of one topic model, at the thresholds of ``one``."""
    for name in ("attention", "embedding"):
        found, expected = getattr(one, name), getattr(other, name)
        places = [expected.metadata["variants"].index(variant) for variant in found.metadata["variants"]]
        for key, values in found.values.items():
            assert expected.axes[key][:2] == ("topic_seed", "variant")
            torch.testing.assert_close(values[0], expected[key][0, places], rtol=0, atol=0, equal_nan=True)


def values(result):
    return result.to_dataframe().drop(columns="model")


class TestResult:
    def test_the_headline_names_the_model_and_random_weights(self, found, bert):
        assert len(found.headline.split()) <= 25
        number = r"\d\.\d{3}"
        assert re.fullmatch(
            rf"Attention within over between topics, threshold 0\.1: {number} \(planted\), {number} \(random "
            r"weights\)\. Above random weights: holds; at equal distance: (holds|undecided)\.",
            found.headline,
        )
        assert found.title == "Topic structure in planted"
        assert repr(found) == "TopicsResult(planted, 3 thresholds)"
        assert list(found.trained) == [str(bert)]

    def test_a_threshold_that_keeps_one_word_is_told_and_decides_nothing(self, found):
        table = found.tables["ratios"]
        attention = table[table["measure"] == "attention"].set_index("threshold")["value"]
        assert attention[0.01].isna().all()
        assert attention[[0.1, 0.2]].notna().all()
        assert (
            "Of 20 words, threshold 0.01 keeps one per topic, which makes no pair; give --thresholds of at least 0.05, "
            "or more text."
        ) in found.caveats
        s1 = next(finding for finding in found.findings if finding.id == "S1")
        least = (attention.to_numpy().reshape(2, 3) > 0).sum()
        assert least == 4
        assert s1.verdict == "holds"
        assert np.isfinite(s1.parts[0].values).all()
        heads = next(panel for panel in found.panels() if panel.name.startswith("heads-"))
        assert "at threshold 0.1," in heads.caption

    def test_nothing_published_is_shown_beside_it(self, found):
        assert "published" not in found.shown_table
        assert not any("ublished" in str(reading) for reading in found.readings)
        assert [finding.id for finding in found.findings if finding.shown == "page"] == ["S1"]

    def test_token_embeddings_are_compared_with_random_weights(self, found, bert):
        reading = found.readings[-1]
        assert (reading.what, reading.where) == (
            "Cosine of token embeddings of planted, same - different topic",
            "threshold 0.1",
        )
        embedding = found.trained[str(bert)].embedding
        place = embedding.metadata["variants"].index([0.1, False])
        difference = embedding.sel("difference", vectors="rows", similarity="cosine")[:, place].mean()
        assert reading.value == f"{difference:.3f}"
        assert float(reading.value) > 0.5
        assert abs(float(reading.random_weights)) < 0.1

    def test_without_random_weights(self, bare):
        result = bare[0]
        assert result.headline.endswith("(planted); without random weights, nothing says what chance would give.")
        assert not [name for name in result.tables["ratios"] if name in ("random_value", "random_low")]
        assert len(result.headline.split()) <= 25

    def test_a_file_without_words_is_told(self, bare):
        assert f"1 file holds no word and was left out: {str(bare[1])!r}." in bare[0].caveats

    def test_names_are_short_if_they_differ(self, found, bert):
        assert found.labels == {str(bert): "planted"}
        assert set(found.shown_table["model"]) == {"planted"}
        assert set(found.to_dataframe()["model"]) == {str(bert)}
        others = replace(found, models=[*found.models, TopicsModel("elsewhere/more/planted", "elsewhere/more/planted")])
        assert list(others.labels.values()) == [str(bert), "elsewhere/more/planted"]

    def test_documents_longer_than_a_window_are_told(self, found):
        note = (
            "60 documents were longer than a window and cut into several; words in different windows are not compared."
        )
        assert f"planted: {note}" in found.caveats

    def test_topics_with_little_text_are_told(self, found):
        model = found.texts.fitted.models[0]
        weak = replace(model, shares=torch.tensor([0.01, 0.49, 0.5]).double())
        fitted = replace(found.texts.fitted, models=[weak, weak])
        notes = replace(found, texts=replace(found.texts, fitted=fitted)).caveats
        assert any(note.startswith("Up to 1 of 3 topics have less than a tenth of an even share") for note in notes)
        assert not any(note.startswith("Up to ") for note in found.caveats)

    def test_hostile_names_are_escaped(self, found, tmp_path, undrawn):
        name = "<img src=x onerror=alert(1)>"
        hostile = replace(
            found,
            models=[replace(found.models[0], name=name)],
            trained={name: next(iter(found.trained.values()))},
            twins={name: []},
            config=replace(found.config, corpus=("<script>",)),
        )
        page = hostile.write(tmp_path).read_text()
        assert "<img src=x" not in page
        assert "<script>" not in page


class TestInMemory:
    def test_as_by_name(self, found, bert, few, tmp_path):
        """Also with random weights."""
        from transformers import AutoModelForMaskedLM, AutoTokenizer

        few = replace(few, untrained=1)
        tokenizer, model = AutoTokenizer.from_pretrained(bert), AutoModelForMaskedLM.from_pretrained(bert).eval()
        result = measure_topics(model, few, tmp_path, tokenizer=tokenizer)
        assert list(result.trained) == [str(bert)]
        assert_measured_alike(result.trained[str(bert)], found.trained[str(bert)])
        assert_measured_alike(result.twins[str(bert)][0], found.twins[str(bert)][0])
        kept = measure_topics(load_pretrained(bert, attention="sdpa"), few, tmp_path)
        assert values(kept).equals(values(result))

    def test_without_a_tokenizer(self, bert, config):
        from transformers import AutoModelForMaskedLM

        with pytest.raises(InputError, match=r"has no tokenizer to read text; .* or tokenizer="):
            measure_topics(AutoModelForMaskedLM.from_pretrained(bert), config)

    def test_not_for_several_processes(self, bert, config, tmp_path):
        with pytest.raises(InputError, match=r"cannot be loaded by other processes \(workers=2\); give its name"):
            measure_topics(load_pretrained(bert), replace(config, workers=2), tmp_path / "out")
        assert not (tmp_path / "out").exists()


class TestAdapters:
    def test_as_an_option_or_as_a_model(self, bare, bert, few, tmp_path):
        """Beside its base and by name, or on a model in memory, out of whose weights it is taken again."""
        peft = pytest.importorskip("peft")
        from transformers import AutoModelForMaskedLM, AutoTokenizer

        lora = peft.LoraConfig(r=4, target_modules=["query", "key"], init_lora_weights=False)
        folder = tmp_path / "lora"
        peft.get_peft_model(AutoModelForMaskedLM.from_pretrained(bert), lora).save_pretrained(folder)
        both = measure_topics([bert, folder], few, tmp_path / "out")
        base, tuned = (values(both)[both.to_dataframe()["model"] == str(name)] for name in (bert, folder))
        assert base.equals(values(bare[0]))
        assert not tuned.reset_index(drop=True)["value"].equals(base["value"])
        option = measure_topics(str(bert), replace(few, adapter=folder))
        assert list(option.trained) == [f"{bert} with {folder}"]
        assert values(option).equals(tuned.reset_index(drop=True))
        model, tokenizer = AutoModelForMaskedLM.from_pretrained(bert), AutoTokenizer.from_pretrained(bert)
        before = {name: x.clone() for name, x in model.named_parameters()}
        in_memory = measure_topics(model, replace(few, adapter=folder), tokenizer=tokenizer)
        assert values(in_memory).equals(values(option))
        assert all(torch.equal(x, before[name]) for name, x in model.named_parameters())

    def test_weights_of_an_adapter_that_was_trained_again_are_measured_again(self, bert, few, tmp_path):
        peft = pytest.importorskip("peft")
        from transformers import AutoModelForMaskedLM

        ratios = []
        for seed in range(2):
            torch.manual_seed(seed)
            lora = peft.LoraConfig(r=4, target_modules=["query", "key"], init_lora_weights=False)
            peft.get_peft_model(AutoModelForMaskedLM.from_pretrained(bert), lora).save_pretrained(tmp_path / "lora")
            ratios.append(values(measure_topics(tmp_path / "lora", few, tmp_path / "out")))
        assert not ratios[0].equals(ratios[1])


class TestBeforeTopicsAreFitted:
    """Fitting takes longest: what can be known of models is looked at first."""

    @pytest.fixture(autouse=True)
    def no_fit(self, monkeypatch):
        monkeypatch.setattr(topic_texts, "fit_topics_to_counts", None)

    def refused(self, model, config) -> str:
        return refusal(measure_topics, model, config)

    def test_a_slow_tokenizer(self, bert, config, monkeypatch):
        class Slow:
            is_fast = False

        sizes = load_sizes(bert)
        monkeypatch.setattr("mechclust.commands.topics.readers.tokenizer_and_sizes", lambda *_, **__: (Slow(), sizes))
        assert "this model's tokenizer (Slow) is a slow one" in self.refused(str(bert), config)

    def test_damaged_weights(self, bert, config, tmp_path):
        path = shutil.copytree(bert, tmp_path / "m")
        os.truncate(path / "model.safetensors", 50)
        with pytest.raises(InputError, match=r"/m cannot be measured: .* weights are damaged or cut off"):
            measure_topics(str(path), config, tmp_path / "out")
        assert [file.name for file in (tmp_path / "out").iterdir() if file.name[0] != "."] == ["mechclust.json"]

    def test_one_whole_word_that_a_look_may_miss_is_enough(self, bert, config, tmp_path, monkeypatch):
        """Only the last document has a word that is one token."""
        monkeypatch.setattr("mechclust.commands.topics.readers._FIRST_DOCUMENTS", 1)
        lines = [*(f"q{i} r{i} s" for i in range(9)), "w0 q0"]
        (tmp_path / "texts.txt").write_text("\n".join(lines))
        mine = replace(config, corpus=(tmp_path / "texts.txt",), split="line", thresholds=(0.2,))
        with pytest.raises(TypeError, match="'NoneType' object is not callable"):  # it would fit topics now
            measure_topics(str(bert), mine)
        (tmp_path / "texts.txt").write_text("\n".join(lines[:-1]))
        assert "leaves none of the corpus's 19 different words whole: all 27 occurr" in self.refused(str(bert), mine)

    def test_documents_measured_without_a_counted_word(self, bert, config, tmp_path):
        (tmp_path / "texts.txt").write_text("\n".join([*(f"w{i} w1 w2" for i in range(3, 12)), "the of", "and"]))
        mine = replace(config, corpus=(tmp_path / "texts.txt",), split="line", max_documents=2)
        for seed in range(200):  # until the two without a word are drawn
            stream = topic_texts.CorpusStream(mine.corpus, "line")
            if set(stream.sample(2, seed).documents) == {"the of", "and"}:
                break
        said = self.refused(str(bert), replace(mine, seed=seed))
        assert "different words is in the 2 documents measured; give a larger max_documents" in said


def load_sizes(folder):
    from mechclust.models.resolved import resolve_model
    from mechclust.models.tokenizers import tokenizer_and_sizes

    return tokenizer_and_sizes(resolve_model(folder))[1]


def test_every_topic_word_is_lost(bert, config, tmp_path):
    """w18, which no topic keeps, is whole: that shows only once the topics are known."""
    path = wordpiece(shutil.copytree(bert, tmp_path / "m"), ["w18", "w", *(f"##{i}" for i in range(10))])
    said = refusal(measure_topics, str(path), replace(config, thresholds=(0.1,), topic_seeds=(0,)))
    assert said.startswith(f"{path} cannot be measured: the tokenizer leaves none of the ")
    assert said.endswith("; give a corpus in the model's language, or larger thresholds")


def test_a_token_the_model_has_no_embedding_of(write_checkpoint, tmp_path, config):
    path = write_checkpoint(tmp_path / "m", "bert", vocab_size=13)
    with pytest.raises(InputError, match=r"document \d+ has token id \d+, but the model has 13 token"):
        measure_topics(str(path), config)


class TestCommand:
    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ("--corpus c.txt", "no model is named; name one or several first, as in mechclust topics bert"),
            ("--corpus c.txt bert", "no model is named; name one or several first"),
            (
                "--suite a b --corpus c.txt",
                "--suite takes a suite file (.toml), not 'a'; name models first: mechclust topics a b --corpus ...",
            ),
            ("--suite a --corpus c.txt", "--suite takes a suite file (.toml), not 'a'; name models first"),
            (
                "b --suite s.toml --corpus c.txt",
                "'b' is named beside --suite s.toml; add it to the suite file, or leave out --suite",
            ),
            ("--suite s.toml --corpus c.txt", "no suite file 's.toml'; give the path of a TOML file"),
            ("a b --adapter x --corpus c.txt", "no adapter in 'x'"),
        ],
    )
    def test_what_is_refused(self, words, said, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        assert main(["topics", *words.split()]) == 2
        assert capsys.readouterr().err.startswith(f"mechclust: {said}")
        assert not (tmp_path / "runs").exists()

    def test_one_model_by_name(self, bert, corpus, tmp_path, monkeypatch, capsys, undrawn):
        monkeypatch.chdir(bert.parent)
        options = "--n-topics 3 --passes 2 --no-below 1 --no-above 1 --thresholds .1 .2 --topic-seeds 0 --resamples 20"
        options += " --untrained 1"
        assert main(["topics", "planted", "--corpus", str(corpus), *options.split(), "--out", str(tmp_path)]) == 0
        printed, said = capsys.readouterr()
        headline, _, columns, *lines = printed.splitlines()
        assert headline.startswith("Attention within over between topics, threshold 0.1: ")
        assert columns.split()[:3] == ["model", "threshold", "attention"]
        assert "published" not in columns
        assert lines[-1] == f"report: {tmp_path / 'report.html'}"
        assert "suite" not in printed.replace("in the suite file", "")
        assert "time of forward passes: about " in said
        page = (tmp_path / "report.html").read_text()
        assert "Topic structure in planted" in page
        assert "not tested" not in page

    def test_the_folder_is_named_after_the_models(self, bert, corpus, tmp_path, monkeypatch):
        given = []
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("mechclust.cli_commands.topics.goes_on", given.append)
        for names in (["a"], ["a", "b"], list("abcde")):
            with pytest.raises((TypeError, AttributeError)):
                main(["topics", *names, "--corpus", "texts.txt"])
        (tmp_path / "five.toml").write_text('[[model]]\nmodel = "a"\n')
        with pytest.raises((TypeError, AttributeError)):
            main(["topics", "--suite", "five.toml", "--corpus", "texts.txt"])
        assert [folder.as_posix() for folder in given] == [
            "runs/topics-a-texts", "runs/topics-a-b-texts", "runs/topics-a-and-4-more-texts",
            "runs/topics-suite-five-texts",
        ]  # fmt: skip
