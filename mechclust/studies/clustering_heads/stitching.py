"""The head of one epoch with the classifier of another: which of the two is ready first?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.func import functional_call

from mechclust.models import build_model
from mechclust.studies.clustering_heads.config import XI
from mechclust.studies.clustering_heads.dynamics import at_every_snapshot, measured_rows, task_of
from mechclust.training import Snapshots
from probes import ProbeResult
from probes.engine.hooks import record

Weights = Mapping[str, Tensor]


def stitching(snapshots: Snapshots, member: int) -> ProbeResult:
    """One member's accuracies on the test split when stitched from two epochs, at every snapshot.

    A network is cut at the sequence embedding xi. Its *head* computes xi: embeddings, positions, query and values. Its
    *classifier* reads xi: the feed-forward layer and the unembedding. The embedding matrix is tied, so it belongs to
    both; each part uses that of its own epoch.

    Measures (axis epoch):
        ``head_accuracy``: the head of the epoch with the final classifier. The head is ready when this is high.
        ``classifier_accuracy``: the final head with the classifier of the epoch.
        ``accuracy``: both parts from the epoch.

    A part may be ready although its accuracy is low, if the other part has rotated or scaled xi since: the accuracies
    show when a part fits the *final* version of the other.

    Args:
        snapshots: of an ensemble of pooling transformers on sparse modular addition.
        member: number of the network in the ensemble.
    """
    rows, weights = measured_rows(task_of(snapshots, member)), snapshots.of(member)
    model: Any = build_model(snapshots.configs[member])
    tested = rows.test > 0
    tokens, answers, share = rows.batch.tokens[tested], rows.batch.label("answer")[tested], rows.test[tested].double()
    end = {name: values[-1] for name, values in weights.items()}
    xi_at_end = embedded(model, end, tokens)

    def accuracy(logits: Tensor) -> Tensor:
        return (logits.argmax(dim=-1) == answers).double() @ share

    def measure(now: Weights) -> dict[str, Tensor]:
        with record(model, [XI]) as seen:
            logits = functional_call(model, dict(now), (tokens,))
        return {
            "head_accuracy": accuracy(classified(model, end, tokens, seen[XI][0][:, 0])),
            "classifier_accuracy": accuracy(classified(model, now, tokens, xi_at_end)),
            "accuracy": accuracy(logits),
        }

    values = at_every_snapshot(measure, weights, len(snapshots))
    return ProbeResult(
        "Stitching",
        values,
        dict.fromkeys(values, ("epoch",)),
        {"epoch": [str(epoch) for epoch in snapshots.epochs]},
        metadata={"n": len(tokens)},
    )


def embedded(model: Any, weights: Weights, tokens: Tensor) -> Tensor:
    """``[n d]`` the sequence embedding xi of each row."""
    with record(model, [XI]) as seen:
        functional_call(model, dict(weights), (tokens,))
    return seen[XI][0][:, 0]


def classified(model: Any, weights: Weights, tokens: Tensor, xi: Tensor) -> Tensor:
    """``[n d_vocab]`` logits with ``xi [n d]`` in place of the sequence embeddings."""
    with record(model, [XI], lambda name, own: xi[:, None]):
        logits: Tensor = functional_call(model, dict(weights), (tokens[:1],))  # nothing behind xi reads the tokens
    return logits
