"""The pooling transformer is the network of the specification: its formula and its exact facts."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from mechclust.models import build_model, load_model, save_model
from mechclust.studies.clustering_heads.config import PoolingTransformerConfig
from probes import attention_pattern, head_output, record, residual, resolve
from tasks import InputError

CONFIG = PoolingTransformerConfig(seed=3)
WIDE = PoolingTransformerConfig(d_vocab=4, n_ctx=6, d_model=8, n_heads=2, d_mlp=16, seed=1)


def tokens(config, n=20):
    return torch.randint(config.d_vocab, (n, config.n_ctx), generator=torch.Generator().manual_seed(0))


def recorded(model, x):
    with record(model, model.hook_dict) as seen:
        logits = model(x)
    return logits, {name: found[-1].detach() for name, found in seen.items() if found}


@pytest.mark.parametrize("config", [CONFIG, WIDE])
def test_weights_are_counted_without_the_network(config):
    assert config.n_weights == sum(p.numel() for p in build_model(config).parameters())


@pytest.mark.parametrize("name", ["hook_embed", "hook_pos_embed", "blocks.0.hook_resid_pre", "blocks.0.ln1.hook_scale",
                                  "blocks.0.ln1.hook_normalized", "blocks.0.attn.hook_v"])  # fmt: skip
def test_watching_tokens_changes_nothing(name):
    model, x = build_model(WIDE).double(), tokens(WIDE)
    plain = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    with record(model, [name]) as seen:
        watched = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    assert seen[name][0].shape[:2] == x.shape
    for one, other in zip(plain, watched, strict=True):
        torch.testing.assert_close(one, other)
    with record(model, [name], lambda _, own: own * 0.5):  # what is changed there counts
        assert not torch.allclose(model(x), build_model(WIDE).double()(x))


@pytest.mark.parametrize("config", [CONFIG, WIDE])
def test_logits_are_the_formula(config):
    model = build_model(config).double()
    w = {k: v.detach() for k, v in model.named_parameters()}
    x = tokens(config)

    def norm(v):
        return v / (v.square().mean(-1, keepdim=True).sqrt() + 1e-5)

    expected = []
    for row in x:
        z = norm(w["embed.W_E"][row] + w["pos_embed.W_pos"])
        heads = []
        for h, q in enumerate(w["blocks.0.attn.query"]):
            part = slice(h * config.d_head, (h + 1) * config.d_head)
            a = torch.softmax(z[:, part] @ q / math.sqrt(config.d_head), dim=0)
            heads.append(a @ (z @ w["blocks.0.attn.W_V"].T)[:, part])
        xi = torch.cat(heads)
        hidden = F.gelu(norm(xi) @ w["blocks.0.mlp.W_in"] + w["blocks.0.mlp.b_in"])
        expected.append((xi + hidden @ w["blocks.0.mlp.W_out"] + w["blocks.0.mlp.b_out"]) @ w["embed.W_E"].T)
    torch.testing.assert_close(model(x), torch.stack(expected), rtol=0, atol=1e-12)


def test_hook_points_fire_with_their_shapes():
    model = build_model(WIDE)
    _, seen = recorded(model, tokens(WIDE, 5))
    shapes = {name: tuple(a.shape) for name, a in seen.items()}
    assert shapes == {
        "hook_embed": (5, 6, 8),
        "hook_pos_embed": (5, 6, 8),
        "blocks.0.hook_resid_pre": (5, 6, 8),
        "blocks.0.ln1.hook_scale": (5, 6, 1),
        "blocks.0.ln1.hook_normalized": (5, 6, 8),
        "blocks.0.attn.hook_attn_scores": (5, 2, 1, 6),
        "blocks.0.attn.hook_pattern": (5, 2, 1, 6),
        "blocks.0.attn.hook_v": (5, 6, 2, 4),
        "blocks.0.attn.hook_z": (5, 1, 2, 4),
        "blocks.0.hook_resid_mid": (5, 1, 8),
        "blocks.0.ln2.hook_scale": (5, 1, 1),
        "blocks.0.ln2.hook_normalized": (5, 1, 8),
        "blocks.0.mlp.hook_pre": (5, 1, 16),
        "blocks.0.mlp.hook_post": (5, 1, 16),
        "blocks.0.hook_mlp_out": (5, 1, 8),
        "blocks.0.hook_resid_post": (5, 1, 8),
    }
    torch.testing.assert_close(seen["blocks.0.attn.hook_pattern"].sum(-1), torch.ones(5, 2, 1))
    for at in (residual(), attention_pattern(), head_output()):
        assert resolve(model, at)


def test_an_intervention_at_a_hook_point_reaches_the_logits():
    model, x = build_model(CONFIG), tokens(CONFIG)
    _, seen = recorded(model, x)
    with model.hooks(fwd_hooks=[("blocks.0.hook_resid_mid", lambda a, hook: torch.zeros_like(a))]):
        same = model(x)
    torch.testing.assert_close(same, same[:1].expand_as(same))  # every sequence one point: one answer
    turned = seen["blocks.0.hook_resid_mid"].flip(0)
    with model.hooks(fwd_hooks=[("blocks.0.hook_resid_mid", lambda a, hook: turned)]):
        swapped = model(x)
    torch.testing.assert_close(swapped, model(x).flip(0))


def test_initial_weights_come_from_the_seed_and_widths_share_neurons():
    before = torch.get_rng_state()
    first, again, other = (build_model(PoolingTransformerConfig(seed=s)) for s in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    names = [n for n, _ in first.named_parameters()]
    assert all(torch.equal(first.state_dict()[n], again.state_dict()[n]) for n in names)
    assert not any(torch.equal(first.state_dict()[n], other.state_dict()[n]) for n in names)
    wide, narrow = (build_model(PoolingTransformerConfig(d_mlp=m)).blocks[0].mlp for m in (64, 32))
    assert torch.equal(wide.W_in[:, :32], narrow.W_in)
    torch.testing.assert_close(wide.W_out[:32] * math.sqrt(64), narrow.W_out * math.sqrt(32))
    large = build_model(PoolingTransformerConfig(d_vocab=500, n_ctx=400, d_model=64, d_mlp=300))
    assert float(large.embed.W_E.detach().std()) == pytest.approx(1, abs=0.02)
    assert float(large.pos_embed.W_pos.detach().std()) == pytest.approx(1, abs=0.02)
    for weight, bound in (
        (large.blocks[0].attn.W_V, 1 / 8),
        (large.blocks[0].attn.query, 1 / 8),
        (large.blocks[0].mlp.W_in, 1 / 8),
        (large.blocks[0].mlp.b_in, 1 / 8),
        (large.blocks[0].mlp.W_out, 1 / math.sqrt(300)),
        (large.blocks[0].mlp.b_out, 1 / math.sqrt(300)),
    ):
        assert 0.9 * bound < float(weight.detach().abs().max()) <= bound


def test_saved_and_loaded(tmp_path):
    model = build_model(WIDE)
    save_model(model, tmp_path / "m.safetensors", epoch=3)
    torch.testing.assert_close(load_model(tmp_path / "m.safetensors")(tokens(WIDE)), model(tokens(WIDE)))


def test_the_second_norm_may_have_an_eps_of_its_own():
    x = tokens(CONFIG)
    _, seen = recorded(build_model(replace(CONFIG, eps_mlp=0.3)), x)
    _, plain = recorded(build_model(CONFIG), x)
    difference = seen["blocks.0.ln2.hook_scale"] - plain["blocks.0.ln2.hook_scale"]
    torch.testing.assert_close(difference, torch.full_like(difference, 0.3 - 1e-5))
    assert torch.equal(seen["blocks.0.ln1.hook_normalized"], plain["blocks.0.ln1.hook_normalized"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_model": 3, "n_heads": 2}, r"d_model is 3; expected a multiple of n_heads \(2\)"),
        ({"d_mlp": 0}, "d_mlp is 0; expected at least 1"),
        ({"eps": -1.0}, "eps is -1.0; expected at least 0"),
        ({"eps_mlp": -0.5}, "eps_mlp is -0.5; expected at least 0"),
    ],
)
def test_what_is_refused(fields, message):
    with pytest.raises(InputError, match=message):
        PoolingTransformerConfig(**fields)


def test_sequences_of_another_length_are_refused():
    with pytest.raises(InputError, match=r"tokens has shape \(2, 5\); expected \[batch 12\]"):
        build_model(CONFIG)(torch.zeros(2, 5, dtype=torch.int64))
