"""The clustering-head study: its arms are the specification's, what it measures is what was trained."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from mechclust.commands.sandbox import open_sandbox
from mechclust.models import build_model
from mechclust.studies import get_study, run_study, write_report
from mechclust.studies.clustering_heads import study as clustering_heads
from mechclust.studies.clustering_heads.config import (
    Ablations,
    ClusteringHeadsConfig,
    Curriculum,
    Job,
    PoolingTransformerConfig,
    arms,
    jobs,
    member_of,
    unfinished,
)
from mechclust.studies.clustering_heads.dynamics import GROUPS, XI, dynamics, measured_rows
from mechclust.studies.clustering_heads.results import load_runs
from mechclust.training import Member, Snapshots, TrainConfig, accuracy, train_ensemble
from probes import ClusteringHead, GradientNorms, distance_to_boundary, load_result, run
from tasks import InputError, SparseModularAddition

PAPER = ClusteringHeadsConfig()
SMOKE = get_study("clustering-heads").preset("smoke")


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """The smoke preset from beginning to end: analysis, folder. Read only."""
    out = tmp_path_factory.mktemp("heads") / "run"
    return run_study(get_study("clustering-heads"), SMOKE, out, workers=1), out


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two networks trained for a few epochs. Read only."""
    members = [
        Member(
            PoolingTransformerConfig(n_ctx=6, d_mlp=8, seed=s),
            SparseModularAddition(length=6, n_support=3, n_train=64, n_test=48, seed=s),
        )
        for s in (0, 1)
    ]
    settings = {"schedule": "constant", "optimizer": "adam", "weight_decay": 0.0, "clip": None, "lr": 0.02}
    return train_ensemble(
        members, TrainConfig(steps=80, batch_size=16, **settings), tmp_path_factory.mktemp("t"), backend="vmap"
    )


class TestArms:
    def test_are_those_of_the_specification(self):
        known = arms(PAPER)
        assert {"base", "replication", "larger eps", "slower feed-forward", "late smaller rate", "scratch"} < set(known)
        count = {
            kind: sum(name.startswith(f"{kind} ") for name in known) for kind in ("lr", "discount", "batch", "width")
        }
        assert count == {"lr": 20, "discount": 20, "batch": 12, "width": 20}
        assert known["base"].seeds == tuple(range(200, 300))
        assert known["replication"].seeds == tuple(range(40))
        assert (known["base"].p, known["scratch"].p) == (2, 3)

    def test_every_network_is_in_one_job(self):
        known = arms(PAPER)
        found = [(arm, seed) for job in jobs(PAPER) for arm in job.arms if arm != "curriculum" for seed in job.seeds]
        assert sorted(found) == sorted((arm.name, seed) for arm in known.values() for seed in arm.seeds)
        assert [job.seeds for job in jobs(PAPER) if job.arms == ("curriculum",)] == [(s,) for s in range(200, 206)]
        names = [job.name for job in jobs(PAPER)]
        assert len(set(names)) == len(names)

    def test_the_base_comes_first_in_groups_and_ablations_last(self):
        every = jobs(PAPER)
        assert every[0] == Job(("base",), tuple(range(200, 250)))
        assert len(next(job for job in every if job.arms[0].startswith("lr")).arms) == 20
        kinds = [job.arms[0].split(" ")[0] in ("lr", "discount", "batch", "width") for job in every]
        assert kinds == sorted(kinds)

    def test_members_differ_as_their_arms_say(self):
        known = arms(PAPER)
        base = member_of(PAPER, known["base"], 203, None)
        assert base.model == PoolingTransformerConfig(seed=203)
        assert base.task == SparseModularAddition(seed=203)
        assert member_of(PAPER, known["lr 0.0001"], 200, None).rate == pytest.approx(1e-4 / 3e-3)
        assert member_of(PAPER, known["discount 0.01"], 200, None).rates == {"blocks.0.mlp": 0.01}
        assert member_of(PAPER, known["width 10"], 200, None).model.d_mlp == 10
        assert member_of(PAPER, known["larger eps"], 200, None).model.eps_mlp == 0.1
        assert member_of(PAPER, known["scratch"], 200, None).task == SparseModularAddition(p=3, seed=200)

    def test_quick_is_the_base_alone(self):
        quick = get_study("clustering-heads").preset("quick")
        assert {job.arms for job in jobs(quick)} == {("base",)}

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"seeds": ()}, r"seeds is empty; expected at least one seed, such as --seeds 0"),
            ({"epochs": 0}, "epochs is 0; expected at least 1"),
            ({"group": 0}, "group is 0; expected at least 1"),
            ({"task": SparseModularAddition(seed=1)}, "task.seed is set by each network, from seeds; leave it out"),
            ({"mitigations": -1}, "mitigations is -1; expected at least 0"),
            ({"seeds": (3, 4, 3)}, "seeds has 3 twice; expected different seeds"),
            ({"lr": -1.0}, "lr is -1.0; expected a positive learning rate"),
            ({"eps": -1.0}, "eps_mlp is -1.0; expected at least 0"),
            ({"discount": -1.0}, "a member has a rate of -1.0; expected a factor of at least 0"),
            ({"batch_size": 0}, "batch_size is 0; expected 1 to the 2048 training sequences"),
            ({"task": SparseModularAddition(n_train=1000)}, "batch_size is 1024; expected 1 to the 1000 training"),
            (
                {"ablations": Ablations(lrs=(0.1, 0.1000000001))},
                "the ablation 'lr 0.1' is there twice; expected values",
            ),
            (
                {"task": SparseModularAddition(n_embeddings=2)},
                r"task.n_embeddings is 2; expected at least 3, the digits that transfer goes on to \(or transfer",
            ),
            (
                {"curriculum": Curriculum(first_steps=20_000)},
                r"curriculum.first_steps is 20000; expected fewer than its steps \(10000\) and at least 1",
            ),
        ],
    )
    def test_what_is_refused(self, fields, message):
        with pytest.raises(InputError, match=message):
            ClusteringHeadsConfig(**fields)


class TestMeasuredRows:
    def test_all_sequences_stand_for_both_splits(self):
        task = SparseModularAddition(length=5, n_support=2, n_train=70, n_test=30, seed=4)
        rows = measured_rows(task)
        assert len(rows.batch) == 32
        for split, share in (("train", rows.train), ("test", rows.test)):
            (batch,) = task.batches(split, 100)
            assert float(share.sum()) == pytest.approx(1)
            expected = batch.tokens.float().mean(dim=0)
            torch.testing.assert_close((share[:, None] * rows.batch.tokens).sum(dim=0), expected)

    def test_of_too_many_sequences_the_two_splits_are_measured(self):
        task = SparseModularAddition(p=3, n_train=40, n_test=24)
        rows = measured_rows(task)
        assert len(rows.batch) == 64
        assert rows.train.tolist() == pytest.approx([1 / 40] * 40 + [0.0] * 24)
        assert rows.test[40:].sum() == pytest.approx(1)


class TestDynamics:
    """Every number against the probe, or the loop, that measures it alone."""

    def test_losses_and_accuracies_are_those_of_the_splits(self, trained):
        result = dynamics(trained, 1)
        task = trained.tasks[1]
        assert [int(epoch) for epoch in result.coords["epoch"]] == trained.epochs == list(range(21))
        for place in (0, 7, 20):
            model = trained.model(1, trained.steps[place])
            for split in ("train", "test"):
                (batch,) = task.batches(split, 100)
                loss = float(task.loss(model(batch.tokens), batch).detach())
                assert float(result[f"{split}_loss"][place]) == pytest.approx(loss, rel=1e-5)
                assert float(result[f"{split}_accuracy"][place]) == pytest.approx(accuracy(model, task, split)[0])

    def test_gradients_are_those_of_the_probe(self, trained):
        result, task = dynamics(trained, 0), trained.tasks[0]
        norms = GradientNorms(next(task.batches("train", 100)), task.loss, GROUPS)
        for place in (0, 10, 20):
            norms(trained.steps[place], trained.model(0, trained.steps[place]))
        expected = norms.compute()
        assert expected.coords["group"] == result.coords["group"] == ["embeddings", "attention", "feed-forward", "all"]
        torch.testing.assert_close(result["gradient_norm"][[0, 10, 20]], expected["norm"], rtol=1e-4, atol=1e-6)

    @pytest.mark.parametrize("label", ["multiset", "sum"])
    def test_clusters_are_those_of_the_probes(self, trained, label):
        rows = measured_rows(trained.tasks[0])
        result = dynamics(trained, 0, rows.batch.labels[label])
        for place in (0, 20):
            model = trained.model(0, trained.steps[place])
            head = run(model, rows.batch, ClusteringHead(label))
            assert float(result["within_ratio"][place]) == pytest.approx(float(head["within_ratio"]), rel=1e-4)
            distance = distance_to_boundary(model, rows.batch, XI, equivalence=label)
            assert float(result["margin"][place]) == pytest.approx(float(distance["relative"].min()), rel=1e-3)

    def test_smallest_norm_and_crossings(self, trained):
        result = dynamics(trained, 1)
        rows = measured_rows(trained.tasks[1])
        classes = rows.batch.labels["multiset"].unique(return_inverse=True)[1]
        answers = []
        for place, step in enumerate(trained.steps):
            model, kept = trained.model(1, step), {}
            with torch.no_grad(), model.hooks(fwd_hooks=[(XI, lambda x, hook, kept=kept: kept.update(xi=x))]):
                model(rows.batch.tokens)
            xi = kept["xi"][:, 0]
            assert float(result["smallest_norm"][place]) == pytest.approx(float(xi.norm(dim=1).min()), rel=1e-5)
            centroids = torch.stack([xi[classes == c].mean(dim=0) for c in range(int(classes.max()) + 1)])
            put = [(XI, lambda x, hook, centroids=centroids: centroids[:, None])]
            with torch.no_grad(), model.hooks(fwd_hooks=put):
                answers.append(model(rows.batch.tokens[: len(centroids)]).argmax(dim=1))
        crossed = [0] + [int((a != b).sum()) for a, b in zip(answers[1:], answers[:-1], strict=True)]
        assert result["crossings"].tolist() == crossed
        assert any(crossed)

    def test_brief_is_the_same_without_gradients(self, trained):
        whole, brief = dynamics(trained, 0), dynamics(trained, 0, brief=True)
        assert set(whole.values) - set(brief.values) == {"gradient_norm", "within_ratio", "margin", "crossings"}
        for name, values in brief.values.items():
            torch.testing.assert_close(values, whole[name])

    def test_leaves_no_hooks(self, trained):
        model = build_model(trained.configs[0])
        before = {name: len(point._forward_hooks) for name, point in model.hook_dict.items()}
        dynamics(trained, 0)
        assert before == {
            name: len(point._forward_hooks) for name, point in build_model(trained.configs[0]).hook_dict.items()
        }


class TestRun:
    def test_lists_every_claim(self, smoke):
        analysis, _ = smoke
        assert [c.id for c in analysis.claims] == [
            "H1", "H1a", "H1b", "H1c", "H1d", "H2", "H3", "H3b", "H4a", "H4b", "H4c", "H4d", "H4e", "H5", "H6",
            "H7", "H7b", "H7c",
        ]  # fmt: skip
        assert {c.verdict for c in analysis.claims} == {"not tested at this size"}

    def test_leaves_its_artefacts(self, smoke):
        _, out = smoke
        for name in (
            "training",
            "heads",
            "dates",
            "spikes",
            "gradients",
            "shares",
            "ablations",
            "curriculum",
            "sandbox",
        ):
            assert (out / "figures" / f"{name}.png").stat().st_size > 5000
        pages = list((out / "figures").glob("sandbox-seed*.html"))
        assert len(pages) == 1
        assert f'href="figures/{pages[0].name}"' in (out / "report.html").read_text()

    def test_what_it_kept_is_what_was_trained(self, smoke):
        _, out = smoke
        runs = load_runs(SMOKE, out)
        snapshots = Snapshots(out / "models" / "base-seeds-200-201")
        task = snapshots.tasks[1]
        assert task.seed == 201
        train, test = (accuracy(snapshots.model(1), task, split)[0] for split in ("train", "test"))
        assert runs.final["base"][201] == pytest.approx((train, test))
        assert runs.heads[201].accuracy == pytest.approx(test)
        assert float(runs.heads[201].curve("test_accuracy")[-1]) == pytest.approx(test)
        assert set(runs.final) >= {"replication", "scratch", "lr 0.01", "discount 10", "batch 64", "width 4"}
        assert set(runs.mitigated["larger eps"]) == {200, 201}
        head = runs.heads[201]
        probe = ClusteringHead(("multiset", "sum"), support=(0, 1, 2), modulus=2)
        for place, kept in ((0, head.untrained), (-1, head.head)):
            again = run(snapshots.model(1, snapshots.steps[place]), measured_rows(task).batch, probe)
            assert torch.equal(again["within_ratio"], kept["within_ratio"])

    def test_goes_on_without_training_again(self, smoke):
        analysis, out = smoke
        before = {path: path.stat().st_mtime_ns for path in (out / "models").rglob("*.safetensors")}
        again = run_study(get_study("clustering-heads"), SMOKE, out, workers=1)
        assert again.claims == analysis.claims
        assert before == {path: path.stat().st_mtime_ns for path in (out / "models").rglob("*.safetensors")}

    def test_any_seed_has_a_sandbox_with_the_measured_curves(self, smoke):
        _, out = smoke
        run, head = open_sandbox(out, 201, max_frames=5), load_runs(SMOKE, out).heads[201]
        assert run.title == "seed 201"
        assert len(run.epochs) == 5
        assert np.array_equal(run.curves.margin, head.curve("margin"))
        assert set(run.curves.gradient_norms) == {"embeddings", "attention", "feed-forward", "all"}
        with pytest.raises(InputError, match=r"has no network of seed 7 \(it has 200, 201\)"):
            open_sandbox(out, 7)

    def test_an_unfinished_run_says_what_is_missing(self, smoke, tmp_path):
        analysis, out = smoke
        part = tmp_path / "part"
        shutil.copytree(out, part)
        final = part / "results" / "final"
        (final / "batch-16-seeds-200-200.safetensors").unlink()
        (part / "results" / "curriculum" / "seed200.safetensors").unlink()
        report = write_report(get_study("clustering-heads"), SMOKE, part)
        (note,) = (note for note in report.notes if "not finished" in note)
        assert note.endswith("Missing, of 13 jobs: curriculum-seeds-200-200, batch-16-seeds-200-200.")
        (part / "results" / "base" / "seed201.causal.safetensors").unlink()
        with pytest.raises(
            InputError, match=r"base setting is not finished \(seed 201 has no causal\); go on with it: mechclust run"
        ):
            load_runs(SMOKE, part)
        assert not any("not finished" in note for note in analysis.notes)

    def test_too_many_sequences_are_sampled_and_that_is_said(self, tmp_path):
        config = ClusteringHeadsConfig(
            seeds=(200,), replication=(), mitigations=0, transfer=False, epochs=2, sandbox=0, test_claims=False,
            task=SparseModularAddition(length=13, n_support=2, n_train=64, n_test=64),
            curriculum=Curriculum(seeds=()), ablations=Ablations(seeds=()),
        )  # fmt: skip
        analysis = run_study(get_study("clustering-heads"), config, tmp_path / "run", workers=1)
        assert any(
            "There are 2^13 sequences, too many to measure heads on all of them" in note for note in analysis.notes
        )


def test_transfer_starts_from_the_solved_networks(tmp_path, monkeypatch):
    monkeypatch.setattr(clustering_heads, "SOLVED", -1.0)  # every network has solved it
    config = replace(SMOKE, epochs=2, curriculum=Curriculum(seeds=()), ablations=Ablations(seeds=()))
    job = jobs(config)[0]
    clustering_heads.STUDY.run_job(config, job, tmp_path)
    base = Snapshots(tmp_path / "models" / "base-seeds-200-201")
    there = Snapshots(tmp_path / "models" / "transfer-from-base-seeds-200-201")
    assert [task.p for task in there.tasks] == [3, 3]
    assert [config.seed for config in there.configs] == [200, 201]
    start, end = there.at(0), base.at(base.steps[-1])
    for name, values in end.items():
        assert torch.equal(start[name], values)
    final = load_result(next((tmp_path / "results" / "final").glob("transfer*.safetensors")))
    assert final.coords["network"] == ["transfer|200", "transfer|201"]


def test_a_base_job_is_done_when_its_transfer_is(tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    config = replace(SMOKE, seeds=(200,), epochs=2)
    monkeypatch.setattr(clustering_heads, "_transfer", killed)
    with pytest.raises(KeyboardInterrupt):
        clustering_heads.STUDY.run_job(config, jobs(config)[0], tmp_path)
    assert jobs(config)[0] in unfinished(config, tmp_path)
    assert not list((tmp_path / "results" / "final").glob("*"))


def test_the_curriculum_goes_on_from_p_2(smoke):
    _, out = smoke
    folder = out / "models" / "curriculum-seed200"
    first, second, scratch = (Snapshots(folder / name) for name in ("p2", "curriculum", "scratch"))
    assert [s.tasks[0].p for s in (first, second, scratch)] == [2, 4, 4]
    assert [s.steps[-1] for s in (first, second, scratch)] == [2, 4, 6]
    for name, values in first.at(2).items():
        assert torch.equal(second.at(0)[name], values)
    result = load_result(out / "results" / "curriculum" / "seed200.safetensors")
    task = second.tasks[0]
    for place, snapshots in ((0, scratch), (-1, second)):
        (batch,) = task.batches("train", 100)
        loss = float(task.loss(snapshots.model(0)(batch.tokens), batch).detach())
        assert float(result["line"][place]) == pytest.approx(loss, rel=1e-5)
    for arm, snapshots in (("scratch", scratch), ("curriculum", second)):
        expected = accuracy(snapshots.model(0), task, "test")[0]
        assert float(result.sel("accuracy", arm=arm, split="test")) == pytest.approx(expected)
    assert np.isfinite(result["line"].numpy()).all()
