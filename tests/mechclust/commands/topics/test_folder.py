"""The folder of a run, whose models must stay what they are, and models of a run that cannot be measured."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from mechclust.cli import main
from mechclust.commands.cost import Cost
from mechclust.commands.topics import TopicsConfig, TopicsModel, judge_folder, measure, measure_topics
from mechclust.commands.topics import job as jobs
from mechclust.commands.topics import texts as topic_texts
from mechclust.models import load_pretrained, load_tokenizer
from mechclust.models.adapters import ADAPTER
from mechclust.report.folder import claim_folder
from tasks import InputError
from tests.mechclust.commands.refusals import refusal
from tests.mechclust.commands.topics.cases import plant, wordpiece, write_planted_corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_planted_corpus(tmp_path_factory.mktemp("corpus"), 24)


@pytest.fixture(scope="module")
def folder(write_checkpoint, tmp_path_factory):
    """Two encoders of one layer, and one whose weights are cut off."""
    folder = tmp_path_factory.mktemp("models")
    write_checkpoint(folder / "bert", "bert", change=plant, num_hidden_layers=1)
    write_checkpoint(folder / "albert", "albert", num_hidden_layers=1)
    damaged = shutil.copytree(folder / "albert", folder / "damaged")
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:50])
    return folder


@pytest.fixture(scope="module")
def config(corpus):
    return TopicsConfig(
        (corpus,), n_topics=3, passes=1, no_below=1, no_above=1.0, weights="counts", topic_seeds=(0,),
        thresholds=(0.2,), max_length=16, resamples=20, untrained=0,
    )  # fmt: skip


@pytest.fixture(scope="module")
def other_tokenizer(folder, tmp_path_factory):
    """A tokenizer for any of the encoders that leaves two words of each topic whole."""
    pieces = ["w0", "w2", "w6", "w8", "w12", "w14", "w", *(f"##{i}" for i in range(10))]
    copy = shutil.copytree(folder / "albert", tmp_path_factory.mktemp("other") / "m")
    return load_tokenizer(wordpiece(copy, pieces))[0]


def refused(*args, **kwargs) -> str:
    return refusal(measure_topics, *args, **kwargs)


def ratios(result):
    return result.to_dataframe().drop(columns="model")


class TestWhichModels:
    def test_another_model_of_the_same_name_is_refused(self, folder, config, tmp_path):
        measure_topics(TopicsModel(str(folder / "bert"), "mine"), config, tmp_path / "out")
        said = refused(TopicsModel(str(folder / "albert"), "mine"), config, tmp_path / "out")
        assert said == (
            f"'{tmp_path}/out' holds what was measured of the model mine '{folder}/bert', and this is "
            f"'{folder}/albert'; give another folder with --out"
        )

    def test_another_spelling_is_the_same_model(self, folder, config, tmp_path, monkeypatch):
        monkeypatch.chdir(folder)
        first = measure_topics("./bert", config, tmp_path / "out")
        again = measure_topics(f"../{folder.name}/bert", config, tmp_path / "out")
        assert ratios(again).equals(ratios(first))
        (kept,) = (tmp_path / "out").glob("results/*/*/attention.safetensors")
        assert f"{kept.parents[1].name}/trained/attention" in again.results

    def test_a_model_that_failed_may_be_elsewhere_the_next_time(self, folder, config, tmp_path):
        first = [str(folder / "bert"), TopicsModel(str(folder / "none"), "moved")]
        assert list(measure_topics(first, config, tmp_path / "out").failed) == ["moved"]
        second = [str(folder / "bert"), TopicsModel(str(folder / "albert"), "moved")]
        assert measure_topics(second, config, tmp_path / "out").failed == {}

    def test_a_report_of_an_earlier_version_is_kept(self, folder, config, tmp_path):
        (tmp_path / "out").mkdir()
        claim_folder(tmp_path / "out", "topics", {"model": str(folder / "bert"), "texts": "digest"})
        assert refused(str(folder / "bert"), config, tmp_path / "out") == (
            f"'{tmp_path}/out' holds a report of mechclust topics of an earlier version; give another folder with --out"
        )

    def test_the_tokenizer_of_a_model_in_memory_counts(self, folder, config, other_tokenizer, tmp_path):
        model = load_pretrained(folder / "bert")
        first = measure_topics(model, config, tmp_path / "out")
        other = measure_topics(model, config, tmp_path / "out", tokenizer=other_tokenizer)
        assert not ratios(other).equals(ratios(first))
        assert ratios(measure_topics(model, config, tmp_path / "out")).equals(ratios(first))


class TestTokenizers:
    def test_a_model_by_name_keeps_its_own(self, folder, config, other_tokenizer):
        models = [folder / "bert", TopicsModel(load_pretrained(folder / "albert"), "in memory")]
        found = measure_topics(models, config, tokenizer=other_tokenizer)
        lost = {name: measured.attention.metadata["lost"] for name, measured in found.trained.items()}
        assert lost[str(folder / "bert")] == 0
        assert lost["in memory"] > 0

    def test_one_that_no_model_uses_is_refused(self, folder, config, other_tokenizer):
        assert refused([folder / "bert"], config, tokenizer=other_tokenizer) == (
            "tokenizer= is for models in memory, and every model is given by name; leave it out"
        )


class TestModelsThatFail:
    def test_an_adapter_whose_base_is_missing(self, folder, config, tmp_path):
        (tmp_path / "lora").mkdir()
        (tmp_path / "lora" / ADAPTER).write_text(json.dumps({"base_model_name_or_path": str(tmp_path / "none")}))
        found = measure_topics([folder / "bert", tmp_path / "lora"], config, tmp_path / "out")
        assert list(found.trained) == [str(folder / "bert")]
        assert f"its base, '{tmp_path}/none', is not there" in found.failed[str(tmp_path / "lora")]
        assert any(note.startswith("lora could not be measured: ") for note in found.caveats)

    def test_one_in_memory_without_a_tokenizer(self, folder, config):
        from transformers import AutoModelForMaskedLM

        plain = TopicsModel(AutoModelForMaskedLM.from_pretrained(folder / "albert"), "plain")
        found = measure_topics([folder / "bert", plain], config)
        assert list(found.trained) == [str(folder / "bert")]
        assert "has no tokenizer to read text" in found.failed["plain"]

    def test_no_copies_are_measured_of_a_model_that_failed(self, folder, config, monkeypatch):
        measured = []
        measure_job = jobs._measure

        def spy(job):
            measured.append((Path(job.name).name, job.random_seed))
            return measure_job(job)

        monkeypatch.setattr(jobs, "_measure", spy)
        models = [str(folder / "bert"), str(folder / "damaged")]
        found = measure_topics(models, replace(config, untrained=1))
        assert measured == [("bert", None), ("damaged", None), ("bert-random-seed0", 0)]
        assert list(found.failed) == [str(folder / "damaged")]

    def test_a_copy_that_failed_leaves_the_seeds_of_others(self, folder, config, tmp_path, monkeypatch):
        measure_job = jobs._measure

        def fails(job):
            if job.random_seed == 0:
                raise InputError("too large")
            return measure_job(job)

        monkeypatch.setattr(jobs, "_measure", fails)
        model = TopicsModel(str(folder / "bert"), "mine")
        found = measure_topics(model, replace(config, untrained=2), tmp_path / "out")
        roles = {name.split("/")[1] for name in found.results}
        assert roles == {"trained", "random-seed1"}
        assert "mine, random weights of seed 0 could not be measured: too large" in found.caveats


class TestResults:
    def test_copies_of_an_earlier_run_are_deleted(self, folder, config, tmp_path):
        out = tmp_path / "out"
        measure_topics(str(folder / "bert"), replace(config, untrained=2), out)
        assert len(list(out.glob("results/*/*/attention.safetensors"))) == 3
        found = measure_topics(str(folder / "bert"), replace(config, untrained=1), out)
        assert len(list(out.glob("results/*/*/attention.safetensors"))) == 2
        judged = [[part.values for part in finding.parts] for finding in judge_folder(out)]
        assert repr(judged) == repr([[part.values for part in finding.parts] for finding in found.findings])

    def test_topics_of_other_settings_are_kept(self, folder, config, tmp_path):
        measure_topics(str(folder / "bert"), config, tmp_path / "out")
        before = (tmp_path / "out" / "topics.safetensors").read_bytes()
        assert refused(str(folder / "bert"), replace(config, n_topics=4), tmp_path / "out") == (
            f"'{tmp_path}/out' holds topics fitted with n_topics 3, not 4; give the same, or another folder with --out"
        )
        assert (tmp_path / "out" / "topics.safetensors").read_bytes() == before

    def test_topics_of_another_corpus_are_kept_in_an_unfinished_folder(self, folder, config, tmp_path):
        measure_topics(str(folder / "bert"), config, tmp_path / "finished")
        (tmp_path / "out").mkdir()
        claim_folder(tmp_path / "out", "topics")
        shutil.copy(tmp_path / "finished" / "topics.safetensors", tmp_path / "out")
        other = replace(config, corpus=(write_planted_corpus(tmp_path / "other", 40),))
        assert refused(str(folder / "bert"), other, tmp_path / "out") == (
            f"'{tmp_path}/out' holds topics fitted on another corpus; give another folder with --out"
        )

    def test_topics_of_another_corpus_are_not_said_to_be_fitted_on_this_one(self, folder, config, tmp_path):
        measure_topics(str(folder / "bert"), config, tmp_path / "out")
        write_planted_corpus(tmp_path / "other", 40)
        given = replace(
            config, corpus=(tmp_path / "other",), topic_model=tmp_path / "out" / "topics.safetensors", topic_seeds=()
        )
        notes = measure_topics(str(folder / "bert"), given).caveats
        assert notes[0] == (
            "3 topics over 20 words, by a topic model of a file (seed 0); the model was measured on 40 of 40 documents."
        )
        path = str(tmp_path / "out" / "topics.safetensors")
        assert f"The topics of {path!r} were fitted on another corpus than this one." in notes


class TestBeforeTopicsAreFitted:
    def test_the_cost_of_forward_passes_is_checked(self, folder, config, tmp_path, monkeypatch):
        monkeypatch.setattr(measure, "forward_cost", lambda *_: Cost(1e9, 0))
        monkeypatch.setattr(topic_texts, "fit_topics_to_counts", None)
        assert "this takes about " in refused(str(folder / "bert"), config, tmp_path / "out", progress=True)

    def test_no_more_processes_are_counted_than_there_are_jobs(self, folder, config, monkeypatch, capsys):
        monkeypatch.setattr(topic_texts, "fit_topics_to_counts", None)
        with pytest.raises(TypeError):
            measure_topics(str(folder / "bert"), replace(config, workers=9, untrained=2), progress=True)
        said = capsys.readouterr().err
        assert said.count(" in 3 processes") == 2

    def test_an_interruption_says_what_is_kept(self, folder, corpus, tmp_path, monkeypatch, capsys):
        def interrupted(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr(topic_texts, "fit_topics_to_counts", interrupted)
        options = "--n-topics 3 --passes 2 --no-below 1 --no-above 1 --thresholds .1 .2 --topic-seeds 0 --resamples 20"
        line = ["topics", str(folder / "bert"), "--corpus", str(corpus), *options.split(), "--out", str(tmp_path)]
        assert main(line) == 130
        assert f"what was measured so far is in {tmp_path}; run the same command again" in capsys.readouterr().err
