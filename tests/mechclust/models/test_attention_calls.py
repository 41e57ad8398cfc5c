"""Attention of Hugging Face models with PyTorch's kernel equals their eager patterns, and the pass stays as it is."""

from __future__ import annotations

import weakref
from contextlib import contextmanager

import pytest
import torch
from transformers import AttentionInterface, GptOssConfig, GptOssForCausalLM, StaticCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from mechclust import load_pretrained
from mechclust.models.read_only import ReadOnlyModel
from probes import (
    AttentionEntropy,
    DistanceMatchedTopicAttention,
    HeadRoles,
    TopicAttention,
    attach,
    attention,
    attention_pattern,
    record,
    resolve,
    run,
)
from probes.engine import attention as attention_module
from probes.engine.fused_attention import FusedAttention
from tasks import Batch, InputError
from tests.mechclust.models.families import FAMILIES, LEFT, RIGHT, TOKENS, N
from tests.probes.test_attention import LargestTensor

CAUGHT = ("llama", "mistral", "gemma3", "gpt2", "gpt_neox", "phi3", "bert", "roberta", "albert", "modernbert", "t5")
EAGER = ("gemma2", "falcon", "bloom")  # caps and biases that PyTorch's kernel does not know
SITES = [f"blocks.{i}.attn.hook_attention" for i in range(N)]
PATTERNS = [f"blocks.{i}.attn.hook_pattern" for i in range(N)]


def gpt_oss():
    """A model with sinks and sliding windows."""
    shape = {"hidden_size": 16, "head_dim": 8, "intermediate_size": 16, "num_hidden_layers": N}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 2, "num_experts_per_tok": 1}
    places = {"max_position_embeddings": 64, "sliding_window": 4, "rope_parameters": {"rope_type": "default"}}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = GptOssForCausalLM(GptOssConfig(vocab_size=22, **shape, **heads, **places)).eval()
        for layer in model.model.layers:
            torch.nn.init.normal_(layer.self_attn.sinks)
    return model


WITHOUT_KERNEL = {"soft caps": FAMILIES["gemma2"].build, "sinks": gpt_oss}


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
    with torch.no_grad():
        before = fast(*inputs)
        with record(fast, SITES) as kept, record(eager, PATTERNS) as expected:
            during = fast(*inputs)
            eager(*inputs)
    assert torch.equal(before, during)  # the forward pass stays as it is, to the bit
    assert fast.body.config._attn_implementation == "sdpa"
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
@pytest.mark.parametrize("family", ["mistral", "bert"])
def test_entropies_are_those_of_eager_attention(family, mask):
    fast, eager = both(family)
    batch = Batch(FAMILIES[family].tokens(mask), None if mask is None else mask.bool())
    results = [run(model, batch, AttentionEntropy()) for model in (fast, eager)]
    assert [result.coords["site"] for result in results] == [SITES, PATTERNS]
    for measure in ("entropy", "entropy_uniform"):
        torch.testing.assert_close(results[0][measure], results[1][measure], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "probe", "measures"),
    [
        (
            "bert",
            TopicAttention(torch.arange(22) % 4 - 1, n_permutations=9),
            ("sum", "pairs", "ratio", "ratio_null_low", "p_value", "overall_ratio"),
        ),
        (
            "mistral",
            DistanceMatchedTopicAttention(torch.arange(22) % 4 - 1, max_distance=3),
            ("ratio", "by_distance", "pairs", "overall_ratio_low"),
        ),
    ],
)
def test_topics_are_those_of_eager_attention(family, probe, measures):
    batch = Batch(FAMILIES[family].tokens(RIGHT), RIGHT.bool())
    results = [run(model, batch, probe) for model in both(family)]
    for measure in measures:
        torch.testing.assert_close(
            results[0][measure], results[1][measure], rtol=1e-5, atol=1e-6, equal_nan=True, check_dtype=False
        )


@pytest.mark.parametrize("mask", [None, RIGHT], ids=["whole", "padded"])
@pytest.mark.parametrize("n_permutations", [3, 30], ids=["sums in the pass", "sums after it"])
@pytest.mark.parametrize("family", ["mistral", "bert"])
def test_roles_of_heads_are_those_of_eager_attention(family, n_permutations, mask):
    batch = Batch(FAMILIES[family].tokens(mask), None if mask is None else mask.bool())
    probe = HeadRoles(max_offset=3, n_permutations=n_permutations, exclude_bos=True)
    results = [run(model, batch, probe) for model in both(family)]
    assert [result.coords["site"] for result in results] == [SITES, PATTERNS]
    for measure in ("score", "chance", "share", "p_value", "distance", "distance_uniform", "score_by_offset"):
        torch.testing.assert_close(results[0][measure], results[1][measure], rtol=0, atol=1e-6, equal_nan=True)


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


# ---- families without PyTorch's kernel, in blocks of queries ----


@pytest.mark.parametrize("mask", [None, RIGHT, LEFT], ids=["whole", "right", "left"])
@pytest.mark.parametrize("numbers", [2**24, 60], ids=["one block", "blocks"])
@pytest.mark.parametrize("kind", WITHOUT_KERNEL)
def test_blocks_of_eager_attention_are_its_pattern(kind, numbers, mask, monkeypatch):
    monkeypatch.setattr(attention_module, "_MAX_NUMBERS_AT_ONCE", numbers)
    model = load_pretrained(WITHOUT_KERNEL[kind](), attention="sdpa")
    assert isinstance(model, ReadOnlyModel)
    inputs = (TOKENS,) if mask is None else (TOKENS, mask)
    with torch.no_grad():
        with record(model, PATTERNS) as expected:
            usual = model(*inputs)
        with record(model, SITES) as kept:
            in_blocks = model(*inputs)
        with record(model, [*SITES, *PATTERNS]) as together:
            whole = model(*inputs)
    assert "eager" not in ALL_ATTENTION_FUNCTIONS
    torch.testing.assert_close(in_blocks, usual, rtol=0, atol=1e-6 if numbers == 60 else 0)
    assert torch.equal(whole, usual)
    real = torch.ones_like(TOKENS, dtype=torch.bool) if mask is None else mask.bool()
    for site, name in zip(SITES, PATTERNS, strict=True):
        assert torch.equal(together[name][0], expected[name][0])
        for layer in (kept[site][0], together[site][0]):
            pattern = torch.where(real[:, None, :, None], layer.pattern(), 0)
            torch.testing.assert_close(pattern, torch.where(real[:, None, :, None], expected[name][0], 0))
            for i in (0, 1):
                assert torch.equal(layer.example(i).pattern(), layer.pattern()[i : i + 1])


def test_weights_of_half_precision_are_given_in_float32():
    model = load_pretrained(next(iter(WITHOUT_KERNEL.values()))().bfloat16(), attention="sdpa")
    with torch.no_grad(), record(model, SITES[:1]) as kept:
        model(TOKENS)
    assert kept[SITES[0]][0].rows(torch.arange(3)).dtype == torch.float32


@pytest.mark.parametrize("probe", [AttentionEntropy, HeadRoles])
@pytest.mark.parametrize("kind", WITHOUT_KERNEL)
def test_probes_in_blocks_are_those_of_patterns(kind, probe, monkeypatch):
    model = load_pretrained(WITHOUT_KERNEL[kind](), attention="sdpa")
    batch = Batch(TOKENS, RIGHT.bool())
    expected = run(model, batch, probe(at=attention_pattern()))
    monkeypatch.setattr(attention_module, "_MAX_NUMBERS_AT_ONCE", 60)
    result = run(model, batch, probe(at=attention()))
    assert result.coords["site"] == SITES
    for measure in ("entropy", "share") if probe is AttentionEntropy else ("score", "chance", "share", "p_value"):
        torch.testing.assert_close(result[measure], expected[measure], rtol=0, atol=1e-6, equal_nan=True)


def test_no_pattern_is_made_in_blocks(monkeypatch):
    numbers = 600
    monkeypatch.setattr(attention_module, "_MAX_NUMBERS_AT_ONCE", numbers)
    model = load_pretrained(FAMILIES["gemma2"].build(), attention="sdpa")
    tokens = torch.randint(2, 22, (1, 32), generator=torch.Generator().manual_seed(0))
    largest = LargestTensor()
    with torch.inference_mode(), attach(model, AttentionEntropy()) as attached, attached.on(tokens), largest:
        model(tokens)
    assert largest.numbers < model.cfg.n_heads * 32**2 / 2  # a mask [query key], or a block


def test_training_draws_the_same_dropout():
    plain = FAMILIES["gemma2"].build()
    plain.config.attention_dropout = 0.5
    for layer in plain.model.layers:
        layer.self_attn.attention_dropout = 0.5
    model = load_pretrained(plain, attention="sdpa").train()
    probe = AttentionEntropy()
    torch.manual_seed(0)
    usual = model(TOKENS)
    torch.manual_seed(0)
    with attach(model, probe) as attached, attached.on(TOKENS):
        measured = model(TOKENS)
    assert torch.equal(usual, measured)
    expected = run(model, TOKENS, AttentionEntropy())
    torch.testing.assert_close(probe.compute()["entropy"][0], expected["entropy"][0])  # above, dropout changes states


@pytest.mark.parametrize("family", ["gpt2", "bloom", "gemma2"])
def test_no_more_patterns_are_alive_than_of_two_layers(family):
    model = load_pretrained(FAMILIES[family].build())
    patterns = []
    alive = []

    def note(_, pattern):
        patterns.append(weakref.ref(pattern))
        alive.append(sum(each() is not None for each in patterns))

    with torch.inference_mode(), record(model, PATTERNS, note):
        model(TOKENS)
    assert len(alive) == N
    assert max(alive) <= 2


def test_attention_that_cannot_be_caught_is_named():
    model = load_pretrained(FAMILIES["bloom"].build(), attention="sdpa")
    assert model.lacks["attn.hook_attention"].startswith("the queries and keys of a BloomModel cannot be caught")
    assert model.lacks["attn.hook_attention"].endswith("residual() works, and so does attention_pattern()")
    assert [site.name for site in resolve(model, attention())] == PATTERNS


def test_keys_of_a_static_cache_are_refused():
    model, _ = both("llama")
    cache = StaticCache(model.body.config, max_cache_len=12)
    with (
        attach(model, AttentionEntropy()) as attached,
        cached(model, cache),
        pytest.raises(InputError, match=r"for 7 tokens: measure at attention\(\), and without the keys of a cache"),
        attached.on(TOKENS),
    ):
        model(TOKENS)


@contextmanager
def cached(model, cache):
    """Give the model's body a cache."""

    def add(module, inputs, options):
        return inputs, {**options, "use_cache": True, "past_key_values": cache}

    handle = model.body.register_forward_pre_hook(add, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
