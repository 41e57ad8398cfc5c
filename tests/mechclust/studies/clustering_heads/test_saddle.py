"""Eigenvalues of the Hessian, against another Hessian and against losses whose spectrum is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mechclust.models import build_model
from mechclust.studies.clustering_heads.config import PoolingTransformerConfig
from mechclust.studies.clustering_heads.dynamics import measured_rows
from mechclust.studies.clustering_heads.saddle import TrainingLoss, eigenvalues, measure_curvature
from mechclust.training import Member, TrainConfig, train_ensemble
from tasks import SparseModularAddition

TASK = SparseModularAddition(length=4, n_support=2, n_train=12, n_test=8, seed=5)
SHAPE = PoolingTransformerConfig(n_ctx=4, d_mlp=4, seed=5)  # 6 + 8 + 2 + 4 + 8 + 4 + 8 + 2 weights


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory):
    config = TrainConfig(steps=30, batch_size=12, lr=0.03, schedule="constant", optimizer="adam", clip=None)
    return train_ensemble([Member(SHAPE, TASK)], config, tmp_path_factory.mktemp("s"), snapshot_every=10)


def dense_hessian(model, task):
    """Of the mean cross-entropy of the training sequences, by automatic differentiation of all pairs of weights."""
    (batch,) = task.batches("train", 4096)
    model = model.double()
    names, values = zip(*((n, p.detach()) for n, p in model.named_parameters()), strict=True)
    sizes = [v.numel() for v in values]

    def loss(vector):
        parts = {n: x.view(v.shape) for n, x, v in zip(names, vector.split(sizes), values, strict=True)}
        logits = torch.func.functional_call(model, parts, (batch.tokens,))
        return F.cross_entropy(logits, batch.labels["answer"])

    return torch.autograd.functional.hessian(loss, torch.cat([v.flatten() for v in values])).numpy()


def test_is_the_spectrum_of_the_dense_hessian(snapshots):
    places = [0, 2, 3]
    found = measure_curvature(snapshots, 0, places)
    for i, place in enumerate(places):
        values = np.linalg.eigvalsh(dense_hessian(snapshots.model(0, snapshots.steps[place]), TASK))
        assert found["smallest"][i].numpy() == pytest.approx(values[:4], rel=1e-4, abs=1e-7)
        assert float(found["largest"][i]) == pytest.approx(values[-1], rel=1e-4)
    assert found.metadata["weights"] == 42
    assert found.coords["snapshot"] == ["0", "2", "3"]


class Quadratic:
    """Half of x^T A x, whose Hessian is A everywhere."""

    def __init__(self, matrix):
        self.matrix = torch.from_numpy(matrix)

    def __call__(self, x):
        return 0.5 * x @ self.matrix @ x


def test_a_planted_saddle_and_a_planted_minimum():
    draw = np.random.default_rng(0)
    turn = np.linalg.qr(draw.normal(size=(60, 60)))[0]
    for least in (-0.5, 0.02):
        spectrum = np.concatenate([[least], np.linspace(0.1, 2.0, 59)])
        matrix = turn @ np.diag(spectrum) @ turn.T
        values = eigenvalues(Quadratic(matrix), torch.zeros(60, dtype=torch.float64))
        assert values == pytest.approx(spectrum, abs=1e-9)


def test_a_network_that_diverged_has_no_eigenvalues():
    assert np.isnan(eigenvalues(Quadratic(np.full((3, 3), np.inf)), torch.zeros(3, dtype=torch.float64))).all()


def test_sequences_outside_the_training_split_do_not_count():
    model, rows = build_model(SHAPE), measured_rows(TASK)
    weights = dict(model.named_parameters())
    loss = TrainingLoss(model, rows, {n: v.detach() for n, v in weights.items()})
    (batch,) = TASK.batches("train", 4096)
    expected = F.cross_entropy(model(batch.tokens), batch.labels["answer"])
    assert float(loss(loss.vector({n: v.detach() for n, v in weights.items()}))) == pytest.approx(
        float(expected.detach())
    )
