"""The study of heads in models from beginning to end, and its findings on data in which each is true or false."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

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
from mechclust.studies.heads_in_models.discovery import largest, others, sets_of
from mechclust.studies.heads_in_models.findings import findings_of
from mechclust.studies.heads_in_models.results import by_subject, data_of, key, load_results
from mechclust.studies.heads_in_models.together import IRRELEVANT, RANDOM_HEADS, RELEVANT
from mechclust.studies.study import Job
from tasks import InputError
from tests.mechclust.studies.damaged import check_made_whole
from tests.mechclust.studies.recorded import check_judged_again

STUDY = get_study("heads-in-models")
SMOKE, PAPER = STUDY.preset("smoke"), replace(STUDY.preset("paper"), model="a-model")
IDS = [*(f"A{i}" for i in range(1, 8)), *(f"W{i}" for i in range(1, 11)), *(f"I{i}" for i in range(1, 7)), "K1", "K2"]


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """The smoke preset: analysis, folder. Read only."""
    out = tmp_path_factory.mktemp("heads") / "run"
    return run_study(STUDY, SMOKE, out, workers=1), out


class TestRun:
    def test_can_be_judged_again_from_its_record(self, smoke, tmp_path):
        check_judged_again(smoke[1], tmp_path)

    def test_writes_figures_findings_and_a_report(self, smoke):
        analysis, out = smoke
        assert [c.id for c in analysis.findings] == IDS
        assert {c.verdict for c in analysis.findings} == {"not tested"}
        assert "give its name or folder with --model" in next(c.why_not for c in analysis.findings if c.id == "W2")
        for name in ("addition", "instructions"):
            assert (out / "figures" / f"{name}.png").stat().st_size > 5000
        assert "Heads called, by block" in (out / "report.html").read_text()

    def test_every_model_has_a_twin(self, smoke):
        for arm in arms(SMOKE):
            found = load_results(SMOKE, smoke[1], Job(arm, 0))
            assert list(found) == subjects_of(arm)
            assert len(found) == 2
            for heads in found.values():
                assert heads.of("within_ratio", labels_of(arm)[1]).shape == (2, 2)
                assert (heads.clusters is not None) == (arm == INSTRUCTIONS)
        trained, twin = load_results(SMOKE, smoke[1], Job(addition_arm(2), 0)).values()
        assert not np.array_equal(trained.values["effect"], twin.values["effect"])

    def test_the_planted_head_is_found_and_the_unread_one_is_not(self, smoke):
        checks = {c.id: c for c in smoke[0].findings if c.kind == "check"}
        assert checks["K1"].parts[0].values == (1.0,)
        assert checks["K2"].parts[0].values == (0.0,)

    def test_what_is_lost_or_damaged_is_made_again(self, smoke, tmp_path):
        check_made_whole(STUDY, SMOKE, shutil.copytree(smoke[1], tmp_path / "run"))

    def test_no_head_is_called_for_a_label_that_attention_alone_clusters(self, smoke):
        found = {p: load_results(SMOKE, smoke[1], Job(addition_arm(p), 0))["trained"] for p in (2, 3)}
        assert {p: heads.uncalled for p, heads in found.items()} == {2: {"sum", OFF, "multiset"}, 3: {"multiset"}}
        generous = replace(SMOKE, share=0.999, level=0.999)
        assert not any(found[2].called(generous, label).any() for label in found[2].uncalled)
        data = data_of(SMOKE, {Job(addition_arm(p), 0): {"trained": heads} for p, heads in found.items()})
        assert np.isnan(data[key(addition_arm(2), "trained", "any")]).all()
        assert np.isfinite(data[key(addition_arm(3), "trained", "any")]).all()

    def test_a_missing_measurement_is_named(self, smoke, tmp_path):
        copy = shutil.copytree(smoke[1], tmp_path / "run")
        (copy / "results" / "planted-seed0" / "read.heads.safetensors").unlink()
        with pytest.raises(InputError, match=r"lacks results/planted-seed0/read\.heads\.safetensors; start the study"):
            load_results(SMOKE, copy, Job(PLANTED, 0))


def test_a_pretrained_model_is_measured_with_its_random_twin(write_checkpoint, tmp_path):
    folder = write_checkpoint(tmp_path / "model", "llama", max_position_embeddings=64)
    words = {"names": ("w0", "w1"), "nouns": tuple(f"w{i}" for i in range(2, 8))}
    config, job = replace(SMOKE, model=str(folder), **words), Job(PROMPTS, 0)
    assert arms(config)[-1] == PROMPTS
    STUDY.run_job(config, job, tmp_path / "run")
    found = load_results(config, tmp_path / "run", job)
    assert list(found) == ["pretrained-first", "pretrained-second", "random-first", "random-second"]
    first = found["pretrained-first"]
    assert np.isfinite(first.selectivity("asked")).sum() == config.n_tested
    assert not np.array_equal(first.values["effect"], found["random-first"].values["effect"])
    assert first.discovery.coords["set"] == sets_of(config.together)
    assert first.discovery["agreement"].shape == (5, 2)
    assert first.discovery["agreement"][:4].isfinite().all()
    assert first.discovery.metadata["heads"]["largest effect, 2"] != first.discovery.metadata["heads"]["other heads, 2"]
    assert set(first.changed) == {RELEVANT, RANDOM_HEADS, IRRELEVANT}
    data = data_of(config, {job: found})
    assert 0 <= float(data[key(PROMPTS, "pretrained", "common")][0]) <= 1
    assert np.isnan(found["random-first"].changed[RELEVANT])  # nothing is alike
    figures.prompts(config, by_subject(config, {job: found}, PROMPTS)).savefig(tmp_path / "drawn.png")
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
        run_study(STUDY, replace(SMOKE, **{"model": str(folder), **words, **more}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_confirmatory_seeds_are_fresh():
    assert len(PAPER.seeds) >= 5
    assert min(PAPER.seeds) >= 100
    assert set(STUDY.preset("quick").seeds) <= {0, 1}


# ---- findings, on constructed data ----


def made(**changes: float) -> dict[str, np.ndarray]:
    """Ten seeds in which every finding is true, unless something is changed: ``arm|subject|measure``."""
    draw = np.random.default_rng(0)
    true, none = np.ones(10), np.zeros(10)

    def about(mean: float, spread: float = 0.05) -> np.ndarray:
        return mean + spread * draw.standard_normal(10)

    data = {key(PLANTED, "read", "exact"): true, key(PLANTED, "unread", "any"): none}
    for arm in [*map(addition_arm, PAPER.moduli), INSTRUCTIONS]:
        own: dict[str, Any] = {"accuracy": about(0.98, 0.005), "any": true, "any control": none, "first layer": none}
        own |= {"last layer": true, "called in last layer": about(2.5), "best ratio": about(0.3)}
        own |= {"growth where called": about(0.7), "growth elsewhere": about(0.1)}
        own |= {"agreement answer": about(0.6), f"agreement {OFF}": about(0)}
        twin = {"accuracy": about(0.3), "any": none, "best ratio": about(0.6), "last layer": none}
        twin |= {"called in last layer": none, "agreement answer": about(0), f"agreement {OFF}": about(0.2)}
        twin |= {"growth where called": about(0), "growth elsewhere": about(0.2)}
        data |= {key(arm, "trained", name): values for name, values in own.items()}
        data |= {key(arm, "untrained", name): values for name, values in twin.items()}
    for kind, asked in (("pretrained", 0.4), ("random", 0.0)):
        for order in ("first", "second"):
            values = {"accuracy": about(2 * asked + 0.1, 0.02), "heads": 270 * true}
            values |= {f"carried, {RELEVANT}": about(1.5 * asked), f"carried, {RANDOM_HEADS}": about(0)}
            values |= {f"changed, {RELEVANT}": about(1.6 * asked), f"changed, {IRRELEVANT}": abs(about(0))}
            values |= {f"agreement asked, {largest(64)}": about(2 * asked), f"agreement asked, {others(64)}": about(0)}
            values |= {f"compactness, {largest(64)}": about(-0.15 if asked else 0.05)}
            data |= {key(PROMPTS, f"{kind}-{order}", name): of for name, of in values.items()}
        data[key(PROMPTS, kind, "common")] = about(0.7 if asked else 0.1)
        data[key(PROMPTS, kind, "switching")] = about(5 if asked else 0)
    for name, value in changes.items():
        at = key(*name.split("|"))
        data[at] = value + 0 * data[at] + 0.01 * (value % 1 > 0) * draw.standard_normal(10)
    return data


@pytest.fixture(scope="module")
def judged():
    return {c.id: c for c in findings_of(PAPER, made())}


class TestFindings:
    def test_hold_where_everything_agrees(self, judged):
        assert {id: c.verdict for id, c in judged.items()} == dict.fromkeys(IDS, "holds")

    def test_each_has_a_control_but_three(self, judged):
        assert {id for id, f in judged.items() if f.kind == "finding" and f.control is None} == {"W3", "W4", "I4"}
        assert {id for id, f in judged.items() if f.control and f.control.verdict == "holds"} == set()

    @pytest.mark.parametrize(
        ("change", "broken"),
        [
            ({"addition-3|trained|accuracy": 0.7}, {"A1"}),
            ({"addition-3|trained|last layer": 0.0}, {"A2"}),
            ({"addition-4|trained|first layer": 1.0}, {"A3"}),
            ({"addition-3|untrained|any": 1.0}, {"A4"}),
            ({"addition-3|trained|any control": 1.0}, {"A5"}),
            ({"addition-3|trained|called in last layer": 0.9}, {"A6"}),
            ({"addition-3|trained|agreement answer": -0.2}, {"A7"}),
            ({"prompts|pretrained-first|accuracy": 0.3}, {"W1"}),
            ({"prompts|pretrained|switching": 0.4}, {"W2"}),
            ({"prompts|random|switching": 6.5}, {"W2", "W3"}),
            ({f"prompts|pretrained-first|carried, {RELEVANT}": -0.2}, {"W4"}),
            ({f"prompts|pretrained-second|changed, {IRRELEVANT}": 0.3}, {"W6"}),
            ({"prompts|pretrained|common": 0.1}, {"W5"}),
            ({f"prompts|pretrained-first|agreement asked, {largest(64)}": 0.3}, {"W7"}),
            ({f"prompts|pretrained-second|agreement asked, {others(64)}": 0.9}, {"W8"}),
            ({f"prompts|random-first|agreement asked, {largest(64)}": 0.9}, {"W9"}),
            ({f"prompts|pretrained-first|compactness, {largest(64)}": 0.1}, {"W10"}),
            ({f"prompts|pretrained-second|agreement asked, {largest(64)}": 0.3}, {"W7"}),
            ({f"prompts|pretrained-second|compactness, {largest(64)}": 0.1}, {"W10"}),
            ({"instructions|trained|accuracy": 0.5}, {"I1"}),
            ({"instructions|untrained|any": 1.0}, {"I2", "I3"}),
            ({"instructions|untrained|best ratio": 0.35}, {"I4"}),
            ({"instructions|trained|growth elsewhere": 0.9}, {"I5"}),
            ({"instructions|trained|any control": 1.0}, {"I6"}),
            ({"planted|unread|any": 1.0}, {"K2"}),
        ],
    )
    def test_fail_one_by_one(self, change, broken):
        found = {c.id: c.verdict for c in findings_of(PAPER, made(**change))}
        assert {id for id, verdict in found.items() if verdict != "holds"} == broken

    @pytest.mark.parametrize(
        ("change", "shared"),
        [
            ({"prompts|random|common": 0.6}, "W5"),
            ({"instructions|untrained|any": 1.0}, "I2"),
            ({"addition-3|untrained|last layer": 1.0, "addition-4|untrained|last layer": 1.0}, "A2"),
            (
                {f"prompts|pretrained-{order}|agreement asked, {others(64)}": 0.85 for order in ("first", "second")},
                "W7",
            ),
            ({"instructions|untrained|growth where called": 0.9}, "I5"),
        ],
    )
    def test_that_their_control_shares_are_not_specific(self, change, shared):
        found = {finding.id: finding.verdict for finding in findings_of(PAPER, made(**change))}
        assert found[shared] == "not specific"

    def test_are_of_the_measures_they_name(self, judged):
        data = made()
        parts = {f"{id} {part.name}".strip(): part.values for id, f in judged.items() for part in f.parts}
        of_three = data["addition-3 trained agreement answer"] - data[f"addition-3 trained agreement {OFF}"]
        assert parts["A7 p = 3"] == pytest.approx(of_three)
        assert parts["I4"] == pytest.approx(
            data["instructions trained best ratio"] - data["instructions untrained best ratio"]
        )
        second = data[f"prompts pretrained-second carried, {RELEVANT}"]
        assert parts["W4 second name last"] == pytest.approx(
            second - data[f"prompts pretrained-second carried, {RANDOM_HEADS}"]
        )

    def test_the_earlier_run_is_told_where_it_was_repeated(self, judged):
        undecided = {id for id, c in judged.items() for run in c.history if run.verdict == "undecided"}
        assert undecided == {"A3", "A4", "I6"}
        assert {id[0] for id, c in judged.items() if c.history} == {"A", "I"}

    def test_heads_for_sums_of_bits_are_not_called(self, judged):
        """Each sum of bits is one multiset, which a head of random weights maps to a point by attention alone."""
        for id in ("A2", "A3", "A4", "A5", "A6"):
            assert [part.name for part in judged[id].parts] == ["p = 3", "p = 4"]
            assert "p = 2 is not tested" in judged[id].note
        assert [part.name for part in judged["A7"].parts] == ["p = 2", "p = 3", "p = 4"]
        bits = {c.id: c for c in findings_of(replace(PAPER, moduli=(2,)), made())}
        assert {id for id, c in bits.items() if c.verdict == "not tested"} == {"A2", "A3", "A4", "A5", "A6"}
        assert "each sum is one multiset of digits" in bits["A4"].why_not

    def test_without_a_model_its_findings_are_not_tested(self):
        found = {c.id: c for c in findings_of(replace(PAPER, model=None), made())}
        assert {id for id, c in found.items() if c.verdict == "not tested"} == {f"W{i}" for i in range(1, 11)}
        assert "--model" in found["W3"].why_not


@pytest.mark.parametrize(("name", "more"), [("heads-in-models", {}), ("planted-layers", {"prompts": "own.jsonl"})])
def test_a_model_that_is_not_there_is_refused_before_anything_is_written(name, more, tmp_path):
    study = get_study(name)
    with pytest.raises(InputError, match=r"no model directory '/nope'; give a local directory or a hub name"):
        run_study(study, replace(study.preset("smoke"), model="/nope", **more), tmp_path / "run")
    assert not (tmp_path / "run").exists()
