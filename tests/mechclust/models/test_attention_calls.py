"""Attention of Hugging Face models with PyTorch's kernel equals their eager patterns, and the pass stays as it is."""

from __future__ import annotations

import pytest
import torch
from transformers import AttentionInterface

from mechclust import load_pretrained
from mechclust.models.read_only import ReadOnlyModel
from probes import (
    AttentionEntropy,
    DistanceMatchedTopicAttention,
    HeadRoles,
    TopicAttention,
    attach,
    attention,
    record,
    resolve,
    run,
)
from probes.engine.fused_attention import FusedAttention
from tasks import Batch, InputError
from tests.mechclust.models.families import FAMILIES, LEFT, RIGHT, TOKENS, N

CAUGHT = ("llama", "mistral", "gemma3", "gpt2", "gpt_neox", "phi3", "bert", "roberta", "albert", "modernbert", "t5")
EAGER = ("gemma2", "falcon", "bloom")  # caps and biases that PyTorch's kernel does not know
SITES = [f"blocks.{i}.attn.hook_attention" for i in range(N)]
PATTERNS = [f"blocks.{i}.attn.hook_pattern" for i in range(N)]


def both(family):
    """The read-only model with PyTorch's kernel, and that with eager attention."""
    fast = FAMILIES[family].build()
    fast.set_attn_implementation("sdpa")
    return ReadOnlyModel(fast), ReadOnlyModel(FAMILIES[family].build())


def arguments(family, mask):
    tokens = FAMILIES[family].tokens(mask)
    return (tokens,) if mask is None else (tokens, mask)


@pytest.mark.parametrize("mask", [None, RIGHT, LEFT], ids=["whole", "right", "left"])
@pytest.mark.parametrize("family", CAUGHT)
def test_it_is_the_eager_pattern(family, mask):
    if mask is LEFT and family in ("t5",):
        mask = RIGHT  # it has no positions to move
    fast, eager = both(family)
    inputs = arguments(family, mask)
    with torch.no_grad(), record(fast, SITES) as kept, record(eager, PATTERNS) as expected:
        fast(*inputs)
        eager(*inputs)
    real = torch.ones_like(TOKENS, dtype=torch.bool) if mask is None else mask.bool()
    for site, name in zip(SITES, PATTERNS, strict=True):
        (layer,) = kept[site]
        (pattern,) = expected[name]
        assert isinstance(layer, FusedAttention)
        difference = torch.where(real[:, None, :, None], layer.pattern() - pattern, 0)
        assert float(difference.abs().max()) < 1e-5
        looks = (pattern.triu(1) > 0) & real[:, None, :, None]
        assert torch.equal(layer.looks_ahead(real), looks.flatten(1).any(dim=1))


@pytest.mark.parametrize("mask", [None, RIGHT], ids=["whole", "padded"])
@pytest.mark.parametrize("family", CAUGHT)
def test_entropies_are_those_of_eager_attention(family, mask):
    fast, eager = both(family)
    batch = Batch(FAMILIES[family].tokens(mask), None if mask is None else mask.bool())
    results = [run(model, batch, AttentionEntropy()) for model in (fast, eager)]
    assert [result.coords["site"] for result in results] == [SITES, PATTERNS]
    for measure in ("entropy", "entropy_uniform"):
        torch.testing.assert_close(results[0][measure], results[1][measure], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n_permutations", [0, 9])
@pytest.mark.parametrize("family", ["llama", "bert"])
def test_topics_are_those_of_eager_attention(family, n_permutations):
    batch = Batch(FAMILIES[family].tokens(RIGHT), RIGHT.bool())
    probe = TopicAttention(torch.arange(22) % 4 - 1, n_permutations=n_permutations)
    results = [run(model, batch, probe) for model in both(family)]
    for measure in ("sum", "pairs", "ratio", "ratio_null_low", "p_value", "overall_ratio"):
        torch.testing.assert_close(
            results[0][measure], results[1][measure], rtol=1e-5, atol=1e-6, equal_nan=True, check_dtype=False
        )


@pytest.mark.parametrize("family", ["mistral", "bert"])
def test_topics_at_equal_distance_are_those_of_eager_attention(family):
    batch = Batch(FAMILIES[family].tokens(RIGHT), RIGHT.bool())
    probe = DistanceMatchedTopicAttention(torch.arange(22) % 4 - 1, max_distance=3)
    results = [run(model, batch, probe) for model in both(family)]
    for measure in ("ratio", "by_distance", "pairs", "overall_ratio_low"):
        torch.testing.assert_close(
            results[0][measure], results[1][measure], rtol=1e-5, atol=1e-6, equal_nan=True, check_dtype=False
        )


@pytest.mark.parametrize("mask", [None, RIGHT], ids=["whole", "padded"])
@pytest.mark.parametrize("n_permutations", [3, 30], ids=["sums in the pass", "sums after it"])
@pytest.mark.parametrize("family", ["llama", "mistral", "bert"])
def test_roles_of_heads_are_those_of_eager_attention(family, n_permutations, mask):
    batch = Batch(FAMILIES[family].tokens(mask), None if mask is None else mask.bool())
    probe = HeadRoles(max_offset=3, n_permutations=n_permutations, exclude_bos=True)
    results = [run(model, batch, probe) for model in both(family)]
    assert [result.coords["site"] for result in results] == [SITES, PATTERNS]
    for measure in ("score", "chance", "share", "p_value", "distance", "distance_uniform", "score_by_offset"):
        torch.testing.assert_close(results[0][measure], results[1][measure], rtol=0, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("family", CAUGHT)
def test_the_forward_pass_stays_as_it_is_to_the_bit(family):
    plain = FAMILIES[family].build()
    plain.set_attn_implementation("sdpa")
    model = ReadOnlyModel(plain)
    for mask in (None, RIGHT):
        with torch.no_grad():
            before = model(*arguments(family, mask))
            with record(model, SITES):
                during = model(*arguments(family, mask))
        assert torch.equal(before, during)
    assert plain.config._attn_implementation == "sdpa"


def test_transformers_kernel_is_put_back():
    usual = AttentionInterface()["sdpa"]
    model, _ = both("llama")

    def fail(_, hook):
        raise RuntimeError("planned")

    with pytest.raises(RuntimeError, match="planned"), model.hooks(fwd_hooks=[(SITES[1], fail)]):
        model(TOKENS)
    assert AttentionInterface()["sdpa"] is usual


def test_another_model_in_the_pass_is_left_alone():
    model, _ = both("llama")
    other, _ = both("mistral")

    def run_other(_, hook):
        with torch.no_grad():
            other(TOKENS)

    with torch.no_grad(), model.hooks(fwd_hooks=[(SITES[0], run_other)]), record(model, SITES) as kept:
        model(TOKENS)
    assert [len(layers) for layers in kept.values()] == [1] * N


@pytest.mark.parametrize("family", EAGER)
def test_other_families_give_their_patterns(family):
    model = load_pretrained(FAMILIES[family].build())
    assert [site.name for site in resolve(model, attention())] == PATTERNS
    assert torch.isfinite(run(model, TOKENS, AttentionEntropy())["entropy"]).all()


def test_what_works_instead_is_named():
    model, eager = both("bert")
    assert "attn.hook_attention" not in model.lacks
    assert eager.lacks["attn.hook_attention"] == (
        "attention of kind 'eager' gives no queries and keys; load the model with attention='sdpa'"
    )
    with pytest.raises(InputError, match="in this model: attention of kind 'eager' gives no queries and keys"):
        resolve(eager, SITES[0])


def test_a_pass_of_your_own_and_a_cache():
    model, _ = both("gpt2")
    probe = AttentionEntropy()
    with attach(model, probe) as attached, attached.on(TOKENS):
        model(TOKENS).sum().backward()
    expected = run(model, TOKENS, AttentionEntropy())
    torch.testing.assert_close(probe.compute()["entropy"], expected["entropy"])
    with torch.no_grad():
        _, cache = model.run_with_cache(TOKENS)
    torch.testing.assert_close(
        cache[SITES[0]].pattern().sum(dim=-1), torch.ones(*TOKENS[:, None].shape).expand(2, 4, 7)
    )
