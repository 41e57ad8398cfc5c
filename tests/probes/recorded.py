"""Activations as plain hooks see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tasks import Batch


def recorded(model: Any, batch: Batch, sites: Sequence[str]) -> dict[str, Tensor]:
    """What one forward pass of the batch gives at each site."""
    kept: dict[str, Tensor] = {}
    hooks = [(site, lambda x, hook, site=site: kept.update({site: x.clone()})) for site in sites]
    mask = {} if batch.attention_mask is None else {"attention_mask": batch.attention_mask.long()}
    with torch.no_grad(), model.hooks(fwd_hooks=hooks):
        model(batch.tokens, **mask)
    return kept


def recorded_patterns(model: Any, batch: Batch) -> dict[str, Tensor]:
    """``[batch head query key]`` of each block."""
    return recorded(model, batch, [f"blocks.{i}.attn.hook_pattern" for i in range(model.cfg.n_layers)])
