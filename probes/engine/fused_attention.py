"""Attention from queries and keys, through kernels that never write the pattern."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from operator import methodcaller
from typing import Any

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from probes.engine.attention import Attention
from probes.engine.state import AnyTensor
from probes.functional.arrays import exact_dtype

_HALF = (torch.float16, torch.bfloat16)


class FusedAttention(Attention):
    """Attention from queries and keys, after whatever the model does to them, such as rotary embedding.

    The attention of query ``q`` to key ``k`` is the softmax over keys of ``scale`` times their product. Sums over keys
    are themselves attention, with what is summed in place of the values: masses of classes are attention to one-hot
    labels. The log-sum-exp of each row comes from the same kernels. With a mask, which kernels take in full precision
    only, it is computed in blocks of queries, over the keys that a block can see.

    Args:
        q: queries.
        k: keys; heads may share them (grouped queries).
        mask: true where a query sees a key, or numbers that are added to the scores.
        is_causal: whether a query sees no later keys. Only without a mask.
        scale: factor of the products.

    Example:
        >>> q = torch.randn(1, 2, 5, 8)
        >>> layer = FusedAttention(q, q, is_causal=True, scale=8**-0.5)
        >>> layer.mass(torch.zeros(1, 5, dtype=torch.int64), n_classes=1).round(decimals=4).unique()
        tensor([1.])
    """

    def __init__(
        self,
        q: Float[Tensor, "batch head query d_head"],
        k: Float[Tensor, "batch kv_head key d_head"],
        mask: Shaped[Tensor, "#batch #head query key"] | None = None,
        *,
        is_causal: bool = False,
        scale: float,
    ) -> None:
        on_cpu = q.device.type == "cpu" and q.dtype in _HALF  # where half precision is slower
        self.q = q.float() if on_cpu else q
        self.k = k.float() if on_cpu else k
        self.mask = mask
        self.is_causal = is_causal
        self.scale = scale
        self.shape = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        self.device = q.device
        self.columns_at_once = q.shape[3]

    def example(self, number: int) -> FusedAttention:
        """Return the attention of one example of the batch, as a batch of one."""
        part = slice(number, number + 1)
        mask = self.mask if self.mask is None or len(self.mask) == 1 else self.mask[part]
        one = FusedAttention(self.q[part], self.k[part], mask, is_causal=self.is_causal, scale=self.scale)
        one.__dict__["_row_sums"] = (self._row_sums[0][part], self._row_sums[1][part])
        return one

    def detach(self) -> FusedAttention:
        """Return the same attention without gradients."""
        return self._mapped(Tensor.detach)

    def to(self, *args: Any, **kwargs: Any) -> FusedAttention:
        """Return the attention on another device."""
        return self._mapped(methodcaller("to", *args, **kwargs))

    def _mapped(self, function: Callable[[AnyTensor], AnyTensor]) -> FusedAttention:
        """Return the attention with a function applied to its tensors."""
        mask = None if self.mask is None else function(self.mask)
        return FusedAttention(function(self.q), function(self.k), mask, is_causal=self.is_causal, scale=self.scale)

    # ---- rows and single keys ----

    def rows(
        self, queries: Int[Tensor, "query"], keys: Int[Tensor, "key"] | None = None
    ) -> Float[Tensor, "batch head query key"]:
        """Return the attention of some queries to some keys, or to all, in float32."""
        keys = torch.arange(self.shape[3], device=self.device) if keys is None else keys
        mask = None if self.mask is None else self.mask[:, :, queries][..., keys]
        if self.is_causal:
            mask = (keys <= queries[:, None])[None, None]
        scores = self._scores(self.q[:, :, queries], self._exact_keys[:, :, keys], mask)
        log_sum = self._row_sums[0][:, :, queries, None]
        log_sum = torch.where(log_sum > -torch.inf, log_sum, 0)  # of a query that sees no key
        return scores.sub_(log_sum).exp_()

    def at(self, keys: Int[Tensor, "batch query place"]) -> Float[Tensor, "batch head query place"]:
        """Return each query's attention to a few keys of its own; 0 for keys below 0, which stand for none."""
        self._check("keys", keys, 2)
        batch, _, _, d_head = self.q.shape
        kv_head = self.k.shape[1]
        weights = []
        for part in self.parts(batch * kv_head * d_head * max(1, keys.shape[2])):
            chosen = keys[:, part]
            index = repeat(chosen.clamp(min=0), "b q p -> b kv (q p) d", kv=kv_head, d=d_head)
            k = rearrange(self._exact_keys.gather(2, index), "b kv (q p) d -> b kv q p d", q=chosen.shape[1])
            q = rearrange(_exact(self.q[:, :, part]), "b (kv g) q d -> b kv g q d", kv=kv_head)
            scores = torch.einsum("bngqd,bnqpd->bngqp", q * self.scale, k).flatten(1, 2)
            scores = _masked(scores, self._mask_at(part, chosen))
            weights.append(torch.where(scores > -torch.inf, (scores - self._row_sums[0][:, :, part, None]).exp(), 0))
        return torch.cat(weights, dim=2)

    def _mask_at(
        self, part: slice, keys: Int[Tensor, "batch query place"]
    ) -> Shaped[Tensor, "batch #head query place"]:
        """Return which of the given keys the queries see, or what is added to their scores."""
        is_key = (keys >= 0)[:, None]
        if self.mask is not None:
            mask = self.mask[:, :, part].expand(len(keys), -1, -1, -1)
            at_keys = mask.gather(3, keys[:, None].clamp(min=0).expand(-1, mask.shape[1], -1, -1))
            if at_keys.dtype is torch.bool:
                return at_keys & is_key
            return torch.where(is_key, at_keys, -torch.inf)
        if self.is_causal:
            queries = torch.arange(part.start, part.stop, device=self.device)
            return is_key & (keys <= queries[:, None])[:, None]
        return is_key

    # ---- sums over all keys ----

    def reach(
        self, real: Bool[Tensor, "batch key"]
    ) -> tuple[Float[Tensor, "batch head query"], Float[Tensor, "batch head query"]]:
        """Return each query's attention to real keys before it, and its mean distance in tokens to all real keys.

        If no query sees a later key, both are sums of what each of a few blocks of keys gets: its mass, and its mass
        times the place in the block. Blocks that a query does not reach add no rounding to its distance.
        """
        if bool(self.looks_ahead(real).any()):
            return super().reach(real)
        exact = exact_dtype(self.device)
        position = torch.arange(self.shape[3], device=self.device)
        size = -(-self.shape[3] // max(1, self.columns_at_once // 2))
        starts = position[::size]
        in_block = (real[:, :, None] & (position[:, None] // size == starts // size)).float()
        columns = torch.cat([in_block, in_block * (position % size)[:, None]], dim=2)
        mass, within = self.apply(columns).tensor_split(2, dim=3)
        itself = self.at(torch.where(real, position, -1)[:, :, None])[..., 0]
        earlier = mass.sum(dim=-1, dtype=exact) - itself
        distances = []
        for part in self.parts(2 * mass[:, :, 0].numel()):
            to_block = (position[part, None] - starts).to(exact)
            distances.append((mass[:, :, part] * to_block - within[:, :, part]).sum(dim=-1))
        return earlier, torch.cat(distances, dim=2)

    def apply(self, values: Float[Tensor, "batch key column"]) -> Float[Tensor, "batch head query column"]:
        """Return the sum of the keys' values, weighted by attention, for every query and head."""
        width = self.columns_at_once
        keys = self._keys_of_heads
        sums = []
        for columns in torch.split(values, width, dim=2):
            n = columns.shape[2]
            filled = pad(columns, (0, width - n)).to(self.q.dtype).contiguous()  # else no kernel takes it
            sums.append(_exact(self._attend(keys, filled[:, None].expand(-1, self.shape[1], -1, -1))[..., :n]))
        return torch.cat(sums, dim=3)

    def _attend(
        self, k: Float[Tensor, "batch head key d_head"], v: Float[Tensor, "batch head key d_head"]
    ) -> Float[Tensor, "batch head query d_head"]:
        """Return attention with these values."""
        if self.mask is None:
            return scaled_dot_product_attention(self.q, k, v, is_causal=self.is_causal, scale=self.scale)
        blocks = []
        for part in self.parts(self.mask.shape[0] * self.mask.shape[1] * self.shape[3]):
            mask = self.mask[:, :, part]
            seen = self._seen_keys(part)
            if mask.dtype is not torch.bool:
                mask = mask.to(self.q.dtype)
            blocks.append(
                scaled_dot_product_attention(
                    self.q[:, :, part], k[:, :, seen], v[:, :, seen], attn_mask=mask[..., seen], scale=self.scale
                )
            )
        return torch.cat(blocks, dim=2)

    def entropy(self) -> Float[Tensor, "batch head query"]:
        """Return the entropy of each query's attention, in nats."""
        log_sum, mean_score = self._row_sums
        return log_sum - mean_score

    @cached_property
    def _row_sums(self) -> tuple[Float[Tensor, "batch head query"], Float[Tensor, "batch head query"]]:
        """Each row's log-sum-exp of scores, and the mean of its scores, weighted by attention; both in float32."""
        if self.mask is None:
            sums = self._row_sums_by_kernel()
            if sums is not None:
                return sums
        log_sums = []
        means = []
        for part in self.parts():
            seen = self._seen_keys(part)
            keys = torch.arange(seen.start, seen.stop, device=self.device)
            queries = torch.arange(part.start, part.stop, device=self.device)
            mask = (keys <= queries[:, None])[None, None] if self.is_causal else None
            if self.mask is not None:
                mask = self.mask[:, :, part, seen]
            scores = self._scores(self.q[:, :, part], self._exact_keys[:, :, seen], mask)
            log_sum = scores.logsumexp(dim=-1)
            weights = (scores - log_sum[..., None]).exp()
            log_sums.append(log_sum)
            means.append(torch.where(weights > 0, weights * scores, 0).sum(dim=-1))
        return torch.cat(log_sums, dim=2), torch.cat(means, dim=2)

    def _row_sums_by_kernel(self) -> tuple[Float[Tensor, "batch head query"], Float[Tensor, "batch head query"]] | None:
        """Return ``_row_sums`` from one call of a fused kernel, or ``None`` if the device has none for these tensors.

        The mean score of a query is its product with the mean key, which is attention with the keys as values.
        """
        k = self._keys_of_heads
        aten = torch.ops.aten
        options: dict[str, Any] = {"is_causal": self.is_causal, "scale": self.scale}
        if self.device.type == "cpu":
            mean_key, log_sum = aten._scaled_dot_product_flash_attention_for_cpu(self.q, k, k, **options)
        elif self.device.type == "cuda":
            parameters = torch.backends.cuda.SDPAParams(self.q, k, k, None, 0.0, self.is_causal, False)
            if self.q.shape[3] % 8 == 0 and torch.backends.cuda.can_use_flash_attention(parameters):
                mean_key, log_sum = aten._scaled_dot_product_flash_attention(self.q, k, k, **options)[:2]
            elif torch.backends.cuda.can_use_efficient_attention(parameters):
                mean_key, log_sum = aten._scaled_dot_product_efficient_attention(self.q, k, k, None, True, **options)[
                    :2
                ]
            else:
                return None
        else:
            return None
        scores = []
        for q, mean in zip(self.q.unbind(1), mean_key.unbind(1), strict=True):  # a head at a time saves memory
            scores.append((_exact(q) * _exact(mean)).sum(dim=-1))
        return _exact(log_sum[:, :, : self.shape[2]]), self.scale * torch.stack(scores, dim=1)  # rows may be filled up

    def _seen_keys(self, part: slice) -> slice:
        """Return the range of keys that any of these queries sees."""
        n_keys = self.shape[3]
        if self.mask is not None and self.mask.dtype is torch.bool:
            seen = self.mask[:, :, part].flatten(0, 2).any(dim=0).nonzero()
            return slice(int(seen[0]), int(seen[-1]) + 1) if len(seen) else slice(0, n_keys)
        return slice(0, min(part.stop, n_keys) if self.is_causal else n_keys)

    def looks_ahead(self, real: Bool[Tensor, "batch key"]) -> Bool[Tensor, "batch"]:
        """Return which examples have a real query that sees a real key behind it."""
        looks = torch.zeros_like(real[:, 0])
        if self.mask is None:
            return looks | (not self.is_causal and self.shape[3] > 1)
        keys = torch.arange(self.shape[3], device=self.device)
        for part in self.parts(len(self.mask) * self.shape[3]):
            queries = torch.arange(part.start, part.stop, device=self.device)
            mask = self.mask[:, :, part]
            sees = mask if mask.dtype is torch.bool else mask > torch.finfo(mask.dtype).min / 2
            is_later = (keys > queries[:, None]) & real[:, part, None] & real[:, None]
            looks |= (sees.any(dim=1) & is_later).flatten(1).any(dim=1)
        return looks

    # ---- scores ----

    def _scores(
        self,
        q: Float[Tensor, "batch head query d_head"],
        k: Float[Tensor, "batch kv_head key d_head"],
        mask: Shaped[Tensor, "#batch #head query key"] | None,
    ) -> Float[Tensor, "batch head query key"]:
        """Return the scores of some queries and keys in float32, minus infinity where a query does not see a key."""
        kv_head = k.shape[1]
        grouped = rearrange(_exact(q) * self.scale, "b (kv g) q d -> b kv (g q) d", kv=kv_head)
        scores = rearrange(grouped @ k.mT, "b kv (g q) k -> b (kv g) q k", q=q.shape[2])
        return scores if mask is None else _masked(scores, mask)

    @cached_property
    def _exact_keys(self) -> Float[Tensor, "batch kv_head key d_head"]:
        """The keys in float32 or better."""
        return _exact(self.k)

    @property
    def _keys_of_heads(self) -> Float[Tensor, "batch head key d_head"]:
        """The keys, repeated for heads that share them."""
        return self.k.repeat_interleave(self.shape[1] // self.k.shape[1], dim=1)


def _exact(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return numbers in float32 or better."""
    return x.float() if x.dtype in _HALF else x


def _masked(
    scores: Float[Tensor, "batch head query key"], mask: Shaped[Tensor, "#batch #head query key"]
) -> Float[Tensor, "batch head query key"]:
    """Return scores with a mask."""
    if mask.dtype is torch.bool:
        return scores.masked_fill_(~mask, -torch.inf)
    return scores + mask
