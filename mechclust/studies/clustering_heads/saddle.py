"""Is a plateau of the loss a saddle? The smallest eigenvalues of the Hessian along a training run, by Lanczos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call, grad_and_value, jvp

from mechclust.models import build_model
from mechclust.studies.clustering_heads.curves import drops_after_guessing
from mechclust.studies.clustering_heads.dynamics import MeasuredRows, measured_rows, task_of
from mechclust.training import Snapshots
from probes import ProbeResult

SMALLEST = 4  # eigenvalues at each snapshot
_TOLERANCE = 1e-5  # relative, of an eigenvalue


class TrainingLoss:
    """A network's loss on its training sequences as a function of one vector of weights, in float64.

    Args:
        model: the network.
        rows: sequences that the loss is measured on, weighted by the training split.
        weights: the network's, by name; they define names, shapes and order.
    """

    def __init__(self, model: Any, rows: MeasuredRows, weights: Mapping[str, Tensor]) -> None:
        there = rows.train > 0
        self._model, self._tokens = model, rows.batch.tokens[there]
        self._answers, self._share = rows.batch.label("answer")[there], rows.train[there].double()
        self._shapes = {name: values.shape for name, values in weights.items()}

    def vector(self, weights: Mapping[str, Tensor]) -> Tensor:
        """``[n]`` all weights, concatenated."""
        return torch.cat([weights[name].double().flatten() for name in self._shapes])

    def __call__(self, vector: Float[Tensor, "n"]) -> Float[Tensor, ""]:
        """The loss in nats."""
        parts = torch.split(vector, [shape.numel() for shape in self._shapes.values()])
        pairs = zip(self._shapes.items(), parts, strict=True)
        logits = functional_call(self._model, {name: part.view(shape) for (name, shape), part in pairs}, self._tokens)
        return F.cross_entropy(logits, self._answers, reduction="none") @ self._share


def smallest_eigenvalues(
    loss: TrainingLoss, at: Float[Tensor, "n"], k: int = SMALLEST
) -> tuple[np.ndarray, np.ndarray, float]:
    """The ``k`` smallest eigenvalues of the Hessian of a loss, ascending, their directions, and the largest eigenvalue.

    By Lanczos iteration (ARPACK) from Hessian-vector products; the Hessian itself is never formed.

    Args:
        loss: the loss.
        at: the weights.
        k: number of eigenvalues, less than the number of weights.

    Returns:
        ``[k]``, ``[n k]`` and a number; NaN if the method did not converge.
    """
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    n = len(at)

    def product(vector: np.ndarray) -> np.ndarray:
        gradient = torch.func.grad(loss)
        tangent: Tensor = jvp(gradient, (at,), (torch.from_numpy(np.ascontiguousarray(vector).reshape(n)),))[1]
        return tangent.numpy()

    operator = LinearOperator((n, n), matvec=product, dtype=np.float64)
    start = np.random.default_rng(0).normal(size=n)  # ARPACK would draw its start from global state
    options: dict[str, Any] = {"v0": start, "tol": _TOLERANCE, "ncv": min(n, 40), "maxiter": 50}
    try:
        values, directions = eigsh(operator, k=k, which="SA", **options)
        (largest,) = eigsh(operator, k=1, which="LA", return_eigenvectors=False, **options)
    except ArpackNoConvergence:
        return np.full(k, np.nan), np.full((n, k), np.nan), float("nan")
    order = np.argsort(values)
    return values[order], directions[:, order], float(largest)


def worth_measuring(loss: np.ndarray, p: int, n: int) -> list[int]:
    """At most ``n`` equally spaced snapshots from the start to the last fall of the loss, and the final snapshot.

    If the loss never falls, they span the whole training.

    Args:
        loss: ``[snapshot]`` training loss.
        p: number of answers.
        n: number of snapshots.

    Example:
        >>> worth_measuring(np.array([0.69] * 40 + [0.0] * 40), 2, 3)
        [0, 20, 40, 79]
    """
    drops, last = drops_after_guessing(loss, p), len(loss) - 1
    end = min(last, drops[-1].end) if drops else last
    return sorted({*np.linspace(0, end, n).round().astype(int).tolist(), last})


def curvature(snapshots: Snapshots, member: int, places: Sequence[int]) -> ProbeResult:
    """The Hessian of one member's training loss at some snapshots.

    Measures:
        ``smallest`` (snapshot, rank): the smallest eigenvalues, ascending; ``largest`` (snapshot).
        ``loss``, ``gradient_norm`` (snapshot).
        ``downhill`` (snapshot): share of the squared distance to the next of these snapshots that lies along the
            directions of ``smallest`` with negative eigenvalues; NaN if there are none, and at the last snapshot.
            ``downhill_chance``: the same for a random direction.

    Args:
        snapshots: of an ensemble of pooling transformers on sparse modular addition.
        member: number of the network in the ensemble.
        places: indices of the snapshots, from 0, ascending.
    """
    steps = [snapshots.steps[place] for place in places]
    weights, rows = snapshots.of(member, steps), measured_rows(task_of(snapshots, member))
    loss = TrainingLoss(build_model(snapshots.configs[member]), rows, {name: v[0] for name, v in weights.items()})
    points = [loss.vector({name: values[i] for name, values in weights.items()}) for i in range(len(steps))]
    found = []
    for i, point in enumerate(points):
        gradient, value = grad_and_value(loss)(point)
        smallest, directions, largest = smallest_eigenvalues(loss, point)
        way = (points[i + 1] - point).numpy() if i + 1 < len(points) else np.full(len(point), np.nan)
        negative = directions[:, smallest < 0]
        share = float(((way @ negative) ** 2).sum() / (way @ way)) if negative.shape[1] and way.any() else float("nan")
        chance = negative.shape[1] / len(point)
        found.append([*smallest, largest, float(value), float(gradient.norm()), share, chance])
    columns = torch.tensor(found, dtype=torch.float64)
    names = ("largest", "loss", "gradient_norm", "downhill", "downhill_chance")
    values = {"smallest": columns[:, :SMALLEST], **{n: columns[:, SMALLEST + i] for i, n in enumerate(names)}}
    lost = int(values["largest"].isnan().sum())
    return ProbeResult(
        "Curvature",
        values,
        {name: ("snapshot", "rank") if name == "smallest" else ("snapshot",) for name in values},
        {"snapshot": [str(place) for place in places], "rank": [str(i) for i in range(SMALLEST)]},
        metadata={"weights": len(points[0]), "steps": steps},
        notes=[f"Lanczos did not converge at {lost} of {len(places)} snapshots, which are NaN"] if lost else [],
    )
