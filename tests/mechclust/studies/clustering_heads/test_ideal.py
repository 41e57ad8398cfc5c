"""The ideal head and other starts: what is planted is there, and the rest is that of the seed."""

from __future__ import annotations

import pytest
import torch

from mechclust.models import build_model
from mechclust.models.weights import get_weights, set_weights
from mechclust.studies.clustering_heads.config import HEAD_PARTS, XI, PoolingTransformerConfig
from mechclust.studies.clustering_heads.cut import sequence_embeddings
from mechclust.studies.clustering_heads.ideal import ideal_head, member_with_start
from mechclust.training import Member, TrainConfig, train_ensemble
from probes import ClusteringHead, run
from probes.engine.record import record
from tasks import SparseModularAddition

TASK = SparseModularAddition()


def planted(beta, task=TASK):
    config = PoolingTransformerConfig(n_ctx=task.length)
    model = build_model(config)
    set_weights(model, {**get_weights(model), **ideal_head(config, task, beta)})
    return model


@pytest.mark.parametrize(("beta", "mass", "within"), [(0, 0.417, 0.58), (2, 0.924, 4.9e-3), (8, 1.0, 2e-10)])
def test_has_the_published_attention_and_clusters(beta, mass, within):
    """The values of specification 4, of an independent replication."""
    model, task = planted(beta), TASK
    (batch,) = task.batches("all", 4096)
    found = run(model, batch, ClusteringHead(("multiset", "sum"), support=task.positions, modulus=2))
    assert float(found["support_mass"]) == pytest.approx(mass, abs=1e-3)
    assert float(found["within_ratio"][0, 0, 0]) == pytest.approx(within, rel=0.1)


@pytest.mark.parametrize("support", [(0, 1, 2), (1, 4, 5)])
def test_places_every_sum_by_a_closed_form(support):
    """With all attention on the support, xi = (1 - 2 sum / 3, 1)."""
    task = SparseModularAddition(length=6, support=support)
    (batch,) = task.batches("all", 4096)
    model = planted(20, task)
    with torch.no_grad(), record(model, [XI]) as seen:
        model(batch.tokens)
    expected = torch.stack([1 - 2 * batch.labels["sum"] / 3, torch.ones(len(batch))], dim=1)
    torch.testing.assert_close(seen[XI][0][:, 0], expected, atol=1e-4, rtol=0)


def test_of_larger_p_equal_multisets_meet_and_equal_sums_do_not():
    task = SparseModularAddition(p=3, length=5, n_support=3)
    (batch,) = task.batches("all", 4096)
    xi = sequence_embeddings(planted(20, task), batch.tokens).detach()
    spread = {}
    for name in ("multiset", "sum"):
        labels = batch.labels[name]
        spread[name] = max(float((xi[labels == v] - xi[labels == v].mean(dim=0)).abs().max()) for v in labels.unique())
    assert spread["multiset"] < 1e-5
    assert spread["sum"] > 0.1


def test_scales_and_positions_leave_the_rest_to_the_seed():
    member = Member(PoolingTransformerConfig(seed=3), TASK)
    drawn = get_weights(build_model(member.model))
    assert member_with_start(member, {}, "") is member
    scaled = member_with_start(member, {"blocks.0.mlp": 0.1}, "").weights
    for name, values in drawn.items():
        assert torch.equal(scaled[name], 0.1 * values if name.startswith("blocks.0.mlp") else values)
    placed = member_with_start(member, {}, "positions").weights
    assert placed["pos_embed.W_pos"].tolist() == [[0.0, 1.0]] * 5 + [[0.0, -1.0]] * 7
    assert all(torch.equal(placed[name], values) for name, values in drawn.items() if name != "pos_embed.W_pos")
    head = member_with_start(member, {}, "head", beta=4.0).weights
    assert head["blocks.0.attn.query"].tolist() == [[0.0, 4.0]]
    assert torch.equal(head["blocks.0.mlp.W_in"], drawn["blocks.0.mlp.W_in"])


def test_the_second_stage_trains_nothing_but_the_feed_forward_layer(tmp_path):
    task = SparseModularAddition(length=5, n_support=2, n_train=32, n_test=16)
    member = member_with_start(Member(PoolingTransformerConfig(n_ctx=5), task), {}, "head")
    config = TrainConfig(steps=20, batch_size=16, optimizer="adam", schedule="constant", clip=None, freeze=HEAD_PARTS)
    snapshots = train_ensemble([member], config, tmp_path, backend="vmap")
    end = get_weights(snapshots.model(0))
    for name, values in member.weights.items():
        assert torch.equal(end[name], values) == (not name.startswith("blocks.0.mlp"))
