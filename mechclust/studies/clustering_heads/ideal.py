"""The ideal clustering head, and alternative initial weights for the base setting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from mechclust.models import build_model
from mechclust.models.weights import get_weights
from mechclust.studies.clustering_heads.config import Ideal, PoolingTransformerConfig
from mechclust.training import Member
from tasks import SparseModularAddition


def ideal_head(
    config: PoolingTransformerConfig, task: SparseModularAddition, beta: float
) -> dict[str, Float[Tensor, "_ d_model"]]:
    """Return embeddings, positions, query and values of the ideal clustering head, by name.

    Digits are equally spaced from (1, 0) to (-1, 0), and other rows of the embedding are 0. Positions are (0, 1) on the
    support and (0, -1) off it. The query is (0, beta) and
    the value matrix is the identity. For p = 2, attention is uniform on the support. The larger ``beta``, the less
    falls elsewhere. For large ``beta``, the sequence embedding depends on the sum of the support's digits alone if
    p = 2. For larger p it depends on their multiset, since digits differ in attention.

    Args:
        config: of a network with one head and at least two dimensions.
        task: gives p and the support.
        beta: length of the query.

    Example:
        >>> head = ideal_head(PoolingTransformerConfig(), SparseModularAddition(), beta=8)
        >>> head["embed.W_E"].tolist(), head["blocks.0.attn.query"].tolist()
        ([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]], [[0.0, 8.0]])
    """
    embedding = torch.zeros(config.d_vocab, config.d_model)
    embedding[: task.p, 0] = torch.linspace(1, -1, task.p)
    positions = torch.zeros(config.n_ctx, config.d_model)
    positions[:, 1] = -1.0
    positions[list(task.positions), 1] = 1.0
    query = torch.zeros(1, config.d_model)
    query[0, 1] = beta
    return {
        "embed.W_E": embedding,
        "pos_embed.W_pos": positions,
        "blocks.0.attn.query": query,
        "blocks.0.attn.W_V": torch.eye(config.d_model),
    }


def member_with_start(member: Member, scales: Mapping[str, float], ideal: Ideal, beta: float = 8.0) -> Member:
    """Return the member with changed initial weights.

    Args:
        member: a pooling transformer on sparse modular addition.
        scales: factors on the initial weights, by the beginning of a parameter's name.
        ideal: the part taken from the ideal head: none, ``"positions"``, or the whole ``"head"``.
        beta: length of the ideal head's query.
    """
    if not scales and not ideal:
        return member
    config = member.model
    task = member.task
    assert isinstance(config, PoolingTransformerConfig)
    assert isinstance(task, SparseModularAddition)
    weights = get_weights(build_model(config))
    for start, scale in scales.items():
        weights |= {name: scale * values for name, values in weights.items() if name.startswith(start)}
    if ideal == "positions":
        weights["pos_embed.W_pos"] = ideal_head(config, task, beta)["pos_embed.W_pos"]
    elif ideal == "head":
        weights |= ideal_head(config, task, beta)
    return replace(member, weights=weights)
