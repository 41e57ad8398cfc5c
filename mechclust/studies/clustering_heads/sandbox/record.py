"""The activations of one small network at many epochs, recorded through its hooks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.func import functional_call, vmap

from mechclust.studies.clustering_heads.config import XI
from mechclust.studies.clustering_heads.cut import Weights, logits_of_embeddings
from mechclust.studies.clustering_heads.dynamics import SNAPSHOTS_AT_ONCE
from probes.engine.record import record
from tasks import Batch, SparseModularAddition

WeightsByFrame = Mapping[str, Float[Tensor, "frame ..."]]

# name in the sandbox -> hook point
_SEQUENCE_SITES = {
    "attention": "blocks.0.attn.hook_pattern",
    "xi": XI,
    "xi_normalized": "blocks.0.ln2.hook_normalized",
    "mlp_out": "blocks.0.hook_mlp_out",
    "output": "blocks.0.hook_resid_post",
}
_PAIR_SITES = {
    "sums": "blocks.0.hook_resid_pre",
    "normalized": "blocks.0.ln1.hook_normalized",
    "values": "blocks.0.attn.hook_v",
}
_WEIGHTS = {
    "token_embeddings": "embed.W_E",
    "position_embeddings": "pos_embed.W_pos",
    "query": "blocks.0.attn.query",
    "receptors": "blocks.0.mlp.W_in",
    "biases": "blocks.0.mlp.b_in",
    "assemblers": "blocks.0.mlp.W_out",
}


def record_frames(
    model: Any,
    weights: WeightsByFrame,
    tokens: Int[Tensor, "sequence pos"],
    cloud: Int[Tensor, "more pos"],
    task: SparseModularAddition,
) -> dict[str, Shaped[np.ndarray, "frame ..."]]:
    """Return everything that a sandbox shows of a network at each frame, by name.

    Args:
        model: a network of the run's shape.
        weights: by name.
        tokens: sequences to follow.
        cloud: further sequences, for which only xi is kept.
        task: gives the digits and the length.
    """
    # A sequence of a single repeated digit has it at every position: together these give every pair.
    alike = torch.arange(task.p)[:, None].expand(-1, task.length)
    measure = partial(_record_frame, model, torch.cat([tokens, alike, cloud]), len(tokens), task.p)
    values = vmap(measure, chunk_size=SNAPSHOTS_AT_ONCE)(weights)
    return {name: value.numpy() for name, value in values.items()}


def _record_frame(
    model: Any, tokens: Int[Tensor, "sequence pos"], n: int, p: int, weights: Weights
) -> dict[str, Shaped[Tensor, "..."]]:
    """Record a network with these weights on ``n`` sequences to follow, one of each digit, and further ones."""
    sites = {**_SEQUENCE_SITES, **_PAIR_SITES}
    with record(model, sites.values()) as seen:
        logits = functional_call(model, dict(weights), (tokens,))
    at = {name: seen[site][0] for name, site in sites.items()}
    frame = {name: weights[weight] for name, weight in _WEIGHTS.items()}
    # The answer that a feed-forward neuron supports: the one whose embedding its output points along.
    frame["votes"] = (frame["assemblers"] @ frame["token_embeddings"][:p].T).argmax(dim=-1)
    frame["query"] = frame["query"].flatten()
    frame["receptors"] = frame["receptors"].T
    for name in _SEQUENCE_SITES:
        frame[name] = at[name][:n].flatten(1)
    for name in _PAIR_SITES:
        frame[name] = at[name][n : n + p].flatten(0, 1).flatten(1)
    frame["cloud"] = at["xi"][n + p :, 0]
    frame["probabilities"] = logits[:n].softmax(dim=-1)
    return frame


def answers_over(
    model: Any, weights: WeightsByFrame, points: Float[np.ndarray, "point 2"]
) -> Float[np.ndarray, "frame point d_vocab"]:
    """Return p(y | point) for points that replace xi.

    Args:
        model: a network of the run's shape.
        weights: by name.
        points: the points.
    """
    at = torch.from_numpy(points).float()
    logits = vmap(partial(logits_of_embeddings, model, at), chunk_size=SNAPSHOTS_AT_ONCE)(weights)
    return logits.softmax(dim=-1).numpy()


def measure_frames(
    model: Any, weights: WeightsByFrame, task: SparseModularAddition
) -> dict[str, dict[str, Float[np.ndarray, "frame"]]]:
    """Return loss and accuracy at each frame, by split."""
    panels: dict[str, dict[str, Float[np.ndarray, "frame"]]] = {"loss": {}, "accuracy": {}}
    for split, n in (("train", task.n_train), ("test", task.n_test)):
        measure = partial(_loss_and_accuracy, model, task, next(task.batches(split, n)))
        loss, accuracy = vmap(measure, chunk_size=SNAPSHOTS_AT_ONCE)(weights)
        panels["loss"][split] = loss.numpy()
        panels["accuracy"][split] = accuracy.numpy()
    return panels


def _loss_and_accuracy(
    model: Any, task: SparseModularAddition, batch: Batch, weights: Weights
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    logits = functional_call(model, dict(weights), (batch.tokens,))
    return task.loss(logits, batch), task.accuracy(logits, batch).mean()
