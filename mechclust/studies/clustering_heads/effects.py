"""Effects of parts of a pooling transformer: mean attention, each connection, and the fewest that matter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechclust.studies.clustering_heads.config import MLP, XI
from mechclust.studies.clustering_heads.dynamics import measured_rows, task_of
from mechclust.training import Snapshots
from probes.engine.record import record

_PATTERN = "blocks.0.attn.hook_pattern"
_VALUES = "blocks.0.attn.hook_v"
_NORMALIZED = "blocks.0.ln2.hook_normalized"
_POST = f"{MLP}.hook_post"
_OUTPUT = "blocks.0.hook_resid_post"
_SITES = (_PATTERN, _VALUES, XI, _NORMALIZED, _POST, _OUTPUT)

Layer = Float[np.ndarray, "from to"]


@torch.no_grad()
def edge_effects(snapshots: Snapshots, member: int, place: int) -> list[Layer]:
    """Return the effects of the edges between positions, xi, neurons, the output and the answers, layer by layer.

    An edge's effect is the standard deviation, over the task's sequences, of its contribution to its end node. A
    contribution that is constant over sequences counts as 0. The effect has the sign of the weight, or for an edge from
    a position, of the covariance with the digit there. The direct path from xi to the output is left out.

    Args:
        snapshots: of an ensemble of pooling transformers on sparse modular addition.
        member: number of the network in the ensemble.
        place: index of the snapshot, from 0.
    """
    task = task_of(snapshots, member)
    tokens = measured_rows(task).batch.tokens
    model: Any = snapshots.model(member, snapshots.steps[place])
    with record(model, _SITES) as seen:
        model(tokens)
    at = {site: seen[site][0].double() for site in _SITES}
    pooled = torch.einsum("bhqk,bkhd->bkhd", at[_PATTERN], at[_VALUES]).flatten(2)  # [batch pos d]
    digits = tokens.double()
    covariance = torch.einsum("bk,bkd->kd", digits - digits.mean(dim=0), pooled - pooled.mean(dim=0))
    mlp = model.blocks[0].mlp
    layers = [
        pooled.std(dim=0) * covariance.sign(),
        _weighted(at[_NORMALIZED], mlp.W_in),
        _weighted(at[_POST], mlp.W_out),
        _weighted(at[_OUTPUT], model.embed.W_E[: task.p].T),
    ]
    return [layer.numpy() for layer in layers]


def _weighted(inputs: Float[Tensor, "batch 1 from"], weight: Float[Tensor, "from to"]) -> Float[Tensor, "from to"]:
    return inputs[:, 0].std(dim=0)[:, None] * weight.double()


def fewest_edges(layers: Sequence[Layer], share: float) -> list[Bool[np.ndarray, "from to"]]:
    """Return which edges to keep: in each layer the fewest whose squared effects sum to a share of the layer's.

    Edges into a node from which no edge is kept are dropped first, from the last layer to the first.

    Args:
        layers: effects, from the first layer to the last.
        share: between 0 and 1.

    Example:
        >>> kept = fewest_edges([np.array([[3.0, 9.0]]), np.array([[2.0], [0.1]])], 0.9)
        >>> [layer.tolist() for layer in kept]
        [[[True, False]], [[True], [False]]]
    """
    kept = [_fewest(layers[-1] ** 2, share)]
    for layer in reversed(layers[:-1]):
        leads_on = kept[0].any(axis=1)
        kept.insert(0, _fewest(layer**2 * leads_on, share))
    return kept


def _fewest(squares: Layer, share: float) -> Bool[np.ndarray, "from to"]:
    order = np.argsort(-squares, axis=None, kind="stable")
    before = np.cumsum(squares.ravel()[order]) - squares.ravel()[order]
    kept = np.zeros(squares.size, dtype=bool)
    kept[order] = before < share * squares.sum()
    return kept.reshape(squares.shape)


def nodes_on_edges(kept: Sequence[Bool[np.ndarray, "from to"]]) -> list[Bool[np.ndarray, "node"]]:
    """Return, for each column, which nodes have an edge that is kept.

    Example:
        >>> [nodes.tolist() for nodes in nodes_on_edges([np.array([[True, False]]), np.array([[True], [False]])])]
        [[True], [True, False], [True]]
    """
    into = [layer.any(axis=0).tolist() for layer in kept]
    out = [layer.any(axis=1).tolist() for layer in kept]
    between = [np.logical_or(before, after) for before, after in zip(into[:-1], out[1:], strict=True)]
    return [np.array(out[0]), *between, np.array(into[-1])]
