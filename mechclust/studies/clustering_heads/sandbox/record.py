"""The activations of one small network at many epochs, recorded through its hooks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from mechclust.models.weights import set_weights
from mechclust.studies.clustering_heads.config import XI
from mechclust.studies.clustering_heads.cut import logits_of_embeddings
from probes.engine.hooked_model import HookedModel
from probes.engine.record import record
from tasks import SparseModularAddition

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


def _frames_of(model: HookedModel, weights: WeightsByFrame) -> Iterator[dict[str, Float[Tensor, "..."]]]:
    """Load the weights of each frame into the model, one after the other.

    Args:
        model: a network of the run's shape.
        weights: by name.
    """
    for i in range(len(next(iter(weights.values())))):
        frame = {name: values[i] for name, values in weights.items()}
        set_weights(model, frame)
        yield frame


@torch.no_grad()
def record_frames(
    model: HookedModel,
    weights: WeightsByFrame,
    tokens: Int[Tensor, "sequence pos"],
    cloud: Int[Tensor, "more pos"],
    task: SparseModularAddition,
) -> dict[str, Shaped[np.ndarray, "frame ..."]]:
    """Return everything that a sandbox shows of a network at each frame, by name.

    Args:
        model, weights: as in ``_frames_of``.
        tokens: sequences to follow.
        cloud: further sequences, for which only xi is kept.
        task: gives the digits and the length.
    """
    # A sequence of a single repeated digit has it at every position: together these give every pair.
    alike = torch.arange(task.p)[:, None].expand(-1, task.length)
    together = torch.cat([tokens, alike, cloud])
    n = len(tokens)
    sites = {**_SEQUENCE_SITES, **_PAIR_SITES}
    frames: list[dict[str, Tensor]] = []
    for weights_now in _frames_of(model, weights):
        with record(model, sites.values()) as seen:
            logits = model(together)
        at = {name: seen[site][0] for name, site in sites.items()}
        frame = {name: weights_now[weight] for name, weight in _WEIGHTS.items()}
        # The answer that a feed-forward neuron supports: the one whose embedding its output points along.
        frame["votes"] = (frame["assemblers"] @ frame["token_embeddings"][: task.p].T).argmax(dim=-1)
        frame["query"] = frame["query"].flatten()
        frame["receptors"] = frame["receptors"].T
        for name in _SEQUENCE_SITES:
            frame[name] = (at[name][:, 0, 0] if name == "attention" else at[name][:, 0])[:n]
        for name in _PAIR_SITES:
            frame[name] = at[name][n : n + task.p].reshape(task.p * task.length, -1)
        frame["cloud"] = at["xi"][n + task.p :, 0]
        frame["probabilities"] = logits[:n].softmax(dim=-1)
        frames.append(frame)
    return {name: torch.stack([frame[name] for frame in frames]).numpy() for name in frames[0]}


@torch.no_grad()
def answers_over(
    model: HookedModel, weights: WeightsByFrame, points: Float[np.ndarray, "point 2"], *, after: bool
) -> Float[np.ndarray, "frame point d_vocab"]:
    """Return p(y | point) for points that replace xi or, with ``after``, the output.

    Args:
        model, weights: as in ``_frames_of``.
        points: the points.
        after: the points replace the feed-forward layer's output with the residual.
    """
    at = torch.from_numpy(np.ascontiguousarray(points, dtype=np.float32))
    answers = []
    for frame in _frames_of(model, weights):
        logits = at @ frame[_WEIGHTS["token_embeddings"]].T if after else logits_of_embeddings(model, at)
        answers.append(logits.softmax(dim=-1))
    return torch.stack(answers).numpy()


@torch.no_grad()
def measure_frames(
    model: HookedModel, weights: WeightsByFrame, task: SparseModularAddition
) -> dict[str, dict[str, list[float]]]:
    """Return loss and accuracy at each frame, by split."""
    batches = {split: next(task.batches(split, n)) for split, n in (("train", task.n_train), ("test", task.n_test))}
    loss: dict[str, list[float]] = {split: [] for split in batches}
    accuracy: dict[str, list[float]] = {split: [] for split in batches}
    for _ in _frames_of(model, weights):
        for split, batch in batches.items():
            logits = model(batch.tokens)
            loss[split].append(task.loss(logits, batch).item())
            accuracy[split].append(task.accuracy(logits, batch).mean().item())
    return {"loss": loss, "accuracy": accuracy}
