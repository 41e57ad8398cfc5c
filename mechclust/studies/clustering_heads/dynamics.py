"""Measures of a pooling transformer at every snapshot of its training: losses, gradients, clusters, margins."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.func import functional_call, grad, vmap

from mechclust.models import build_model
from mechclust.studies.clustering_heads.boundary import boundary_distance
from mechclust.studies.clustering_heads.config import MLP, XI
from mechclust.studies.clustering_heads.cut import Weights, logits_of_embeddings
from mechclust.training import Snapshots, accuracy
from probes import ProbeResult
from probes.engine.record import record
from probes.functional import within_ratio
from tasks import Batch, SparseModularAddition

WEIGHT_GROUPS = {
    "embeddings": ("embed", "pos_embed"),
    "attention": ("blocks.0.attn",),
    "feed-forward": (MLP,),
}
SNAPSHOTS_AT_ONCE = 16  # measured together, a compromise between speed and memory
_MAX_SEQUENCES = 2**12  # of a task that is measured on all of them

_Number = Float[Tensor, ""]
_Losses = tuple[_Number, tuple[Float[Tensor, "row answer"], Float[Tensor, "row"], Float[Tensor, "row d"]]]


class MeasuredRows(NamedTuple):
    """Sequences to measure on, and how often each occurs in the two splits.

    Attributes:
        batch: every possible sequence, if there are at most 4,096. Otherwise, the training and test sequences.
        train_counts: how often each is in the training split, in float64.
        test_counts: how often each is in the test split, in float64.
    """

    batch: Batch
    train_counts: Float[Tensor, "row"]
    test_counts: Float[Tensor, "row"]

    @property
    def train(self) -> Float[Tensor, "row"]:
        """Share of the training split, in float32."""
        return _shares(self.train_counts)

    @property
    def test(self) -> Float[Tensor, "row"]:
        """Share of the test split, in float32."""
        return _shares(self.test_counts)


def _shares(counts: Float[Tensor, "row"]) -> Float[Tensor, "row"]:
    return (counts / counts.sum()).float()


def can_measure_all(task: SparseModularAddition) -> bool:
    """Return whether there are few enough sequences to measure on every one."""
    return task.p**task.length <= _MAX_SEQUENCES


def measured_rows(task: SparseModularAddition) -> MeasuredRows:
    """Return each distinct sequence once, as far as possible: a split's value is then a weighted mean."""
    train, test = (Batch.concat(list(task.batches(split, _MAX_SEQUENCES))) for split in ("train", "test"))
    if can_measure_all(task):
        (batch,) = task.batches("all", _MAX_SEQUENCES)
        place = task.p ** torch.arange(task.length).flip(0)
        train_rows = (train.tokens * place).sum(dim=1)
        test_rows = (test.tokens * place).sum(dim=1)
    else:
        batch = Batch.concat([train, test])
        batch = replace(batch, index=torch.arange(len(batch)))  # both splits count from 0
        train_rows = torch.arange(len(train))
        test_rows = len(train) + torch.arange(len(test))
    counts = [torch.bincount(rows, minlength=len(batch)).double() for rows in (train_rows, test_rows)]
    return MeasuredRows(batch, *counts)


def share_right(right: Bool[Tensor, "row"], counts: Float[Tensor, "row"]) -> Float[Tensor, ""]:
    """Return the share of right answers, which is exactly what ``accuracy`` returns for the split of the counts."""
    return (right.double() @ counts) / counts.sum()


def task_of(snapshots: Snapshots, member: int) -> SparseModularAddition:
    """Return the data that one of the study's networks was trained on."""
    task = snapshots.tasks[member]
    assert isinstance(task, SparseModularAddition)
    return task


def accuracies_at_end(snapshots: Snapshots, member: int) -> list[float]:
    """Return one network's accuracies on the training and the test split at the end of training."""
    model = snapshots.model(member)
    return [accuracy(model, snapshots.tasks[member], split)[0] for split in ("train", "test")]


def measure_dynamics(
    snapshots: Snapshots, member: int, partition: Int[Tensor, "row"] | None = None, *, brief: bool = False
) -> ProbeResult:
    """Measure one member's training at every snapshot.

    Measures (axis epoch): ``train_loss``, ``test_loss``, ``train_accuracy``, ``test_accuracy``, ``smallest_norm``
    (minimum norm of xi over sequences). Unless ``brief``, also ``gradient_norm`` (epoch, group) of the training loss,
    ``within_ratio`` of xi under the partition and ``margin``. The margin is the minimum over clusters of the
    first-order distance from the centroid to the decision boundary, divided by the centroid's norm.

    Args:
        snapshots: of an ensemble of pooling transformers on sparse modular addition.
        member: number of the network in the ensemble.
        partition: cluster of each of the ``measured_rows``, or ``None`` for their multiset.
        brief: leave out measures that need gradients.
    """
    rows = measured_rows(task_of(snapshots, member))
    labels = None
    if not brief:
        classes = rows.batch.label("multiset") if partition is None else partition
        labels = torch.unique(classes, return_inverse=True)[1]
    measure = partial(_measured, build_model(snapshots.configs[member]), rows, labels)
    values = vmap(measure, chunk_size=SNAPSHOTS_AT_ONCE)(snapshots.of(member))
    return ProbeResult(
        "HeadDynamics",
        {name: v.double() for name, v in values.items()},
        {name: ("epoch", "group") if v.ndim == 2 else ("epoch",) for name, v in values.items()},
        {"epoch": [str(epoch) for epoch in snapshots.epochs], "group": [*WEIGHT_GROUPS, "all"]},
    )


def _measured(
    model: Any, rows: MeasuredRows, labels: Int[Tensor, "row"] | None, weights: Weights
) -> dict[str, Float[Tensor, "..."]]:
    """Measure one snapshot, without gradients if there are no labels. May be mapped over snapshots with ``vmap``."""
    loss = partial(_loss, model, rows)
    if labels is None:
        _, (logits, losses, xi) = loss(weights)
        by_gradient = {}
    else:
        gradients, (logits, losses, xi) = grad(loss, has_aux=True)(weights)
        by_gradient = {**_clusters(model, labels, weights, xi), "gradient_norm": _norms(gradients)}
    right = logits.argmax(dim=-1) == rows.batch.label("answer")
    return by_gradient | {
        "train_loss": losses @ rows.train,
        "test_loss": losses @ rows.test,
        "train_accuracy": share_right(right, rows.train_counts),
        "test_accuracy": share_right(right, rows.test_counts),
        "smallest_norm": xi.norm(dim=-1).min(),
    }


def _loss(model: Any, rows: MeasuredRows, weights: Weights) -> _Losses:
    """Return the training loss, and logits, losses and embeddings of all rows."""
    with record(model, [XI]) as seen:
        logits = functional_call(model, dict(weights), (rows.batch.tokens,))
    losses = F.cross_entropy(logits, rows.batch.label("answer"), reduction="none")
    return losses @ rows.train, (logits, losses, seen[XI][0][:, 0])


def _clusters(
    model: Any, labels: Int[Tensor, "row"], weights: Weights, xi: Float[Tensor, "row d"]
) -> dict[str, _Number]:
    n = int(labels.max()) + 1
    member = (labels == torch.arange(n)[:, None]).float()
    centroids = (member @ xi) / member.sum(dim=1, keepdim=True)
    distance = boundary_distance(partial(logits_of_embeddings, model, weights=weights), centroids)
    return {
        "within_ratio": within_ratio(xi, labels, n),
        "margin": (distance / centroids.norm(dim=-1)).min(),
    }


def _norms(gradients: Weights) -> Float[Tensor, "group"]:
    """Return norms of the gradient by group of parameters, and over all of them."""
    squares = {name: value.square().sum() for name, value in gradients.items()}
    groups = [sum(s for name, s in squares.items() if name.startswith(starts)) for starts in WEIGHT_GROUPS.values()]
    return torch.stack([*groups, sum(squares.values())]).sqrt()  # type: ignore[list-item]
