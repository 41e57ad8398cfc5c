"""The head of one epoch with the classifier of another: which of the two is ready first?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from mechclust.models import build_model
from mechclust.studies.clustering_heads.cut import Weights, logits_of_embeddings, sequence_embeddings
from mechclust.studies.clustering_heads.dynamics import at_every_snapshot, measured_rows, task_of
from mechclust.training import Snapshots
from probes import ProbeResult


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
    weights = snapshots.of(member)
    model: Any = build_model(snapshots.configs[member])
    tested = rows.test > 0
    tokens = rows.batch.tokens[tested]
    end = {name: values[-1] for name, values in weights.items()}
    measure = _Stitch(
        model,
        end,
        sequence_embeddings(model, end, tokens),
        tokens,
        rows.batch.label("answer")[tested],
        rows.test[tested].double(),
    )
    values = at_every_snapshot(measure, weights)
    return ProbeResult(
        "Stitching",
        values,
        dict.fromkeys(values, ("epoch",)),
        {"epoch": [str(epoch) for epoch in snapshots.epochs]},
        metadata={"n": len(tokens)},
    )


@dataclass(frozen=True)
class _Stitch:
    """Measure one snapshot's stitched networks, as a function of its weights that ``vmap`` can map."""

    model: Any
    end: Weights
    xi_at_end: Float[Tensor, "row d_model"]
    tokens: Int[Tensor, "row pos"]
    answers: Int[Tensor, "row"]
    share: Float[Tensor, "row"]

    def __call__(self, weights: Weights) -> dict[str, Float[Tensor, ""]]:
        xi = sequence_embeddings(self.model, weights, self.tokens)
        return {
            "head_accuracy": self._accuracy(logits_of_embeddings(self.model, self.end, xi)),
            "classifier_accuracy": self._accuracy(logits_of_embeddings(self.model, weights, self.xi_at_end)),
        }

    def _accuracy(self, logits: Float[Tensor, "row answer"]) -> Float[Tensor, ""]:
        return (logits.argmax(dim=-1) == self.answers).double() @ self.share
