"""The straight line between two networks: how far the loss rises on it, with and without matched neurons."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call

from mechclust.studies.clustering_heads.config import MLP
from mechclust.studies.clustering_heads.cut import Weights
from tasks import SparseModularAddition

_NEURON_AXES = {f"{MLP}.W_in": 1, f"{MLP}.b_in": 0, f"{MLP}.W_out": 0}


def places_on_line(points: int) -> list[float]:
    """Return ``points`` numbers from 0 to 1, both included, in equal steps."""
    return torch.linspace(0, 1, points, dtype=torch.float64).tolist()


@torch.no_grad()
def loss_between(
    model: Any, start: Weights, end: Weights, task: SparseModularAddition, points: int
) -> Float[Tensor, "place"]:
    """Return the training loss (nats) of networks whose weights lie on the straight line from one to the other.

    Args:
        model: a network of their shape.
        start: weights by name.
        end: weights by name.
        task: the data.
        points: networks on the line, ends included.
    """
    (batch,) = task.batches("train", task.n_train)
    losses = []
    for place in places_on_line(points):
        between = {name: torch.lerp(values, end[name], place) for name, values in start.items()}
        losses.append(task.loss(functional_call(model, between, (batch.tokens,)), batch).double())
    return torch.stack(losses)


def neurons_matched(weights: Weights, to: Weights) -> dict[str, Float[Tensor, "..."]]:
    """Reorder a network's feed-forward neurons to be most like another network's.

    The order of neurons leaves a network's function unchanged, but changes the line between two networks. The chosen
    order maximises the sum over neurons of the inner products of all their weights.

    Args:
        weights: a pooling transformer's, by name.
        to: the other network's.

    Example:
        >>> weights = {"blocks.0.mlp.W_in": torch.eye(2), "blocks.0.mlp.b_in": torch.tensor([1.0, 2.0]),
        ...            "blocks.0.mlp.W_out": torch.eye(2)}
        >>> other = {name: values.flip(0) for name, values in weights.items()}
        >>> neurons_matched(other, weights)["blocks.0.mlp.b_in"].tolist()
        [1.0, 2.0]
    """
    from scipy.optimize import linear_sum_assignment

    order = torch.from_numpy(linear_sum_assignment(_neurons(to) @ _neurons(weights).T, maximize=True)[1])
    moved = {name: weights[name].index_select(axis, order) for name, axis in _NEURON_AXES.items()}
    return {**weights, **moved}


def _neurons(weights: Weights) -> Float[np.ndarray, "neuron weight"]:
    """Return all weights of each neuron."""
    by_neuron = [weights[name].movedim(axis, 0) for name, axis in _NEURON_AXES.items()]
    return torch.cat([values.reshape(len(values), -1) for values in by_neuron], dim=1).double().numpy()


def loss_barrier(line: Float[np.ndarray, "place"]) -> float:
    """Return how far the loss on a line exceeds the loss at its worse end, in nats, or 0 if it never does.

    Example:
        >>> loss_barrier(np.array([0.5, 3.0, 0.0]))
        2.5
    """
    return float(line.max() - max(line[0], line[-1]))
