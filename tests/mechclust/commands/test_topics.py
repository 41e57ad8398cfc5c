"""A user's own model and corpus: topic structure that was planted is found, and none is found where there is none."""

from __future__ import annotations

import csv
import html
import importlib
import math
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from mechclust.cli import main
from mechclust.commands.topics import TopicsConfig, measure_topics
from mechclust.commands.topics.measure import MATRIX, _check_whole
from mechclust.commands.topics.readings import headline, readings
from mechclust.models import load_pretrained, save_model, token_embeddings
from probes import TopicAttention, TopicEmbedding, attention_pattern, load_result, residual, run
from probes.functional import topic_similarity
from tasks import Corpus, CorpusStream, InputError
from tests.mechclust.commands.hook_columns import check_report

TOPICS = [[f"w{6 * t + i}" for i in range(6)] for t in range(3)]  # w18 and w19 have none
KEY = ["threshold", "overlap"]


def write_planted_corpus(folder, n=60):
    """60 documents of 24 words, most of one topic and some of another, so that both kinds of pairs meet."""
    draw = np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    for i in range(n):
        first, second = TOPICS[i % 3], TOPICS[(i + 1 + i // 3 % 2) % 3]
        words = [*draw.choice(first, 17), *draw.choice(second, 5), "w18", "w19"]
        (folder / f"{i:02}.txt").write_text(" ".join(draw.permutation(words)))
    return folder


def plant(model):
    """Each topic has a direction that its words' embeddings share, and the first layer attends along it."""
    weight = model.get_input_embeddings().weight
    directions = torch.linalg.qr(torch.randn(16, 3, generator=torch.Generator().manual_seed(0)))[0].T
    for topic, words in enumerate(TOPICS):
        for word in words:
            weight[2 + int(word[1:])] += directions[topic]
    if hasattr(model, "bert"):
        attention = model.bert.encoder.layer[0].attention.self
        attention.query.weight.copy_(torch.eye(16))
        attention.key.weight.copy_(torch.eye(16))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_planted_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def bert(write_checkpoint, tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("bert"), "bert", change=plant)


@pytest.fixture(scope="module")
def config(corpus):
    return TopicsConfig(
        (corpus,), n_topics=3, min_documents=1, max_share=1.0, passes=3, thresholds=(0.1, 0.2), n_permutations=49
    )


@pytest.fixture(scope="module")
def found(bert, config):
    return measure_topics(str(bert), config)


def wordpiece(folder, pieces):
    """Gives a checkpoint a WordPiece tokenizer of these pieces, with [CLS] and [SEP]."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {piece: i for i, piece in enumerate([*special, *pieces])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    return folder


class TestMeasure:
    def test_the_topics_are_the_planted_ones(self, found):
        assert sorted(sorted(words) for words in found.topics.top_words(6)) == sorted(sorted(w) for w in TOPICS)
        assert (found.n_documents, found.n_files, found.encoded.n_documents) == (60, 60, 60)

    def test_planted_embeddings_are_found(self, found):
        summary = found.summary()
        assert summary[KEY].to_numpy().tolist() == [[0.1, False], [0.2, False], [0.1, True], [0.2, True]]
        assert (summary["topics"] == 3).all()
        assert summary["words"].tolist() == [9, 15, 9, 15]  # int(20 * .1) + 1 and int(20 * .2) + 1 a topic
        for name in ("cosine", "dot"):
            assert (summary[name].abs() > 3).all()
            assert (summary[f"{name}_difference"] > 0.5).all()
        assert (summary["cosine_difference_untrained"].abs() < 0.1).all()
        assert (summary["dot_difference_untrained"].abs() < 0.05).all()

    def test_planted_attention_is_found_where_it_was_planted(self, found):
        table = found.to_dataframe()
        first = table[table["layer"] == 0]
        assert (first["ratio"] > 1.2).all()
        assert (first["ratio"] > first["null_high"]).all()
        assert (first["p_value"] < 0.05).all()
        assert (table["untrained"] - 1).abs().max() < 0.1
        assert (found.summary()["attention"] > found.summary()["attention_null_high"]).all()
        assert (found.summary()["attention_untrained"] - 1).abs().max() < 0.1

    def test_planted_hidden_states_are_found(self, found):
        layers = found.by_layer()
        assert layers["layer"].tolist() == 4 * [0, 1, 2]
        assert (layers["cosine_ratio"] > 1.5).all()
        assert (layers["cosine_ratio"] > layers["cosine_null_high"]).all()
        assert (layers["cosine_untrained"] - 1).abs().max() < 0.2
        assert layers["site"].tolist()[:2] == ["hook_embed", "blocks.0.hook_resid_post"]

    def test_random_weights_are_at_chance(self, write_checkpoint, config, tmp_path):
        """No structure in, none out: a random model measured as if it were trained."""
        summary = measure_topics(str(write_checkpoint(tmp_path / "m", "bert")), replace(config, untrained=0)).summary()
        assert (summary["attention"] - 1).abs().max() < 0.05
        assert (summary["attention"] < summary["attention_null_high"] * 1.01).all()
        assert (summary["cosine_difference"].abs() < 0.1).all()
        assert not [name for name in summary if "untrained" in name]

    def test_the_table(self, found):
        table = found.to_dataframe()
        buckets = ["same_word", "same_topic", "different_topic"]
        assert list(table.columns) == [
            *KEY, "layer", "site", "head", "name", *[k for b in buckets for k in (b, f"pairs_{b}")],
            "ratio", "ratio_low", "ratio_high", "null_low", "null_high", "p_value", "untrained",
        ]  # fmt: skip
        assert len(table) == 4 * 2 * 2
        assert table["head"].tolist() == 8 * [0, 1]
        assert table["ratio"].tolist() == pytest.approx((table["same_topic"] / table["different_topic"]).tolist())
        assert (table[[f"pairs_{b}" for b in buckets]] > 0).all().all()
        assert (table["ratio_low"] < table["ratio"]).all()
        assert (table["ratio"] < table["ratio_high"]).all()

    def test_intervals_are_over_documents(self, found, bert, config, tmp_path):
        """Of a quarter of the documents, they are about twice as wide. Their readings, tables and figures show them."""
        width = np.log(found.summary()["attention_high"] / found.summary()["attention_low"]).mean()
        few = measure_topics(str(bert), replace(config, max_documents=found.n_documents // 4, untrained=0)).summary()
        assert 1.4 < np.log(few["attention_high"] / few["attention_low"]).mean() / width < 2.9
        by_what = {reading.what: reading.value for reading in found.readings}
        low, high = found.highest_ends
        best = found.to_dataframe().sort_values("ratio").iloc[-1]
        assert low < best["ratio_low"] < best["ratio_high"] < high  # wide enough for the best of all heads
        assert by_what[BEST].endswith(f" ({low:.3g} to {high:.3g})")
        measures = found.by_measure()
        ends = f" ({measures['value_low'].min():.3g} to {measures['value_high'].max():.3g})"
        assert by_what[ATTENTION].endswith(ends)
        row = measures.iloc[0]
        cell = f"{row['value']:.3f} ({row['value_low']:.3f} to {row['value_high']:.3f})"
        assert cell in found.write(tmp_path).read_text()

    def test_without_halves_there_is_no_interval(self, bert, config):
        bare = measure_topics(str(bert), replace(config, n_resamples=0, untrained=0))
        assert "ratio_low" not in bare.to_dataframe()
        assert "value_low" not in bare.by_measure()
        assert not any("95% interval over documents" in note for note in bare.caveats)

    def test_too_few_halves_are_refused(self, bert, config):
        with pytest.raises(InputError, match="n_resamples is 3; expected 0 for no intervals, or at least 20"):
            measure_topics(str(bert), replace(config, n_resamples=3))

    def test_equals_the_probes_run_by_hand(self, found, bert, config, corpus):
        model, encoded = load_pretrained(bert), found.encoded
        documents = CorpusStream(corpus).read().encode(model.tokenizer, encoded.words, 16)
        batches = list(documents.batches(config.tokens_per_batch))
        options = {"words": "word", "n_permutations": 49, "seed": 0}
        for i, variant in enumerate(found.variants):
            probes = [
                TopicAttention(variant.topics, at=attention_pattern(), **options),
                TopicEmbedding(variant.topics, at=residual(), **options),
            ]
            expected = run(model, batches, probes)
            for mine, theirs in zip((found.trained.attention[i], found.trained.vectors[i]), expected, strict=True):
                assert all(torch.allclose(mine[name], theirs[name]) for name in theirs.values)
            has = variant.topics.any(dim=1)
            raw = topic_similarity(token_embeddings(model)[encoded.token_of_word[has]], variant.topics[has])
            assert torch.allclose(found.trained.embedding[i]["ratio"][0], raw.ratio)
            assert torch.allclose(found.trained.embedding[i]["difference"][0], raw.difference)
            assert found.trained.embedding[i]["pairs"].tolist() == raw.pairs.tolist()

    def test_one_forward_pass_a_batch_for_all_variants(self, bert, config, monkeypatch):
        module, passes = importlib.import_module("probes.engine.record"), []
        forward = module.forward
        monkeypatch.setattr(module, "forward", lambda *a: passes.append(1) or forward(*a))
        result = measure_topics(str(bert), replace(config, thresholds=(0.05, 0.1, 0.2), untrained=1))
        assert len(result.variants) == 6
        assert len(passes) == 2 * len(list(result.encoded.batches(config.tokens_per_batch)))

    @pytest.mark.parametrize("tokens", [16, 700])
    def test_does_not_depend_on_the_token_budget(self, found, bert, config, tokens):
        other = measure_topics(str(bert), replace(config, tokens_per_batch=tokens, untrained=0))
        assert other.to_dataframe()["ratio"].tolist() == pytest.approx(found.to_dataframe()["ratio"].tolist(), rel=1e-5)

    def test_a_budget_below_a_window_is_refused_before_the_topics_are_fitted(self, bert, config, monkeypatch):
        monkeypatch.setattr("mechclust.commands.topics.measure.fit_topics_to_counts", None)
        message = "tokens_per_batch is 15, fewer than the 16 tokens of a window; give at least 16, or shorter windows"
        with pytest.raises(InputError, match=f"^{message} "):
            measure_topics(str(bert), replace(config, tokens_per_batch=15))

    def test_is_reproducible_and_leaves_the_random_state_alone(self, found, bert, config):
        before = torch.get_rng_state()
        assert measure_topics(str(bert), config).to_dataframe().equals(found.to_dataframe())
        assert torch.equal(before, torch.get_rng_state())

    def test_untrained_models_are_averaged(self, found, bert, config):
        result = measure_topics(str(bert), replace(config, untrained=2, n_permutations=0))
        assert len(result.untrained) == 2
        for variant, row in ((0, 0), (1, 4)):
            ratios = [float(m.attention[variant]["ratio"][0, 0]) for m in result.untrained]
            assert ratios[0] != ratios[1]
            assert result.to_dataframe()["untrained"][row] == pytest.approx(np.mean(ratios))
        assert result.to_dataframe()["null_low"].isna().all()

    def test_max_documents(self, bert, config):
        result = measure_topics(str(bert), replace(config, max_documents=7, untrained=0))
        assert (result.n_documents, result.encoded.n_documents) == (60, 7)

    @pytest.mark.parametrize("family", ["gpt2", "llama"])
    def test_decoders(self, write_checkpoint, tmp_path, config, family):
        path = write_checkpoint(tmp_path / family, family, change=plant)
        result = measure_topics(str(path), replace(config, untrained=0))
        assert (result.summary()["cosine"].abs() > 3).all()
        assert result.to_dataframe()["ratio"].notna().all()
        assert {len(window) for window in result.encoded.windows} == {16, 8}  # 24 words for a context of 16


class TestTokenizer:
    def test_words_that_are_split_are_lost_and_counted(self, bert, config, tmp_path):
        """w0 to w14 are whole; of the others w15 to w19 are w, ##1, ##5 and so on."""
        path = shutil.copytree(bert, tmp_path / "m")
        wordpiece(path, [*(f"w{i}" for i in range(15)), "##5", "##6", "##7"])
        result = measure_topics(str(path), replace(config, untrained=0))
        text = " ".join(CorpusStream(config.corpus).read().documents).split()
        listed = set(result.encoded.words)
        assert result.encoded.occurrences == sum(word in listed for word in text)
        lost = {"w15", "w16", "w17"} & listed
        assert lost
        assert result.encoded.lost == sum(word in lost for word in text)
        assert {w for w, t in zip(result.encoded.words, result.encoded.token_of_word, strict=True) if t < 0} == lost
        for measured in (result.trained.embedding[-1], result.trained.vectors[-1]):
            assert measured.metadata["n_words"] == len(listed) - len(lost)

    def test_every_word_lost_is_found_before_the_topics_are_fitted(self, bert, config, tmp_path, monkeypatch):
        path = shutil.copytree(bert, tmp_path / "m")
        wordpiece(path, ["w", *(f"##{i}" for i in range(10))])
        monkeypatch.setattr("mechclust.commands.topics.measure.fit_topics_to_counts", None)
        with pytest.raises(InputError) as error:
            measure_topics(str(path), config)
        assert str(error.value) == (
            f"the tokenizer of {str(path)!r} leaves none of the corpus's 20 different words whole: all 1440 "
            "occurrences were lost, split or unknown; give a corpus in the model's language, or another model"
        )

    def test_one_whole_word_that_a_look_may_miss_is_enough(self, bert, monkeypatch):
        """Only the last document has a whole word; the look at one document does not decide."""
        texts = [*(f"q{i} r{i}" for i in range(9)), "w0 q0"]
        monkeypatch.setattr("mechclust.commands.topics.measure._FIRST_DOCUMENTS", 1)
        tokenizer = load_pretrained(bert).tokenizer
        words = sorted({word for text in texts for word in text.split()})
        for seed in range(3):
            assert _check_whole("m", Corpus(texts, texts), tokenizer, words, 16, seed) is None
        with pytest.raises(InputError, match="leaves none of the corpus's 18 different words whole: all 18 occ"):
            _check_whole("m", Corpus(texts[:-1], texts[:-1]), tokenizer, words[:-1], 16, 0)

    def test_documents_measured_without_a_counted_word(self, bert):
        with pytest.raises(InputError) as error:
            _check_whole("m", Corpus(["w0 w1"], ["x"]), load_pretrained(bert).tokenizer, ["w2", "w3"], 16, 0)
        assert str(error.value) == (
            "none of the corpus's 2 different words is in the 1 documents measured; give a larger max_documents"
        )

    def test_every_topic_word_lost(self, bert, config, tmp_path):
        """w18, which no topic keeps, is whole: that shows only once the topics are known."""
        path = shutil.copytree(bert, tmp_path / "m")
        wordpiece(path, ["w18", "w", *(f"##{i}" for i in range(10))])
        with pytest.raises(InputError) as error:
            measure_topics(str(path), config)
        n = sum(word not in ("w18", "w19") for word in " ".join(CorpusStream(config.corpus).read().documents).split())
        said = str(error.value)
        assert said.startswith(f"the tokenizer of {str(path)!r} leaves none of the 15 topic words whole: ")
        lost, of = (int(said.split(": ")[1].split()[i]) for i in (0, 2))
        assert lost == of <= n
        assert said.endswith("give a corpus in the model's language, or a larger threshold")

    def test_a_slow_tokenizer_is_refused_before_the_topics_are_fitted(self, bert, config, monkeypatch):
        class Slow:
            is_fast = False

        class Model:
            tokenizer = Slow()

        monkeypatch.setattr("mechclust.commands.settings.load_pretrained", lambda *a, **k: Model())
        monkeypatch.setattr("mechclust.commands.topics.measure.fit_topics_to_counts", None)
        with pytest.raises(InputError, match=r"^this model's tokenizer \(Slow\) is a slow one"):
            measure_topics(str(bert), config)

    def test_a_model_of_ours_has_no_tokenizer(self, model, tmp_path, config):
        save_model(model, tmp_path / "ours.safetensors")
        with pytest.raises(InputError, match="has no tokenizer to read text; give a Hugging Face checkpoint"):
            measure_topics(str(tmp_path / "ours.safetensors"), config)


class TestRefusals:
    @pytest.fixture(autouse=True)
    def no_model(self, monkeypatch):
        """All of these are refused before a model is loaded."""

        def never(*args, **kwargs):
            raise AssertionError("loaded a model")

        monkeypatch.setattr("mechclust.commands.settings.load_pretrained", never)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"device": "warp"}, "no device 'warp'; expected cpu, cuda, cuda:1 or mps"),
            ({"tokens_per_batch": 0}, "tokens_per_batch is 0; expected at least 1"),
            ({"untrained": -1}, "untrained is -1; expected at least 0"),
            ({"n_permutations": -1}, "n_permutations is -1; expected at least 0"),
            ({"max_length": 1}, "max_length is 1; expected at least 2"),
            ({"max_documents": 0}, "max_documents is 0; expected at least 1"),
            ({"thresholds": ()}, "thresholds is (); expected one or several different numbers"),
            ({"thresholds": (0.1, 0.1)}, "thresholds is (0.1, 0.1); expected one or several different numbers"),
            ({"thresholds": (1.5,)}, "thresholds[0] is 1.5; expected below 1"),
            (
                {"thresholds": (0.001, 0.04)},
                "the topics have 20 different words, of which the largest threshold, 0.04, keeps one per topic, and "
                "comparing words of a topic takes two; give a threshold of at least 0.05, or more text",
            ),
            ({"passes": 0}, "passes is 0; expected at least 1"),
            ({"seed": -1}, "seed is -1; expected at least 0"),
            ({"corpus": ()}, "no corpus files given; name at least one file or a directory of them"),
            (
                {"n_topics": 61},
                "the corpus has 60 documents for 61 topics; give more text, split it into more documents, "
                "or ask for fewer topics (n_topics)",
            ),
            (
                {"min_documents": 61},
                "no word except stop words is in at least 61 and at most 60 of the 60 documents; "
                "give more text, or lower min_documents or raise max_share",
            ),
        ],
    )
    def test_with_one_sentence(self, config, changes, message):
        with pytest.raises(InputError) as error:
            measure_topics("somewhere", replace(config, **changes))
        assert str(error.value) == message

    def test_not_when_the_largest_threshold_leaves_two_words(self, config):
        with pytest.raises(AssertionError, match="loaded a model"):
            measure_topics("somewhere", replace(config, thresholds=(0.001, 0.05)))

    def test_a_corpus_of_one_word(self, tmp_path, config):
        (tmp_path / "a.txt").write_text("word\n" * 6)
        with pytest.raises(InputError) as error:
            measure_topics("somewhere", replace(config, corpus=(tmp_path,), split="line"))
        assert str(error.value) == (
            "the topics have 1 different word, of which the largest threshold, 0.2, keeps one per topic, and comparing "
            "words of a topic takes two; give more text"
        )


@pytest.fixture(scope="module")
def written(bert, config, tmp_path_factory):
    """A report of thresholds of which one leaves one word a topic, and one leaves none without overlap."""
    config = replace(config, thresholds=(0.0, 0.1, 0.99))
    result = measure_topics(str(bert), config)
    return result, config, result.write(tmp_path_factory.mktemp("topics") / "deep" / "out")


class TestReport:
    def test_thresholds_where_nothing_is_left_are_nan(self, written):
        table = written[0].to_dataframe().set_index(KEY)
        assert table.loc[(0.0, False), "same_topic"].isna().all()
        assert (table.loc[(0.0, False), "pairs_different_topic"] > 0).all()
        assert table.loc[(0.99, False), ["same_word", "ratio", "null_low", "p_value"]].isna().all().all()
        assert (table.loc[(0.99, False), "pairs_same_word"] == 0).all()
        assert table.loc[(0.1, False), "ratio"].notna().all()
        summary = written[0].summary().set_index(KEY)
        assert summary.loc[(0.99, False), ["topics", "words"]].tolist() == [0, 0]
        assert math.isnan(summary.loc[(0.99, False), "cosine"])
        page = written[2].read_text()
        assert "fewer than two topics keep a word" in page
        assert "Of 20 words, threshold 0 keeps one per topic, which makes no pair" in page

    def test_files(self, written):
        folder = written[2].parent
        files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
        names = ["0-no-overlap", "0-overlap", "0.1-no-overlap", "0.1-overlap", "0.99-overlap"]
        kinds = ("attention", "embedding", "vectors")
        assert files == sorted(
            [
                "attention.csv", "layers.csv", "summary.csv", "topics.csv", "report.html", "mechclust.json",
                ".mechclust.lock",
                *(f"figures/{name}.png" for name in ("attention_by_head", "by_layer", "by_threshold")),
                *(f"results/{m}/{k}-{n}.safetensors" for m in ("trained", "untrained-seed0") for k in kinds
                  for n in names),
            ]
        )  # fmt: skip

    def test_csv_is_the_table(self, written):
        with (written[2].parent / "attention.csv").open() as file:
            rows = list(csv.DictReader(file))
        table = written[0].to_dataframe()
        assert list(rows[0]) == list(table.columns)
        assert [float(row["ratio"] or "nan") for row in rows] == pytest.approx(table["ratio"].tolist(), nan_ok=True)
        with (written[2].parent / "topics.csv").open() as file:
            topics = list(csv.DictReader(file))
        assert sorted(int(row["topic"]) for row in topics) == [0, 1, 2]
        assert sum(float(row["share"]) for row in topics) == pytest.approx(1)

    def test_every_layer_has_its_hook_and_every_head_its_name(self, written):
        check_report(written[2])
        heads = written[0].tables["attention"]
        assert heads["name"].unique().tolist() == ["L0H0", "L0H1", "L1H0", "L1H1"]

    def test_results_are_what_was_measured(self, written):
        result, _, report = written
        loaded = load_result(report.parent / "results/trained/attention-0.1-overlap.safetensors")
        assert torch.equal(loaded["ratio"], result.trained.attention[4]["ratio"])
        untrained = load_result(report.parent / "results/untrained-seed0/embedding-0.1-no-overlap.safetensors")
        assert torch.equal(untrained["ratio"], result.untrained[0].embedding[1]["ratio"])

    def test_results_say_where_they_were_measured(self, written):
        folder = written[2].parent / "results" / "trained"
        for kind, at in (("embedding", MATRIX), ("vectors", "residual()"), ("attention", "attention()")):
            saved = load_result(folder / f"{kind}-0.1-overlap.safetensors")
            parameters = saved.metadata["parameters"]
            assert (parameters["at"], parameters["words"]) == (at, "word")
        assert load_result(folder / "embedding-0.1-overlap.safetensors").coords["site"] == [MATRIX]

    def test_notes_of_the_result_are_in_the_page(self, written):
        result, _, report = written
        notes = result.caveats
        assert len(notes) > 4
        assert all(html.escape(note).replace("&#x27;", "&#39;") in report.read_text() for note in notes)
        assert "Case is ignored: several token ids can be the same word" in report.read_text()

    def test_a_note_of_every_threshold_is_said_once(self, bert, config):
        notes = measure_topics(str(bert), replace(config, untrained=0, n_permutations=0)).caveats
        assert len([note for note in notes if "n_permutations is 0" in note]) == 1

    def test_files_without_words_are_said(self, bert, config, corpus, tmp_path):
        (tmp_path / "none.txt").write_text("12\n")
        options = {"untrained": 0, "n_permutations": 0}
        one = measure_topics(str(bert), replace(config, corpus=(tmp_path, corpus), **options))
        first = str(tmp_path / "none.txt")
        assert (one.n_files, one.empty_files) == (60, [first])
        assert f"1 file holds no word and was left out: {first!r}." in one.caveats
        two = replace(one, empty_files=[first, "other.txt"])
        assert f"2 files hold no word and were left out: {first!r} and others." in two.caveats

    def test_a_mediawiki_dump_is_read_without_its_markup(self, bert, config, corpus, tmp_path):
        texts = CorpusStream(corpus).read().documents
        articles = (f"<page><ns>0</ns><revision><text>'''{t}''' {{{{cite}}}}</text></revision></page>\n" for t in texts)
        dump = tmp_path / "dump.xml"
        dump.write_text(f"<mediawiki>{''.join(articles)}</mediawiki>")
        result = measure_topics(str(bert), replace(config, corpus=(dump,), untrained=0, n_permutations=0))
        assert result.n_documents == 60
        assert sorted(result.topics.words) == sorted(f"w{i}" for i in range(20))

    def test_the_page(self, written):
        result, _, report = written
        page = report.read_text()
        assert page.count("data:image/png;base64,") == 3
        assert "Topic structure in" in page
        assert "60 documents (of text files: paragraphs, joined up to 100 words) of 60 files" in page
        assert "3 topics over 20 words" in page
        assert "60 documents were longer than a window and cut into several (120 windows in all)" in page
        assert "0 of 1440 occurrences of topic words (0%) do not count" in page
        assert all(", ".join(words) in page for words in result.topics.top_words(10))
        assert "n_permutations" in page
        assert "http" not in page.replace("http-equiv", "")

    def test_without_an_untrained_model(self, bert, config, tmp_path):
        config = replace(config, untrained=0, n_permutations=0)
        page = measure_topics(str(bert), config).write(tmp_path).read_text()
        assert "untrained (random weights)" not in page
        assert "<th>untrained</th>" not in page

    def test_hostile_names_are_escaped(self, found, config, tmp_path):
        hostile = replace(found, model="<img src=x onerror=alert(1)>")
        page = replace(hostile, config=replace(config, corpus=("<script>",))).write(tmp_path).read_text()
        assert "<img src=x" not in page
        assert "<script>" not in page

    def test_a_folder_that_cannot_be_written(self, found, config, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match="cannot write to"):
            found.write(tmp_path / "file" / "out")


def by_measure(p, values=(1.2, 1.1, 0.9), untrained=(1.0, 1.0, 1.0), **columns):
    """Two thresholds without overlap for each measure: its value, interval and p."""
    rows = [
        {"measure": name, "threshold": t, "overlap": False, "topics": 3, "words": 9, "value": v, "null_low": 0.9,
         "null_high": 1.1, "p_value": q, "untrained": u}
        for name, v, u, qs in zip(
            ("attention, ratio", "cosine, difference", "dot, difference"), values, untrained, p, strict=True
        )
        for t, q in zip((0.1, 0.2), qs, strict=True)
    ]  # fmt: skip
    return pd.DataFrame(rows).assign(**columns)


def by_head(p, n=20, **columns):
    """As many heads of two layers, of which the first has this p."""
    rows = [
        {"threshold": 0.1, "overlap": False, "layer": h % 2, "head": h // 2, "ratio": 1.5 if not h else 1.0,
         "null_low": 0.9, "null_high": 1.1, "p_value": p if not h else 0.5}
        for h in range(n)
    ]  # fmt: skip
    return pd.DataFrame(rows).assign(**columns)


def read(measures, heads, n_permutations):
    """Headline and readings of these numbers, by what they are of; at most 25 words of headline."""
    conclusion = headline(measures, heads, n_permutations)
    assert len(conclusion.split()) <= 25
    found = readings(measures, heads, n_permutations)
    assert len({reading.what for reading in found}) == len(found)
    return conclusion, {reading.what: reading for reading in found}


ATTENTION = "Attention within documents, same / different topic"
COSINE, DOT = (f"{name} of token embeddings, same - different topic" for name in ("Cosine", "Dot product"))
HEADS = "Heads with more attention within topics than by chance"
BEST = "Highest ratio of a head"


class TestReadings:
    """What is concluded from numbers that are given."""

    def test_everything_above_chance(self):
        conclusion, found = read(by_measure([(0.01, 0.01)] * 3), by_head(0.001), 999)
        assert conclusion == (
            "Words of one topic belong together more than by chance in attention, embedding cosine and embedding dot "
            "product. Heads above chance: 1 of 20."
        )
        assert list(found) == [ATTENTION, HEADS, BEST, COSINE, DOT]
        first = found[ATTENTION]
        assert (first.value, first.chance, first.random_weights) == ("1.2", "0.9 to 1.1", "1")
        assert first.verdict == "Above chance at every threshold (p at most 0.01, corrected for 6 comparisons)."
        heads, where = found[HEADS], "threshold 0.1 without overlap"
        assert (heads.value, heads.where) == ("1 of 20, in block 0", where)
        assert heads.verdict == "Corrected for 20 heads."
        best = found[BEST]
        assert (best.value, best.where, best.chance) == ("1.5", f"L0H0, {where}", "0.9 to 1.1")

    def test_too_few_relabellings_deny_no_head(self):
        conclusion, found = read(by_measure([(0.01, 0.01)] * 3), by_head(0.01), 99)
        assert conclusion.endswith("embedding dot product. Heads: too few relabellings to tell.")
        assert found["Relabellings"].value == "99"

    def test_one_small_p_of_many_is_no_finding(self):
        """.04 and .03 would be findings alone; six comparisons were made."""
        conclusion, found = read(by_measure([(0.04, 0.6), (0.03, 0.5), (0.4, 0.9)]), by_head(0.01), 999)
        assert conclusion == (
            "Neither attention nor token embeddings are shown to bring words of one topic together more than by "
            "chance. Heads above chance: 0 of 20."
        )
        assert found[ATTENTION].verdict == (
            "Not shown to be more than chance (smallest p 0.12, corrected for 6 comparisons)."
        )
        heads = found[HEADS]
        assert (heads.value, heads.where) == ("none of 20", "threshold 0.1 without overlap")
        assert heads.verdict == ("Corrected for 20 heads. Above their own 95% interval: 1; by chance, on average: 0.5.")
        assert (found[BEST].value, found[BEST].where) == ("1.5", "L0H0, threshold 0.1 without overlap")
        assert not any("Above chance at" in reading.verdict for reading in found.values())

    def test_some_thresholds_above_chance(self):
        conclusion, found = read(by_measure([(0.001, 0.6), (0.03, 0.5), (0.4, 0.9)]), by_head(0.5), 999)
        assert conclusion.startswith("Words of one topic belong together more than by chance in attention. ")
        assert found[ATTENTION].verdict == (
            "Above chance at threshold 0.1 without overlap (p at most 0.006, corrected for 6 comparisons)."
        )

    def test_too_few_relabellings_to_tell(self):
        found = readings(by_measure([(0.05, 0.6), (0.3, 0.5), (0.4, 0.9)]), by_head(0.05), 19)
        assert [str(reading) for reading in found if reading.what == "Relabellings"] == [
            "Relabellings: 19. No p can be below 0.05, too large for 20 comparisons; give --n-permutations 399.",
            "Relabellings: 19. No p can be below 0.05, too large for 6 comparisons; give --n-permutations 119.",
        ]

    def test_a_negative_zero_has_no_sign(self):
        values = {"values": (1.2, -0.0, -0.0), "untrained": (-0.0, -0.0, -0.0)}
        found = readings(by_measure([(0.5, 0.5)] * 3, **values), by_head(0.5), 999)
        assert found
        assert "-0" not in " ".join(map(str, found))

    def test_without_relabellings_nothing_is_concluded(self):
        assert read(by_measure([(math.nan,) * 2] * 3), by_head(math.nan), 0) == (
            "No relabellings were drawn, so nothing separates these numbers from chance; give --n-permutations 99.",
            {},
        )

    def test_of_nothing(self):
        assert read(by_measure([(math.nan,) * 2] * 3, value=math.nan), by_head(0.5), 99) == (
            "At no threshold is there anything to compare; the notes say why.",
            {},
        )

    def test_of_planted_topics_and_of_none(self, found, write_checkpoint, config, tmp_path):
        assert found.sentences == [found.headline, *map(str, found.readings)]
        assert "Above chance at every threshold, with and without overlap" in found.readings[0].verdict
        random = measure_topics(str(write_checkpoint(tmp_path / "m", "bert")), replace(config, untrained=0))
        assert random.readings[0].verdict.startswith("Not shown to be more than chance")
        assert random.readings[0].random_weights == ""

    def test_the_main_figure_is_the_first_panel(self, found):
        names = ["by_threshold", "attention_by_head", "by_layer"]
        assert [panel.name for panel in found.panels()] == names
        assert [axis.get_title() for axis in found.plot().axes][:1] == ["cosine, token embeddings"]

    def test_measures_are_those_of_the_probes(self, found):
        table = found.by_measure()
        assert len(table) == 12
        row = table[(table["measure"] == "dot, difference") & (table["threshold"] == 0.2) & ~table["overlap"]].iloc[0]
        probe = found.trained.embedding[1]
        names = {"value": "difference", "null_low": "difference_null_low", "p_value": "difference_p_value"}
        assert {k: row[k] for k in names} == {k: float(probe.sel(v, similarity="dot")[0]) for k, v in names.items()}
        assert row["untrained"] == found.summary()["dot_difference_untrained"][1]


class TestModelsInMemory:
    def test_without_a_longest_input(self, bert, config):
        """T5 has none."""
        import transformers

        shape = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "vocab_size": 30}
        model = transformers.T5EncoderModel(transformers.T5Config(**shape)).eval()
        found = measure_topics(model, config, tokenizer=transformers.AutoTokenizer.from_pretrained(bert))
        assert set(found.to_dataframe()["layer"].dropna()) <= {0, 1, 2}

    def test_are_measured_as_by_name(self, found, bert, config):
        from transformers import AutoModelForMaskedLM, AutoTokenizer

        tokenizer, model = AutoTokenizer.from_pretrained(bert), AutoModelForMaskedLM.from_pretrained(bert).eval()
        for given, options in ((load_pretrained(bert, attention="sdpa"), {}), (model, {"tokenizer": tokenizer})):
            result = measure_topics(given, config, **options)
            assert result.to_dataframe().equals(found.to_dataframe())
            assert result.model == str(bert)
        of_patterns = measure_topics(load_pretrained(bert), config)
        assert of_patterns.model == str(bert)
        tables = [result.to_dataframe().drop(columns="site") for result in (of_patterns, found)]
        pd.testing.assert_frame_equal(*tables, rtol=1e-5)

    def test_without_a_tokenizer(self, bert, config):
        from transformers import AutoModelForMaskedLM

        with pytest.raises(InputError, match=r"has no tokenizer to read text; .* or tokenizer="):
            measure_topics(AutoModelForMaskedLM.from_pretrained(bert), config)


class TestTokens:
    def test_a_tokenizer_of_another_model(self, write_checkpoint, tmp_path, config):
        path = write_checkpoint(tmp_path / "m", "bert", vocab_size=13)
        with pytest.raises(InputError, match=r"document \d+ has token id \d+, but the model has 13 token"):
            measure_topics(str(path), config)


@pytest.fixture(scope="module")
def pydoc(tmp_path_factory):
    """A real corpus: the texts of Python's help, a file each."""
    from pydoc_data.topics import topics

    folder = tmp_path_factory.mktemp("pydoc")
    for name, text in topics.items():
        (folder / f"{name.replace('/', '-')}.txt").write_text(text, encoding="utf-8")
    return folder


class TestCommand:
    def test_on_a_real_corpus(self, pydoc, tmp_path, capsys):
        """A BERT with a WordPiece tokenizer of the corpus's own frequent words; the others are split."""
        from collections import Counter

        import transformers

        corpus = CorpusStream(pydoc).read()
        counts = Counter(word for i in range(len(corpus)) for word in corpus.words(i))
        letters = sorted({c for word in counts for c in word})
        pieces = [*(w for w, n in counts.most_common(600) if len(w) > 1), *letters, *(f"##{c}" for c in letters)]
        configuration = transformers.BertConfig(
            vocab_size=len(pieces) + 4, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=32, max_position_embeddings=96,
        )  # fmt: skip
        model = tmp_path / "model"
        transformers.BertForMaskedLM(configuration).save_pretrained(model)
        wordpiece(model, pieces)
        options = ["--n-topics", "12", "--passes", "2", "--max-documents", "60", "--thresholds", "0.005", "0.01"]
        options += ["--n-permutations", "9", "--tokens-per-batch", "4096", "--out", str(tmp_path / "out")]
        assert main(["topics", str(model), "--corpus", str(pydoc), *options]) == 0
        printed, said = capsys.readouterr()
        headline, _, *lines = printed.splitlines()
        assert len(headline.split()) <= 25
        assert lines[0].split() == ["measure", *KEY, "topics", "words", "value", "chance", "p", "untrained"]
        assert [line.split()[:4] for line in lines[1:13]] == [
            [measure, kind, t, o]
            for measure, kind in (("attention,", "ratio"), ("cosine,", "difference"), ("dot,", "difference"))
            for o in ("without", "with")
            for t in ("0.005", "0.01")
        ]
        assert max(map(len, lines[:13])) <= 100
        assert re.fullmatch(r".* \d+ +\d+ +[\d.]+ +[\d.]+ to [\d.]+ +[\d.]+ +[\d.]+", lines[1])
        assert not re.search(r"-0(\.0*)?(?![\d.])", printed.replace(str(tmp_path), ""))  # pytest-0
        assert lines[-1] == f"report: {tmp_path / 'out' / 'report.html'}"
        assert all(bar in said for bar in ("counting words", "fitting topics", "tokenizing", "measuring"))
        with (tmp_path / "out" / "summary.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert all(0.9 < float(row["attention"]) < 1.1 for row in rows)
        assert all(int(row["words"]) > 12 for row in rows)
        assert (tmp_path / "out" / "report.html").stat().st_size > 50_000
        notes = [line for line in lines if line.startswith("- ")]
        assert notes == lines[-2 - len(notes) : -2]
        assert re.match("(Words of one topic belong|Neither attention nor token embeddings are) ", headline)
        assert notes[0].startswith(f"- {ATTENTION}: ")
        assert any(re.match(r"- \d+ of \d+ occurrences of topic words \(\d+%\) do not count: ", n) for n in notes)
        assert any("documents were longer than a window and cut into several" in note for note in notes)

    def test_prints_the_notes_of_the_result(self, written, config, tmp_path, capsys, monkeypatch):
        monkeypatch.setattr("mechclust.cli_commands.topics.measure_topics", lambda *a, **k: written[0])
        assert main(["topics", "m", "--corpus", "c.txt", "--out", str(tmp_path)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == written[0].headline
        said = [*map(str, written[0].readings), *written[0].caveats]
        assert [line for line in lines if line.startswith("- ")] == [f"- {sentence}" for sentence in said]
        for said in (
            "- 0 of 1440 occurrences of topic words (0%) do not count: ",
            "- 60 documents were longer than a window and cut into several (120 windows in all)",
            "- At thresholds without a value, fewer than two topics keep a word, so there is nothing to compare.",
            "- same_topic: no two different words of one topic met, so its mean is NaN.",
            "- Of 20 words, threshold 0 keeps one per topic, which makes no pair; give thresholds of at least 0.05, or",
        ):
            assert any(line.startswith(said) for line in lines), (said, lines)

    def test_the_table_shows_chance_and_p(self, written, config, tmp_path, capsys, monkeypatch):
        """1.15 against 1.02 of untrained models is no finding before it is one against chance."""
        monkeypatch.setattr("mechclust.cli_commands.topics.measure_topics", lambda *a, **k: written[0])
        assert main(["topics", "m", "--corpus", "c.txt", "--out", str(tmp_path)]) == 0
        (row,) = [x for x in capsys.readouterr().out.splitlines() if re.match(r" +attention, ratio +0.1 without", x)]
        found = written[0].trained.attention[1]
        ends = [float(found[f"overall_ratio_null_{end}"]) for end in ("low", "high")]
        assert f"{ends[0]:.3g} to {ends[1]:.3g} " in row
        assert f" {float(found['overall_p_value']):.3g} " in row

    def test_help(self, capsys):
        with pytest.raises(SystemExit) as end:
            main(["topics", "--help"])
        assert end.value.code in (0, None)
        said = capsys.readouterr().out
        assert all(option in said for option in ("--corpus", "--thresholds", "--stop-words", "--max-documents"))
        words = " ".join(said.replace("│", " ").split())
        assert "of less than about 10,000 different words need larger ones, such as .005 .01 .02." in words

    def test_bad_input_is_one_sentence(self, tmp_path):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        argv = [sys.executable, "-m", "mechclust", "topics", "gpt2", "--corpus", str(tmp_path / "none.txt")]
        done = subprocess.run(argv, capture_output=True, text=True, env=environment, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == (
            f"mechclust: no corpus file {str(tmp_path / 'none.txt')!r}; "
            "give the path of a file or of a directory of them\n"
        )
        assert not list(tmp_path.iterdir())

    def test_the_folder_is_checked_first(self, tmp_path, capsys, monkeypatch):
        monkeypatch.setattr("mechclust.commands.topics.measure.Corpus", None)
        (tmp_path / "file").write_text("")
        assert main(["topics", "m", "--corpus", "c.txt", "--out", str(tmp_path / "file" / "out")]) == 2
        assert capsys.readouterr().err.startswith("mechclust: cannot write to ")
