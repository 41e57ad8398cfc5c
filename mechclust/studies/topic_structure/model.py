"""The one-layer transformer in which Li, Li & Risteski study topics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

from mechclust.models.config import ModelShape
from mechclust.studies.topic_structure.config import TopicTransformerConfig
from tasks import Batch
from tasks.topic_documents import MASK

_TYPE_STD = 0.02  # of BERT's initial weights


class _Parts(nn.Module):
    """A module that only holds its parts: parameters, modules, hook points."""

    def __init__(self, hooks: Sequence[str] = (), /, **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        for name, part in {**parts, **{f"hook_{name}": HookPoint() for name in hooks}}.items():
            setattr(self, name, part)


class TopicTransformer(HookedRootModule):  # type: ignore[misc]
    """``f(Z) = W_pred (W_V Z) softmax((W_K Z)^T (W_Q Z) / sqrt(d)) + b``, ``Z`` the embedded tokens.

    One layer, one head; no MLP, residual, position embedding or output projection, and no normalisation except of the
    input (``config.input``). A position attends to every token, including masked ones unless ``config.masked_keys``
    hides them, but not to padding. Weights act on row vectors (``v = e @ W_V``), so each is the transpose of the
    paper's: ``paper_value()`` gives its ``W_V``.

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
        d, d_vocab, one_hot = config.width, config.d_vocab, config.embedding == "one-hot"
        start = config.input_scale * torch.eye(d_vocab) if one_hot else torch.zeros(d_vocab, d)
        query, key = (nn.Parameter(torch.zeros(d, d), requires_grad=config.attention == "trained") for _ in range(2))
        value = nn.Parameter(torch.eye(d), requires_grad=config.value == "trained")
        attn = _Parts(("q", "k", "v", "attn_scores", "pattern", "z"), W_Q=query, W_K=key, W_V=value)
        decoder = {"W_U": nn.Parameter(torch.zeros(d, d_vocab))} if config.decoder == "free" else {}
        added = {"W_type": nn.Parameter(torch.zeros(d))} if config.input == "normalised" else {}
        self.embed = _Parts(W_E=nn.Parameter(start, requires_grad=not one_hot), **added)
        self.hook_embed = HookPoint()
        self.blocks = nn.ModuleList([_Parts(("resid_pre", "attn_out", "resid_post"), attn=attn)])
        self.unembed = _Parts(**decoder, b_U=nn.Parameter(torch.zeros(d_vocab), requires_grad=config.bias))
        self.cfg = ModelShape(
            n_layers=1, n_heads=1, d_model=config.width, d_head=config.width, d_vocab=config.d_vocab, n_ctx=None
        )
        self._draw()
        self.setup()

    @torch.no_grad()
    def _draw(self) -> None:
        draw = torch.Generator().manual_seed(self.config.seed)
        bound, std = 1 / math.sqrt(self.config.width), self.config.init_std
        for weight in self.parameters():
            if weight.ndim == 2 and weight.requires_grad:
                if std is None:
                    weight.uniform_(-bound, bound, generator=draw)
                else:
                    weight.normal_(0.0, std, generator=draw)
        if self.config.input == "normalised":
            self.embed.W_type.normal_(0.0, _TYPE_STD, generator=draw)

    def _table(self) -> Float[Tensor, "d_vocab d_model"]:
        """``[d_vocab d_model]`` the layer's input for each token."""
        if self.config.input == "plain":
            return self.embed.W_E  # type: ignore[no-any-return]
        return F.layer_norm(self.embed.W_E + self.embed.W_type, (self.config.width,))

    def _decode(self, x: Tensor) -> Tensor:
        """``[... d_model]`` to ``[... d_vocab]`` logits."""
        if self.config.decoder != "identity":
            x = x @ (self.unembed.W_U if self.config.decoder == "free" else self.embed.W_E.T)
        return x + self.unembed.b_U

    def paper_value(self) -> Float[Tensor, "d_model d_model"]:
        """The paper's ``W_V``: entry ``[i, j]`` is what token ``j`` adds to output ``i`` (one-hot embedding)."""
        return self.blocks[0].attn.W_V.detach().T

    def forward(
        self, tokens: Int[Tensor, "batch pos"], attention_mask: Tensor | None = None
    ) -> Float[Tensor, "batch pos d_vocab"]:
        """``[batch pos d_vocab]`` logits.

        Args:
            tokens: ``[batch pos]``.
            attention_mask: ``[batch pos]``, false or 0 at padding.
        """
        block, attn = self.blocks[0], self.blocks[0].attn
        x = block.hook_resid_pre(self.hook_embed(self._table()[tokens]))
        q, k, v = (
            hook((x @ weight)[:, :, None])
            for hook, weight in ((attn.hook_q, attn.W_Q), (attn.hook_k, attn.W_K), (attn.hook_v, attn.W_V))
        )
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(self.config.width)
        if attention_mask is not None:
            scores = scores.masked_fill(~attention_mask.bool()[:, None, None], -torch.inf)
        if self.config.masked_keys == "hidden":
            scores = scores.masked_fill((tokens == MASK)[:, None, None], -torch.inf)
        pattern = attn.hook_pattern(attn.hook_attn_scores(scores).softmax(dim=-1))
        z = attn.hook_z(torch.einsum("bhqk,bkhd->bqhd", pattern, v))
        out = block.hook_resid_post(block.hook_attn_out(z[:, :, 0]))
        return self._decode(out)

    def logits_at_loss(self, batch: Batch) -> Float[Tensor, "n d_vocab"]:
        """``[n d_vocab]`` the output of ``forward`` where ``batch.loss_mask`` is true, at much lower cost.

        Positions play no part, so a document is its bag of words: all tokens equal to ``w`` together receive the
        attention ``n_w exp(score of w)``, and queries of one document with the same token are computed
        once. No hook point fires.
        """
        assert batch.loss_mask is not None
        attn, embed, d_vocab = self.blocks[0].attn, self.embed.W_E, self.config.d_vocab
        real = torch.ones_like(batch.tokens) if batch.attention_mask is None else batch.attention_mask
        counts = torch.zeros(len(batch), d_vocab, device=embed.device, dtype=embed.dtype)
        counts.scatter_add_(1, batch.tokens, real.to(embed.dtype))
        if self.config.masked_keys == "hidden":
            counts[:, MASK] = 0
        example, place = batch.loss_mask.nonzero(as_tuple=True)
        key, which = torch.unique(example * d_vocab + batch.tokens[example, place], return_inverse=True)
        bag, token = key // d_vocab, key % d_vocab
        one_hot = self.config.embedding == "one-hot" and self.config.input == "plain"
        table = None if one_hot else self._table()

        def read(weight: Tensor) -> Tensor:
            """``[d_vocab d_model]`` each token's input times a weight; one-hot inputs leave it as it is."""
            if table is not None:
                return table @ weight
            return weight if self.config.input_scale == 1 else self.config.input_scale * weight

        if self.config.attention == "uniform":
            share = (counts / counts.sum(dim=1, keepdim=True)).index_select(0, bag)
        else:
            query, keys = read(attn.W_Q).index_select(0, token), read(attn.W_K)
            share = (query @ keys.T / math.sqrt(self.config.width) + counts.log().index_select(0, bag)).softmax(dim=-1)
        return self._decode(share @ read(attn.W_V)).index_select(0, which)
