from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from probes import (
    Selector,
    Site,
    all_tokens,
    attention,
    attention_pattern,
    embedding,
    head_output,
    residual,
    resolve,
    run,
)
from tasks import Batch, InputError

EMBED, FIRST, LAST = Site("hook_embed", 0), Site("blocks.0.hook_resid_post", 1), Site("blocks.1.hook_resid_post", 2)
NORM = Site("unembed.hook_in", 3)
PATTERNS = [Site(f"blocks.{i}.attn.hook_pattern", i) for i in range(2)]
OUTPUTS = [Site(f"blocks.{i}.attn.hook_z", i) for i in range(2)]


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (residual(), [EMBED, FIRST, LAST]),
        (residual(final_norm=True), [EMBED, FIRST, LAST, NORM]),
        (residual(1), [FIRST]),
        (residual([2, 0]), [LAST, EMBED]),
        (residual(-1), [LAST]),
        (residual([-3, -2]), [EMBED, FIRST]),
        (embedding(), [EMBED]),
        (attention_pattern(), PATTERNS),
        (attention_pattern(-1), PATTERNS[1:]),
        (attention([1, -2]), PATTERNS[::-1]),
        (head_output(), OUTPUTS),
        (head_output(layers=[0]), OUTPUTS[:1]),
        ("blocks.1.hook_mlp_out", [Site("blocks.1.hook_mlp_out", 1)]),
        ("hook_embed", [EMBED]),
        ("blocks.1.hook_resid_pre", [Site("blocks.1.hook_resid_pre", 1)]),  # the tensor of layer 1
        ("blocks.1.hook_resid_mid", [Site("blocks.1.hook_resid_mid", 2)]),
        ("unembed.hook_in", [NORM]),
        ("ln_final.hook_normalized", [Site("ln_final.hook_normalized", 3)]),
        (["hook_pos_embed", residual(), embedding(), residual(-1)], [Site("hook_pos_embed", 0), EMBED, FIRST, LAST]),
        ((head_output(1), attention_pattern(0)), [OUTPUTS[1], PATTERNS[0]]),
    ],
    ids=str,
)
def test_selectors_resolve_to_hook_names_with_layers(model: Any, at: Any, expected: list[Site]) -> None:
    assert resolve(model, at) == expected


@pytest.mark.parametrize(
    "selector",
    [
        residual(),
        residual(-1),
        residual([0, 2], final_norm=True),
        embedding(),
        attention(0),
        attention_pattern(1),
        head_output([1]),
    ],
)
def test_selectors_are_values_whose_repr_rebuilds_them(selector: Selector) -> None:
    names = {f.__name__: f for f in (residual, embedding, attention, attention_pattern, head_output)}
    assert eval(repr(selector), names) == selector


def test_layers_may_be_integers_of_numpy() -> None:
    assert repr(residual(np.int64(3))) == "residual(layers=[3])"  # type: ignore[arg-type]
    assert repr(attention(np.arange(2))) == "attention(layers=[0, 1])"  # type: ignore[arg-type]


@pytest.mark.parametrize(("layers", "wrong"), [("1", "'1'"), (1.0, "1.0"), ([0, "1"], "'1'"), ([0, None], "None")])
def test_layers_that_are_no_integers_are_refused(layers: Any, wrong: str) -> None:
    for select in (residual, attention, attention_pattern, head_output):
        with pytest.raises(InputError, match=rf"^layers has {wrong}; expected integers, such as \[0, -1\]$"):
            select(layers)


def test_a_model_without_blocks_is_told() -> None:
    model = SimpleNamespace(hook_dict={"hook_embed": None})
    assert resolve(model, residual()) == [Site("hook_embed", 0)]
    for at in (attention_pattern(), head_output([0])):
        with pytest.raises(
            InputError, match=rf"^this model has no blocks, so {at.kind}\(\) selects nothing; name hook"
        ):
            resolve(model, at)


@pytest.mark.parametrize(
    ("at", "message"),
    [
        (
            "blocks.9.hook_resid_post",
            "no hook point 'blocks.9.hook_resid_post' in this model (it has blocks 0-1); did you mean "
            "'blocks.1.hook_resid_post'",
        ),
        ("hook_embedd", "no hook point 'hook_embedd' in this model; did you mean 'hook_embed'"),
        ("blocks.0.attn.hook_patern", "did you mean 'blocks.0.attn.hook_pattern'"),
        (["hook_embed", "Blocks.0.attn.hook_z"], "did you mean 'blocks.0.attn.hook_z'"),
        ("xyz", "no hook point 'xyz' in this model; see model.hook_dict for the names"),
        (residual(3), "no layer 3 for residual() in this model (it has layers 0-2, layer 0 the embedding)"),
        (residual([0, -4]), "no layer -4 for residual() in this model (it has layers 0-2, layer 0 the embedding)"),
        (
            attention_pattern(2),
            "no layer 2 for attention_pattern() in this model (it has layers 0-1, layer 0 is blocks.0)",
        ),
        (head_output(-3), "no layer -3 for head_output() in this model (it has layers 0-1, layer 0 is blocks.0)"),
        ([], "no sites given; name a hook point or a selector such as residual()"),
        (residual([]), "no sites given"),
        (1, "no site 1; name a hook point or a selector"),
        (["hook_embed", 1], "no site 1; name a hook point or a selector"),
    ],
    ids=str,
)
def test_what_is_not_there_is_told_with_the_nearest(model: Any, at: Any, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        resolve(model, at)


def test_a_model_without_hooks_is_told() -> None:
    message = (
        "a Linear has no hook_dict, so nothing can be measured in it; "
        "build it with mechclust.build_model or load it with mechclust.load_pretrained"
    )
    with pytest.raises(InputError, match=re.escape(message)):
        resolve(nn.Linear(1, 1), residual())


def test_sites_are_what_they_are_called(model: Any, batch: Batch, keep: Any) -> None:
    from mechclust.models.weights import get_weights

    probe = keep([residual(final_norm=True), attention_pattern(), head_output()], all_tokens())
    run(model, batch, probe)
    weights, shape = get_weights(model), tuple(batch.tokens.shape)
    assert torch.equal(probe.kept("hook_embed"), weights["embed.W_E"][batch.tokens])  # no position in it
    for layer in range(2):
        pattern, z = probe.kept(f"blocks.{layer}.attn.hook_pattern"), probe.kept(f"blocks.{layer}.attn.hook_z")
        assert pattern.shape == (shape[0], 2, shape[1], shape[1])
        assert not pattern.triu(1).any()  # [query, key]: no attention to what follows
        assert z.shape == (*shape, 2, 4)
    last, normed = probe.kept("blocks.1.hook_resid_post"), probe.kept("unembed.hook_in")
    expected = nn.functional.layer_norm(last, last.shape[-1:], weights["ln_final.w"], weights["ln_final.b"])
    torch.testing.assert_close(normed, expected, rtol=1e-4, atol=1e-4)
    logits = model(batch.tokens, attention_mask=batch.attention_mask.long())  # type: ignore[union-attr]
    real = batch.attention_mask
    torch.testing.assert_close((normed @ weights["unembed.W_U"] + weights["unembed.b_U"])[real], logits[real])


def test_blocks_of_a_model_of_ones_own_have_their_number() -> None:
    names = ["inputs", "encoder.0.out", "encoder.11.out", "7.hook_x"]
    model = SimpleNamespace(hook_dict=dict.fromkeys(names))
    assert [site.layer for site in resolve(model, names)] == [0, 0, 11, 7]
