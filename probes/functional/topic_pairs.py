"""Attention summed over pairs of words of one topic and of different topics, and compared within documents."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from einops import einsum
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from probes.functional.arrays import Array, exact_dtype

BUCKETS = ("same_word", "same_topic", "different_topic")


@dataclass(frozen=True)
class PairSums:
    """Attention summed over ordered (query, key) pairs of a batch, and compared within each document (example).

    Attributes:
        sum: by ``BUCKETS``. Like ``within`` and ``weight`` in float64, or in float32 on MPS.
        pairs: how many pairs there are, by ``BUCKETS``.
        within: the mean of a document's same-topic and of its different-topic pairs, times the document's weight,
            summed over documents.
        weight: the sum of the documents' weights.
        documents: how many documents have pairs of different words, and how many have both same-topic and
            different-topic pairs.

    Example:
        >>> from probes.functional import topic_attention
        >>> sums = topic_attention(torch.full((1, 1, 2, 2), 0.5), torch.tensor([[0, 1]]), torch.tensor([0, 1]))
        >>> dict(zip(BUCKETS, sums.pairs.tolist()))
        {'same_word': 2, 'same_topic': 0, 'different_topic': 2}
    """

    sum: Float[Array, "head 3"]
    pairs: Int[Array, "3"]
    within: Float[Array, "head 2 labelling"]
    weight: Float[Array, "labelling"]
    documents: Int[Array, "2"]

    @property
    def within_mean(self) -> Float[Array, "head 2"]:
        """Return the mean attention over the pairs of each kind, of documents with both; NaN if none has."""
        return self.within[..., 0] / self.weight[0]


def topic_pair_weight(n_same: Int[Tensor, "*shape"], n_different: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return the Mantel-Haenszel weight of documents with these numbers of pairs: 0 if one of them is 0.

    Example:
        >>> topic_pair_weight(torch.tensor([2, 6, 0]), torch.tensor([2, 3, 5])).tolist()
        [1.0, 2.0, 0.0]
    """
    exact = exact_dtype(n_same.device)
    return n_same.to(exact) * n_different.to(exact) / (n_same + n_different).clamp(min=1)


def topic_pair_document_weights(
    pairs: Int[Tensor, "example column"],
) -> tuple[Float[Tensor, "example labelling"], Int[Tensor, "2"]]:
    """Return each document's weight under each labelling, and how many documents have pairs and have both kinds.

    Columns: see ``_by_kind``. Weights come from the true topics: relabelled counts would give a document of one topic a
    weight, and it would count in the chance interval of a ratio in which it does not count. A document without both
    kinds under a relabelling has weight 0 there.
    """
    n_same, n_different = _by_kind(pairs).unbind(dim=1)
    weight = topic_pair_weight(n_same[:, :1], n_different[:, :1])
    documents = torch.stack([(n_same[:, 0] + n_different[:, 0] > 0).sum(), (weight > 0).sum()])
    return torch.where((n_same > 0) & (n_different > 0), weight, 0.0), documents


def topic_pair_shares(
    pairs: Int[Tensor, "example column"], weight: Float[Tensor, "example labelling"]
) -> Float[Tensor, "example 2 labelling"]:
    """Return how much the attention of one pair of either kind counts: its document's weight over such pairs."""
    return weight[:, None] / _by_kind(pairs).clamp(min=1)


def topic_pair_sums_within_documents(
    total: Float[Tensor, "example head column"], shares: Float[Tensor, "example 2 labelling"]
) -> Float[Tensor, "head 2 labelling"]:
    """Sum each kind's mean attention, times the document's weight, over documents. Columns: ``_by_kind``."""
    return einsum(_by_kind(total), shares, "example head kind labelling, example kind labelling -> head kind labelling")


def _by_kind(columns: Shaped[Tensor, "*batch column"]) -> Shaped[Tensor, "*batch 2 labelling"]:
    """Return the same-topic and the different-topic columns: as they are, then for each relabelling.

    The first three columns are ``BUCKETS``. More are same-topic pairs under relabellings of the words, if there are
    any (``WordTopics.permuted``). A relabelling moves pairs between two buckets, and their sum stays.
    """
    same = columns[..., 1:2]
    different = columns[..., 2:3]
    relabelled = columns[..., 3:]
    kinds = [torch.cat([same, relabelled], dim=-1), torch.cat([different, same + different - relabelled], dim=-1)]
    return torch.stack(kinds, dim=-2)
