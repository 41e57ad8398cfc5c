"""How far a point is from another class. May be mapped over networks with ``torch.func.vmap``."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from tasks import InputError

Classifier = Callable[[Float[Tensor, "point d"]], Float[Tensor, "point class"]]


def boundary_distance(logits_of: Classifier, x: Float[Tensor, "point d"]) -> Float[Tensor, "point"]:
    """Return each point's distance from the nearest boundary of its predicted class, to first order.

    With logits ``l`` and predicted class ``k``, this is the minimum over the other classes ``j`` of
    ``(l_k - l_j) / |grad_x (l_k - l_j)|``. It is exact for linear logits. Otherwise, it is the distance to the boundary
    of the classifier linearised at the point, so trust it near a boundary only. It is infinite if no gradient leads to
    another class, and NaN if two classes have the same logits and gradients. It takes one backward pass per class, all
    at once, and is meant for few classes.

    Args:
        logits_of: the classifier, which treats each row independently.
        x: the points. Distances are in their units.

    Raises:
        InputError: for points or logits of the wrong shape, or fewer than two classes.

    Example:
        >>> weight = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
        >>> boundary_distance(lambda x: x @ weight.T, torch.tensor([[3.0, 7.0], [-0.5, 0.0]]))
        tensor([3.0000, 0.5000])
    """
    if x.ndim != 2:
        raise InputError(f"x has shape {tuple(x.shape)}; expected points [n d]")
    # Rows are independent, so one gradient of the sum over rows holds the gradients of all.
    jacobian, logits = torch.func.jacrev(partial(_summed, logits_of), has_aux=True)(x)
    jacobian = jacobian.movedim(0, 1)  # [point class d]
    top = logits.argmax(dim=-1, keepdim=True)
    margin = torch.take_along_dim(logits, top, dim=1) - logits
    slope = torch.linalg.vector_norm(torch.take_along_dim(jacobian, top[..., None], dim=1) - jacobian, dim=-1)
    itself = torch.arange(logits.shape[1], device=x.device) == top
    return torch.where(itself, math.inf, margin / slope).amin(dim=1)


def _summed(
    logits_of: Classifier, points: Float[Tensor, "point d"]
) -> tuple[Float[Tensor, "class"], Float[Tensor, "point class"]]:
    """Return the sum of the logits over points, and the logits."""
    n = len(points)
    logits = logits_of(points)
    if logits.ndim != 2 or len(logits) != n or logits.shape[1] < 2:
        raise InputError(
            f"logits_of gives shape {tuple(logits.shape)} for {n} points; expected [{n} classes], at least 2 classes"
        )
    return logits.sum(dim=0), logits
