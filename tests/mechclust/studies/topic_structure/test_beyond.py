"""What comes after the two stages: arms, tables over words, findings, and a small run from beginning to end."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from mechclust.models import build_model, load_model
from mechclust.studies import get_study, run_study
from mechclust.studies.study import Job
from mechclust.studies.topic_structure import (
    Beyond,
    TableTopics,
    TopicStructureConfig,
    TopicTransformerConfig,
    population_moments,
    table_topics,
)
from mechclust.studies.topic_structure.arms import arms, beyond_steps, documents_of, jobs, training_of
from mechclust.studies.topic_structure.beyond.findings import beyond_findings
from mechclust.studies.topic_structure.beyond.results import BeyondRun, load_beyond
from mechclust.studies.topic_structure.tables import ATTENTION, SCORES, VALUES, TopicTables
from probes import load_result
from tasks import InputError, TopicDocuments
from tests.mechclust.studies.damaged import check_made_whole
from tests.mechclust.studies.recorded import check_judged_again

STUDY = get_study("topic-structure")
BEYOND = STUDY.preset("beyond")
SMOKE = replace(STUDY.preset("smoke"), experiment="beyond")
IDS = ["P9", "P10", "P11", "P12", "P13", "P14", "P14b", "P14c", "P15"]


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """A small run from beginning to end: analysis and folder. Read only."""
    out = tmp_path_factory.mktemp("beyond") / "run"
    return run_study(STUDY, SMOKE, out, workers=1), out


class TestTables:
    """Against block means by loops, and where the answer is known."""

    def test_explained_is_the_variance_between_blocks(self):
        rng = np.random.default_rng(0)
        table, topics = rng.normal(size=(12, 12)), np.arange(12) // 4
        centred = table - table.mean(axis=1, keepdims=True)
        between = np.zeros_like(table)
        for a in range(3):
            for b in range(3):
                block = np.ix_(topics == a, topics == b)
                between[block] = centred[block].mean()
        found = table_topics(torch.from_numpy(table), torch.from_numpy(topics[:, None] == np.arange(3)))
        assert found.explained == pytest.approx((between**2).sum() / (centred**2).sum(), rel=1e-9)
        singular = np.linalg.svd(centred, compute_uv=False) ** 2
        assert found.rank == pytest.approx(singular.sum() ** 2 / (singular**2).sum(), rel=1e-9)
        same = (topics[:, None] == topics) & ~np.eye(12, dtype=bool)
        gap = centred[same].mean() - centred[topics[:, None] != topics].mean()
        assert found.contrast == pytest.approx(gap / centred.std(), rel=1e-9)

    @pytest.mark.parametrize("overlap", [2, 3])
    def test_a_table_of_overlapping_topics_is_explained_whole(self, overlap):
        member = TopicDocuments(n_topics=6, words_per_topic=6, overlap=overlap).token_membership[4:]
        draw = torch.Generator().manual_seed(1)
        weights = torch.randn(6, 6, generator=draw, dtype=torch.float64)
        for table in (
            member.double() @ weights @ member.double().T,
            (member.double() @ member.double().T > 0).double(),
        ):
            found = table_topics(table, member)
            assert found.explained == pytest.approx(1, abs=1e-9)
            assert found.explained_null < 0.9
            assert (table_topics(table.softmax(dim=1), member).explained) == pytest.approx(1, abs=1e-9)

    def test_what_is_the_same_in_all_rows_is_common(self):
        member = TopicDocuments(n_topics=3, words_per_topic=4).token_membership[4:]
        draw = torch.Generator().manual_seed(0)
        keys = torch.randn(12, generator=draw, dtype=torch.float64)
        sizes = torch.tensor([1.0, 3.0]).repeat(6).double()
        assert table_topics(keys.expand(12, 12), member).common == pytest.approx(1)
        found = table_topics(sizes[:, None] * keys, member)
        assert (found.rank, found.common) == (pytest.approx(1), pytest.approx(4 / 5))  # mean squared, over mean square
        assert table_topics(sizes[:, None] * torch.tensor([1.0, -1.0]).repeat(6)[:, None] * keys, member).common < 0.3

    def test_random_tables_are_explained_as_by_random_topics(self):
        member = TopicDocuments().token_membership[4:]
        draw = torch.Generator().manual_seed(0)
        above = [table_topics(torch.randn(100, 100, generator=draw), member, 50, seed=i) for i in range(40)]
        assert np.mean([found.explained for found in above]) == pytest.approx(10 / 100 * 9 / 99, rel=0.1)
        for measure in ("explained", "contrast"):  # 2 of 40 are expected
            assert sum(getattr(found, measure) > getattr(found, f"{measure}_null") for found in above) <= 8

    def test_a_constant_added_to_a_row_changes_nothing(self):
        member = TopicDocuments(n_topics=3, words_per_topic=4).token_membership[4:]
        draw = torch.Generator().manual_seed(0)
        table = torch.randn(12, 12, generator=draw, dtype=torch.float64)
        moved = table + 10 * torch.randn(12, 1, generator=draw, dtype=torch.float64)
        assert table_topics(table, member) == pytest.approx(table_topics(moved, member), rel=1e-9)

    @pytest.mark.parametrize("value", [1.0, math.nan, math.inf])
    def test_constant_rows_and_diverged_networks_give_nan(self, value):
        member = TopicDocuments(n_topics=3, words_per_topic=4).token_membership[4:]
        assert all(map(math.isnan, table_topics(torch.full((12, 12), value), member)))

    def test_other_networks_are_refused(self):
        task = TopicDocuments(n_topics=3, words_per_topic=4)
        model = build_model(TopicTransformerConfig(d_vocab=task.d_vocab))
        with pytest.raises(InputError, match="need a one-hot embedding of norm 1 and the identity as decoder"):
            TopicTables(task, at=[0])(0, model)

    def test_another_size_is_refused(self):
        member = TopicDocuments(n_topics=3, words_per_topic=4).token_membership[4:]
        with pytest.raises(InputError, match=r"table has shape \(11, 12\); expected 12 words both ways"):
            table_topics(torch.ones(11, 12), member)
        with pytest.raises(InputError, match="n_permutations is 0; expected at least 1"):
            table_topics(torch.ones(12, 12), member, 0)

    def test_of_a_network_are_those_of_its_weights(self, smoke):
        _, out = smoke
        job = Job("E5 SGD", 0)
        model, task = load_model(out / "models" / f"{job.name}.safetensors"), documents_of(SMOKE, job)
        saved = load_result(out / "results" / job.name / "tables.safetensors")
        assert saved.coords["table"] == [SCORES, ATTENTION, VALUES]
        assert saved.coords["step"] == ["0", "2", "4", "6"]
        attn, member = model.blocks[0].attn, task.token_membership[4:]
        scores = (attn.W_Q @ attn.W_K.T)[4:, 4:].detach().double()
        attention = (scores / 13**0.5).softmax(dim=1)
        for name, table in {SCORES: scores, ATTENTION: attention, VALUES: attn.W_V[4:, 4:]}.items():
            found = table_topics(table, member, 9, seed=6)
            for measure in TableTopics._fields:
                assert float(saved.sel(measure, step="6", table=name)) == pytest.approx(
                    getattr(found, measure), rel=1e-3
                )

    def test_are_measured_at_the_given_steps_only(self, smoke):
        _, out = smoke
        model = load_model(out / "models" / f"{Job('E5 Adam', 0).name}.safetensors")
        tables = TopicTables(documents_of(SMOKE, Job("E5 Adam", 0)), at=[0, 5])
        for step in range(7):
            tables(step, model)
        assert tables.compute().coords["step"] == ["0", "5"]


class TestArms:
    def test_are_both_optimisers_on_all_documents_and_both_losses_on_the_published_ones(self):
        kinds = [
            "overlap 2",
            "overlap 5",
            "fewer words",
            "Zipf",
            "independent topics",
            "correlated topics",
            "all three",
        ]
        expected = [f"E5 {name}{end}" for end in ("", " squared") for name in ("SGD", "Adam")]
        expected += [f"E5 {name} {kind}" for kind in kinds for name in ("SGD", "Adam")]
        assert list(arms(BEYOND)) == expected
        assert len(jobs(BEYOND)) == 8 * 18
        steps = [0, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000]
        assert beyond_steps(BEYOND) == steps
        for arm in arms(BEYOND).values():
            training = training_of(BEYOND, arm)
            assert training.steps == 20_000
            assert set(steps) <= set(training.checkpoint_steps)

    def test_change_the_published_documents_in_what_they_are_named_after(self):
        published = documents_of(BEYOND, Job("E5 SGD", 20))
        assert published == TopicDocuments(seed=20)
        of = {name: documents_of(BEYOND, Job(f"E5 Adam {name}", 20)) for name in ("overlap 5", "Zipf", "all three")}
        assert of["overlap 5"] == replace(published, overlap=5)
        fewer = documents_of(BEYOND, Job("E5 Adam fewer words", 20))
        assert fewer == replace(published, words_per_topic=5)
        assert fewer.n_words == of["overlap 5"].n_words == 50
        assert of["Zipf"] == replace(published, zipf=1.0)
        assert of["all three"] == replace(
            published, overlap=2, zipf=1.0, sampler="logistic-normal", topic_correlation=0.9
        )


class TestRun:
    def test_writes_figures_findings_and_a_report(self, smoke):
        analysis, out = smoke
        assert [c.id for c in analysis.findings] == IDS
        assert {c.verdict for c in analysis.findings} == {"not tested"}
        assert [panel.name for panel in analysis.panels] == ["after_two_stages", "documents", "ends", "scores"]
        for panel in analysis.panels:
            assert (out / "figures" / f"{panel.name}.png").stat().st_size > 5000
        assert "All arms at the end" in (out / "report.html").read_text()

    def test_can_be_judged_again_from_its_record(self, smoke, tmp_path):
        check_judged_again(smoke[1], tmp_path)

    def test_what_is_lost_or_damaged_is_made_again(self, smoke, tmp_path):
        check_made_whole(STUDY, SMOKE, shutil.copytree(smoke[1], tmp_path / "run"))

    def test_a_missing_run_is_named(self, smoke, tmp_path):
        copy = shutil.copytree(smoke[1], tmp_path / "run")
        (copy / "results" / Job("E5 SGD", 0).name / "tables.safetensors").unlink()
        expected = r"lacks results/e5-sgd-seed0/tables\.safetensors; start the study again with the same --out"
        with pytest.raises(InputError, match=expected):
            load_beyond(SMOKE, copy)


def runs_of(config: TopicStructureConfig, n: int, **changes: float) -> dict[str, list[BeyondRun]]:
    """Made-up results in which every finding is true, unless ``changes`` say otherwise."""
    rng, steps = np.random.default_rng(0), np.array(beyond_steps(config))
    late = np.linspace(0, 1, len(steps))

    def run(arm: str) -> BeyondRun:
        published = arm in ("E5 SGD", "E5 Adam")
        lower = any(kind in arm for kind in ("overlap 5", "Zipf", "correlated"))
        top = changes.get("other", 1.5 if lower else 2.0)
        top = changes.get("published", 2.5) if published else changes.get("squared", 1.02) if "squared" in arm else top
        ratio = 1 + (top - 1) * late**2 + rng.normal(0, 0.01, len(steps))
        own = 1 + changes.get("own", 1.0) * late
        rank = np.concatenate([[30.0], np.linspace(changes.get("rank", 1.0), 8, len(steps) - 1)])
        common = np.concatenate([[0.01], np.linspace(changes.get("common", 0.9), 0.3, len(steps) - 1)])
        tables = {"rank": rank, "common": common, "explained": changes.get("explained", 0.2) * late + 0.05}
        tables |= {"contrast": late, "explained_null": np.full(len(steps), 0.06), "contrast_null": 0.1 + 0 * late}
        attention = np.stack([own * ratio, ratio, np.ones(len(steps))], axis=1)
        dev = 4 - changes.get("fall", 1.0) * late + rng.normal(0, 0.01, len(steps))
        return BeyondRun(steps, attention, ratio, dev, tables, tables, tables)

    return {arm: [run(arm) for _ in range(n)] for arm in arms(config)}


class TestFindings:
    def test_hold_where_they_are_true(self):
        findings = {c.id: c for c in beyond_findings(BEYOND, runs_of(BEYOND, 8))}
        assert list(findings) == IDS
        assert {c.verdict for c in findings.values()} == {"holds"}
        assert all(f.control.verdict in ("does not hold", "undecided") for f in findings.values())

    def test_of_networks_that_also_learn_with_the_other_loss_are_not_specific(self):
        """The squared loss gives topical attention, too."""
        verdicts = {f.id: f.verdict for f in beyond_findings(BEYOND, runs_of(BEYOND, 8, squared=2.5))}
        assert [verdicts[id] for id in ("P9", "P11", "P12")] == ["not specific"] * 3
        assert verdicts["P10"] == "holds"  # compared with the start

    def test_values_are_of_the_step_with_the_least_rank_and_of_the_end(self):
        runs = runs_of(BEYOND, 8)
        for run in runs["E5 Adam"]:
            run.scores["rank"][4], run.scores["common"][4], run.ratio[4] = 0.5, 0.8, 1.15
            run.ratio[-1] = 3.0
        parts = {part.name: part.measured for part in beyond_findings(BEYOND, runs)[0].parts}
        assert parts["Adam, least rank"] == pytest.approx(0.5)
        assert parts["Adam, share common to all queries then"] == pytest.approx(0.8)
        assert parts["Adam, ratio then"] == pytest.approx(1.15)
        assert parts["Adam, ratio at the end"] == pytest.approx(3.0)

    @pytest.mark.parametrize(
        ("changes", "failing"),
        [
            ({"rank": 3.0}, "P9"),
            ({"common": 0.2}, "P9"),
            ({"published": 1.1}, "P9"),
            ({"explained": -0.1}, "P10"),
            ({"own": -0.5}, "P11"),
            ({"fall": -1.0}, "P12"),
            ({"squared": 1.3}, "P13"),
            ({"other": 1.05}, "P15"),
        ],
        ids=str,
    )
    def test_do_not_hold_where_they_are_false(self, changes, failing):
        findings = {c.id: c for c in beyond_findings(BEYOND, runs_of(BEYOND, 8, **changes))}
        assert findings[failing].verdict == "does not hold"

    def test_of_one_kind_of_documents_do_not_hold_where_the_kinds_are_exchanged(self):
        runs = runs_of(BEYOND, 8)
        for name in ("SGD", "Adam"):
            for kind, other in (("overlap 5", "fewer words"), ("correlated topics", "independent topics")):
                a, b = f"E5 {name} {kind}", f"E5 {name} {other}"
                runs[a], runs[b] = runs[b], runs[a]
        findings = {c.id: c.verdict for c in beyond_findings(BEYOND, runs)}
        assert (findings["P14"], findings["P14b"], findings["P14c"]) == ("does not hold", "holds", "does not hold")

    def test_attention_that_never_is_topical_does_not_change_afterwards(self):
        findings = {c.id: c for c in beyond_findings(BEYOND, runs_of(BEYOND, 8, published=1.05))}
        for id in ("P11", "P12"):
            assert findings[id].verdict == "does not hold"
            assert findings[id].measured == 0

    def test_are_not_tested_by_short_runs(self):
        short = replace(BEYOND, beyond=replace(BEYOND.beyond, steps=15_000))
        assert {c.verdict for c in beyond_findings(short, runs_of(short, 8))} == {"not tested"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"measured": (100, 30_000), "after": 100}, r"beyond\.measured has 30000; expected steps between 0 and beyond"),
        ({"after": 300}, r"beyond\.after is 300; expected one of beyond\.measured \(100, 200, 500, 1000, 2000, 5000"),
        ({"overlaps": ()}, r"beyond\.overlaps is empty; expected at least one number of words, such as 2"),
        ({"overlaps": (0,)}, r"beyond\.overlaps\[0\] is 0; expected at least 1"),
        ({"n_permutations": 0}, r"beyond\.n_permutations is 0; expected at least 1"),
        ({"overlaps": (2, 2)}, r"beyond\.overlaps has 2 twice; give it once"),
        ({"sgd_rate": 0.0}, r"beyond\.sgd_rate is 0\.0; expected a positive number"),
        ({"zipf": 0.0}, r"beyond\.zipf is 0\.0; expected a positive number"),
        ({"correlation": 1.0}, r"beyond\.correlation is 1\.0; expected between 0 and 1"),
    ],
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        Beyond(**changes)


def test_documents_that_cannot_be_are_refused_before_anything_is_trained(tmp_path):
    few = replace(SMOKE, documents=TopicDocuments(n_topics=2, words_per_topic=4, n_documents=60))
    with pytest.raises(InputError, match="overlap is 1 with 2 topics; expected at least 3 topics"):
        run_study(STUDY, few, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "changes", [{"overlap": 2}, {"zipf": 1.0}, {"sampler": "logistic-normal", "topic_correlation": 0.5}]
)
def test_the_published_experiments_take_published_topics_only(changes):
    with pytest.raises(InputError, match="are set by the arms of the experiment 'beyond'"):
        TopicStructureConfig(documents=TopicDocuments(**changes))


@pytest.mark.parametrize("changes", [{"overlap": 2}, {"zipf": 1.0}])
def test_closed_forms_are_those_of_published_topics_only(changes):
    theory = {"sampler": "subset", "boundaries": False, "exact_shares": True, "lengths": (400, 400)}
    with pytest.raises(InputError, match="the closed forms need disjoint topics of equally frequent words"):
        population_moments(TopicDocuments(**theory, **changes))


def test_results_of_other_steps_are_refused(smoke):
    other = replace(SMOKE, beyond=replace(SMOKE.beyond, measured=(2,)))
    with pytest.raises(InputError, match=r"was not measured at steps \[0, 2, 6\]; give the folder of one run"):
        load_beyond(other, smoke[1])
