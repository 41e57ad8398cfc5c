"""A network cut at the sequence embedding xi: the head that computes it, and the classifier that reads it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import functional_call

from mechclust.studies.clustering_heads.config import XI
from probes.engine.record import record

Weights = Mapping[str, Float[Tensor, "..."]]


def sequence_embeddings(
    model: Any, tokens: Int[Tensor, "row pos"], weights: Mapping[str, Float[Tensor, "..."]] = {}
) -> Float[Tensor, "row d_model"]:
    """Return the sequence embedding xi of each row. Weights that are not given are the model's own."""
    with record(model, [XI]) as seen:
        functional_call(model, dict(weights), (tokens,))
    return seen[XI][0][:, 0]


def logits_of_embeddings(
    model: Any, xi: Float[Tensor, "row d_model"], weights: Mapping[str, Float[Tensor, "..."]] = {}
) -> Float[Tensor, "row d_vocab"]:
    """Return the logits for given sequence embeddings, with weights as in ``sequence_embeddings``.

    The rest of the network does not read the tokens.
    """
    tokens = torch.zeros(1, model.cfg.n_ctx, dtype=torch.int64, device=xi.device)
    with holding_activation(model, XI, xi[:, None]):
        logits: Tensor = functional_call(model, dict(weights), (tokens,))
    return logits


def holding_activation(model: Any, site: str, value: Float[Tensor, "..."]) -> AbstractContextManager[Any]:
    """Give a hook point this value inside the block, whatever the weights."""
    return record(model, [site], partial(_instead, value))


def _instead(value: Float[Tensor, "..."], name: str, activation: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    return value
