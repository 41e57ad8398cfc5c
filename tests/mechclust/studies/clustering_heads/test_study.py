"""The clustering-head study from beginning to end: what it keeps is what was trained."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mechclust.commands.sandbox import open_sandbox
from mechclust.report.analysis import Analysis
from mechclust.studies import get_study, run_study
from mechclust.studies.clustering_heads.ablations import Ablations
from mechclust.studies.clustering_heads.config import ClusteringHeadsConfig, Curriculum, FullBatch, Starts
from mechclust.studies.clustering_heads.dynamics import measured_rows
from mechclust.studies.clustering_heads.results import load_results
from mechclust.training import Snapshots, accuracy
from probes import ClusteringHead, load_result, run
from tasks import InputError, SparseModularAddition
from tests.mechclust.studies.clustering_heads.made_runs import SMALL
from tests.mechclust.studies.damaged import check_made_whole
from tests.mechclust.studies.recorded import check_judged_again


def accuracy_and_loss(model, task):
    """On the training split."""
    (batch,) = task.batches("train", 4096)
    logits = model(batch.tokens).detach()
    return float(task.accuracy(logits, batch).mean()), float(task.loss(logits, batch))


class TestRun:
    def test_can_be_judged_again_from_its_record(self, smoke: tuple[Analysis, Path], tmp_path: Path) -> None:
        check_judged_again(smoke[1], tmp_path)

    def test_lists_every_finding(self, smoke):
        analysis, _ = smoke
        assert [c.id for c in analysis.findings] == [
            "H1", "H1a", "H1b", "H1e", "H2", "H3", "H3c", "H4a", "H4b", "H4d", "H4f",
            "H5", "H5b", "H6", "H7", "H7b", "H8",
        ]  # fmt: skip
        assert {c.verdict for c in analysis.findings} == {"not tested"}

    def test_leaves_its_artefacts(self, smoke):
        _, out = smoke
        for name in ("training", "heads", "two_falls", "gradients", "ablations", "curriculum", "sandbox"):
            assert (out / "figures" / f"{name}.png").stat().st_size > 5000
        pages = list((out / "sandbox").glob("seed*.html"))
        assert len(pages) == 1
        assert f'href="sandbox/{pages[0].name}"' in (out / "report.html").read_text()

    def test_fewer_seeds_have_only_the_accuracies_of_their_networks(self, smoke, tmp_path):
        """Otherwise no finding on shares is exploratory after seeds are added."""
        _, out = smoke
        shutil.copytree(out / "results", tmp_path / "results")
        path = next((tmp_path / "results" / "final").glob("scratch-*"))
        scratch = load_result(path)
        moved = [network.replace("scratch", "transfer") for network in scratch.coords["network"]]
        replace(scratch, coords={**scratch.coords, "network": moved}).save(path.with_stem("transfer-from-base"))
        arms = ("base", "scratch", "transfer", "larger eps", "slower feed-forward")
        whole = load_results(SMALL, tmp_path).final
        fewer = load_results(replace(SMALL, seeds=SMALL.seeds[:1]), tmp_path).final
        assert [list(whole[arm]) for arm in arms] == 5 * [[200, 201]]
        assert [list(fewer[arm]) for arm in arms] == 5 * [[200]]
        assert fewer["lr 0.01"] == whole["lr 0.01"]  # whose seeds are the ablations'

    def test_what_it_kept_is_what_was_trained(self, smoke):
        _, out = smoke
        results = load_results(SMALL, out)
        snapshots = Snapshots(out / "models" / "base-seeds-200-201")
        task = snapshots.tasks[1]
        assert task.seed == 201
        train, test = (accuracy(snapshots.model(1), task, split)[0] for split in ("train", "test"))
        assert results.final["base"][201] == pytest.approx((train, test))
        assert results.networks[201].accuracy == pytest.approx(test)
        assert float(results.networks[201].curve("test_accuracy")[-1]) == pytest.approx(test)
        assert set(results.final) >= {"scratch", "lr 0.01", "discount 10", "batch 64", "width 4"}
        assert set(results.mitigated["larger eps"]) == {200, 201}
        full = Snapshots(out / "models" / "plateaus-seeds-200-201")
        assert full.steps == [0, 4, 8, 12]
        loss = accuracy_and_loss(full.model(1, 8), full.tasks[1])[1]
        assert results.curved[201].curve("train_loss")[2] == pytest.approx(loss, rel=1e-5)
        head = results.networks[201]
        assert float(head.stitching["head_accuracy"][-1]) == pytest.approx(test)
        rows = measured_rows(task).batch
        right = (snapshots.model(1)(rows.tokens).argmax(dim=-1) == rows.labels["answer"]).double().mean()
        assert float(head.donors["accuracy"][0]) == pytest.approx(float(right))
        assert head.replay["gone"].shape[1] == 6
        probe = ClusteringHead(("multiset", "sum"), support=(0, 1, 2), modulus=2)
        for place, kept in ((0, head.untrained), (-1, head.head)):
            again = run(snapshots.model(1, snapshots.steps[place]), measured_rows(task).batch, probe)
            assert torch.equal(again["within_ratio"], kept["within_ratio"])

    @pytest.mark.slow
    def test_goes_on_without_training_again(self, smoke, undrawn, tmp_path):
        analysis, out = smoke[0], shutil.copytree(smoke[1], tmp_path / "run")
        before = {path: path.stat().st_mtime_ns for path in (out / "models").rglob("*.safetensors")}
        again = run_study(get_study("clustering-heads"), SMALL, out, workers=1)
        assert again.findings == analysis.findings
        assert before == {path: path.stat().st_mtime_ns for path in (out / "models").rglob("*.safetensors")}

    def test_any_seed_has_a_sandbox_with_the_measured_curves(self, smoke):
        _, out = smoke
        run, head = open_sandbox(out, 201, max_frames=5), load_results(SMALL, out).networks[201]
        assert run.title == "seed 201"
        assert len(run.epochs) == 5
        assert np.array_equal(run.curves.panels["spikes"]["margin"], head.curve("margin"))
        assert set(run.curves.panels["gradient_norms"]) == {"embeddings", "attention", "feed-forward", "all"}
        with pytest.raises(InputError, match=r"has no network of seed 7 \(it has 200, 201\)"):
            open_sandbox(out, 7)

    def test_an_unfinished_run_says_what_is_missing(self, smoke, undrawn, tmp_path):
        _, out = smoke
        part = tmp_path / "part"
        shutil.copytree(out, part)
        for lost, named in (
            ("final/batch-16-seeds-200-200", "lacks the accuracies of 'batch 16', seed 200; start the study again"),
            ("curriculum/seed200", "lacks results/curriculum/seed200.safetensors; start the study again"),
            ("base/seed201.replay", "lacks results/base/seed201.replay.safetensors; start the study again"),
        ):
            (part / "results" / f"{lost}.safetensors").unlink()
            with pytest.raises(InputError, match=re.escape(named)):
                load_results(SMALL, part)
            shutil.copy(out / "results" / f"{lost}.safetensors", part / "results" / f"{lost}.safetensors")
        load_results(SMALL, part)

    def test_too_many_sequences_are_sampled_and_that_is_said(self, undrawn, tmp_path):
        config = ClusteringHeadsConfig(
            seeds=(200,), mitigations=0, transfer=False, epochs=2, sandbox=0, test_findings=False,
            full_batch=FullBatch((), ()), starts=Starts(()),
            task=SparseModularAddition(length=13, n_support=2, n_train=64, n_test=64),
            curriculum=Curriculum(seeds=()), ablations=Ablations(seeds=()),
        )  # fmt: skip
        analysis = run_study(get_study("clustering-heads"), config, tmp_path / "run", workers=1)
        assert any(
            "There are 2^13 sequences, too many to measure heads on all of them" in note for note in analysis.notes
        )


@pytest.mark.slow
def test_what_is_lost_or_damaged_is_made_again(smoke, tmp_path):
    check_made_whole(get_study("clustering-heads"), SMALL, shutil.copytree(smoke[1], tmp_path / "run"))
