"""The topic-structure study: its arms are the experiments of the specification, its findings what was measured."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mechclust.models import build_model, load_model
from mechclust.studies import get_study, run_study
from mechclust.studies.study import Job
from mechclust.studies.topic_structure import TopicStructureConfig, TopicTransformerConfig, topic_blocks
from mechclust.studies.topic_structure.arms import (
    DECAYED,
    MINIMISER,
    arms,
    attention_arm,
    documents_of,
    jobs,
    released_arm,
    seeds_of,
    stage_cells,
    training_of,
)
from mechclust.studies.topic_structure.follow import WordAttention
from mechclust.studies.topic_structure.optimum import population_moments
from mechclust.studies.topic_structure.results import load_runs
from mechclust.studies.topic_structure.run import block_result
from mechclust.training import train
from probes import load_result
from probes.engine.record import record
from tasks import InputError, TopicDocuments
from tests.mechclust.studies.damaged import check_made_whole
from tests.mechclust.studies.recorded import check_judged_again

PAPER = TopicStructureConfig()
IDS = [
    *("P1a", "P1b", "P2b", "P2c", "P3b", "P4", "P4b", "P4f"),
    *("P5", "P5a", "P5g", "P5h", "P6"),
]


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """The smoke preset from beginning to end: analysis, folder, configuration. Read only."""
    study, out = get_study("topic-structure"), tmp_path_factory.mktemp("topics") / "run"
    return run_study(study, study.preset("smoke"), out, workers=1), out, study.preset("smoke")


class TestArms:
    def test_are_the_experiments_of_the_specification(self):
        sizes = Counter(arm.experiment for arm in arms(PAPER).values())
        assert sizes == {
            **{"E1": 1, "E2": 3, "E1b": 4, "E3": 2 * 3 * 4, "E3 released": 3, "E4": 5, "E4a theory": 8},
        }
        assert arms(PAPER)["E2 no decay"].training.get("weight_decay", 0) == 0

    def test_are_a_factorial_of_start_optimiser_loss_and_rate(self):
        of = [arms(PAPER)[cell.arm] for cell in stage_cells(PAPER)]
        levels = {(a.model.get("init_std"), a.training["optimizer"], a.documents["objective"]) for a in of}
        assert len(levels) == 6
        for objective, factor in (("cross-entropy", 1), ("squared", 104)):  # the squared loss is a mean over outputs
            rates = [arms(PAPER)[c.arm].training["lr"] for c in stage_cells(PAPER) if c[1:3] == ("SGD", objective)]
            assert Counter(rates) == {factor * rate: 2 for rate in PAPER.sgd_rates}

    def test_train_the_network_as_released_on_fresh_seeds(self):
        released = [arms(PAPER)[name] for name in (released_arm(0.5), attention_arm("Adam .01"))]
        for arm in released:
            assert (arm.model["input"], arm.model["attention_bias"]) == ("normalised", True)
            assert documents_of(PAPER, Job(arm.name, 1)) == TopicDocuments(seed=1)
            assert not set(seeds_of(PAPER, arm.name)) & {*PAPER.seeds, *range(30)}
        assert [arm.model.get("type_std", 0.02) for arm in released] == [1.0, 0.02]
        assert [arm.model.get("init_std") for arm in released] == [0.01, None]

    def test_have_one_run_a_seed_and_the_long_ones_first(self):
        every = jobs(PAPER)
        assert len(every) == 5 * (len(arms(PAPER)) - 3 + 1) + 8 * 3 == len({job.name for job in every})
        steps = [arms(PAPER)[job.arm].training["steps"] for job in every if job.arm != MINIMISER]
        assert steps == sorted(steps, reverse=True)

    @pytest.mark.parametrize(
        ("documents", "rate"),
        [({}, 20), ({"n_topics": 5, "words_per_topic": 4}, 9.41), ({"selected_share": 0.9}, 0.963)],
    )
    def test_decay_at_a_rate_at_which_training_converges(self, documents, rate):
        config = replace(PAPER, documents=TopicDocuments(**documents))
        training = training_of(config, arms(config)[DECAYED])
        assert training.lr == pytest.approx(rate * config.documents.d_vocab, rel=1e-2)
        moments = population_moments(documents_of(config, Job(DECAYED, 0))).inputs
        largest = float(torch.linalg.eigvalsh(moments)[-1])
        assert 2 * training.lr / config.documents.d_vocab * largest < 1.01  # it diverges above 2

    def test_decay_leads_to_the_minimiser_of_masks_drawn_once(self):
        config = replace(PAPER, documents=TopicDocuments(masking="fresh"))
        assert documents_of(config, Job(DECAYED, 0)).masking == "static"

    def test_theory_follows_the_theory(self):
        for arm in ("E1", "E2", "E4a theory T20 tau3"):
            task = documents_of(PAPER, Job(arm, 3))
            assert (task.sampler, task.objective, task.boundaries, task.seed) == ("subset", "squared", False, 3)

    def test_train_what_the_specification_says(self, smoke):
        _, out, config = smoke
        for arm, frozen in (
            ("E1", {"W_Q", "W_K", "W_V"}),
            ("E2", {"W_E", "W_Q", "W_K"}),
            ("E4a theory T4 tau2", {"W_E", "W_V"}),
            ("E4 Adam .01", {"W_E"}),
            ("E1b squared SGD .03", set()),
        ):
            model = load_model(out / "models" / f"{Job(arm, seeds_of(config, arm)[0]).name}.safetensors")
            fixed = {n.split(".")[-1] for n, p in model.named_parameters() if not p.requires_grad} - {"b_U"}
            assert fixed == frozen, arm


class TestRun:
    def test_can_be_judged_again_from_its_record(self, smoke, tmp_path):
        check_judged_again(smoke[1], tmp_path)

    def test_writes_figures_findings_and_a_report(self, smoke):
        analysis, out, _ = smoke
        assert [c.id for c in analysis.findings] == IDS
        assert {c.verdict for c in analysis.findings} == {"not tested"}
        for panel in analysis.panels:
            assert (out / "figures" / f"{panel.name}.png").stat().st_size > 5000
        page = (out / "report.html").read_text()
        assert "Mean attention beside the published table" in page
        assert "0.00759" in page  # the published table stands beside ours
        assert "http://" not in page.replace("http://www.w3.org", "")

    def test_the_separation_of_topics_is_followed_when_everything_is_trained(self, smoke):
        _, out, config = smoke
        job = Job("E1b squared Adam .003", config.everything_seeds[0])
        saved = load_result(out / "results" / job.name / "effects.safetensors")
        assert saved.coords["step"] == ["0", "1", "2", "3", "4"]
        embed = load_model(out / "models" / f"{job.name}.safetensors").embed.W_E.detach()
        blocks = topic_blocks(embed @ embed.T, documents_of(config, job).token_topics)
        assert float(saved["right labels"][-1]) == blocks.effect

    def test_the_scale_ends_at_a_percentile_of_the_entries(self, smoke):
        figure = next(panel.figure for panel in smoke[0].panels if panel.name == "heat_maps")
        for axis in (axis for axis in figure.axes if axis.images):
            top = np.percentile(np.abs(np.asarray(axis.images[0].get_array())), 99.5)
            assert axis.images[0].get_clim() == pytest.approx((-top, top))

    def test_goes_on_where_it_was(self, smoke, undrawn, tmp_path):
        analysis, out, config = smoke
        copy = tmp_path / "run"
        shutil.copytree(out, copy)
        job = Job("E2", 0)
        shutil.rmtree(copy / "results" / job.name)
        others = {p: p.stat().st_mtime_ns for p in (copy / "results").rglob("*.safetensors")}
        again = run_study(get_study("topic-structure"), config, copy, workers=1)
        assert {p: p.stat().st_mtime_ns for p in others} == others
        assert repr(again.findings) == repr(analysis.findings)  # the same bits (NaN is not equal to itself)

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

    def test_attention_between_tokens_is_that_of_the_best_network(self, smoke):
        """Counted pair by pair, on the pattern of the network whose development loss was lowest."""
        _, out, config = smoke
        job = Job(attention_arm("Adam .01"), config.table_seeds[0])
        kept = load_result(out / "results" / job.name / "words.safetensors")
        assert kept.coords["step"] == [str(step) for step in range(1, config.attention_steps + 1)]
        best = int(kept["loss"].argmin()) + 1
        task = documents_of(config, job)
        model = build_model(TopicTransformerConfig(d_vocab=13, seed=job.seed, **arms(config)[job.arm].model))
        settings = replace(training_of(config, arms(config)[job.arm]), steps=best)
        train(model, task, settings)
        sums = torch.zeros(13, 13, dtype=torch.float64)
        for batch in task.text("dev", config.text[0], task.n_ctx):
            with record(model, ["blocks.0.attn.hook_pattern"]) as seen:
                model(batch.tokens, attention_mask=batch.attention_mask)
            pattern = seen["blocks.0.attn.hook_pattern"][0][:, 0].double()
            for tokens, of_document, n in zip(batch.tokens, pattern, batch.lengths().tolist(), strict=True):
                for query, key in product(range(n), range(n)):
                    sums[tokens[query], tokens[key]] += of_document[query, key]
        torch.testing.assert_close(kept["sum"][1].double(), sums, rtol=1e-4, atol=1e-5)

    def test_blocks_are_those_of_the_saved_model(self, smoke):
        _, out, config = smoke
        job = Job("E2", 0)
        model, task = load_model(out / "models" / f"{job.name}.safetensors"), documents_of(config, job)
        saved = load_result(out / "results" / job.name / "blocks.safetensors")
        blocks = topic_blocks(model.blocks[0].attn.W_V.T, task.token_topics)
        assert float(saved.sel("gap", matrix="W_V")) == blocks.gap
        assert float(saved.sel("separation", matrix="W_V")) == blocks.separation
        assert saved.values.keys() == block_result(model, task).values.keys()


def test_attention_between_many_words_is_measured_on_few_documents_at_once():
    task = TopicDocuments(n_topics=50, words_per_topic=20, n_documents=10)
    sizes = []

    def attention_between_tokens(batch):
        sizes.append(len(batch))
        return torch.ones(1004, 1004), torch.ones(1004, 1004)

    words = WordAttention(task, 10, [20])
    words._best = SimpleNamespace(attention_between_tokens=attention_between_tokens)
    assert float(words.compute()["sum"].max()) == len(sizes)
    assert sizes == [4, 4, 2]


class TestBadInput:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"seeds": ()}, "seeds is empty; expected at least one seed, such as --seeds 0"),
            ({"seeds": (-1,)}, r"seeds\[0\] is -1; expected at least 0"),
            ({"documents": TopicDocuments(seed=3)}, "documents.seed is set by each run, from seeds"),
            ({"documents": TopicDocuments(sampler="subset")}, "documents.sampler is set by each arm; leave it out"),
            ({"documents": TopicDocuments(objective="squared")}, "documents.objective is set by each arm"),
            ({"documents": TopicDocuments(boundaries=False)}, "documents.boundaries is set by each arm"),
            ({"topics_per_document": (1, 2)}, r"topics_per_document\[0\] is 1; expected at least 2"),
            ({"text": (500, 2)}, r"text\[1\] is 2; expected at least 3"),
            ({"documents": TopicDocuments(words_per_topic=1)}, r"words_per_topic is 1; expected at least 2"),
            ({"sgd_rates": (1.0, 1.0000001)}, "sgd_rates has '1' twice; give it once"),
            ({"topics": (10, 20, 10)}, "topics has 10 twice; give it once"),
            ({"check_every": 0}, "check_every is 0; expected at least 1"),
            ({"check_every": 300}, r"check_every is 300; expected a divisor of attention_steps \(5000\)"),
            ({"released_seeds": ()}, "released_seeds is empty"),
            ({"optimum_documents": (3000, 1000)}, r"optimum_documents is \(3000, 1000\); expected rising numbers"),
            ({"topics_per_document": (2, 2)}, r"topics_per_document is \(2, 2\); expected rising numbers"),
            ({"topics_per_document": (2, 11)}, "topics_per_document has 11 of the 10 in topics"),
            ({"topics_per_document": (2, 10)}, "topics_per_document has 10 of the 10 in topics; expected fewer"),
            ({"documents": TopicDocuments(n_topics=2)}, r"documents\.topics_per_document is 2 of 2 topics"),
            ({"documents": TopicDocuments(topics_per_document=11)}, r"documents\.topics_per_document is 11; expected"),
            (
                {"documents": TopicDocuments(selected_share=1.0, correct_share=0.0)},
                r"documents\.selected_share is 1 and correct_share 0: no document shows its words",
            ),
        ],
    )
    def test_is_refused(self, changes, message):
        with pytest.raises(InputError, match=message):
            replace(PAPER, **changes)


@pytest.mark.slow
def test_what_is_lost_or_damaged_is_made_again(smoke, tmp_path):
    _, out, config = smoke
    check_made_whole(get_study("topic-structure"), config, shutil.copytree(out, tmp_path / "run"))
