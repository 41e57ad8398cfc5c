"""The small transformer in which Odonnat, Bouaziz & Cabannes watch clustering heads form."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

from mechclust.models.sizes import ModelShape
from mechclust.studies.clustering_heads.config import PoolingTransformerConfig
from tasks import InputError


class _Norm(nn.Module):
    """Division by the root mean square, to which ``eps`` is added (outside the root), without a gain."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.hook_scale = HookPoint()
        self.hook_normalized = HookPoint()

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Return the normalised vectors."""
        scale = self.hook_scale(x.square().mean(dim=-1, keepdim=True).sqrt() + self.eps)
        return self.hook_normalized(x / scale)  # type: ignore[no-any-return]


class _Attention(nn.Module):
    def __init__(self, config: PoolingTransformerConfig) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(config.n_heads, config.d_head))
        self.W_V = nn.Parameter(torch.zeros(config.d_model, config.d_model))
        for name in ("attn_scores", "pattern", "v", "z"):
            setattr(self, f"hook_{name}", HookPoint())


class _MLP(nn.Module):
    def __init__(self, config: PoolingTransformerConfig) -> None:
        super().__init__()
        self.W_in = nn.Parameter(torch.zeros(config.d_model, config.d_mlp))
        self.b_in = nn.Parameter(torch.zeros(config.d_mlp))
        self.W_out = nn.Parameter(torch.zeros(config.d_mlp, config.d_model))
        self.b_out = nn.Parameter(torch.zeros(config.d_model))
        self.hook_pre = HookPoint()
        self.hook_post = HookPoint()
        self.dropout = nn.Dropout(config.dropout)


class _Block(nn.Module):
    def __init__(self, config: PoolingTransformerConfig) -> None:
        super().__init__()
        for name in ("resid_pre", "resid_mid", "resid_post", "mlp_out"):
            setattr(self, f"hook_{name}", HookPoint())
        self.ln1 = _Norm(config.eps)
        self.ln2 = _Norm(config.eps if config.eps_mlp is None else config.eps_mlp)
        self.attn = _Attention(config)
        self.mlp = _MLP(config)


class _Embed(nn.Module):
    def __init__(self, rows: int, width: int, name: str) -> None:
        super().__init__()
        setattr(self, name, nn.Parameter(torch.zeros(rows, width)))


class PoolingTransformer(HookedRootModule):  # type: ignore[misc]
    """One attention layer that pools a sequence into one vector, and a feed-forward layer that classifies it.

    Embeddings: ``e = E[x] + P[t]`` and ``z = norm(e)``. Attention has one learned query per head and no keys:
    ``a = softmax_t(q . z_t / sqrt(d_head))``. The sequence embedding is ``xi = sum_t a_t V z_t`` (no output matrix, no
    residual). The output is ``y = xi + W_2 gelu(W_1 norm(xi) + b_1) + b_2``, with logits ``y E^T``. In training,
    neurons are dropped behind the gelu.

    Hook points: ``hook_embed``, ``hook_pos_embed``, ``blocks.0.hook_resid_pre`` (e), ``blocks.0.ln1.hook_normalized``
    (z), ``blocks.0.attn.hook_{attn_scores,pattern}`` ``[batch head 1 key]``, and ``blocks.0.attn.hook_v``
    ``[batch pos head d_head]``. With one position ``[batch 1 ...]``: ``blocks.0.attn.hook_z`` and
    ``blocks.0.hook_resid_mid`` (xi), ``blocks.0.ln2.hook_{scale,normalized}``, ``blocks.0.mlp.hook_{pre,post}``,
    ``blocks.0.hook_mlp_out``, and ``blocks.0.hook_resid_post`` (y).

    Args:
        config: sizes. Weights are drawn from ``config.seed``.

    Example:
        >>> from mechclust.models import build_model
        >>> from mechclust.studies.clustering_heads import PoolingTransformerConfig
        >>> model = build_model(PoolingTransformerConfig())
        >>> sum(p.numel() for p in model.parameters()), model(torch.zeros(4, 12, dtype=torch.int64)).shape
        (198, torch.Size([4, 3]))
    """

    config_class = PoolingTransformerConfig

    def __init__(self, config: PoolingTransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embed: Any = _Embed(config.d_vocab, config.d_model, "W_E")
        self.hook_embed = HookPoint()
        self.pos_embed: Any = _Embed(config.n_ctx, config.d_model, "W_pos")
        self.hook_pos_embed = HookPoint()
        self.blocks: Any = nn.ModuleList([_Block(config)])
        self.cfg = ModelShape(
            n_layers=1,
            n_heads=config.n_heads,
            d_model=config.d_model,
            d_head=config.d_head,
            d_vocab=config.d_vocab,
            n_ctx=config.n_ctx,
        )
        self._draw()
        self.setup()

    @torch.no_grad()
    def _draw(self) -> None:
        """Draw the weights: embeddings are normal, query and values uniform within ``1 / sqrt(d)``.

        The feed-forward layer is one uniform row in [-1, 1] per neuron, scaled by ``1 / sqrt(fan-in)``. Networks of
        different widths thus share neurons.
        """
        draw = torch.Generator().manual_seed(self.config.seed)
        d = self.config.d_model
        block = self.blocks[0]
        self.embed.W_E.normal_(generator=draw)
        self.pos_embed.W_pos.normal_(generator=draw)
        for weight in (block.attn.query, block.attn.W_V):
            weight.uniform_(-1 / math.sqrt(d), 1 / math.sqrt(d), generator=draw)
        mlp = block.mlp
        mlp.b_out.uniform_(-1, 1, generator=draw).div_(math.sqrt(self.config.d_mlp))
        neurons = torch.empty(self.config.d_mlp, 2 * d + 1).uniform_(-1, 1, generator=draw)  # one row per neuron
        mlp.W_in.copy_(neurons[:, :d].T / math.sqrt(d))
        mlp.b_in.copy_(neurons[:, d] / math.sqrt(d))
        mlp.W_out.copy_(neurons[:, d + 1 :] / math.sqrt(self.config.d_mlp))

    def forward(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "answer d_vocab"]:
        """Return the logits of the answer to each sequence, or to each xi that a hook puts in its place.

        Args:
            tokens: 0 to ``d_vocab - 1``. This is not checked: others give meaningless logits or an ``IndexError``.

        Raises:
            InputError: for sequences of the wrong length.
        """
        if tokens.ndim != 2 or tokens.shape[1] != self.config.n_ctx:
            raise InputError(f"tokens has shape {tuple(tokens.shape)}; expected [batch {self.config.n_ctx}]")
        block = self.blocks[0]
        mlp = block.mlp
        pooled = self._by_token(tokens) if self._watched() else self._by_symbol(tokens)
        pooled = block.hook_resid_mid(block.attn.hook_z(pooled).flatten(2))
        hidden = mlp.hook_post(mlp.dropout(F.gelu(mlp.hook_pre(block.ln2(pooled) @ mlp.W_in + mlp.b_in))))
        out = block.hook_resid_post(pooled + block.hook_mlp_out(hidden @ mlp.W_out + mlp.b_out))
        return out[:, 0] @ self.embed.W_E.T  # type: ignore[no-any-return]

    def _by_token(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch 1 head d_head"]:
        """Return head outputs, computed at every token, so that hooks can read and change them."""
        block = self.blocks[0]
        embedded = self.hook_embed(self.embed.W_E[tokens])
        placed = self.hook_pos_embed(self.pos_embed.W_pos.expand(len(tokens), -1, -1))
        z = block.ln1(block.hook_resid_pre(embedded + placed))
        pattern = self._pattern(torch.einsum("hd,bkhd->bhk", block.attn.query, self._heads(z)))
        values = block.attn.hook_v(self._heads(z @ block.attn.W_V.T))
        return torch.einsum("bhqk,bkhd->bqhd", pattern, values)

    def _by_symbol(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch 1 head d_head"]:
        """Return head outputs, computed once for each symbol at each position, which are far fewer than tokens."""
        block = self.blocks[0]
        symbols = self.embed.W_E
        shown = (tokens[..., None] == torch.arange(len(symbols), device=tokens.device)).to(symbols.dtype)
        z = block.ln1(self.pos_embed.W_pos[:, None] + symbols)  # [pos symbol d_model]
        products = torch.einsum("hd,kvhd->hkv", block.attn.query, self._heads(z))
        pattern = self._pattern(torch.einsum("bkv,hkv->bhk", shown, products))
        share = pattern[..., None] * shown[:, None, None]  # [batch head 1 pos symbol]
        return torch.einsum("bhqkv,kvhd->bqhd", share, self._heads(z @ block.attn.W_V.T))

    def _heads(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch head d_head"]:
        return x.unflatten(-1, (self.config.n_heads, -1))  # type: ignore[no-untyped-call,no-any-return]

    def _pattern(self, products: Float[Tensor, "batch head key"]) -> Float[Tensor, "batch head 1 key"]:
        """Return attention, from the query's products with every key."""
        attn = self.blocks[0].attn
        scores = attn.hook_attn_scores(products[:, :, None] / math.sqrt(self.config.d_head))
        return attn.hook_pattern(scores.softmax(dim=-1))  # type: ignore[no-any-return]

    def _watched(self) -> bool:
        """Return whether a hook reads or changes the token-by-token computation."""
        block = self.blocks[0]
        points = (self.hook_embed, self.hook_pos_embed, block.hook_resid_pre, *block.ln1.children(), block.attn.hook_v)
        return any(point._forward_hooks or point._backward_hooks for point in points)
