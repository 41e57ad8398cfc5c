"""Topics in tiny models from end to end: planted topics and the documentation of this repository."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import mechclust
from mechclust.cli import main
from mechclust.commands.topics import TopicsConfig, TopicsModel, figures, judge_folder, measure_topics, read_suite
from mechclust.commands.topics import job as jobs
from mechclust.commands.topics import texts as topic_texts
from mechclust.commands.topics.published import published_ratio
from mechclust.commands.topics.readings import headline, readings
from mechclust.commands.topics.topic_file import load_topics, save_topics
from mechclust.evidence import load_findings
from mechclust.models import load_pretrained, token_embeddings
from probes import TopicAttention, TopicEmbedding, attention_pattern, residual, run
from probes.functional import topic_similarity
from tasks import Corpus, InputError, TopicModel
from tasks.text.words import words_of
from tests.mechclust.commands.hook_columns import check_report
from tests.mechclust.commands.refusals import refusal
from tests.mechclust.commands.topics.cases import ROWS, plant, wordpiece, write_planted_corpus

PLANTED = {
    "split": "file", "topic_seeds": (0, 1), "n_topics": 3, "passes": 3, "no_below": 1, "no_above": 1.0,
    "weights": "counts", "thresholds": (0.1, 0.2), "max_length": 16, "resamples": 20,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(write_checkpoint, tmp_path_factory):
    """Two encoders, one with planted topics, a corpus and a suite that also names a third, which is not there."""
    folder = tmp_path_factory.mktemp("suite")
    write_checkpoint(folder / "bert", "bert", change=plant)
    write_checkpoint(folder / "albert", "albert", num_hidden_layers=1)
    write_planted_corpus(folder / "corpus")
    (folder / "suite.toml").write_text(
        f'[[model]]\nmodel = "{folder}/bert"\nname = "planted"\npublished = "BERT"\n'
        f'[[model]]\nmodel = "{folder}/albert"\nname = "plain"\ntwins = 0\n'
        f'[[model]]\nmodel = "{folder}/none"\nname = "absent"\n'
    )
    return folder


@pytest.fixture(scope="module")
def config(folder):
    return TopicsConfig((folder / "corpus",), **PLANTED)


@pytest.fixture(scope="module")
def models(folder):
    return read_suite(folder / "suite.toml")


@pytest.fixture(scope="module")
def found(models, config, folder):
    return measure_topics(models, config, folder / "out")


@pytest.fixture(scope="module")
def report(found, folder):
    return found.write(folder / "out").read_text()


class TestMeasured:
    def test_planted_topics_are_found_and_random_weights_are_at_chance(self, found):
        table = found.tables["ratios"]
        attention = table[table["measure"].isin(["attention", "attention at equal distance"])]
        planted = attention[attention["model"] == "planted"]
        assert (planted["low"] > 1.2).all()
        assert (planted["random_value"] - 1).abs().max() < 0.1
        assert (attention[attention["model"] == "plain"]["value"] - 1).abs().max() < 0.1
        assert ((planted["low"] < planted["value"]) & (planted["value"] < planted["high"])).all()

    def test_as_the_probes_and_functions_find_it_one_by_one(self, models, found, folder):
        """The ratio over all pairs is TopicAttention's, and rows are compared over all pairs."""
        model = load_pretrained(folder / "bert")
        topics = found.texts.fitted.models[1]
        member = topics.membership(0.2, overlap=False)
        encoded = Corpus(found.texts.documents, found.texts.documents).encode(model.tokenizer, topics.words, 16)
        attention = TopicAttention(member, attention_pattern(), "word", n_permutations=0)
        (expected,) = run(model, encoded.batches(2048), [attention])
        ours = found.trained["planted"].attention
        place = ours.metadata["variants"].index([0.2, False])
        assert ours.coords["topic_seed"] == ["0", "1"]
        assert float(ours["overall_ratio"][1, place]) == pytest.approx(float(expected["overall_ratio"]))
        torch.testing.assert_close(ours["ratio"][1, place], expected["ratio"])

        seen = encoded.token_of_word >= 0
        rows = token_embeddings(model)[encoded.token_of_word[seen]]
        ours = found.trained["planted"].embedding
        for name, self_pairs in (("rows", False), ("rows, self-pairs in", True)):
            ratio = topic_similarity(rows, member[seen], self_pairs).ratio
            torch.testing.assert_close(ours["ratio"][1, place, ours.coords["vectors"].index(name)], ratio)

    def test_the_three_vectors_differ(self, found):
        embedding = found.trained["planted"].embedding
        means = dict(zip(embedding.coords["vectors"], embedding["mean"][0, 0, :, 0].tolist(), strict=True))
        same = {name: mean[0] for name, mean in means.items()}
        assert len({round(x, 3) for name, x in same.items() if "self" not in name}) == 3
        for name in ("rows", "hook_embed", "contextual"):  # a word with itself raises the mean within topics alone
            assert same[f"{name}, self-pairs in"] > same[name]
            assert means[f"{name}, self-pairs in"][1] == means[name][1]

    def test_left_out_documents_are_as_if_never_read(self, models, found, folder):
        """The third part of ten: its documents are taken from the corpus, and the others measured by the probe."""
        model = load_pretrained(folder / "bert")
        member = found.texts.fitted.models[1].membership(0.2, overlap=False)
        kept = [text for i, text in enumerate(found.texts.documents) if i % 10 != 2]
        encoded = Corpus(kept, kept).encode(model.tokenizer, found.texts.fitted.words, 16)
        probe = TopicEmbedding(member, residual([0, -1]), "word", n_permutations=0)
        (expected,) = run(model, encoded.batches(2048), [probe])
        seen = encoded.token_of_word >= 0
        rows = topic_similarity(token_embeddings(model)[encoded.token_of_word[seen]], member[seen]).ratio
        ours = found.trained["planted"].embedding
        got = ours["ratio_without"][1, ours.metadata["variants"].index([0.2, False]), :, :, 2]
        torch.testing.assert_close(got[::2], torch.stack([rows, *expected["ratio"]]))
        selves = TopicEmbedding(member, residual([0, -1]), "word", self_pairs=True, n_permutations=0)
        (expected,) = run(model, encoded.batches(2048), [selves])
        torch.testing.assert_close(got[3::2], expected["ratio"])
        kinds = ["rows", "hook_embed", "contextual"]
        assert ours.coords["vectors"] == [f"{kind}{selves}" for kind in kinds for selves in ("", ", self-pairs in")]

    def test_similarity_has_intervals_over_documents(self, found):
        table = found.tables["ratios"]
        cosine = table[table["measure"] == "cosine, contextual"]
        assert ((cosine["low"] < cosine["value"]) & (cosine["value"] < cosine["high"])).all()

    def test_an_unknown_interval_is_not_drawn_as_one_of_no_length(self, found):
        table = found.tables["ratios"].copy()
        unknown = (table["model"] == "planted") & (table["threshold"] == 0.1) & ~table["overlap"]
        table.loc[unknown, ["low", "high"]] = np.nan
        axis = figures._attention(found, table).axes[0]
        first, second = next(bars for bars in axis.containers if bars.get_label() == "planted")[2][0].get_segments()
        assert len(first) == 0
        assert len(second) == 2

    def test_the_legend_of_a_single_encoder_fits(self, found):
        one = replace(found, trained={"planted": found.trained["planted"]}, twins={"planted": found.twins["planted"]})
        drawn = figures._vectors(one, found.tables["ratios"])
        drawn.canvas.draw()
        legend = drawn.legends[0].get_window_extent()
        assert drawn.bbox.x0 <= legend.x0
        assert legend.x1 <= drawn.bbox.x1

    def test_one_that_cannot_be_loaded_leaves_the_others_alone(self, found, folder):
        assert list(found.trained) == ["planted", "plain"]
        assert {name: len(twins) for name, twins in found.twins.items()} == {"planted": 1, "plain": 0}
        why = f"no model directory '{folder}/none'; give a local directory or a hub name such as 'gpt2'"
        assert found.failed["absent"] == why
        shown = found.shown(overlap=False)
        assert shown["model"].tolist() == ["planted", "planted", "plain", "plain", "absent"]
        assert shown["attention"].iloc[-1] == f"not measured: {why}"
        assert f"absent could not be measured: {why}" in found.caveats

    def test_a_first_one_that_cannot_be_loaded_leaves_the_columns_in_their_order(self, found):
        backwards = replace(found, models=found.models[::-1]).shown(overlap=False)
        assert backwards["model"].tolist() == ["absent", "plain", "plain", "planted", "planted"]
        assert list(backwards) == list(found.shown(overlap=False))

    def test_those_that_are_too_large_leave_the_others_alone(self, models, config, folder, tmp_path, monkeypatch):
        measure = jobs._measure
        errors = {"plain": torch.OutOfMemoryError("CUDA out of memory.\nmore"), "other": MemoryError()}

        def measured(job):
            if job.name in errors:
                raise errors[job.name]
            return measure(job)

        monkeypatch.setattr(jobs, "_measure", measured)
        other = TopicsModel(str(shutil.copytree(folder / "albert", tmp_path / "m")), "other")
        few = replace(config, topic_seeds=(0,), thresholds=(0.2,), untrained=0)
        found = measure_topics([*models[:2], other], few, tmp_path / "out")
        assert list(found.trained) == ["planted"]
        for name, said in (("plain", "CUDA out of memory."), ("other", "MemoryError")):
            assert found.failed[name] == f"measuring it failed: {said}; it is tried again the next time"

    def test_a_causal_model_is_measured_too(self, config, write_checkpoint, tmp_path):
        write_checkpoint(tmp_path / "gpt2", "gpt2", n_layer=1)
        few = replace(config, topic_seeds=(0,), thresholds=(0.2,), untrained=0)
        found = measure_topics(str(tmp_path / "gpt2"), few, tmp_path / "out")
        table = found.tables["ratios"]
        attention = table[table["measure"] == "attention"]["value"]
        assert found.failed == {}
        assert len(attention)
        assert np.isfinite(attention).all()
        assert (
            "gpt2: The tokenizer puts no special token before a text, so heads that attend mostly to the first "
            "token attend to a word, whatever its topic; compare with --bos yes."
        ) in found.caveats

    @pytest.mark.slow
    def test_the_five_architectures_of_p7(self, config, write_checkpoint, tmp_path):
        lines = []
        for row in ROWS:
            write_checkpoint(tmp_path / row, row.lower())
            twins = int(row == "BERT")
            lines.append(f'[[model]]\nmodel = "{tmp_path / row}"\npublished = "{row}"\ntwins = {twins}\n')
        (tmp_path / "p7.toml").write_text("".join(lines))
        found = measure_topics(read_suite(tmp_path / "p7.toml"), config, tmp_path / "out")
        assert found.failed == {}
        assert [Path(name).name for name in found.trained] == [*ROWS]
        p7 = next(c for c in judge_folder(tmp_path / "out") if c.id == "P7")
        assert p7.verdict in ("does not hold", "undecided")  # with random weights
        assert len(p7.parts[0].values) == len(config.topic_seeds)

    def test_readings(self, found):
        assert len(found.headline.split()) <= 25
        assert re.fullmatch(
            r"Attention within over between topics, threshold 0\.1: [\d.]+ \(plain\) to [\d.]+ \(planted\)\. "
            r"S1 holds \(of models with random weights\)\.",
            found.headline,
        )
        assert found.sentences == [found.headline, *map(str, found.readings)]
        first, second, *_ = found.readings
        assert (first.what, first.where) == ("Attention of planted, same / different topic", "threshold 0.1")
        number = r"1\.\d+ \(1\.\d+ to 1\.\d+\)"
        assert re.fullmatch(f"{number}, at equal distance {number}", first.value)
        assert abs(float(first.random_weights) - 1) < 0.1
        assert second.what == "Attention of plain, same / different topic"
        assert second.random_weights == ""  # which has no twin
        judged = {reading.what: reading.value for reading in found.readings if reading.what in ("P7", "S1", "S2")}
        assert judged["S1"] == "holds"
        assert "P7" not in judged  # was not tested
        (s1,) = [reading for reading in found.readings if reading.what == "S1"]
        assert s1.verdict.endswith(". Left out, as without random weights: plain.")
        last = found.readings[-1]
        assert last.what == "Ratio of cosines with random weights, largest distance from 1"
        assert last.value.count("(") == 6

    def test_readings_name_the_vectors_closest_to_the_published_cosines(self, found):
        ratios = found.tables["ratios"].assign(published=np.nan)
        cosine = ratios["measure"].str.startswith("cosine, ")
        ratios.loc[cosine, "published"] = ratios.loc[cosine, "value"] * 2
        exact = ratios["measure"] == "cosine, contextual"
        ratios.loc[exact, "published"] = ratios.loc[exact, "value"]
        closest = [r for r in readings(found, ratios) if r.what == "Word vectors closest to the published cosines"]
        (reading,) = closest
        assert reading.value == "contextual, a factor of 1.00 away on average"
        assert "rows 2.00" in reading.verdict

    def test_a_ratio_of_zero_has_no_distance_from_the_published_one(self, found):
        cosine = found.tables["ratios"]["measure"].str.startswith("cosine, ")
        ratios = found.tables["ratios"].assign(value=2.0, published=np.where(cosine, 1.0, np.nan))
        exact = ratios.index[ratios["measure"] == "cosine, contextual"]
        ratios.loc[exact, "value"] = 1.0
        ratios.loc[exact[0], "value"] = 0.0
        closest = [r for r in readings(found, ratios) if r.what == "Word vectors closest to the published cosines"]
        assert [reading.value for reading in closest] == ["contextual, a factor of 1.00 away on average"]

    def test_encoders_without_pairs(self, found):
        ratios = found.tables["ratios"].copy()
        ratios.loc[ratios["model"] == "plain", "value"] = np.nan
        assert " (plain)" not in headline(found, ratios)
        pairs = "pairs of words of one topic and of different topics in every topic model."
        assert [r.verdict for r in readings(found, ratios) if r.value == "unknown"] == [f"A ratio needs {pairs}"]
        assert (
            headline(found, ratios.assign(value=np.nan)) == f"No threshold has a ratio in any model: it needs {pairs}"
        )

    def test_without_any_random_weights(self, found):
        bare = replace(found, twins={name: [] for name in found.twins})
        assert headline(bare, bare.to_dataframe()).endswith(
            " (planted); without random weights, nothing says what chance would give."
        )

    def test_random_cosines_are_those_of_words_of_one_topic(self, found):
        """As the published distance."""
        ratios = found.tables["ratios"].copy()
        ratios["random_value"] = np.where(ratios["overlap"], 9.0, 1.01)
        (reading,) = [r for r in readings(found, ratios) if r.what.startswith("Ratio of cosines with random weights")]
        assert reading.value.startswith("0.0100 (rows)")

    def test_intervals_cover_what_varies(self, found, undrawn):
        """By default, a model has one copy with random weights, whose seed adds nothing to an interval."""
        bars = found.panels()[0].caption.partition("Bars: ")[2]
        assert bars == "95% over documents and topic models. Dashed grey: the same architectures with random weights."
        said = next(note for note in found.caveats if note.startswith("Intervals (95%)"))
        assert said.startswith("Intervals (95%) cover the documents measured and the topic models. ")
        assert said.endswith("each of 10 parts of them is left out (a jackknife).")
        two = {**found.twins, "planted": 2 * found.twins["planted"]}
        fitted = replace(found.texts.fitted, seeds=[0], models=found.texts.fitted.models[:1])
        said = next(
            note
            for note in replace(found, twins=two, texts=replace(found.texts, fitted=fitted)).caveats
            if note.startswith("Intervals (95%)")
        )
        assert said.startswith(
            "Intervals (95%) cover the documents measured, and those of several copies with random weights these "
            "weights too. "
        )

    def test_the_main_figure_is_the_first_panel(self, found):
        names = [panel.name for panel in found.panels()]
        assert names == ["attention", "heads-planted", "heads-plain", "vectors"]
        assert found.plot().axes[0].get_title() == "attention, no overlap"

    def test_white_heads_are_at_one(self, found):
        """Not those that are undefined, nor those at 0."""
        heads = found.tables["heads"].copy()
        shown = heads.index[(heads["model"] == "planted") & (heads["threshold"] == 0.1) & ~heads["overlap"]]
        heads.loc[shown[0], "ratio"] = 0.0
        panel = figures._heads_panel("planted", "planted", heads, 0.1)
        assert panel.caption.endswith("White is 1.")
        image = panel.figure.axes[0].images[0]
        assert image.to_rgba(image.get_array())[0, 0].tolist() == list(image.cmap(0.0))
        heads.loc[shown[0], "ratio"] = np.nan
        panel = figures._heads_panel("planted", "planted", heads, 0.1)
        assert panel.caption.endswith("White is 1, grey undefined.")
        image = panel.figure.axes[0].images[0]
        assert image.to_rgba(image.get_array())[0, 0].tolist() == pytest.approx([200 / 255] * 3 + [1])

    def test_notes_on_what_is_not_known(self, found):
        told = (
            "With one set of random weights (planted) nothing is known of what its seed adds; give --untrained 3 (or "
        )
        assert told + "twins = 3 in the suite file)." in found.caveats
        assert not any("too low by" in note or "undefined" in note for note in found.caveats)
        few = replace(found, texts=replace(found.texts, fitted=replace(found.texts.fitted, undercount=3)))
        assert any("may be too low by up to 3: in the weights, and" in note for note in few.caveats)

    def test_resamples_without_pairs_are_told(self, found):
        own = found.trained["planted"]
        values = {name: x.clone() for name, x in own.attention.values.items()}
        values["overall_matched_resampled"][1, 0, [4, 7]] = torch.nan
        lost = replace(own, attention=replace(own.attention, values=values))
        notes = replace(found, trained={**found.trained, "planted": lost}).caveats
        assert (
            "planted: up to 2 of 20 resamples of the documents leave a ratio undefined. They are left out of its "
            "interval; where they are more than 5%, there is no interval."
        ) in notes

    def test_what_is_published_stands_beside(self, found, monkeypatch):
        assert found.shown(overlap=False)["published"].tolist() == ["–"] * 5  # none is published at .1 and .2
        monkeypatch.setattr("mechclust.commands.topics.published.THRESHOLDS", (0.1, 0.2))
        shown = replace(found).shown(overlap=False)["published"].tolist()
        assert [float(x) for x in shown[:2]] == [published_ratio("BERT", "attention", t, False) for t in (0.1, 0.2)]
        assert shown[2:] == ["–"] * 3


class TestFolder:
    def test_findings_are_judged_from_the_folder(self, models, found, report, folder):
        expected = [(c.id, c.verdict, [part.values for part in c.parts]) for c in found.findings]
        for findings in (judge_folder(folder / "out"), load_findings(folder / "out")):
            values = [(c.id, c.verdict, [part.values for part in c.parts]) for c in findings]
            assert repr(values) == repr(expected)  # NaN is not equal to itself
        assert [c.id for c in found.findings] == ["P7", "P7b", "S1", "S2"]
        assert found.findings[0].not_tested == "there is no ALBERT, BART, ELECTRA and RoBERTa among the models"
        assert found.findings[2].verdict == "holds"

    def test_every_layer_has_its_hook_and_every_head_its_name(self, report, folder, found):
        check_report(folder / "out" / "report.html", found.shown(overlap=False))
        heads = found.tables["heads"]
        assert heads["name"].tolist() == [f"L{row.layer}H{row.head}" for row in heads.itertuples()]

    def test_the_page(self, report, folder, found):
        for text in ("not measured: no model directory", "Topics of seed 0"):
            assert text in report
        assert report.count('id="heads-p') == 2
        written = {path.name for path in (folder / "out").iterdir()}
        assert {"ratios.csv", "heads.csv", "topics.csv", "findings.json", "topics.safetensors"} <= written
        assert "<script src" not in report

    def test_nothing_is_measured_twice(self, found, config, folder, monkeypatch):
        def never(*_, **__):
            raise AssertionError("it was there")

        for place, name in (
            (jobs, "_measure"),
            (topic_texts, "fit_topics_to_counts"),
            (topic_texts.CorpusStream, "__iter__"),
        ):
            monkeypatch.setattr(place, name, never)
        no_absent = folder / "two.toml"
        no_absent.write_text((folder / "suite.toml").read_text().rpartition("[[model]]")[0])
        again = measure_topics(read_suite(no_absent), config, folder / "out")
        assert again.tables["ratios"].equals(found.tables["ratios"])

    def test_a_damaged_measurement_is_made_again(self, models, found, config, folder, tmp_path):
        shutil.copytree(folder / "out", tmp_path / "out")
        (path,) = (tmp_path / "out" / "measured").glob("plain-*/attention.safetensors")
        path.write_bytes(path.read_bytes()[:-9])
        again = measure_topics(models, config, tmp_path / "out")
        assert again.tables["ratios"].equals(found.tables["ratios"])

    @pytest.mark.slow
    def test_weights_trained_again_are_measured_again(self, found, config, folder, tmp_path, write_checkpoint):
        shutil.copytree(folder / "out", tmp_path / "out")
        shutil.copytree(folder / "albert", tmp_path / "albert")
        mine = str(tmp_path / "albert")
        (tmp_path / "out" / "results").rename(tmp_path / "away")  # which are of other models
        before = (
            measure_topics(mine, config, tmp_path / "out").trained[str(tmp_path / "albert")].attention["overall_ratio"]
        )
        shutil.rmtree(tmp_path / "albert")
        write_checkpoint(tmp_path / "albert", "albert", seed=5)
        after = (
            measure_topics(mine, config, tmp_path / "out").trained[str(tmp_path / "albert")].attention["overall_ratio"]
        )
        assert not torch.equal(before, after)

    @pytest.mark.slow
    def test_only_what_is_lacking_is_fitted(self, config, folder, tmp_path, monkeypatch):
        words, fitted, fit = tmp_path / "stop.txt", [], topic_texts.fit_topics_to_counts

        def fitting(counts, n_topics, passes, seed, **kwargs):
            fitted.append(seed)
            return fit(counts, n_topics, passes, seed, **kwargs)

        monkeypatch.setattr(topic_texts, "fit_topics_to_counts", fitting)
        words.write_text("the")
        mine, albert = replace(config, stop_words=str(words)), folder / "albert"
        measure_topics(albert, mine, tmp_path / "out")
        measure_topics(albert, replace(mine, topic_seeds=(0, 1, 2)), tmp_path / "out")
        assert fitted == [0, 1, 2]  # one more seed, and those that were there are kept
        measure_topics(albert, replace(mine, topic_seeds=(1,)), tmp_path / "out")
        assert fitted == [0, 1, 2]
        words.write_text("the\nof")  # other words under the same name
        with pytest.raises(InputError, match="holds topics fitted with stop_words 'stop"):
            measure_topics(albert, replace(mine, topic_seeds=(1,)), tmp_path / "out")
        assert fitted == [0, 1, 2]

    @pytest.mark.parametrize(("n", "others"), [(1, ""), (2, "; nor can the other"), (3, "; nor can the 2 others")])
    def test_where_none_can_be_measured_the_first_ones_reason_is_said(self, config, tmp_path, monkeypatch, n, others):
        names = [str(tmp_path / name) for name in ("none", "no other", "nor this")[:n]]
        monkeypatch.setattr(topic_texts, "CorpusStream", None)  # no text is read before that
        said = refusal(measure_topics, names, config, tmp_path / "out")
        why = f"no model directory {names[0]!r}; give a local directory or a hub name such as 'gpt2'"
        assert said == (
            f"no model can be measured: {names[0]}: {why}{others}"
            if others
            else f"{names[0]} cannot be measured: {why}"
        )


class TestTopicModel:
    def test_a_file_in_place_of_fitting(self, found, config, folder, tmp_path):
        path = folder / "out" / "topics.safetensors"
        given = replace(config, topic_model=path, n_topics=None, topic_seeds=(1,), untrained=0)
        again = measure_topics(str(folder / "albert"), given, tmp_path / "out")
        mine = found.trained["plain"].attention["overall_ratio"][1:]
        assert torch.equal(again.trained[str(folder / "albert")].attention["overall_ratio"], mine)
        assert not (tmp_path / "out" / "topics.safetensors").exists()
        assert "With one topic model nothing is known of what its seed adds; give --topic-seeds 0 1 2." in again.caveats

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            (
                {"n_topics": 4},
                "the topics of '{path}' were fitted with n_topics 3, and 4 is asked for; give the file's",
            ),
            (
                {"topic_seeds": (7,)},
                "'{path}' has no topic model of seed 7 (it has 0, 1); leave out --topic-seeds, or -",
            ),
        ],
    )
    def test_other_settings(self, models, found, config, folder, tmp_path, changed, message):
        path = folder / "out" / "topics.safetensors"
        said = refusal(measure_topics, models, replace(config, topic_model=path, **changed), tmp_path / "out")
        assert said.startswith(message.format(path=path))

    def test_another_vocabulary(self, models, found, config, folder, tmp_path):
        fitted = load_topics(folder / "out" / "topics.safetensors")
        words = [f"x{word}" for word in fitted.words]
        topics = [TopicModel(words, model.weights, model.shares) for model in fitted.models]
        save_topics(path := tmp_path / "t.safetensors", replace(fitted, models=topics))
        assert refusal(measure_topics, models, replace(config, topic_model=path), tmp_path / "out") == (
            f"the topics of '{path}' are over another vocabulary than the corpus: none of their 20 words is in the 60 "
            "documents measured; give topics of such texts, or leave out --topic-model"
        )


class TestCorpus:
    def test_a_gzip_that_breaks_off(self, models, config, folder, tmp_path):
        texts = [path.read_text() for path in sorted((folder / "corpus").iterdir())]
        whole = gzip.compress("\n".join(json.dumps({"text": text}) for text in texts).encode())
        (path := tmp_path / "a.jsonl.gz").write_bytes(whole[: int(0.8 * len(whole))])
        said = refusal(measure_topics, models, replace(config, corpus=(path,)), tmp_path / "out")
        assert said.startswith(f"'{path}' is not gzip, as its name says, or is damaged or incomplete (")

    def test_a_dump_that_is_not_mediawiki(self, models, config, tmp_path):
        (path := tmp_path / "a.xml").write_text("<html><body/></html>")
        assert refusal(measure_topics, models, replace(config, corpus=(path,)), tmp_path / "out") == (
            f"'{path}' is XML of another kind (its root is <html>); expected a MediaWiki export, such as "
            "enwiki-latest-pages-articles.xml.bz2"
        )

    def test_no_topic_word_is_one_token(self, config, folder, write_checkpoint, tmp_path):
        pieces = ["w", *(f"##{i}" for i in range(10))]
        model = wordpiece(write_checkpoint(tmp_path / "m", "bert"), pieces)
        said = refusal(measure_topics, str(model), replace(config, topic_seeds=(0,)), tmp_path / "out")
        assert said == (
            f"{model} cannot be measured: its tokenizer leaves none of the corpus's 20 different words whole: all 1440 "
            "occurrences were lost, split or unknown; give a corpus in the model's language, or another model"
        )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"adapter": Path("x")}, "no adapter in 'x'"),
        ({"max_documents": 0}, "max_documents is 0; expected at least "),
        ({"max_length": 1}, "max_length is 1; expected at least 2"),
        ({"passes": 0}, "passes is 0; expected at least 1"),
        ({"thresholds": ()}, "thresholds is (); expected one or several different numbers"),
        ({"thresholds": (1.5,)}, "thresholds[0] is 1.5; expected below 1"),
        (
            {"thresholds": (0.001, 0.04)},
            "the topics have 20 different words, of which the largest threshold, 0.04, keeps one per topic, and "
            "comparing words of a topic takes two; give --thresholds of at least 0.05, more text, or more words (a "
            "lower --no-below, a higher --no-above)",
        ),
        ({"corpus": ()}, "no corpus files given; name at least one file or a directory of them"),
        (
            {"n_topics": 61},
            "the corpus has 60 documents for 61 topics; give more text, split it into more documents, or ask for fewer "
            "topics (n_topics)",
        ),
        (
            {"no_below": 61},
            "no word except stop words is in at least 61 and at most 60 of the 60 documents; give more text, or lower "
            "no_below or raise no_above",
        ),
        ({"no_above": 1.5}, "no_above is 1.5; expected at most 1"),
        ({"weights": "bm25"}, "weights is 'bm25'; expected 'counts' or 'tfidf'"),
        ({"topic_seeds": (1, 1)}, "topic_seeds has 1 twice; give it once"),
        ({"thresholds": (0.1, 0.1)}, "thresholds is (0.1, 0.1); expected one or several different numbers"),
        (
            {"tokens_per_batch": 9},
            "tokens_per_batch is 9, fewer than the 16 tokens of a window; give at least 16, or sh",
        ),
    ],
)
def test_what_is_refused(models, config, tmp_path, monkeypatch, changed, message):
    monkeypatch.setattr("mechclust.commands.settings.load_pretrained", None)  # before weights are loaded
    assert refusal(measure_topics, models, replace(config, **changed), tmp_path / "out").startswith(message)


@pytest.mark.slow
def test_on_the_documentation_of_this_repository(write_checkpoint, tmp_path, capsys):
    """Two random encoders that read English, from the command line."""
    docs = sorted((Path(mechclust.__file__).parents[1] / "docs" / "probes").glob("*.md"))
    counts = Counter(word for path in docs for word in words_of(path.read_text()))
    pieces = [word for word, _ in counts.most_common(600)]
    for family in ("bert", "albert"):
        model = write_checkpoint(tmp_path / family, family, vocab_size=604, max_position_embeddings=64)
        wordpiece(model, pieces)
    names = [str(tmp_path / family) for family in ("bert", "albert")]
    settings = "--n-topics 4 --passes 2 --topic-seeds 0 1 --no-below 3 --no-above .5 --min-words 60 --thresholds .05 .1"
    out = tmp_path / "out"
    assert main(["topics", *names, "--corpus", *map(str, docs), "--out", str(out), *settings.split(),
                 "--max-documents", "40", "--max-length", "64", "--resamples", "20"]) == 0  # fmt: skip
    printed = capsys.readouterr().out
    assert "words may have several topics\n" in printed
    assert f"report: {out / 'report.html'}" in printed
    attention = [finding for finding in load_findings(out) if finding.id == "S2"]
    assert attention[0].verdict != "not tested"
    assert "Attention of " in (out / "report.html").read_text()


def test_random_weights_show_at_a_single_threshold(found):
    """A line through one place is not seen."""
    ratios = found.tables["ratios"]
    single = ratios[ratios["threshold"] == ratios["threshold"].min()]
    one = replace(found, config=replace(found.config, thresholds=(single["threshold"].iloc[0],)))
    attention, *_ = figures.topics_panels(one, {**found.tables, "ratios": single})
    dashed = [line for line in attention.figure.axes[0].lines if line.get_linestyle() == "--"]
    (random,) = (line for line in dashed if np.isfinite(line.get_ydata()).any())
    assert (len(random.get_xdata()), random.get_marker()) == (1, "_")
