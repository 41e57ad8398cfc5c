"""Where a network attends, over its training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call

from mechclust.models import build_model
from mechclust.studies.clustering_heads.dynamics import measured_rows, task_of
from mechclust.training import Snapshots
from probes.engine.hooks import record

_PATTERN = "blocks.0.attn.hook_pattern"


@torch.no_grad()
def mean_attention(snapshots: Snapshots, member: int, places: Sequence[int]) -> Float[Tensor, "place pos"]:
    """Attention to every position at some snapshots, averaged over the task's sequences and the heads.

    Args:
        snapshots: of an ensemble of pooling transformers on sparse modular addition.
        member: number of the network in the ensemble.
        places: indices of the snapshots, from 0.
    """
    weights = snapshots.of(member, [snapshots.steps[place] for place in places])
    model: Any = build_model(snapshots.configs[member])
    tokens, found = measured_rows(task_of(snapshots, member)).batch.tokens, []
    for i in range(len(places)):
        with record(model, [_PATTERN]) as seen:
            functional_call(model, {name: values[i] for name, values in weights.items()}, (tokens,))
        found.append(seen[_PATTERN][0].mean(dim=(0, 1, 2)))
    return torch.stack(found)
