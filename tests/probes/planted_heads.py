"""The ideal clustering head of spec 4, and a feed-forward layer made by hand that reads it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from mechclust.models import build_model
from mechclust.studies.clustering_heads.config import PoolingTransformerConfig
from tasks import Batch, SparseModularAddition

TASK = SparseModularAddition()
Z = "blocks.0.attn.hook_z"
STEEP = 40.0


def everything() -> Batch:
    """All 4,096 sequences."""
    return next(TASK.batches("all", 4096))


@torch.no_grad()
def ideal_head(beta: float, **fields: Any) -> Any:
    """Scores of ``beta / sqrt(2)`` on the support and its negative off it; the two digits opposite each other."""
    model = build_model(PoolingTransformerConfig(**fields))
    places, attention = model.pos_embed.W_pos, model.blocks[0].attn
    places.copy_(torch.tensor([[0.0, 1.0]] * 5 + [[0.0, -1.0]] * 7))
    model.embed.W_E.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]]))
    attention.query.copy_(torch.tensor([[0.0, beta]]))
    attention.W_V.copy_(torch.eye(2))
    return model


@torch.no_grad()
def solved_network(beta: float = 8.0) -> Any:
    """The ideal head, and a zigzag over its six clusters: even sums to the right, odd ones to the left."""
    model, seen = ideal_head(beta), []
    batch, mlp = everything(), model.blocks[0].mlp
    with model.hooks(fwd_hooks=[("blocks.0.ln2.hook_normalized", lambda x, hook: seen.append(x[:, 0, 0].clone()))]):
        model(batch.tokens)
    centres = torch.stack([seen[0][batch.labels["sum"] == k].mean() for k in range(6)])
    knots = torch.cat([(centres[:-1] + centres[1:]) / 2, centres[-1:] - 0.3])
    for weight in mlp.parameters():
        weight.zero_()
    mlp.W_in[0, :6], mlp.b_in[:6] = STEEP, -STEEP * knots
    hidden = F.gelu(STEEP * (centres[:, None] - knots)).double()
    target = 5.0 * (-1.0) ** torch.arange(6, dtype=torch.float64)
    mlp.W_out[:6, 0] = torch.linalg.solve(hidden, target).float()
    return model
