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
from mechclust.training.diverged import DivergedError
from probes import load_result
from tasks import InputError, TopicDocuments
from tests.mechclust.studies.damaged import check_made_whole
from tests.mechclust.studies.recorded import check_judged_again

STUDY = get_study("topic-structure")
BEYOND = STUDY.preset("beyond")
SMOKE = replace(STUDY.preset("smoke"), experiment="beyond")
IDS = ["P9", "P10", "P11", "P12", "P14", "P14b", "P14c", "P15"]


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
        with pytest.raises(InputError, match="need a plain one-hot embedding and the identity as decoder"):
            TopicTables(task, at=[0])(0, model)

    def test_another_size_is_refused(self):
        member = TopicDocuments(n_topics=3, words_per_topic=4).token_membership[4:]
        with pytest.raises(InputError, match=r"table has shape \(11, 12\); expected 12 words both ways"):
            table_topics(torch.ones(11, 12), member)
        with pytest.raises(InputError, match="n_permutations is 0; expected at least 1"):
            table_topics(torch.ones(12, 12), member, 0)

    def test_a_word_without_a_topic_is_refused(self):
        member = TopicDocuments(n_topics=3, words_per_topic=4).token_membership
        with pytest.raises(InputError, match="a word has no topic; leave out its row and column"):
            table_topics(torch.eye(16), member)

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
        rates = [arms(BEYOND)[f"E5 {name}"].training["lr"] for name in ("SGD", "SGD squared", "Adam squared")]
        assert rates == [30.0, 104 * 30.0, 0.003]  # the squared loss is a mean over 104 outputs
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
        assert [panel.name for panel in analysis.panels] == ["after_two_stages", "documents"]
        for panel in analysis.panels:
            assert (out / "figures" / f"{panel.name}.png").stat().st_size > 5000
        assert "All arms at the end" in (out / "report.html").read_text()

    def test_can_be_judged_again_from_its_record(self, smoke, tmp_path):
        check_judged_again(smoke[1], tmp_path)

    @pytest.mark.slow
    def test_what_is_lost_or_damaged_is_made_again(self, smoke, tmp_path):
        check_made_whole(STUDY, SMOKE, shutil.copytree(smoke[1], tmp_path / "run"))

    def test_a_diverged_training_names_the_step(self, tmp_path):
        fast = replace(SMOKE, beyond=replace(SMOKE.beyond, sgd_rate=1e30))
        expected = r"E5 SGD: .*diverged: .* step [1-4]; give a smaller beyond.sgd_rate, in another folder with --out$"
        with pytest.raises(DivergedError, match=expected):
            STUDY.run_job(fast, Job("E5 SGD", 0), tmp_path)

    def test_a_diverged_training_of_documents_alone_names_the_documents(self, tmp_path, monkeypatch):
        def diverge(*_arguments, **_settings):
            raise DivergedError("training diverged: the loss is nan at step 3; give a smaller lr")

        monkeypatch.setattr("mechclust.studies.topic_structure.run.train", diverge)
        expected = "E4a theory T4 tau2: .* step 3; choose documents nearer to the published ones, in another folder"
        with pytest.raises(DivergedError, match=expected):
            STUDY.run_job(STUDY.preset("smoke"), Job("E4a theory T4 tau2", 0), tmp_path)

    def test_a_missing_run_is_named(self, smoke, tmp_path):
        copy = shutil.copytree(smoke[1], tmp_path / "run")
        (copy / "results" / Job("E5 SGD", 0).name / "tables.safetensors").unlink()
        expected = r"lacks results/e5-sgd-seed0/tables\.safetensors; start the study again with the same --out"
        with pytest.raises(InputError, match=expected):
            load_beyond(SMOKE, copy)


def runs_of(config: TopicStructureConfig = BEYOND) -> dict[str, list[BeyondRun]]:
    """Return made-up results in which every finding holds, with seeds, steps and optimisers that differ."""
    return {arm: [made_run(config, arm, seed) for seed in range(len(config.seeds))] for arm in arms(config)}


def made_run(config: TopicStructureConfig, arm: str, seed: int) -> BeyondRun:
    steps = np.array(beyond_steps(config))
    late = np.linspace(0, 1, len(steps))
    faster = 1.1 if "Adam" in arm else 1.0
    lower = any(kind in arm for kind in ("overlap 5", "Zipf", "correlated"))
    top = 1.5 if lower else 2.0
    if arm in ("E5 SGD", "E5 Adam"):
        top = 2.5
    topical = "squared" not in arm
    end = faster * top + 0.01 * seed if topical else 1.02 + 0.001 * seed
    ratio = 1 + (end - 1) * late**2
    own = 1 + (faster + 0.01 * seed) * late * topical
    rank = np.concatenate([[30.0], np.linspace(1 + 0.01 * seed + 2 * (not topical), 8, len(steps) - 1)])
    common = np.concatenate([[0.01], np.linspace(0.9 - 0.01 * seed, 0.3, len(steps) - 1)])
    table = {
        "explained": 0.05 + (0.2 + 0.01 * seed) * late * faster,
        "explained_null": np.full(len(steps), 0.06),
        "contrast": (1 + 0.1 * seed) * late * faster,
        "contrast_null": np.full(len(steps), 0.1),
    }
    attention = np.stack([own * ratio, ratio, np.ones(len(steps))], axis=1)
    dev = 4 - (faster + 0.01 * seed) * late * topical
    return BeyondRun(steps, attention, ratio, dev, {"rank": rank, "common": common}, table, {})


RUNS = runs_of()


def altered(names, change, runs=RUNS):
    """Return the made runs with ``change`` applied to those of some arms."""
    return runs | {name: list(map(change, runs[name])) for name in names}


def judged(runs=RUNS, config=BEYOND):
    return {finding.id: finding for finding in beyond_findings(config, runs)}


def flat(name, value):
    """Return a change that sets one curve at every step."""

    def change(run):
        curve = np.full(len(run.steps), value)
        if name in run.scores:
            return replace(run, scores={**run.scores, name: curve})
        if name in run.table:
            return replace(run, table={**run.table, name: curve})
        return replace(run, **{name: curve})

    return change


BOTH = ("E5 SGD", "E5 Adam")
SQUARED = ("E5 SGD squared", "E5 Adam squared")


class TestFindings:
    def test_hold_where_they_are_true_and_on_no_control(self):
        found = judged()
        assert list(found) == IDS
        assert {id: finding.verdict for id, finding in found.items() if finding.verdict != "holds"} == {}
        page = {"P9", "P10", "P15"}
        assert {id for id, finding in found.items() if finding.shown == "page"} == page
        assert {finding.shown for finding in found.values()} == {"page", "table"}

    def test_do_not_hold_where_an_arm_contradicts(self):
        found = judged(altered(("E5 Adam",), flat("rank", 3.0)))
        assert {id for id, finding in found.items() if finding.verdict == "does not hold"} == {"P9"}

    def test_values_are_those_of_the_right_step_and_network(self):
        found = judged()
        seeds = np.arange(8)
        expected = {
            ("P9", 0): 1 + 0.01 * seeds,
            ("P9", 1): 0.9 - 0.01 * seeds,
            ("P9", 2): 1 + (1.5 + 0.01 * seeds) / 64,
            ("P9", 3): 2.5 + 0.01 * seeds,
            ("P9", 7): 2.75 + 0.01 * seeds,
            ("P10", 0): 0.19 + 0.01 * seeds,
            ("P10", 3): 1.1 * (1 + 0.1 * seeds) - 0.1,
            ("P14", 0): np.log((2.0 + 0.01 * seeds) / (1.5 + 0.01 * seeds)),
            ("P14b", 1): np.log((2.75 + 0.01 * seeds) / (1.65 + 0.01 * seeds)),
            ("P14c", 1): np.log((2.2 + 0.01 * seeds) / (1.65 + 0.01 * seeds)),
            ("P15", 0): 1.5 + 0.01 * seeds,
        }
        for (id, part), values in expected.items():
            assert found[id].parts[part].values == pytest.approx(values.tolist()), (id, part)

    def test_what_follows_is_counted_from_the_step_at_which_attention_is_topical(self):
        found = judged()
        late = np.linspace(0, 1, 9)
        first = [min(step for step in range(9) if 1 + (1.5 + 0.01 * s) * late[step] ** 2 >= 1.2) for s in range(8)]
        assert set(first) == {3}
        assert found["P12"].parts[0].values == pytest.approx([(1 + 0.01 * s) * (1 - late[3]) for s in range(8)])
        rises = [np.log((2 + 0.01 * s) / (1 + (1 + 0.01 * s) * late[3])) for s in range(8)]
        assert found["P11"].parts[0].values == pytest.approx(rises)

    def test_the_squared_loss_is_followed_over_the_steps_of_the_other_network_of_its_seed(self):
        def at_own_steps(run):
            return replace(run, dev=np.arange(9.0) ** 2)

        def soon_topical(run):
            return replace(run, ratio=np.array([1.0, 1.3, *run.ratio[2:]]))

        runs = altered(SQUARED, at_own_steps)
        runs["E5 SGD"] = [soon_topical(run) if seed == 5 else run for seed, run in enumerate(runs["E5 SGD"])]
        control = judged(runs)["P12"].control.parts[0].values
        assert control == pytest.approx([9 - 64] * 5 + [1 - 64] + [9 - 64] * 2)

    def test_attention_that_never_is_topical_does_not_change_afterwards(self):
        found = judged(altered(BOTH, flat("ratio", 1.05)))
        for id in ("P11", "P12"):
            assert (found[id].verdict, found[id].measured) == ("does not hold", 0)

    def test_are_not_tested_by_short_runs(self):
        short = replace(BEYOND, beyond=replace(BEYOND.beyond, steps=15_000))
        assert {finding.verdict for finding in judged(runs_of(short), short).values()} == {"not tested"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"measured": (100, 30_000), "after": 100}, r"beyond\.measured has 30000; expected steps between 0 and beyond"),
        ({"after": 300}, r"beyond\.after is 300; expected one of beyond\.measured \(100, 200, 500, 1000, 2000, 5000"),
        ({"overlaps": ()}, r"beyond\.overlaps is empty; expected at least one number of words, such as 2"),
        ({"overlaps": (0,)}, r"beyond\.overlaps\[0\] is 0; expected at least 1"),
        ({"n_permutations": 0}, r"beyond\.n_permutations is 0; expected at least 1"),
        ({"overlaps": (2, 2)}, r"beyond\.overlaps has 2 twice; give it once"),
        ({"sgd_rate": 0.0}, r"beyond\.sgd_rate is 0\.0; expected above 0"),
        ({"zipf": 0.0}, r"beyond\.zipf is 0\.0; expected above 0"),
        ({"correlation": 1.0}, r"beyond\.correlation is 1\.0; expected below 1"),
    ],
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        Beyond(**changes)


@pytest.mark.parametrize(("words", "overlap"), [(8, 5), (2, 1)])
def test_overlaps_that_leave_too_few_words_are_refused(words, overlap):
    beyond = replace(BEYOND.beyond, overlaps=(1, overlap)[-overlap:])
    with pytest.raises(InputError, match=rf"beyond\.overlaps has {overlap} of {words} words per topic; expected"):
        replace(BEYOND, documents=TopicDocuments(words_per_topic=words), beyond=beyond)


def test_documents_that_show_none_of_their_words_are_refused():
    with pytest.raises(InputError, match=r"documents\.selected_share is 1 and correct_share 0: no document shows its"):
        replace(BEYOND, documents=TopicDocuments(selected_share=1.0, correct_share=0.0))


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


def test_a_result_of_other_steps_among_others_is_refused(smoke, tmp_path):
    copy = shutil.copytree(smoke[1], tmp_path / "run")
    path = next(copy.glob("results/*/dev-loss.safetensors"))
    result = load_result(path)
    path.unlink()
    replace(result, coords={"step": ["0", "2", "4", "5"]}).save(path)
    with pytest.raises(InputError, match="was not measured at steps"):
        load_beyond(SMOKE, copy)
