"""What happens in a pooling transformer at every snapshot of its training: losses, gradients, clusters, margins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad, vmap

from mechclust.models import build_model
from mechclust.studies.clustering_heads.boundary import boundary_distance
from mechclust.studies.clustering_heads.config import MLP, XI
from mechclust.training import Snapshots
from probes import ProbeResult
from probes.engine.hooks import record
from probes.functional import within_ratio
from tasks import Batch, SparseModularAddition

WEIGHT_GROUPS = {
    "embeddings": ("embed", "pos_embed"),
    "attention": ("blocks.0.attn",),
    "feed-forward": (MLP,),
}
_AT_ONCE = 16  # snapshots measured together
_FEW = 2**12  # sequences of a task small enough to be measured on all of them


class MeasuredRows(NamedTuple):
    """Sequences to measure on, and how often each occurs in the two splits.

    Attributes:
        batch: every possible sequence, if there are at most 4,096; otherwise the training and test sequences.
        train: ``[n]`` share of the training split.
        test: ``[n]`` share of the test split.
    """

    batch: Batch
    train: Tensor
    test: Tensor


def can_measure_all(task: SparseModularAddition) -> bool:
    """Whether there are few enough sequences to measure on every one."""
    return task.p**task.length <= _FEW


def measured_rows(task: SparseModularAddition) -> MeasuredRows:
    """Each distinct sequence once, as far as possible: a split's value is then a weighted mean."""
    splits = {split: Batch.concat(list(task.batches(split, _FEW))) for split in ("train", "test")}
    if not can_measure_all(task):
        batch = Batch.concat(list(splits.values()))
        batch = replace(batch, index=torch.arange(len(batch)))  # both splits count from 0
        n = [len(part) for part in splits.values()]
        return MeasuredRows(batch, _share(torch.arange(n[0]), sum(n)), _share(n[0] + torch.arange(n[1]), sum(n)))
    (batch,) = task.batches("all", _FEW)
    place = task.p ** torch.arange(task.length).flip(0)
    train, test = (_share((part.tokens * place).sum(dim=1), len(batch)) for part in splits.values())
    return MeasuredRows(batch, train, test)


def _share(rows: Tensor, n: int) -> Tensor:
    return torch.bincount(rows, minlength=n) / len(rows)


def at_every_snapshot(
    measure: Callable[[dict[str, Tensor]], dict[str, Tensor]], weights: Mapping[str, Tensor], n: int
) -> dict[str, Tensor]:
    """``[snapshot ...]`` a function of a network's weights, mapped over ``n`` snapshots, some at a time."""
    mapped = vmap(measure)
    parts = [
        mapped({name: values[i : i + _AT_ONCE] for name, values in weights.items()}) for i in range(0, n, _AT_ONCE)
    ]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def task_of(snapshots: Snapshots, member: int) -> SparseModularAddition:
    """The data that one of the study's networks was trained on."""
    task = snapshots.tasks[member]
    assert isinstance(task, SparseModularAddition)
    return task


def dynamics(snapshots: Snapshots, member: int, partition: Tensor | None = None, *, brief: bool = False) -> ProbeResult:
    """One member's training, at every snapshot.

    Measures (axis epoch): ``train_loss``, ``test_loss``, ``train_accuracy``, ``test_accuracy``,
    ``smallest_norm`` (minimum norm of xi over sequences); unless ``brief`` also ``gradient_norm`` (epoch,
    group) of the training loss, ``within_ratio`` of xi under the partition and ``margin`` (minimum over clusters of
    the first-order distance from the centroid to the decision boundary, divided by the centroid's norm).

    Args:
        snapshots: of an ensemble of pooling transformers on sparse modular addition.
        member: number of the network in the ensemble.
        partition: ``[n]`` cluster of each of the ``measured_rows``; ``None``: their multiset.
        brief: leave out measures that need gradients.
    """
    rows, weights = measured_rows(task_of(snapshots, member)), snapshots.of(member)
    labels = rows.batch.label("multiset") if partition is None else partition
    labels = torch.unique(labels, return_inverse=True)[1]
    measure = _Measure(build_model(snapshots.configs[member]), rows, labels, brief)
    values = at_every_snapshot(measure, weights, len(snapshots))
    return ProbeResult(
        "HeadDynamics",
        {name: v.double() for name, v in values.items()},
        {name: ("epoch", "group") if v.ndim == 2 else ("epoch",) for name, v in values.items()},
        {"epoch": [str(epoch) for epoch in snapshots.epochs], "group": [*WEIGHT_GROUPS, "all"]},
    )


@dataclass(frozen=True)
class _Measure:
    """One snapshot's measures, as a function of its weights that ``vmap`` can map."""

    model: Any
    rows: MeasuredRows
    labels: Tensor
    brief: bool

    def __call__(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        gradients: Mapping[str, Tensor]
        if self.brief:
            _, (logits, losses, xi) = self._loss(weights)
            found = {}
        else:
            gradients, (logits, losses, xi) = grad(self._loss, has_aux=True)(weights)
            found = {**self._clusters(weights, xi), "gradient_norm": _norms(gradients)}
        right = (logits.argmax(dim=-1) == self.rows.batch.label("answer")).float()
        return found | {
            "train_loss": losses @ self.rows.train,
            "test_loss": losses @ self.rows.test,
            "train_accuracy": right @ self.rows.train,
            "test_accuracy": right @ self.rows.test,
            "smallest_norm": xi.norm(dim=-1).min(),
        }

    def _loss(self, weights: dict[str, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        with record(self.model, [XI]) as seen:
            logits = functional_call(self.model, weights, (self.rows.batch.tokens,))
        losses = F.cross_entropy(logits, self.rows.batch.label("answer"), reduction="none")
        return losses @ self.rows.train, (logits, losses, seen[XI][0][:, 0])

    def _clusters(self, weights: dict[str, Tensor], xi: Tensor) -> dict[str, Tensor]:
        n = int(self.labels.max()) + 1
        member = (self.labels == torch.arange(n)[:, None]).float()
        centroids = (member @ xi) / member.sum(dim=1, keepdim=True)

        def logits_of(points: Tensor) -> Tensor:
            with record(self.model, [XI], lambda name, xi: points[:, None]):
                return functional_call(self.model, weights, (self.rows.batch.tokens[:1],))

        distance = boundary_distance(logits_of, centroids)
        return {
            "within_ratio": within_ratio(xi, self.labels, n),
            "margin": (distance / centroids.norm(dim=-1)).min(),
        }


def _norms(gradients: Mapping[str, Tensor]) -> Tensor:
    """``[group]`` norms of the gradient by group of parameters, and over all of them."""
    squares = {name: value.square().sum() for name, value in gradients.items()}
    groups = [sum(s for name, s in squares.items() if name.startswith(starts)) for starts in WEIGHT_GROUPS.values()]
    return torch.stack([*groups, sum(squares.values())]).sqrt()  # type: ignore[list-item]
