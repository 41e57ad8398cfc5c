"""Distances from a model's own decision boundary, against classifiers written down by hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from probes import distance_to_boundary, load_result, residual
from probes.functional import boundary_distance
from tasks import Batch, InputError, SparseModularAddition

MID = "blocks.0.hook_resid_mid"
TASK = SparseModularAddition(length=6, n_support=3)


@pytest.fixture
def pooling() -> Any:
    from mechclust.models import build_model
    from mechclust.studies.clustering_heads.config import PoolingTransformerConfig

    return build_model(PoolingTransformerConfig(n_ctx=6, seed=2))


def whole() -> Batch:
    return next(TASK.batches("all", 64))


def states_at(model: Any, site: str, batch: Batch) -> Tensor:
    kept: list[Tensor] = []
    with torch.no_grad(), model.hooks(fwd_hooks=[(site, lambda a, hook: kept.append(a.clone()))]):
        model(batch.tokens)
    return kept[0]


def classifier(model: Any) -> Callable[[Tensor], Tensor]:
    """The pooling transformer's logits as a function of xi, by its formula."""
    w = {k: v.detach() for k, v in model.named_parameters()}

    def logits(xi: Tensor) -> Tensor:
        normed = xi / (xi.square().mean(-1, keepdim=True).sqrt() + 1e-5)
        hidden = nn.functional.gelu(normed @ w["blocks.0.mlp.W_in"] + w["blocks.0.mlp.b_in"])
        return (xi + hidden @ w["blocks.0.mlp.W_out"] + w["blocks.0.mlp.b_out"]) @ w["embed.W_E"].T

    return logits


def test_examples_are_measured_by_the_models_own_classifier(pooling: Any) -> None:
    result = distance_to_boundary(pooling, whole())
    xi = states_at(pooling, MID, whole())[:, 0]
    expected = boundary_distance(classifier(pooling), xi)
    torch.testing.assert_close(result["distance"].float(), expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(result["relative"].float(), expected / xi.norm(dim=1), rtol=1e-4, atol=1e-6)
    assert result.axes == {"distance": ("example",), "relative": ("example",)}
    assert result.coords == {"example": [str(i) for i in range(64)]}
    assert (result["distance"].dtype, result.notes, result.metadata["site"]) == (torch.float64, [], MID)


@pytest.mark.parametrize("label", ["multiset", "sum"])
def test_clusters_are_measured_at_their_centroids(pooling: Any, label: str) -> None:
    result = distance_to_boundary(pooling, whole(), equivalence=label)
    values = whole().labels[label]
    xi = states_at(pooling, MID, whole())[:, 0]
    names = values.unique().tolist()
    centroids = torch.stack([xi[values == name].mean(dim=0) for name in names])
    expected = boundary_distance(classifier(pooling), centroids)
    assert result.coords == {"cluster": [str(name) for name in names]}
    torch.testing.assert_close(result["distance"].float(), expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(result["relative"].float(), expected / centroids.norm(dim=1), rtol=1e-4, atol=1e-6)


def test_an_integer_weight_network_in_closed_form(pooling: Any) -> None:
    """Without a feed-forward layer the logits are xi . E_j: distance |x_1| from the line between two classes."""
    with torch.no_grad():
        for name in ("W_in", "b_in", "W_out", "b_out"):
            getattr(pooling.blocks[0].mlp, name).zero_()
        pooling.embed.W_E.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]]))
        pooling.embed.W_E[2] = torch.tensor([-9.0, 0.0])
    xi = states_at(pooling, MID, whole())[:, 0].double()
    torch.testing.assert_close(distance_to_boundary(pooling, whole())["distance"], xi[:, 0].abs(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("equivalence", [None, "multiset"])
def test_batches_and_their_order_change_nothing(pooling: Any, equivalence: str | None) -> None:
    at_once = distance_to_boundary(pooling, whole(), equivalence=equivalence)
    parts = reversed(list(TASK.batches("all", 10)))
    apart = distance_to_boundary(pooling, parts, equivalence=equivalence)
    assert apart.coords == at_once.coords
    for name in at_once.values:
        torch.testing.assert_close(apart[name], at_once[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("site", ["blocks.0.hook_resid_post", "blocks.1.hook_resid_pre", "blocks.1.hook_resid_post"])
def test_the_last_token_of_a_sequence_is_measured(model: Any, batch: Batch, site: str) -> None:
    """A small step against each gradient changes the margin as the distance says."""
    result = distance_to_boundary(model, batch, at=site)
    last, rows = batch.last_positions(), torch.arange(len(batch))
    mask = batch.attention_mask.long()
    x = states_at(model, site, batch)

    def logits(point: Tensor, row: int) -> Tensor:
        def replace(a: Tensor, hook: Any) -> Tensor:
            a = a.clone()
            a[row, last[row]] = point
            return a

        with model.hooks(fwd_hooks=[(site, replace)]):
            return model(batch.tokens, attention_mask=mask)[row, last[row]]

    for row in (0, 5):
        point = x[row, last[row]]
        jacobian = torch.autograd.functional.jacobian(lambda p, row=row: logits(p, row), point)
        values = logits(point, row).detach()
        top = int(values.argmax())
        ways = [
            float((values[top] - values[j]) / (jacobian[top] - jacobian[j]).norm())
            for j in range(len(values))
            if j != top
        ]
        assert float(result["distance"][row]) == pytest.approx(min(ways), rel=1e-4)
    torch.testing.assert_close(
        result["relative"], result["distance"] / x[rows, last].double().norm(dim=1), rtol=1e-5, atol=0
    )


def test_clusters_of_sequences_keep_the_other_tokens_of_their_first_example(model: Any, batch: Batch) -> None:
    """At the last block nothing but the last token counts: any example gives the centroid's distance."""
    site = "blocks.1.hook_resid_post"
    labels = torch.arange(len(batch)) % 2
    marked = Batch(batch.tokens, batch.attention_mask, labels={"half": labels}, index=batch.index)
    result = distance_to_boundary(model, marked, at=site, equivalence="half")
    x = states_at(model, site, batch)[torch.arange(len(batch)), batch.last_positions()]
    centroids = torch.stack([x[labels == k].mean(dim=0) for k in (0, 1)])

    def logits(points: Tensor) -> Tensor:
        with model.hooks(fwd_hooks=[(site, lambda a, hook: points[:, None].expand(-1, a.shape[1], -1))]):
            return model(batch.tokens[:2])[:, -1]

    torch.testing.assert_close(result["distance"].float(), boundary_distance(logits, centroids), rtol=1e-4, atol=1e-6)
    assert result.coords == {"cluster": ["0", "1"]}


def test_the_first_example_is_the_first_by_index(model: Any, batch: Batch) -> None:
    labels = {"half": torch.arange(len(batch)) % 2}
    marked = Batch(batch.tokens, batch.attention_mask, labels=labels, index=batch.index)
    site = "blocks.1.hook_resid_pre"  # the attention that follows reads the other tokens
    at_once = distance_to_boundary(model, marked, site, "half")["distance"]
    apart = [marked.select(torch.tensor([row])) for row in reversed(range(len(batch)))]
    found = distance_to_boundary(model, apart, site, "half")["distance"]
    torch.testing.assert_close(found, at_once, rtol=1e-4, atol=1e-6)
    without = marked.select(torch.arange(2, len(batch)))
    assert not torch.allclose(distance_to_boundary(model, without, site, "half")["distance"], at_once, rtol=1e-2)


def test_clusters_may_meet_at_different_lengths(model: Any, batch: Batch) -> None:
    """A batch cut to the length of its longest example gives what the padded one gave."""
    labels = {"one": torch.arange(len(batch))}
    marked = Batch(batch.tokens, batch.attention_mask, labels=labels, index=batch.index)
    short = [marked.select(torch.tensor([row])) for row in range(len(batch))]
    cut = [b._map(lambda t, b=b: t[:, : int(b.lengths()[0])] if t.ndim == 2 else t) for b in short]
    assert len({b.tokens.shape[1] for b in cut}) > 1
    site = "blocks.1.hook_resid_pre"
    torch.testing.assert_close(
        distance_to_boundary(model, cut, site, "one")["distance"],
        distance_to_boundary(model, marked, site)["distance"],
        rtol=1e-4,
        atol=1e-6,
    )


def test_what_has_no_distance_is_noted(pooling: Any) -> None:
    with torch.no_grad():
        pooling.embed.W_E.zero_()  # all classes alike
    result = distance_to_boundary(pooling, whole())
    assert result["distance"].isnan().all()
    assert result.notes == [
        "64 distances (axis example) are not finite: no gradient leads to another class (infinite), two classes are "
        "alike or the activation is 0 (NaN)"
    ]


def test_everything_is_left_as_it_was(pooling: Any, hooks_of: Callable[..., Any]) -> None:
    distance_to_boundary(pooling, whole())
    seen = []
    pooling.train()
    pooling.blocks[0].eval()
    with pooling.hooks(fwd_hooks=[("hook_embed", lambda a, hook: seen.append(1))]):
        hooks, state = hooks_of(pooling), torch.get_rng_state()
        distance_to_boundary(pooling, whole(), equivalence="sum")
        with pytest.raises(InputError):
            distance_to_boundary(pooling, whole(), equivalence="sums")
        with pytest.raises(InputError):
            distance_to_boundary(pooling, whole(), at="blocks.0.attn.hook_z")
        assert hooks_of(pooling) == hooks != {}
    assert seen
    assert torch.equal(torch.get_rng_state(), state)
    assert (pooling.training, pooling.blocks[0].training) == (True, False)
    assert all(p.grad is None for p in pooling.parameters())


def test_dropout_is_off(pooling: Any) -> None:
    expected = distance_to_boundary(pooling, whole())["distance"]
    pooling.drop = nn.Dropout(0.5)
    pooling.train()
    with pooling.hooks(fwd_hooks=[("blocks.0.mlp.hook_post", lambda a, hook: pooling.drop(a))]):
        assert torch.equal(distance_to_boundary(pooling, whole())["distance"], expected)


def test_a_result_survives_a_file(pooling: Any, tmp_path: Any) -> None:
    result = distance_to_boundary(pooling, whole(), equivalence="sum")
    result.save(tmp_path / "r.safetensors")
    loaded = load_result(tmp_path / "r.safetensors")
    assert torch.equal(loaded["distance"], result["distance"])
    assert loaded.metadata["equivalence"] == "sum"
    assert len(loaded.to_dataframe()) == 8


def test_what_is_refused(pooling: Any) -> None:
    per_token = Batch(whole().tokens, labels={"word": whole().tokens})
    cases: list[tuple[Any, dict[str, Any], str]] = [
        ([], {}, "there are no examples to measure; give at least one non-empty batch"),
        ([], {"equivalence": "sum"}, "there are no examples to measure; give at least one non-empty batch"),
        (whole(), {"at": "blocks.0.hook_mid"}, "no hook point 'blocks.0.hook_mid' in this model"),
        (whole(), {"at": residual()}, "at gives 2 hook points; expected one, such as 'blocks.0.hook_resid_mid'"),
        (
            whole(),
            {"at": "blocks.0.attn.hook_z"},
            "'blocks.0.attn.hook_z' gives shape (64, 1, 1, 2); expected one activation [batch pos d], such as a",
        ),
        (whole(), {"equivalence": "topic"}, "no label 'topic' in this batch (it has 'answer', 'sum', 'multiset')"),
        (
            per_token,
            {"equivalence": "word"},
            "label 'word' is per token; distance_to_boundary needs one value per example",
        ),
    ]
    for batches, arguments, message in cases:
        with pytest.raises(InputError, match=re.escape(message)):
            distance_to_boundary(pooling, batches, **arguments)


def test_a_hook_point_that_never_fires_is_refused(pooling: Any) -> None:
    pooling.blocks[0].mlp.hook_spare = type(pooling.hook_embed)()
    pooling.setup()
    with pytest.raises(InputError, match=r"'blocks.0.mlp.hook_spare' did not fire in this forward pass; expected one"):
        distance_to_boundary(pooling, whole(), at="blocks.0.mlp.hook_spare")


def test_a_site_whose_replacement_stops_halfway_is_refused(model: Any, batch: Batch, tl_major: int) -> None:
    """In TransformerLens 4 the middle of a block is the feed-forward layer's input under another name."""
    site = "blocks.1.hook_resid_mid"
    if tl_major < 4:
        assert distance_to_boundary(model, batch, at=site)["distance"].isfinite().all()
        return
    message = (
        "'blocks.1.hook_resid_mid' is another name of 'blocks.1.ln2.hook_in' in this model (TransformerLens 4), so "
        "what replaces it reaches the feed-forward layer but not the residual stream; use 'blocks.1.hook_resid_pre' "
        "or 'blocks.1.hook_resid_post'"
    )
    with pytest.raises(InputError, match=re.escape(message)):
        distance_to_boundary(model, batch, at=site)
