"""The topic-structure study: its arms are the experiments of the specification, its claims follow what was measured."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from mechclust.models import load_model
from mechclust.report.claims import lacking_severity
from mechclust.studies import get_study, run_study
from mechclust.studies.study import Job
from mechclust.studies.topic_structure import TopicStructureConfig, stage_one_value, theory_gap, topic_blocks
from mechclust.studies.topic_structure.claims import claims_of
from mechclust.studies.topic_structure.config import arms, documents_of, jobs
from mechclust.studies.topic_structure.results import PUBLISHED, TrainedRun, attention_table, load_runs
from mechclust.studies.topic_structure.run import block_result
from probes import ProbeResult, load_result
from tasks import InputError, TopicDocuments
from tests.mechclust.studies.damaged import check_made_whole

PAPER = TopicStructureConfig()
P2_TO_P5 = ["P2", "P2b", "P3", "P3b", "P4", "P4b", "P5", "P5a", "P5b", "P5c"]


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """The smoke preset from beginning to end: analysis, folder, configuration. Read only."""
    study, out = get_study("topic-structure"), tmp_path_factory.mktemp("topics") / "run"
    return run_study(study, study.preset("smoke"), out, workers=1), out, study.preset("smoke")


class TestArms:
    def test_are_the_experiments_of_the_specification(self):
        names = list(arms(PAPER))
        assert {arm.experiment for arm in arms(PAPER).values()} == {"E1", "E1b", "E2", "E3", "E4a", "E4b", "E4a theory"}
        assert sum(name.startswith("E1b") for name in names) == 10
        assert sum(name.startswith(("E4a Adam", "E4a SGD")) for name in names) == 7
        assert sum(name.startswith("E4a theory") for name in names) == 8
        assert arms(PAPER)["E2 no decay"].training.get("weight_decay", 0) == 0

    def test_have_one_run_a_seed_and_the_long_ones_first(self):
        every = jobs(PAPER)
        assert len(every) == 5 * len(arms(PAPER)) == len({job.name for job in every})
        steps = [arms(PAPER)[job.arm].training["steps"] for job in every]
        assert steps == sorted(steps, reverse=True)

    def test_theory_follows_the_theory(self):
        for arm in ("E1", "E2", "E4a theory T20 tau3"):
            task = documents_of(PAPER, Job(arm, 3))
            assert (task.sampler, task.objective, task.boundaries, task.seed) == ("subset", "squared", False, 3)
        assert documents_of(PAPER, Job("E4b Adam .01", 1)) == TopicDocuments(seed=1)

    def test_train_what_the_specification_says(self, smoke):
        _, out, config = smoke
        for arm, frozen in (
            ("E1", {"W_Q", "W_K", "W_V"}),
            ("E2", {"W_E", "W_Q", "W_K"}),
            ("E3 default Adam squared", {"W_E"}),
            ("E4a Adam .01", {"W_E", "W_V"}),
            ("E4b Adam .01", {"W_E"}),
            ("E1b squared SGD .03", set()),
        ):
            model = load_model(out / "models" / f"{Job(arm, config.seeds[0]).name}.safetensors")
            fixed = {n.split(".")[-1] for n, p in model.named_parameters() if not p.requires_grad} - {"b_U"}
            assert fixed == frozen, arm

    def test_the_frozen_block_is_the_theorys_also_behind_a_longer_input(self, smoke):
        _, out, config = smoke
        for arm in ("E4a SGD .01", "E4a SGD .01 scaled"):
            job = Job(arm, config.seeds[0])
            model = load_model(out / "models" / f"{job.name}.safetensors")
            effect = model.embed.W_E[0, 0] * model.paper_value()
            wanted = stage_one_value(documents_of(config, job)).float()
            torch.testing.assert_close(effect, wanted)
            assert float(model.embed.W_E[0, 0]) == pytest.approx(13**0.5 if "scaled" in arm else 1.0)


class TestRun:
    def test_writes_figures_claims_and_a_report(self, smoke):
        analysis, out, _ = smoke
        assert [c.id for c in analysis.claims] == ["P1a", "P1b", *P2_TO_P5, "P6", "P7"]
        assert {c.verdict for c in analysis.claims} == {"not tested"}
        assert lacking_severity(analysis.claims) == []
        for panel in analysis.panels:
            assert (out / "figures" / f"{panel.name}.png").stat().st_size > 5000
        page = (out / "report.html").read_text()
        assert "paper: same topic" in page
        assert "0.00759" in page  # the published table stands beside ours
        assert "http://" not in page.replace("http://www.w3.org", "")

    def test_goes_on_where_it_was(self, smoke, tmp_path):
        analysis, out, config = smoke
        copy = tmp_path / "run"
        shutil.copytree(out, copy)
        job = Job("E2", 0)
        shutil.rmtree(copy / "results" / job.name)
        others = {p: p.stat().st_mtime_ns for p in (copy / "results").rglob("*.safetensors")}
        again = run_study(get_study("topic-structure"), config, copy, workers=1)
        assert {p: p.stat().st_mtime_ns for p in others} == others
        assert repr(again.claims) == repr(analysis.claims)  # the same bits (NaN is not equal to itself)

    def test_a_network_that_is_another_is_trained_anew(self, smoke, tmp_path):
        _, out, config = smoke
        copy, job = shutil.copytree(out, tmp_path / "run"), Job("E2", 0)
        path = copy / "models" / f"{job.name}.safetensors"
        whole = path.read_bytes()
        shutil.copy(copy / "models" / f"{Job('E2 weight decay', 0).name}.safetensors", path)
        get_study("topic-structure").run_job(config, job, copy)
        assert path.read_bytes() == whole

    def test_a_missing_run_is_named(self, smoke, tmp_path):
        _, out, config = smoke
        copy = tmp_path / "run"
        shutil.copytree(out, copy)
        shutil.rmtree(copy / "results" / "e1-seed0")
        with pytest.raises(
            InputError,
            match=r"lacks results/e1-seed0/blocks-start\.safetensors; start the study again with the same --out",
        ):
            load_runs(config, copy)

    def test_blocks_are_those_of_the_saved_model(self, smoke):
        _, out, config = smoke
        job = Job("E2", 0)
        model, task = load_model(out / "models" / f"{job.name}.safetensors"), documents_of(config, job)
        saved = load_result(out / "results" / job.name / "blocks.safetensors")
        blocks = topic_blocks(model.blocks[0].attn.W_V.T, task.token_topics)
        assert float(saved.sel("gap", matrix="W_V")) == blocks.gap
        assert float(saved.sel("mask", matrix="W_V")) == pytest.approx(float(model.paper_value()[4:, 1].mean()))
        assert saved.values.keys() == block_result(model, task).values.keys()


VALUE = stage_one_value(documents_of(PAPER, Job("E2 weight decay", 0)))
OPTIMUM = {"same": float(VALUE[4, 4]), "different": float(VALUE[4, 14]), "mask": float(VALUE[4, 1])}


def measured(gap=0.1156, separation=0.05, values=None, early=1.0, attention=(0.01, 0.012, 0.006)) -> TrainedRun:
    def blocks(scale: float) -> ProbeResult:
        found = {"gap": gap, "separation": separation, "same": 0.02, "same_off_diagonal": 0.02, "different": 0.0}
        found.update({"mask": 0.05, "distance": 0.001, **(values or {})})
        tensors = {k: torch.full((2,), scale * v, dtype=torch.float64) for k, v in found.items()}
        axes = dict.fromkeys(tensors, ("matrix",))
        return ProbeResult("topic_blocks", tensors, axes, {"matrix": ["W_E^T W_E", "W_V"]})

    steps = np.linspace(0, 1, 101)
    norms = {"W_V": np.minimum(steps / 0.1 * early, 1) if early < 1 else np.minimum(steps * 20, 1)}
    norms["W_V"][-1] = 1.0
    norms["W_K"] = norms["W_Q"] = steps
    mean = torch.tensor(attention, dtype=torch.float64)
    result = ProbeResult(
        "TopicAttention",
        {"overall_mean": mean, "overall_ratio": mean[1] / mean[2]},
        {"overall_mean": ("bucket",), "overall_ratio": ()},
        {"bucket": ["same_word", "same_topic", "different_topic"]},
    )
    return TrainedRun(blocks(0.1), blocks(1.0), norms, {100: result}, None)


def constructed() -> dict[str, list[TrainedRun]]:
    """Runs of two seeds that carry every claim."""
    runs = {name: [measured(), measured()] for name in arms(PAPER)}
    runs["E2 weight decay"] = [measured(values=OPTIMUM)] * 2
    for name in ("E3 default Adam squared", "E3 default Adam cross-entropy"):
        runs[name] = [measured(early=0.1)] * 2
    for n in PAPER.topics:
        for tau in PAPER.topics_per_document:
            same = 0.01 * (tau + n)
            runs[f"E4a theory T{n} tau{tau}"] = [measured(attention=(same, same, 0.01))] * 2
    return runs


def verdicts(runs) -> dict[str, str]:
    return {c.id: c.verdict for c in claims_of(replace(PAPER, seeds=(0, 1)), runs)}


class TestClaims:
    def test_hold_where_everything_agrees(self):
        found = verdicts(constructed())
        assert found.pop("P7") == "not tested"
        assert set(found.values()) == {"holds"}

    @pytest.mark.parametrize(
        ("arm", "run", "broken"),
        [
            ("E1", {"gap": 0.1091}, {"P1a"}),
            ("E2", {"gap": 0.1222}, {"P1b"}),
            ("E2", {"separation": -0.001}, {"P1b"}),
            ("E2 weight decay", {"values": {"same": 0.108, "different": -0.0078, "mask": 0.0542}}, {"P2"}),
            ("E1b squared SGD .01", {"gap": -0.001}, {"P3"}),
            ("E1b squared SGD .01", {"values": {"same_off_diagonal": -0.01}}, {"P3", "P3b"}),
            ("E2 weight decay", {"values": {**OPTIMUM, "distance": 0.5}}, {"P2b"}),
            ("E3 near-zero SGD cross-entropy", {"early": 0.3}, {"P4b"}),
            ("E4a SGD .03 scaled", {"attention": (0.01, 0.0101, 0.01)}, {"P5c"}),
            ("E3 near-zero SGD squared", {"early": 0.3}, {"P4"}),
            ("E3 default Adam squared", {}, {"P4"}),
            ("E4a SGD .01", {"attention": (0.01, 0.0101, 0.01)}, {"P5"}),
            ("E4b Adam .03", {"attention": (0.01, 0.0101, 0.01)}, {"P5", "P5a"}),
            ("E4b SGD .03 scaled", {"attention": (0.01, 0.0101, 0.01)}, {"P5b"}),
            ("E4a theory T10 tau3", {"attention": (0.5, 0.5, 0.01)}, {"P6"}),
        ],
    )
    def test_fail_alone_where_one_arm_contradicts(self, arm, run, broken):
        runs = constructed()
        runs[arm] = [measured(**run)] * 2
        found = verdicts(runs)
        assert {id for id, verdict in found.items() if verdict == "does not hold"} == broken

    def test_are_not_tested_by_short_runs(self):
        short = replace(PAPER, seeds=(0, 1), decay_steps=3000, attention_steps=2000)
        found = {c.id: c.verdict for c in claims_of(short, constructed())}
        assert [found[id] for id in ("P2", "P2b", "P5b", "P5c", "P5")] == ["not tested"] * 4 + ["holds"]

    def test_state_the_theorys_values(self):
        found = {c.id: c for c in claims_of(replace(PAPER, seeds=(0, 1)), constructed())}
        assert found["P1a"].paper == theory_gap(TopicDocuments()) == pytest.approx(0.115607, abs=1e-6)
        assert found["P1a"].bound.startswith("gap >= 0.109827; gap <= 0.121387")
        assert found["P5"].chance == "1"  # no run has an interval
        assert found["P5"].paper == pytest.approx(min(same / other for _, same, other in PUBLISHED.values()))

    def test_the_table_has_a_row_an_arm_with_the_published_one(self):
        table = attention_table(constructed())
        assert len(table) == 14
        assert ["E4b", "SGD .03 scaled"] in table.iloc[:, :2].to_numpy().tolist()
        assert "0.01030" in table["paper: same topic"].tolist()


class TestBadInput:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"seeds": ()}, "seeds is empty; expected at least one seed, such as --seeds 0"),
            ({"seeds": (-1,)}, "seeds has -1; expected seeds of at least 0"),
            ({"documents": TopicDocuments(seed=3)}, "documents.seed is set by each run, from seeds"),
            ({"topics_per_document": (2, 11)}, "topics_per_document has 11, more than the 10 in topics"),
        ],
    )
    def test_is_refused(self, changes, message):
        with pytest.raises(InputError, match=message):
            replace(PAPER, **changes)


def test_what_is_lost_or_damaged_is_made_again(smoke, tmp_path):
    _, out, config = smoke
    check_made_whole(get_study("topic-structure"), config, shutil.copytree(out, tmp_path / "run"))
