"""The loss on the straight line between two networks, and neurons put in another's order."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from mechclust.models import build_model
from mechclust.models.weights import get_weights, set_weights
from mechclust.studies.clustering_heads.config import PoolingTransformerConfig
from mechclust.studies.clustering_heads.interpolation import loss_barrier, loss_between, neurons_matched, places_on_line
from tasks import SparseModularAddition

TASK = SparseModularAddition(length=5, n_support=2, n_train=20, n_test=8)
SHAPE = PoolingTransformerConfig(n_ctx=5, d_mlp=4)


def weights_of(seed):
    return get_weights(build_model(SHAPE.with_seed(seed)))


def test_is_the_loss_of_networks_put_together_by_hand():
    start, end, model = weights_of(0), weights_of(1), build_model(SHAPE)
    line = loss_between(model, start, end, TASK, 3)
    assert places_on_line(3) == [0, 0.5, 1]
    (batch,) = TASK.batches("train", 20)
    for place, found in zip((0, 0.5, 1), line, strict=True):
        set_weights(model, {name: (1 - place) * start[name] + place * end[name] for name in start})
        assert float(found) == pytest.approx(float(TASK.loss(model(batch.tokens), batch).detach()), rel=1e-5)


def test_matching_finds_a_permutation_and_leaves_the_function():
    one, model = weights_of(0), build_model(SHAPE)
    order = torch.tensor([2, 0, 3, 1])
    moved = {
        **one,
        "blocks.0.mlp.W_in": one["blocks.0.mlp.W_in"][:, order],
        "blocks.0.mlp.b_in": one["blocks.0.mlp.b_in"][order],
        "blocks.0.mlp.W_out": one["blocks.0.mlp.W_out"][order],
    }
    back = neurons_matched(moved, one)
    assert all(torch.equal(back[name], one[name]) for name in one)
    assert loss_barrier(loss_between(model, one, back, TASK, 5).numpy()) < 1e-6
    assert loss_between(model, one, moved, TASK, 3)[1] != loss_between(model, one, back, TASK, 3)[1]


def test_the_order_is_the_best_of_all():
    one, other = weights_of(0), weights_of(7)

    def rows(of):
        parts = (of["blocks.0.mlp.W_in"].T, of["blocks.0.mlp.b_in"][:, None], of["blocks.0.mlp.W_out"])
        return torch.cat(parts, dim=1).numpy()

    best = max((rows(one) * rows(other)[list(order)]).sum() for order in itertools.permutations(range(4)))
    assert (rows(one) * rows(neurons_matched(other, one))).sum() == pytest.approx(best, rel=1e-5)


def test_a_barrier_is_above_the_worse_end():
    assert loss_barrier(np.array([0.0, 25.0, 1.0])) == 24
    assert loss_barrier(np.array([3.0, 2.0, 1.0])) == 0
