from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import nn

from probes import GradientNorms, WeightNorms, load_result
from tasks import Batch, InputError, SparseModularAddition


def planted(**weights: list[Any]) -> nn.Module:
    model = nn.Module()
    for name, value in weights.items():
        model.register_parameter(name, nn.Parameter(torch.tensor(value), requires_grad=name != "frozen"))
    return model


def test_norms_are_frobenius_norms_of_what_is_trained() -> None:
    model, norms = planted(a=[[3.0, 0.0], [0.0, 4.0]], frozen=[1.0], b=[[2.0, 1.0, 2.0]]), WeightNorms()
    norms(0, model)
    with torch.no_grad():
        model.a.mul_(2)
    norms(7, model)
    result = norms.compute()
    assert result["norm"].tolist() == [[5.0, 3.0], [10.0, 3.0]]  # not the spectral norm 4
    assert result["norm"].dtype == torch.float64
    assert result.axes == {"norm": ("step", "weight")}
    assert result.coords == {"step": ["0", "7"], "weight": ["a", "b"]}


def test_norms_are_copies_and_leave_no_graph() -> None:
    model, norms = planted(a=[3.0, 4.0]), WeightNorms()
    norms(0, model)
    with torch.no_grad():
        model.a.zero_()
    assert norms.compute()["norm"].tolist() == [[5.0]]
    assert not norms.compute()["norm"].requires_grad
    assert model.a.grad is None


def test_names_choose_weights_and_their_order_frozen_ones_too() -> None:
    model, norms = planted(a=[3.0], frozen=[1.0], b=[2.0]), WeightNorms(["b", "frozen"])
    norms(0, model)
    assert norms.compute().coords["weight"] == ["b", "frozen"]
    assert norms.compute().sel("norm", weight="b", step="0") == 2


def test_small_differences_of_large_norms_survive() -> None:
    """Norms are taken in float64, not rounded to float32 on the way."""
    model, norms = planted(a=[1e4, 1.0]), WeightNorms()
    norms(0, model)
    assert float(norms.compute()["norm"]) == pytest.approx((1e8 + 1) ** 0.5, rel=1e-14)


def test_a_result_survives_a_file(tmp_path: Any) -> None:
    norms = WeightNorms()
    for step in (0, 5):
        norms(step, planted(a=[3.0, float(step)]))
    norms.compute().save(tmp_path / "norms.safetensors")
    loaded = load_result(tmp_path / "norms.safetensors")
    assert torch.equal(loaded["norm"], norms.compute()["norm"])
    assert loaded.coords == norms.compute().coords
    assert list(loaded.to_dataframe()["step"]) == [0, 5]


def test_it_follows_a_training_run() -> None:
    from mechclust.models import build_model
    from mechclust.studies.topic_structure.config import TopicTransformerConfig
    from mechclust.training import TrainConfig, train
    from tasks import TopicDocuments

    task = TopicDocuments(n_topics=3, words_per_topic=2, lengths=(5, 8), n_documents=20)
    model, norms, seen = build_model(TopicTransformerConfig(d_vocab=task.d_vocab)), WeightNorms(), []
    config = TrainConfig(steps=5, batch_size=4, checkpoint_every=2)
    train(model, task, config, callbacks=[norms, lambda step, model: seen.append(model.embed.W_E.norm().item())])
    result = norms.compute()
    assert result.coords["step"] == ["0", "2", "4", "5"]
    assert result.coords["weight"] == [
        *("embed.W_E", "blocks.0.attn.W_Q", "blocks.0.attn.W_K", "blocks.0.attn.W_V", "unembed.b_U")
    ]
    assert result.sel("norm", weight="embed.W_E").tolist() == pytest.approx(seen, rel=1e-6)
    assert len(set(seen)) == 4


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match=re.escape("nothing was recorded; give WeightNorms to train(callbacks=[...])")):
        WeightNorms().compute()
    with pytest.raises(InputError, match=re.escape("no weight 'W' in this model (it has a, frozen)")):
        WeightNorms(["a", "W"])(0, planted(a=[1.0], frozen=[1.0]))
    norms = WeightNorms()
    norms(0, planted(a=[1.0]))
    with pytest.raises(InputError, match="these WeightNorms have followed another run; use new ones for each"):
        norms(1, planted(b=[1.0]))
    assert norms.compute()["norm"].shape == (1, 1)


def test_a_second_run_is_refused() -> None:
    norms = WeightNorms()
    norms(3, planted(a=[1.0]))
    with pytest.raises(InputError, match="these WeightNorms have followed another run; use new ones for each"):
        norms(3, planted(a=[1.0]))


# ---- GradientNorms ----


@pytest.fixture(scope="module")
def addition() -> SparseModularAddition:
    return SparseModularAddition(length=6, n_support=3, n_train=32, n_test=16)


@pytest.fixture
def pooling() -> Any:
    from mechclust.models import build_model
    from mechclust.studies.clustering_heads.config import PoolingTransformerConfig

    return build_model(PoolingTransformerConfig(n_ctx=6, seed=2))


def states_at(model: Any, site: str, batch: Batch) -> torch.Tensor:
    kept: list[torch.Tensor] = []
    with torch.no_grad(), model.hooks(fwd_hooks=[(site, lambda a, hook: kept.append(a.clone()))]):
        model(batch.tokens)
    return kept[0]


class Linear(nn.Module):
    """Logits ``w x_0 + b``; ``c`` stands beside."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b, self.c = (nn.Parameter(torch.tensor(v)) for v in ([3.0, 1.0], 2.0, 5.0))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens[:, :1] * self.w + self.b


TWO = Batch(torch.tensor([[1], [4]]))


def mean_logit(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    return logits.sum(dim=1).mean()


def test_gradients_by_hand() -> None:
    """The mean of x is 2.5, so the gradient is (2.5, 2.5) for w, 2 for b and 0 for c."""
    norms = GradientNorms(TWO, mean_logit)
    norms(0, Linear())
    norms(9, Linear())
    result = norms.compute()
    assert result.axes == {"norm": ("step", "group")}
    assert result.coords == {"step": ["0", "9"], "group": ["w", "b", "c", "all"]}
    expected = [math.sqrt(12.5), 2.0, 0.0, math.sqrt(16.5)]
    assert result["norm"].tolist() == [pytest.approx(expected), pytest.approx(expected)]
    assert result["norm"].dtype == torch.float64
    assert (result.probe, result.metadata["n"], result.notes) == ("GradientNorms", 2, [])


@pytest.mark.parametrize("sizes", [[32], [8, 8, 8, 8], [1, 30, 1]], ids=str)
def test_batches_count_by_their_examples(sizes: list[int], addition: Any, pooling: Any) -> None:
    (batch,) = addition.batches("train", 32)
    parts = [batch.select(rows) for rows in torch.arange(32).split(sizes)]
    norms = GradientNorms(iter(parts), addition.loss)
    norms(0, pooling)
    norms(1, pooling)  # an iterator would be empty by now
    addition.loss(pooling(batch.tokens), batch).backward()
    expected = {name: float(p.grad.norm()) for name, p in pooling.named_parameters()}
    found = norms.compute()
    assert found.coords["group"] == [*expected, "all"]
    for name, norm in expected.items():
        assert found.sel("norm", group=name).tolist() == pytest.approx([norm, norm], rel=1e-5)
    whole = math.sqrt(sum(norm**2 for norm in expected.values()))
    assert found.sel("norm", group="all").tolist() == pytest.approx([whole, whole], rel=1e-5)


def test_groups_are_named_by_first_parts(addition: Any, pooling: Any) -> None:
    (batch,) = addition.batches("train", 32)
    singly = GradientNorms(batch, addition.loss)
    groups = {
        "embeddings": ["embed", "pos_embed.W_pos"],
        "feed-forward": ["blocks.0.mlp"],
        "block": ["blocks", "blocks.0.mlp"],  # a parameter named twice counts once
    }
    grouped = GradientNorms(batch, addition.loss, groups)
    singly(0, pooling)
    grouped(0, pooling)
    assert grouped.compute().coords["group"] == ["embeddings", "feed-forward", "block", "all"]
    by_name = {name: float(singly.compute().sel("norm", group=name)[0]) for name in singly.compute().coords["group"]}
    mlp, attn = [f"blocks.0.mlp.{k}" for k in ("W_in", "b_in", "W_out", "b_out")], ["query", "W_V"]
    members = {
        "embeddings": ["embed.W_E", "pos_embed.W_pos"],
        "feed-forward": mlp,
        "block": [*mlp, *(f"blocks.0.attn.{k}" for k in attn)],
        "all": [name for name in by_name if name != "all"],
    }
    for group, names in members.items():
        expected = math.sqrt(sum(by_name[name] ** 2 for name in names))
        assert float(grouped.compute().sel("norm", group=group)[0]) == pytest.approx(expected, rel=1e-12)


def test_first_parts_are_whole_parts() -> None:
    model = nn.ModuleDict({f"block{i}": nn.Embedding(5, 2) for i in (1, 10)})
    model.forward = lambda tokens: model["block1"](tokens) + model["block10"](tokens)
    norms = GradientNorms(TWO, lambda logits, batch: logits.sum(), {"first": ["block1"]})
    norms(0, model)
    first, whole = norms.compute()["norm"][0].tolist()
    assert (first, whole) == (pytest.approx(2.0), pytest.approx(math.sqrt(8)))


def test_frozen_parameters_have_no_gradient() -> None:
    model = Linear()
    model.b.requires_grad_(False)
    norms = GradientNorms(TWO, mean_logit)
    norms(0, model)
    assert norms.compute().coords["group"] == ["w", "c", "all"]


def test_gradients_leave_everything_as_it_was(addition: Any, pooling: Any) -> None:
    (batch,) = addition.batches("train", 32)
    pooling.drop = nn.Dropout(0.5)
    pooling.train()
    pooling.blocks[0].eval()
    addition.loss(pooling(batch.tokens), batch).backward()
    pooling.embed.W_E.grad = None
    before = {name: None if p.grad is None else p.grad.clone() for name, p in pooling.named_parameters()}
    modes, state = {k: m.training for k, m in pooling.named_modules()}, torch.get_rng_state()

    def noisy(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        return addition.loss(pooling.drop(logits), batch) + 0 * torch.rand(())

    norms = GradientNorms(batch, noisy)
    with torch.no_grad():
        norms(0, pooling)
    clean = GradientNorms(batch, addition.loss)
    clean(0, pooling)
    torch.testing.assert_close(norms.compute()["norm"], clean.compute()["norm"])  # dropout was off
    assert torch.equal(torch.get_rng_state(), state)
    assert {k: m.training for k, m in pooling.named_modules()} == modes
    for name, p in pooling.named_parameters():
        assert p.grad is before[name] is None or torch.equal(p.grad, before[name])


def test_a_network_whose_logits_are_zero_learns_its_vocabulary_only(addition: Any, pooling: Any) -> None:
    """dL/dE_j is the mean of (1/3 - [answer is j]) y over sequences, and nothing behind E has a gradient."""
    (batch,) = addition.batches("all", 64)
    with torch.no_grad():
        pooling.embed.W_E.zero_()
    norms = GradientNorms(batch, addition.loss, {"embedding": ["embed"], "rest": ["blocks", "pos_embed"]})
    norms(0, pooling)
    y = states_at(pooling, "blocks.0.hook_resid_post", batch)[:, 0]
    pull = 1 / 3 - nn.functional.one_hot(batch.labels["answer"], 3)
    expected = float((pull.T @ y / 64).norm())
    assert norms.compute()["norm"][0].tolist() == pytest.approx([expected, 0.0, expected], rel=1e-5)


def test_a_gradient_that_is_not_finite_is_noted() -> None:
    norms = GradientNorms(TWO, lambda logits, batch: logits.sum() * (math.nan if logits[0, 0] > 10 else 1.0))
    model = Linear()
    norms(0, model)
    with torch.no_grad():
        model.b.fill_(100.0)
    norms(7, model)
    norms(8, model)
    assert norms.compute().notes == ["a gradient is not finite at 2 steps, the first of them 7"]
    assert norms.compute()["norm"].isnan().any(dim=1).tolist() == [False, True, True]


def test_gradients_follow_a_training_run_without_changing_it(addition: Any, tmp_path: Any) -> None:
    from mechclust.models import build_model
    from mechclust.studies.clustering_heads.config import PoolingTransformerConfig
    from mechclust.training import TrainConfig, train

    norms = GradientNorms(addition.batches("test"), addition.loss, {"feed-forward": ["blocks.0.mlp"]})
    config = TrainConfig(steps=5, batch_size=4, checkpoint_every=2)
    finals = []
    for callbacks in ([norms], []):
        model = build_model(PoolingTransformerConfig(n_ctx=6))
        train(model, addition, config, callbacks=callbacks)
        finals.append({k: v.clone() for k, v in model.state_dict().items()})
    assert all(torch.equal(finals[0][name], value) for name, value in finals[1].items())
    result = norms.compute()
    assert result.coords == {"step": ["0", "2", "4", "5"], "group": ["feed-forward", "all"]}
    result.save(tmp_path / "r.safetensors")
    assert torch.equal(load_result(tmp_path / "r.safetensors")["norm"], result["norm"])


def test_what_gradient_norms_refuse() -> None:
    names = "(there are w, b, c)"
    for arguments, message in (
        ({"batches": []}, "there are no examples to take gradients on; give at least one non-empty batch"),
        ({"groups": {"all": ["w"]}}, "a group is called 'all', which stands for every parameter; give it another name"),
        ({"groups": {"g": "w"}}, "group 'g' is 'w'; expected a sequence of parameter names or their first parts"),
        ({"groups": {"g": []}}, "group 'g' is []; expected a sequence of parameter names or their first parts"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            GradientNorms(**{"batches": TWO, "loss": mean_logit, **arguments})  # type: ignore[arg-type]
    with pytest.raises(
        InputError,
        match=re.escape(f"group 'g': no trained parameter is called 'v' or starts with 'v.' {names}"),
    ):
        GradientNorms(TWO, mean_logit, {"g": ["w", "v"]})(0, Linear())
    with pytest.raises(InputError, match="this Linear has nothing to train; let some parameters require gradients"):
        GradientNorms(TWO, mean_logit)(0, Linear().requires_grad_(False))
    with pytest.raises(InputError, match=re.escape("nothing was recorded; give GradientNorms to train(callbacks=")):
        GradientNorms(TWO, mean_logit).compute()
    norms = GradientNorms(TWO, mean_logit)
    norms(3, Linear())
    with pytest.raises(InputError, match="these GradientNorms have followed another run; use new ones for each"):
        norms(3, Linear())
    assert norms.compute().coords["step"] == ["3"]
