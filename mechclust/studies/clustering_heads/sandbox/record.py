"""The activations of one small network at many epochs, recorded through its hooks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from mechclust.models.weights import set_weights
from mechclust.studies.clustering_heads.config import XI
from probes.engine.hooks import HookedModel, record
from tasks import SparseModularAddition

# name in the sandbox -> hook point
SEQUENCE_SITES = {
    "attention": "blocks.0.attn.hook_pattern",
    "xi": XI,
    "xi_normalized": "blocks.0.ln2.hook_normalized",
    "mlp_out": "blocks.0.hook_mlp_out",
    "output": "blocks.0.hook_resid_post",
}
PAIR_SITES = {
    "sums": "blocks.0.hook_resid_pre",
    "normalized": "blocks.0.ln1.hook_normalized",
    "values": "blocks.0.attn.hook_v",
}
WEIGHTS = {
    "token_embeddings": "embed.W_E",
    "position_embeddings": "pos_embed.W_pos",
    "query": "blocks.0.attn.query",
    "receptors": "blocks.0.mlp.W_in",
    "biases": "blocks.0.mlp.b_in",
    "assemblers": "blocks.0.mlp.W_out",
}


def frames_of(model: HookedModel, weights: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Load the weights of each frame into the model, one after the other.

    Args:
        model: a network of the run's shape.
        weights: ``[frame ...]`` by name.
    """
    for i in range(len(next(iter(weights.values())))):
        now = {name: values[i] for name, values in weights.items()}
        set_weights(model, now)
        yield now


@torch.no_grad()
def record_frames(
    model: HookedModel,
    weights: Mapping[str, Tensor],
    tokens: Int[Tensor, "sequence pos"],
    cloud: Int[Tensor, "more pos"],
    task: SparseModularAddition,
) -> dict[str, np.ndarray]:
    """Everything a sandbox shows of a network at each frame, ``[frame ...]`` by name.

    Args:
        model, weights: as in ``frames_of``.
        tokens: sequences to follow.
        cloud: further sequences, of which only xi is kept.
        task: gives the digits and the length.
    """
    # A sequence of a single repeated digit has it at every position: together these give every pair.
    alike = torch.arange(task.p)[:, None].expand(-1, task.length)
    together, n = torch.cat([tokens, alike, cloud]), len(tokens)
    sites = {**SEQUENCE_SITES, **PAIR_SITES}
    frames: list[dict[str, Tensor]] = []
    for now in frames_of(model, weights):
        with record(model, sites.values()) as seen:
            logits = model(together)
        at = {name: seen[site][0] for name, site in sites.items()}
        frame = {name: now[weight] for name, weight in WEIGHTS.items()}
        frame["query"] = frame["query"].flatten()
        frame["receptors"] = frame["receptors"].T
        for name in SEQUENCE_SITES:
            frame[name] = (at[name][:, 0, 0] if name == "attention" else at[name][:, 0])[:n]
        for name in PAIR_SITES:
            frame[name] = at[name][n : n + task.p].reshape(task.p * task.length, -1)
        frame["cloud"] = at["xi"][n + task.p :, 0]
        frame["probabilities"] = logits[:n].softmax(dim=-1)
        # The answer that a feed-forward neuron supports: the one whose embedding its output points along.
        frame["votes"] = (now[WEIGHTS["assemblers"]] @ now[WEIGHTS["token_embeddings"]][: task.p].T).argmax(dim=-1)
        frames.append(frame)
    return {name: torch.stack([frame[name] for frame in frames]).numpy() for name in frames[0]}


@torch.no_grad()
def answers_over(model: HookedModel, weights: Mapping[str, Tensor], points: np.ndarray, *, after: bool) -> np.ndarray:
    """``[frame point d_vocab]`` p(y | point) for points that replace xi or, with ``after``, the output.

    Args:
        model, weights: as in ``frames_of``.
        points: ``[point 2]``.
        after: the points replace the feed-forward layer's output with the residual.
    """
    at = torch.from_numpy(np.ascontiguousarray(points, dtype=np.float32))
    # One sequence is enough: any number of points can replace its xi, since nothing later reads the tokens.
    dummy = torch.zeros(1, model.cfg.n_ctx, dtype=torch.int64)
    found = []
    with record(model, [XI], lambda name, xi: at[:, None].to(xi)):
        for now in frames_of(model, weights):
            logits = at @ now[WEIGHTS["token_embeddings"]].T if after else model(dummy)
            found.append(logits.softmax(dim=-1))
    return torch.stack(found).numpy()


@torch.no_grad()
def measure_frames(
    model: HookedModel, weights: Mapping[str, Tensor], task: SparseModularAddition
) -> dict[str, list[float]]:
    """Loss and accuracy of both splits at each frame, by name."""
    batches = {split: next(task.batches(split, n)) for split, n in (("train", task.n_train), ("test", task.n_test))}
    found: dict[str, list[float]] = {f"{split}_{what}": [] for split in batches for what in ("loss", "accuracy")}
    for _ in frames_of(model, weights):
        for split, batch in batches.items():
            logits = model(batch.tokens)
            found[f"{split}_loss"].append(task.loss(logits, batch).item())
            found[f"{split}_accuracy"].append(task.accuracy(logits, batch).mean().item())
    return found
