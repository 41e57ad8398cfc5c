"""Activations of one small network at many epochs, recorded through its hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from mechclust.models.weights import set_weights
from probes.hooks import evaluation_mode
from tasks import SparseModularAddition

# name in the sandbox -> hook point
SEQUENCE_SITES = {
    "attention": "blocks.0.attn.hook_pattern",
    "xi": "blocks.0.hook_resid_mid",
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


def forward_with_hooks(
    model: Any, tokens: Tensor, sites: Sequence[str], xi: Tensor | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits, and the activations at hook points; with ``xi [batch d]`` put in place of the model's own."""
    kept: dict[str, Tensor] = {}

    def keeper(name: str) -> Any:
        def keep(activation: Tensor, hook: Any) -> None:
            kept[name] = activation

        return keep

    hooks: list[Any] = [(site, keeper(site)) for site in sites]
    if xi is not None:
        hooks.append((SEQUENCE_SITES["xi"], lambda activation, hook: xi[:, None].to(activation)))
    with model.hooks(fwd_hooks=hooks):
        logits = model(tokens)
    return logits, kept


@torch.no_grad()
def record(
    model: Any,
    weights: Mapping[str, Tensor],
    tokens: Int[Tensor, "sequence pos"],
    cloud: Int[Tensor, "more pos"],
    task: SparseModularAddition,
) -> dict[str, np.ndarray]:
    """Everything a sandbox shows of a network at each frame, ``[frame ...]`` by name.

    Args:
        model: a network of the run's shape; its weights are replaced.
        weights: ``[frame ...]`` by name.
        tokens: sequences to follow.
        cloud: further sequences, of which xi alone is kept.
        task: gives the digits and the length.
    """
    # A sequence of one digit only holds that digit at every position: together, every pair there is.
    alike = torch.arange(task.p)[:, None].expand(-1, task.length)
    together, n = torch.cat([tokens, alike, cloud]), len(tokens)
    sites = [*SEQUENCE_SITES.values(), *PAIR_SITES.values()]
    frames: list[dict[str, Tensor]] = []
    with evaluation_mode(model):
        for i in range(len(next(iter(weights.values())))):
            now = {name: values[i] for name, values in weights.items()}
            set_weights(model, now)
            logits, kept = forward_with_hooks(model, together, sites)
            frame = {name: now[weight] for name, weight in WEIGHTS.items()}
            frame["query"] = frame["query"].flatten()
            frame["receptors"] = frame["receptors"].T
            for name, site in SEQUENCE_SITES.items():
                frame[name] = (kept[site][:, 0, 0] if name == "attention" else kept[site][:, 0])[:n]
            for name, site in PAIR_SITES.items():
                frame[name] = kept[site][n : n + task.p].reshape(task.p * task.length, -1)
            frame["cloud"] = kept[SEQUENCE_SITES["xi"]][n + task.p :, 0]
            frame["probabilities"] = logits[:n].softmax(dim=-1)
            # Which answer a feed-forward neuron argues for: the one whose embedding its output goes along with.
            frame["votes"] = (now[WEIGHTS["assemblers"]] @ now["embed.W_E"][: task.p].T).argmax(dim=-1)
            frames.append(frame)
    return {name: torch.stack([frame[name] for frame in frames]).numpy() for name in frames[0]}


@torch.no_grad()
def answers_over(model: Any, weights: Mapping[str, Tensor], points: np.ndarray, *, after: bool) -> np.ndarray:
    """``[frame point d_vocab]`` p(y | point) for points put in place of xi, or (``after``) of the output.

    Args:
        model: a network of the run's shape; its weights are replaced.
        weights: ``[frame ...]`` by name.
        points: ``[point 2]``.
        after: the points stand for the feed-forward layer's output with the residual.
    """
    at = torch.from_numpy(np.ascontiguousarray(points, dtype=np.float32))
    # One sequence will do: what stands in place of its xi is as long as it likes, and nothing after looks back.
    dummy = torch.zeros(1, model.config.n_ctx, dtype=torch.int64)
    found = []
    with evaluation_mode(model):
        for i in range(len(next(iter(weights.values())))):
            now = {name: values[i] for name, values in weights.items()}
            if after:
                logits = at @ now["embed.W_E"].T
            else:
                set_weights(model, now)
                logits, _ = forward_with_hooks(model, dummy, [], xi=at)
            found.append(logits.softmax(dim=-1))
    return torch.stack(found).numpy()
