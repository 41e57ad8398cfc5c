"""The one-layer transformer in which Li, Li & Risteski study topics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import einops
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

from mechclust.models.sizes import ModelShape
from mechclust.studies.topic_structure.config import TopicTransformerConfig
from tasks import Batch

_Table = Float[Tensor, "d_vocab d_model"]
_TokenTable = Float[Tensor, "query_token key_token"]


class _Parts(nn.Module):
    """A module that only holds its parts: parameters, modules, hook points."""

    def __init__(self, hooks: Sequence[str] = (), /, **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        for name, part in {**parts, **{f"hook_{name}": HookPoint() for name in hooks}}.items():
            setattr(self, name, part)


class TopicTransformer(HookedRootModule):  # type: ignore[misc]
    """``f(Z) = W_pred (W_V Z) softmax((W_K Z)^T (W_Q Z) / sqrt(d)) + b``, ``Z`` the embedded tokens.

    One layer, one head; no MLP, residual, position embedding or output projection, and no normalisation except of the
    input (``config.input``). A position attends to every token, including masked ones, but not to padding. Weights act
    on row vectors (``v = e @ W_V``), so each is the transpose of the paper's: ``paper_value()`` gives its ``W_V``.

    Hook points: ``hook_embed``, ``blocks.0.hook_resid_pre`` (the same), ``blocks.0.attn.hook_{q,k,v}``
    ``[batch pos head d_head]``, ``hook_attn_scores`` and ``hook_pattern`` ``[batch head query key]``,
    ``hook_z``, ``blocks.0.hook_attn_out`` and ``blocks.0.hook_resid_post`` ``[batch pos d_model]``.

    Args:
        config: which parts are trained; weights are drawn from ``config.seed``.

    Example:
        >>> from mechclust.models import build_model
        >>> from mechclust.studies.topic_structure import TopicTransformerConfig
        >>> model = build_model(TopicTransformerConfig(d_vocab=12))
        >>> model(torch.tensor([[2, 5, 1, 7]])).shape
        torch.Size([1, 4, 12])
    """

    config_class = TopicTransformerConfig
    embed: Any
    blocks: Any
    unembed: Any

    def __init__(self, config: TopicTransformerConfig) -> None:
        super().__init__()
        self.config = config
        d = config.width
        d_vocab = config.d_vocab
        one_hot = config.embedding == "one-hot"
        start = torch.eye(d_vocab) if one_hot else torch.zeros(d_vocab, d)
        trained = config.attention == "trained"
        biases = {f"b_{part}": nn.Parameter(torch.zeros(d)) for part in "QKV" if config.attention_bias}
        attn = _Parts(
            ("q", "k", "v", "attn_scores", "pattern", "z"),
            W_Q=nn.Parameter(torch.zeros(d, d), requires_grad=trained),
            W_K=nn.Parameter(torch.zeros(d, d), requires_grad=trained),
            W_V=nn.Parameter(torch.eye(d), requires_grad=config.value == "trained"),
            **biases,
        )
        decoder = {"W_U": nn.Parameter(torch.zeros(d, d_vocab))} if config.decoder == "free" else {}
        normalised = config.input == "normalised"
        added: dict[str, Any] = {"W_type": nn.Parameter(torch.zeros(d)), "ln": nn.LayerNorm(d)} if normalised else {}
        self.embed = _Parts(W_E=nn.Parameter(start, requires_grad=not one_hot), **added)
        self.hook_embed = HookPoint()
        self.blocks = nn.ModuleList([_Parts(("resid_pre", "attn_out", "resid_post"), attn=attn)])
        self.unembed = _Parts(**decoder, b_U=nn.Parameter(torch.zeros(d_vocab), requires_grad=config.bias))
        self.cfg = ModelShape(n_layers=1, n_heads=1, d_model=d, d_head=d, d_vocab=d_vocab, n_ctx=None)
        self._draw()
        self.setup()

    @torch.no_grad()
    def _draw(self) -> None:
        draw = torch.Generator().manual_seed(self.config.seed)
        bound = 1 / math.sqrt(self.config.width)
        std = self.config.init_std
        for name, weight in self.named_parameters():
            if (weight.ndim == 2 or ".attn.b_" in name) and weight.requires_grad:
                if std is None:
                    weight.uniform_(-bound, bound, generator=draw)
                else:
                    weight.normal_(0.0, std, generator=draw)
        if self.config.input == "normalised":
            self.embed.W_type.normal_(0.0, self.config.type_std, generator=draw)

    def _table(self) -> _Table:
        """Return the layer's input for each token."""
        if self.config.input == "plain":
            return self.embed.W_E
        return self.embed.ln(self.embed.W_E + self.embed.W_type)  # type: ignore[no-any-return]

    def _decode(self, x: Float[Tensor, "*more d_model"]) -> Float[Tensor, "*more d_vocab"]:
        if self.config.decoder == "free":
            x = x @ self.unembed.W_U
        elif self.config.decoder == "tied":
            x = x @ self.embed.W_E.T
        return x + self.unembed.b_U

    def paper_value(self) -> Float[Tensor, "d_model d_model"]:
        """Return the paper's ``W_V``: entry ``[i, j]`` is what token ``j`` adds to output ``i`` (one-hot embedding)."""
        return self.blocks[0].attn.W_V.detach().T

    def forward(
        self, tokens: Int[Tensor, "batch pos"], attention_mask: Shaped[Tensor, "batch pos"] | None = None
    ) -> Float[Tensor, "batch pos d_vocab"]:
        """Return logits.

        Args:
            tokens: token ids.
            attention_mask: false or 0 at padding.
        """
        block = self.blocks[0]
        attn = block.attn
        x = block.hook_resid_pre(self.hook_embed(self._table()[tokens]))
        q = attn.hook_q(self._biased(x @ attn.W_Q, "Q")[:, :, None])
        k = attn.hook_k(self._biased(x @ attn.W_K, "K")[:, :, None])
        v = attn.hook_v(self._biased(x @ attn.W_V, "V")[:, :, None])
        scores = einops.einsum(q, k, "batch query head d, batch key head d -> batch head query key")
        scores = scores / math.sqrt(self.config.width)
        if attention_mask is not None:
            scores = scores.masked_fill(~attention_mask.bool()[:, None, None], -torch.inf)
        pattern = attn.hook_pattern(attn.hook_attn_scores(scores).softmax(dim=-1))
        z = attn.hook_z(einops.einsum(pattern, v, "batch head query key, batch key head d -> batch query head d"))
        out = block.hook_resid_post(block.hook_attn_out(z[:, :, 0]))
        return self._decode(out)

    def logits_at_loss(self, batch: Batch) -> Float[Tensor, "position d_vocab"]:
        """Return the output of ``forward`` where ``batch.loss_mask`` is true, at much lower cost.

        Positions play no part, so a document is its bag of words: all tokens equal to ``w`` together receive the
        attention ``n_w exp(score of w)``, and queries of one document with the same token are computed
        once. No hook point fires.
        """
        assert batch.loss_mask is not None
        d_vocab = self.config.d_vocab
        example, place = batch.loss_mask.nonzero(as_tuple=True)
        query, which = torch.unique(example * d_vocab + batch.tokens[example, place], return_inverse=True)
        table = self._table()
        share = self._attention_to_words(table, self._counts(batch), query // d_vocab, query % d_vocab)
        return self._decode(share @ self._times(table, "V")).index_select(0, which)

    @torch.no_grad()
    def attention_between_tokens(self, batch: Batch) -> tuple[_TokenTable, _TokenTable]:
        """Return the attention of positions with each token to those with each other, summed, and how many pairs."""
        counts = self._counts(batch)
        document = torch.arange(len(counts)).repeat_interleave(self.config.d_vocab)
        token = torch.arange(self.config.d_vocab).repeat(len(counts))
        share = self._attention_to_words(self._table(), counts, document, token).double()
        counts = counts.double()
        by_document = einops.rearrange(share, "(batch query) key -> batch query key", batch=len(counts))
        return einops.einsum(counts, by_document, "batch query, batch query key -> query key"), counts.T @ counts

    def _counts(self, batch: Batch) -> Float[Tensor, "batch d_vocab"]:
        """Return how often each token is attended to in each document."""
        real = torch.ones_like(batch.tokens) if batch.attention_mask is None else batch.attention_mask
        embed = self.embed.W_E
        counts = torch.zeros(len(batch), self.config.d_vocab, device=embed.device, dtype=embed.dtype)
        counts.scatter_add_(1, batch.tokens, real.to(embed.dtype))
        return counts

    def _attention_to_words(
        self,
        table: _Table,
        counts: Float[Tensor, "batch d_vocab"],
        document: Int[Tensor, "query"],
        token: Int[Tensor, "query"],
    ) -> Float[Tensor, "query d_vocab"]:
        """Return the attention of queries, each a token in a document, to all tokens equal to each word."""
        if self.config.attention == "uniform":
            return (counts / counts.sum(dim=1, keepdim=True)).index_select(0, document)
        query = self._times(table, "Q").index_select(0, token)
        scores = query @ self._times(table, "K").T / math.sqrt(self.config.width)
        return (scores + counts.log().index_select(0, document)).softmax(dim=-1)

    def _times(self, table: _Table, part: str) -> _Table:
        """Return each token's query, key or value; one-hot inputs leave the weight as it is."""
        weight: _Table = getattr(self.blocks[0].attn, f"W_{part}")
        if self.config.embedding != "one-hot" or self.config.input != "plain":
            weight = table @ weight
        return self._biased(weight, part)

    def _biased(self, x: Float[Tensor, "*more d_model"], part: str) -> Float[Tensor, "*more d_model"]:
        """Add the bias of queries, keys or values, if there is one."""
        return x + getattr(self.blocks[0].attn, f"b_{part}") if self.config.attention_bias else x
