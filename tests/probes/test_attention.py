"""Attention as an object: every sum against the pattern that NumPy or plain softmax gives, whatever it is made from."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from probes import Attention, AttentionReadout, Probe, Sum, all_tokens, attention, residual, resolve, run
from probes.attention_entropy import AttentionEntropyReadout
from probes.engine import attention as attention_module
from probes.engine.attention import EagerAttention
from probes.engine.fused_attention import FusedAttention
from tasks import Batch, InputError

BATCH, HEADS, N, D = 2, 4, 13, 6
DRAW = torch.Generator().manual_seed(0)
CAUSAL = torch.ones(N, N, dtype=torch.bool).tril()
REAL = torch.ones(BATCH, N, dtype=torch.bool)
REAL[0, :4] = False  # padding on the left
REAL[1, 10:] = False  # and on the right
MASKS = {
    "all": None,
    "causal": CAUSAL,
    "window": CAUSAL & ~CAUSAL.tril(-3),
    "padded": CAUSAL & REAL[:, None, None, :] & REAL[:, None, :, None],
    "padded, both ways": (REAL[:, None, None, :] & REAL[:, None, :, None]),
    "added": torch.where(CAUSAL, torch.randn(1, HEADS, N, N, generator=DRAW), -torch.inf),
}


def made(kind: str, kv_heads: int = 2, dtype: torch.dtype = torch.float32) -> tuple[Attention, torch.Tensor]:
    """Attention from queries and keys, and its pattern by a plain softmax in float64; 0 where a query sees nothing."""
    draw = torch.Generator().manual_seed(1)
    q = torch.randn(BATCH, HEADS, N, D, generator=draw).to(dtype)
    k = torch.randn(BATCH, kv_heads, N, D, generator=draw).to(dtype)
    mask = MASKS[kind]
    scores = q.double() @ k.double().repeat_interleave(HEADS // kv_heads, dim=1).mT * 0.7
    if mask is not None:
        mask = mask if mask.ndim == 4 else mask[None, None]
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else scores + mask
    pattern = scores.softmax(dim=-1).nan_to_num(0)
    if kind == "causal":
        return FusedAttention(q, k, is_causal=True, scale=0.7), pattern
    return FusedAttention(q, k, mask, scale=0.7), pattern


@pytest.fixture(params=["one block", "blocks"])
def blocks(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once with all queries in one block, once with blocks of one or a few."""
    if request.param == "blocks":
        monkeypatch.setattr(attention_module, "_MAX_NUMBERS_AT_ONCE", 2 * BATCH * HEADS * N)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("kv_heads", [1, 2, HEADS])
@pytest.mark.parametrize("kind", MASKS)
def test_every_sum_is_that_of_the_pattern(kind: str, kv_heads: int) -> None:
    fused, pattern = made(kind, kv_heads)
    labels = torch.randint(-1, 9, (BATCH, N), generator=DRAW)
    keys = torch.randint(-1, N, (BATCH, N, 3), generator=DRAW)
    of_key = torch.stack([labels == c for c in range(9)], dim=-1).double()  # more classes than the head size
    mass = torch.einsum("bhqk,bkc->bhqc", pattern, of_key)
    between = torch.einsum("bqd,bhqc->bhdc", of_key, mass)
    at = torch.where(keys[:, None] >= 0, pattern.gather(3, keys[:, None].clamp(min=0).expand(-1, HEADS, -1, -1)), 0)
    sees = pattern.sum(dim=-1) > 0
    entropy = torch.from_numpy(stats.entropy(pattern.numpy(), axis=-1)).nan_to_num(0)
    apart = (torch.arange(N) - torch.arange(N)[:, None]).abs().double()
    some = torch.tensor([5, 2])
    for layer in (fused, EagerAttention(pattern)):
        assert layer.shape == (BATCH, HEADS, N, N)
        assert layer.looks_ahead(REAL).tolist() == [kind in ("all", "padded, both ways")] * BATCH
        close = {"rtol": 0, "atol": 1e-5, "check_dtype": False}
        torch.testing.assert_close(layer.pattern(), pattern, **close)
        torch.testing.assert_close(layer.rows(some, some), pattern[:, :, some][..., some], **close)
        torch.testing.assert_close(layer.mass(labels, 9), mass, **close)
        torch.testing.assert_close(layer.between(labels, 9), between, **close)
        torch.testing.assert_close(layer.at(keys), at, **close)
        torch.testing.assert_close(torch.where(sees, layer.entropy(), 0), entropy, **close)
        seen = torch.where(REAL[:, None, :, None] & REAL[:, None, None], pattern, 0)
        earlier, distance = (torch.where(REAL[:, None], sums, 0) for sums in layer.reach(REAL))
        torch.testing.assert_close(earlier, seen.tril(-1).sum(dim=-1), **close)
        torch.testing.assert_close(distance, (seen * apart).sum(dim=-1), **close)
        one = layer.example(1)
        torch.testing.assert_close(one.pattern(), pattern[1:], **close)
        torch.testing.assert_close(torch.where(sees[1:], one.entropy(), 0), entropy[1:], **close)


@pytest.mark.parametrize("overlap", [False, True], ids=["one class each", "classes that meet"])
@pytest.mark.parametrize("n_labellings", [2, 40], ids=["labelling by labelling", "by pairs of words"])
@pytest.mark.parametrize("kind", MASKS)
def test_relabelled_mass_is_summed_pair_by_pair(kind: str, n_labellings: int, overlap: bool) -> None:
    """Both ways: two labellings of three classes have fewer columns than a text has words, and forty have more."""
    fused, pattern = made(kind)
    words = torch.arange(BATCH * N).reshape(BATCH, N) % 9 - 1
    labels = torch.randint(0, 3, (n_labellings, 8), generator=DRAW)
    meet = torch.tensor([[1, 0, 1], [0, 1, 0], [1, 0, 1]], dtype=torch.bool) if overlap else None
    same = torch.zeros(BATCH, HEADS, dtype=torch.float64)
    meeting = torch.zeros(BATCH, HEADS, n_labellings, dtype=torch.float64)
    pairs = torch.zeros(BATCH, n_labellings, dtype=torch.float64)
    for b, q, k in itertools.product(range(BATCH), range(N), range(N)):
        one = int(words[b, q])
        other = int(words[b, k])
        if min(one, other) < 0:
            continue
        if one == other:
            same[b] += pattern[b, :, q, k]
            continue
        meets = labels[:, one] == labels[:, other] if meet is None else meet[labels[:, one], labels[:, other]]
        meeting[b] += pattern[b, :, q, k, None] * meets
        pairs[b] += meets
    for layer in (fused, EagerAttention(pattern)):
        sums = layer.relabelled_mass(words, labels, meet)
        torch.testing.assert_close(sums, (same, meeting), rtol=1e-6, atol=1e-6)
    assert torch.equal(EagerAttention.relabelled_pairs(words, labels, meet)[1], pairs.long())


def test_half_precision_is_summed_in_float32() -> None:
    fused, pattern = made("causal", dtype=torch.bfloat16)
    mass = fused.mass(torch.zeros(BATCH, N, dtype=torch.int64), 1)
    assert mass.dtype is torch.float32
    torch.testing.assert_close(fused.pattern().double(), pattern, rtol=0, atol=2e-6)


def test_what_it_refuses() -> None:
    fused, pattern = made("causal")
    for layer in (fused, EagerAttention(pattern)):
        for name, call in (
            ("labels", lambda x: x.mass(torch.zeros(BATCH, N - 1, dtype=torch.int64), 1)),
            ("labels", lambda x: x.between(torch.zeros(BATCH + 1, N, dtype=torch.int64), 1)),
            ("keys", lambda x: x.at(torch.zeros(BATCH, N - 1, 1, dtype=torch.int64))),
        ):
            with pytest.raises(InputError, match=rf"^{name} has shape \[.*\] for 2 texts of 13 tokens; give one"):
                call(layer)
        with pytest.raises(InputError, match="labels has a class 3, but n_classes is 3; give more classes"):
            layer.mass(torch.full((BATCH, N), 3), 3)


# ---- a user's own probe ----


class FirstToken(AttentionReadout):
    """Mean attention to the first token, of each example and head."""

    def read(self, attention: Attention, batch: Batch) -> torch.Tensor:
        return attention.at(torch.zeros_like(batch.tokens)[:, :, None]).mean(dim=(2, 3))


class Sink(Probe):
    """Mean attention to the first token."""

    total = Sum()

    def __init__(self, at: Any = attention(), readout: Any = FirstToken()) -> None:
        self.at, self.readout = at, readout

    def update(self, activations: Any, batch: Batch) -> None:
        for site, first in activations.items():
            self.total.add(site, first.double().sum(dim=0))

    def compute(self) -> Any:
        total = torch.stack([self.total[site] for site in self.site_names])
        heads = [str(head) for head in range(total.shape[1])]
        return self.result({"total": total}, {"total": ("site", "head")}, {"head": heads})


def test_a_probe_of_attention_in_any_model(model: Any, batch: Batch) -> None:
    batch = Batch(batch.tokens)
    sites = [site.name for site in resolve(model, attention([1]))]
    assert sites == ["blocks.1.attn.hook_pattern"]
    with torch.no_grad():
        _, cache = model.run_with_cache(batch.tokens, names_filter=sites)
    expected = cache[sites[0]][..., 0].mean(dim=2).sum(dim=0)
    total = run(model, batch, Sink(attention(-1)))["total"][0]
    torch.testing.assert_close(total, expected, check_dtype=False)


def test_other_readouts_and_sites_are_refused(model: Any, batch: Batch) -> None:
    with pytest.raises(InputError, match=re.escape("expected attention patterns [batch head query key] for ")):
        run(model, batch, Sink(residual()))


# ---- memory ----


class LargestTensor(TorchDispatchMode):
    """Notes the size of the largest tensor that any operation returns."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        sizes = [t.untyped_storage().nbytes() // 4 for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        self.numbers = max(self.numbers, *sizes, 0)
        return out


def test_memory_is_linear_in_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_module, "_MAX_NUMBERS_AT_ONCE", 2**18)
    heads, n, d = 2, 4096, 16
    q = torch.randn(1, heads, n, d, generator=DRAW)
    layer = FusedAttention(q, q[:, :1], is_causal=True, scale=0.25)
    labels = torch.randint(0, 3, (1, n), generator=DRAW)
    with LargestTensor() as largest:
        mass = layer.mass(labels, 3)
        layer.entropy()
        layer.at(torch.arange(n).sub(1)[None, :, None])
        layer.between(labels, 3)
        layer.relabelled_mass(torch.randint(0, 900, (1, n), generator=DRAW), torch.randint(0, 3, (20, 900)))
    assert largest.numbers <= 2**19 < heads * n * n / 60
    np.testing.assert_allclose(mass.sum(dim=-1), np.ones((1, heads, n)), atol=1e-6)


def test_padding_needs_no_copy_of_a_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    heads, n = 2, 256
    monkeypatch.setattr(attention_module, "_MAX_NUMBERS_AT_ONCE", 8 * heads * n)
    pattern = torch.full((1, heads, n, n), torch.nan)
    pattern[:, :, 100:, 100:] = torch.eye(n - 100)
    padded = Batch(torch.zeros(1, n, dtype=torch.int64), (torch.arange(n) >= 100)[None])
    with LargestTensor() as largest:
        mean = FirstToken()(pattern, padded)
        entropy = AttentionEntropyReadout(None)(pattern, padded)
    assert largest.numbers < pattern.numel() / 4
    assert mean.tolist() == [[0, 0]]
    assert bool((entropy[..., 0] == 0).all())


def test_keys_of_a_cache_are_refused() -> None:
    batch = Batch(torch.zeros(2, 3, dtype=torch.int64))
    q = torch.randn(2, 4, 3, 8)
    longer = torch.randn(2, 4, 5, 8)
    for activation in (torch.rand(2, 4, 3, 5), FusedAttention(q, longer, scale=1)):
        with pytest.raises(InputError, match=r"for 3 tokens: measure at attention.*without the keys of a cache"):
            FirstToken()(activation, batch)


def test_all_tokens_keeps_no_attention_object(fused_model: Any) -> None:
    with pytest.raises(InputError, match=re.escape("readout all_tokens() takes a tensor, but 'blocks.0.attn.hook_att")):
        run(fused_model, torch.tensor([[3, 1, 4]]), Sink(readout=all_tokens()))


@pytest.fixture
def fused_model() -> Any:
    """A Hugging Face model with PyTorch's kernel of attention."""
    from mechclust import load_pretrained
    from tests.mechclust.models.families import FAMILIES

    plain = FAMILIES["llama"].build()
    plain.set_attn_implementation("sdpa")
    return load_pretrained(plain, attention="sdpa")
