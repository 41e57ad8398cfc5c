"""What is measured at every epoch, against the loops and probes that measure it alone."""

from __future__ import annotations

import pytest
import torch

from mechclust.models import build_model
from mechclust.studies.clustering_heads import dynamics as dynamics_module
from mechclust.studies.clustering_heads.boundary import boundary_distance
from mechclust.studies.clustering_heads.config import XI, PoolingTransformerConfig
from mechclust.studies.clustering_heads.dynamics import WEIGHT_GROUPS, measure_dynamics, measured_rows
from mechclust.training import Member, TrainConfig, accuracy, train_ensemble
from probes import ClusteringHead, record, run
from tasks import SparseModularAddition


def classifier(model):
    """The network's logits as a function of xi, by its formula."""
    w = {k: v.detach() for k, v in model.named_parameters()}

    def logits(xi):
        normed = xi / (xi.square().mean(-1, keepdim=True).sqrt() + 1e-5)
        hidden = torch.nn.functional.gelu(normed @ w["blocks.0.mlp.W_in"] + w["blocks.0.mlp.b_in"])
        return (xi + hidden @ w["blocks.0.mlp.W_out"] + w["blocks.0.mlp.b_out"]) @ w["embed.W_E"].T

    return logits


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
        result = measure_dynamics(trained, 1)
        task = trained.tasks[1]
        assert [int(epoch) for epoch in result.coords["epoch"]] == trained.epochs == list(range(21))
        for place in (0, 7, 20):
            model = trained.model(1, trained.steps[place])
            for split in ("train", "test"):
                (batch,) = task.batches(split, 100)
                loss = float(task.loss(model(batch.tokens), batch).detach())
                assert float(result[f"{split}_loss"][place]) == pytest.approx(loss, rel=1e-5)
                assert float(result[f"{split}_accuracy"][place]) == accuracy(model, task, split)[0]

    def test_gradients_are_those_of_autograd(self, trained):
        result, task = measure_dynamics(trained, 0), trained.tasks[0]
        assert result.coords["group"] == ["embeddings", "attention", "feed-forward", "all"]
        (batch,) = task.batches("train", 100)
        for place in (0, 10, 20):
            model = trained.model(0, trained.steps[place])
            task.loss(model(batch.tokens), batch).backward()
            weights = {name: p.grad for name, p in model.named_parameters()}
            groups = [
                [g for name, g in weights.items() if name.startswith(starts)] for starts in WEIGHT_GROUPS.values()
            ]
            expected = torch.stack(
                [torch.cat([g.flatten() for g in group]).norm() for group in [*groups, weights.values()]]
            )
            torch.testing.assert_close(result["gradient_norm"][place], expected.double(), rtol=1e-4, atol=1e-6)

    @pytest.mark.parametrize("label", ["multiset", "sum"])
    def test_clusters_are_those_of_the_probe_and_their_margin_is_the_models(self, trained, label):
        rows = measured_rows(trained.tasks[0])
        classes = rows.batch.labels[label].unique(return_inverse=True)[1]
        result = measure_dynamics(trained, 0, rows.batch.labels[label])
        for place in (0, 20):
            model = trained.model(0, trained.steps[place])
            head = run(model, rows.batch, ClusteringHead(label))
            assert float(result["within_ratio"][place]) == pytest.approx(float(head["within_ratio"]), rel=1e-4)
            with torch.no_grad(), record(model, [XI]) as seen:
                model(rows.batch.tokens)
            centroids = torch.stack([seen[XI][0][classes == c, 0].mean(dim=0) for c in range(int(classes.max()) + 1)])
            relative = boundary_distance(classifier(model), centroids) / centroids.norm(dim=1)
            assert float(result["margin"][place]) == pytest.approx(float(relative.min()), rel=1e-3)

    def test_smallest_norm(self, trained):
        result = measure_dynamics(trained, 1)
        rows = measured_rows(trained.tasks[1])
        for place, step in enumerate(trained.steps):
            model = trained.model(1, step)
            with torch.no_grad(), record(model, [XI]) as seen:
                model(rows.batch.tokens)
            least = float(seen[XI][0][:, 0].norm(dim=1).min())
            assert float(result["smallest_norm"][place]) == pytest.approx(least, rel=1e-5)

    def test_brief_is_the_same_without_gradients(self, trained):
        whole, brief = measure_dynamics(trained, 0), measure_dynamics(trained, 0, brief=True)
        assert set(whole.values) - set(brief.values) == {"gradient_norm", "within_ratio", "margin"}
        for name, values in brief.values.items():
            torch.testing.assert_close(values, whole[name])

    def test_brief_needs_no_partition(self, tmp_path):
        task = SparseModularAddition(p=10, length=20, n_support=20, n_embeddings=10, n_train=16, n_test=16)
        member = Member(PoolingTransformerConfig(d_vocab=10, n_ctx=20, d_mlp=4), task)
        settings = TrainConfig(steps=2, batch_size=16, schedule="constant", clip=None)
        snapshots = train_ensemble([member], settings, tmp_path, backend="loop")
        assert "multiset" not in measured_rows(task).batch.labels
        assert measure_dynamics(snapshots, 0, brief=True)["test_loss"].shape == (3,)

    def test_leaves_no_hooks(self, trained, monkeypatch):
        model = build_model(trained.configs[0])
        before = {name: len(point._forward_hooks) for name, point in model.hook_dict.items()}
        monkeypatch.setattr(dynamics_module, "build_model", lambda config: model)
        measure_dynamics(trained, 0)
        assert before == {name: len(point._forward_hooks) for name, point in model.hook_dict.items()}
