"""The study of heads in models from beginning to end."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from mechclust.studies import get_study, run_study
from mechclust.studies.heads_in_models import figures
from mechclust.studies.heads_in_models.config import (
    INSTRUCTIONS,
    OFF,
    PLANTED,
    PROMPTS,
    addition_arm,
    arms,
    labels_of,
    subjects_of,
)
from mechclust.studies.heads_in_models.discovery import control_heads, largest_heads
from mechclust.studies.heads_in_models.results import by_subject, data_of, load_job, measure_key
from mechclust.studies.heads_in_models.together import IRRELEVANT, RANDOM_HEADS, RELEVANT
from mechclust.studies.study import Job
from mechclust.training import TrainConfig
from tasks import InputError
from tests.mechclust.studies.damaged import check_made_whole
from tests.mechclust.studies.heads_in_models.test_findings import IDS
from tests.mechclust.studies.recorded import check_judged_again

STUDY = get_study("heads-in-models")
PAPER = replace(STUDY.preset("paper"), model="a-model")
SMALL = replace(
    STUDY.preset("smoke"),
    training=TrainConfig(steps=2, batch_size=16, n_checkpoints=2),
    following=TrainConfig(steps=2, batch_size=16, n_checkpoints=2),
    n_measured=24,
)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """A run smaller than the smoke preset: analysis, folder. Read only."""
    out = tmp_path_factory.mktemp("heads") / "run"
    return run_study(STUDY, SMALL, out, workers=1), out


class TestRun:
    def test_can_be_judged_again_from_its_record(self, smoke, tmp_path):
        check_judged_again(smoke[1], tmp_path)

    def test_writes_figures_findings_and_a_report(self, smoke):
        analysis, out = smoke
        assert [finding.id for finding in analysis.findings] == IDS
        assert {finding.verdict for finding in analysis.findings} == {"not tested"}
        for name in ("addition", "instructions"):
            assert (out / "figures" / f"{name}.png").stat().st_size > 5000
        assert "Heads called, by block" in (out / "report.html").read_text()

    def test_every_model_has_a_twin(self, smoke):
        for arm in arms(SMALL):
            found = load_job(SMALL, smoke[1], Job(arm, 0))
            assert list(found) == subjects_of(arm)
            assert len(found) == 2
            for heads in found.values():
                assert heads.labelled("within_ratio", labels_of(arm)[1]).shape == (2, 2)
                assert (heads.clusters is not None) == (arm == INSTRUCTIONS)
        trained, twin = load_job(SMALL, smoke[1], Job(addition_arm(2), 0)).values()
        assert not np.array_equal(trained.values["effect"], twin.values["effect"])

    def test_the_planted_head_is_found_and_the_unread_one_is_not(self, smoke):
        checks = {finding.id: finding for finding in smoke[0].findings if finding.kind == "check"}
        assert checks["K1"].parts[0].values == (1.0,)
        assert checks["K2"].parts[0].values == (0.0,)
        read, unread = load_job(SMALL, smoke[1], Job(PLANTED, 0)).values()
        assert read.accuracy == 1.0
        assert np.isnan(unread.accuracy)  # it adds nothing

    @pytest.mark.slow
    def test_what_is_lost_or_damaged_is_made_again(self, smoke, tmp_path):
        check_made_whole(STUDY, SMALL, shutil.copytree(smoke[1], tmp_path / "run"))

    def test_no_head_is_called_for_a_label_that_attention_alone_clusters(self, smoke):
        found = {p: load_job(SMALL, smoke[1], Job(addition_arm(p), 0))["trained"] for p in (2, 3)}
        assert {p: heads.uncalled for p, heads in found.items()} == {2: {"sum", OFF, "multiset"}, 3: {"multiset"}}
        generous = replace(SMALL, share=0.999, level=0.999)
        assert not any(found[2].called(generous, label).any() for label in found[2].uncalled)
        data = data_of(SMALL, {Job(addition_arm(p), 0): {"trained": heads} for p, heads in found.items()})
        assert np.isnan(data[measure_key(addition_arm(2), "trained", "any")]).all()
        assert np.isfinite(data[measure_key(addition_arm(3), "trained", "any")]).all()

    def test_a_missing_measurement_is_named(self, smoke, tmp_path):
        copy = shutil.copytree(smoke[1], tmp_path / "run")
        (copy / "results" / "planted-seed0" / "read.heads.safetensors").unlink()
        with pytest.raises(InputError, match=r"lacks results/planted-seed0/read\.heads\.safetensors; start the study"):
            load_job(SMALL, copy, Job(PLANTED, 0))


def test_a_pretrained_model_is_measured_with_its_random_twin(write_checkpoint, tmp_path):
    folder = write_checkpoint(tmp_path / "model", "llama", max_position_embeddings=64)
    words = {"names": ("w0", "w1"), "nouns": tuple(f"w{i}" for i in range(2, 8))}
    config, job = replace(SMALL, model=str(folder), **words), Job(PROMPTS, 0)
    assert arms(config)[-1] == PROMPTS
    STUDY.run_job(config, job, tmp_path / "run")
    found = load_job(config, tmp_path / "run", job)
    assert list(found) == ["pretrained-first", "pretrained-second", "random-first", "random-second"]
    first = found["pretrained-first"]
    assert np.isfinite(first.selectivity("asked")).sum() == config.n_tested
    assert not np.array_equal(first.values["effect"], found["random-first"].values["effect"])
    sets = [*(name(n) for n in config.together for name in (largest_heads, control_heads))]
    assert first.discovery.coords["set"] == sets
    assert first.discovery["agreement"].shape == (4, 2)
    assert first.discovery["agreement"].isfinite().all()
    assert first.discovery.metadata["heads"]["largest effect, 2"] != first.discovery.metadata["heads"]["other heads, 2"]
    assert set(first.changed) == {RELEVANT, RANDOM_HEADS, IRRELEVANT}
    data = data_of(config, {job: found})
    assert 0 <= float(data[measure_key(PROMPTS, "pretrained", "common")][0]) <= 1
    assert np.isnan(found["random-first"].changed[RELEVANT])  # nothing is alike
    figures.prompts_figure(config, by_subject(config, {job: found}, PROMPTS)).savefig(tmp_path / "drawn.png")
    assert (tmp_path / "drawn.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("more", "positions", "message"),
    [
        (
            {"together": (1, 3)},
            64,
            r"together has 3, but '.*' has 4 heads; give at most half of them, such as --together 2",
        ),
        ({}, 16, r"the prompts have up to 22 tokens, but '.*' reads 16 at most"),
        ({"nouns": ("w2", "x", "y", "z")}, 64, r"the tokenizer begins several of .* with the same token"),
    ],
)
def test_a_model_that_cannot_be_measured_is_refused_before_anything_is_trained(
    more, positions, message, write_checkpoint, tmp_path
):
    folder = write_checkpoint(tmp_path / "model", "llama", max_position_embeddings=positions)
    words = {"names": ("w0", "w1"), "nouns": tuple(f"w{i}" for i in range(2, 8))}
    with pytest.raises(InputError, match=message):
        run_study(STUDY, replace(SMALL, **{"model": str(folder), **words, **more}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_instructions_that_were_seen_are_refused():
    with pytest.raises(InputError, match=r"^instructions.split_by is 'instance'; expected 'instruction', since"):
        replace(SMALL, instructions=replace(SMALL.instructions, split_by="instance"))


def test_a_single_head_cannot_be_several():
    with pytest.raises(InputError, match=r"^n_heads is 1; expected at least 2$"):
        replace(SMALL, n_heads=1)


@pytest.mark.parametrize(("name", "more"), [("heads-in-models", {}), ("planted-layers", {"prompts": "own.jsonl"})])
def test_a_model_that_is_not_there_is_refused_before_anything_is_written(name, more, tmp_path):
    study = get_study(name)
    with pytest.raises(InputError, match=r"no model directory '/nope'; give a local directory or a hub name"):
        run_study(study, replace(study.preset("smoke"), model="/nope", **more), tmp_path / "run")
    assert not (tmp_path / "run").exists()
