"""Is a plateau of the loss a saddle? The eigenvalues of the Hessian along a training run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call

from mechclust.models import build_model
from mechclust.studies.clustering_heads.curves import drops_after_guessing
from mechclust.studies.clustering_heads.cut import Weights
from mechclust.studies.clustering_heads.dynamics import MeasuredRows, measured_rows, task_of
from mechclust.training import Snapshots
from probes import ProbeResult

_SMALLEST = 4  # eigenvalues kept at each snapshot


class TrainingLoss:
    """A network's loss on its training sequences as a function of one vector of weights, in float64.

    Args:
        model: the network.
        rows: sequences that the loss is measured on, weighted by the training split.
        weights: the network's, by name. They define names, shapes and order.
    """

    def __init__(self, model: Any, rows: MeasuredRows, weights: Weights) -> None:
        trained = rows.train > 0
        self._model = model
        self._tokens = rows.batch.tokens[trained]
        self._answers = rows.batch.label("answer")[trained]
        self._share = rows.train[trained].double()
        self._shapes = {name: values.shape for name, values in weights.items()}

    def vector(self, weights: Weights) -> Float[Tensor, "weight"]:
        """Return all weights, concatenated."""
        return torch.cat([weights[name].double().flatten() for name in self._shapes])

    def __call__(self, vector: Float[Tensor, "weight"]) -> Float[Tensor, ""]:
        """Return the loss in nats."""
        parts = torch.split(vector, [shape.numel() for shape in self._shapes.values()])
        pairs = zip(self._shapes.items(), parts, strict=True)
        logits = functional_call(self._model, {name: part.view(shape) for (name, shape), part in pairs}, self._tokens)
        return F.cross_entropy(logits, self._answers, reduction="none") @ self._share


def eigenvalues(loss: TrainingLoss, at: Float[Tensor, "weight"]) -> Float[np.ndarray, "weight"]:
    """Return all eigenvalues of the Hessian of a loss, ascending, in float64; NaN where training diverged.

    A network of the base setting has 198 weights. The whole Hessian costs less than its few extreme eigenvalues by
    Lanczos iteration, which converges worst at the end of training, when all eigenvalues are near 0.

    Args:
        loss: the loss.
        at: the weights.
    """
    hessian: Tensor = torch.func.jacrev(torch.func.grad(loss), chunk_size=32)(at)
    if not bool(torch.isfinite(hessian).all()):
        return np.full(len(at), np.nan)
    return np.linalg.eigvalsh(hessian.numpy())


def worth_measuring(loss: Float[np.ndarray, "snapshot"], p: int, n: int) -> list[int]:
    """Return at most ``n`` equally spaced snapshots up to the last fall of the loss, and the final snapshot.

    If the loss never falls, they span the whole training.

    Args:
        loss: training loss.
        p: number of answers.
        n: number of snapshots.

    Example:
        >>> worth_measuring(np.array([0.69] * 40 + [0.0] * 40), 2, 3)
        [0, 20, 40, 79]
    """
    drops = drops_after_guessing(loss, p)
    last = len(loss) - 1
    end = min(last, drops[-1].end) if drops else last
    return sorted({*np.linspace(0, end, n).round().astype(int).tolist(), last})


def measure_curvature(snapshots: Snapshots, member: int, places: Sequence[int]) -> ProbeResult:
    """Measure the Hessian of one member's training loss at some snapshots.

    Measures:
        ``smallest`` (snapshot, rank): the smallest eigenvalues, ascending. ``largest`` (snapshot): the largest.

    Args:
        snapshots: of an ensemble of pooling transformers on sparse modular addition.
        member: number of the network in the ensemble.
        places: indices of the snapshots, from 0, ascending.
    """
    steps = [snapshots.steps[place] for place in places]
    weights = snapshots.of(member, steps)
    networks = [{name: values[i] for name, values in weights.items()} for i in range(len(steps))]
    rows = measured_rows(task_of(snapshots, member))
    loss = TrainingLoss(build_model(snapshots.configs[member]), rows, networks[0])
    points = [loss.vector(network) for network in networks]
    spectra = torch.from_numpy(np.stack([eigenvalues(loss, point) for point in points]))
    return ProbeResult(
        "Curvature",
        {"smallest": spectra[:, :_SMALLEST], "largest": spectra[:, -1]},
        {"smallest": ("snapshot", "rank"), "largest": ("snapshot",)},
        {"snapshot": [str(place) for place in places], "rank": [str(i) for i in range(_SMALLEST)]},
        metadata={"weights": len(points[0]), "steps": steps},
    )
