"""The head of one epoch with the classifier of another: which of the two is ready first?"""

from __future__ import annotations

from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor
from torch.func import vmap

from mechclust.models import build_model
from mechclust.studies.clustering_heads.cut import Weights, logits_of_embeddings, sequence_embeddings
from mechclust.studies.clustering_heads.dynamics import SNAPSHOTS_AT_ONCE, measured_rows, share_right, task_of
from mechclust.training import Snapshots
from probes import ProbeResult
from tasks import Batch


def stitching(snapshots: Snapshots, member: int) -> ProbeResult:
    """Measure one member's accuracies on the test split when stitched from two epochs, at every snapshot.

    A network is cut at the sequence embedding xi. Its *head* computes xi: embeddings, positions, query and values. Its
    *classifier* reads xi: the feed-forward layer and the unembedding. The tied embedding matrix belongs to both, and
    each part uses its epoch's matrix.

    Measures (axis epoch):
        ``head_accuracy``: the head of the epoch with the final classifier. The head is ready when this is high.
        ``classifier_accuracy``: the final head with the classifier of the epoch.

    A part may be ready although its accuracy is low, if the other part has rotated or scaled xi since. The accuracies
    show when a part fits the *final* version of the other.

    Args:
        snapshots: of an ensemble of pooling transformers on sparse modular addition.
        member: number of the network in the ensemble.
    """
    rows = measured_rows(task_of(snapshots, member))
    tested = rows.test_counts.nonzero()[:, 0]
    batch = rows.batch.select(tested)
    counts = rows.test_counts[tested]
    model: Any = build_model(snapshots.configs[member])
    weights = snapshots.of(member)
    end = {name: values[-1] for name, values in weights.items()}
    measure = partial(_stitched, model, batch, counts, end, sequence_embeddings(model, batch.tokens, end))
    values = vmap(measure, chunk_size=SNAPSHOTS_AT_ONCE)(weights)
    return ProbeResult(
        "Stitching",
        values,
        dict.fromkeys(values, ("epoch",)),
        {"epoch": [str(epoch) for epoch in snapshots.epochs]},
        metadata={"n": len(batch)},
    )


def _stitched(
    model: Any,
    batch: Batch,
    counts: Float[Tensor, "example"],
    end: Weights,
    xi_at_end: Float[Tensor, "example d_model"],
    weights: Weights,
) -> dict[str, Float[Tensor, ""]]:
    """Return the accuracies of one snapshot's stitched networks. May be mapped over snapshots with ``vmap``."""
    logits = {
        "head_accuracy": logits_of_embeddings(model, sequence_embeddings(model, batch.tokens, weights), end),
        "classifier_accuracy": logits_of_embeddings(model, xi_at_end, weights),
    }
    answers = batch.label("answer")
    return {name: share_right(values.argmax(dim=-1) == answers, counts) for name, values in logits.items()}
