"""Attention between words of one topic and of different topics, in one vectorised pass.

The measurement of Li, Li & Risteski, "How Do Transformers Learn Topic Structure" (ICML 2023).
"""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from probes.functional.arrays import Array, computed_in_torch
from probes.functional.topic_pairs import PairSums, TopicPairs
from probes.functional.word_topics import WordTopics
from tasks import InputError


@computed_in_torch(not_finite=["pattern"])
def topic_attention(
    pattern: Float[Array, "batch head query key"],
    words: Int[Array, "batch pos"],
    topics: object,
) -> PairSums:
    """Sum attention between words of one topic and of different topics over a batch.

    Takes tensors, NumPy arrays or lists, and returns the kind that it was given (arrays for lists).

    Every ordered (query, key) pair of positions whose words both have a topic falls into one bucket: ``same_word`` (the
    diagonal included), ``same_topic`` (a different word), ``different_topic``. Pairs with any other position are left
    out, and weights are not renormalised. Cost: the positions that count, squared.

    ``sum / pairs`` is the plain average over the pairs of all documents. It compares documents of few topics with
    documents of many: where these differ in length, it differs from bucket to bucket whatever attention does.
    ``within_mean`` compares the two buckets in each document, and weighs the document by
    ``n_same n_different / (n_same + n_different)`` in both.

    Args:
        pattern: attention probabilities, rows sum to 1 over keys; one document per example.
        words: each position's word; negative: left out.
        topics: integer topic of each word (negative: none), or a table of membership with a row for each word and a
            column for each topic; two words share a topic when their sets meet.

    Raises:
        InputError: for topics of another form, a word that is not among them, or negative weights.

    Example:
        >>> import torch
        >>> pattern = torch.tensor([[[[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.1, 0.3, 0.6]]]])
        >>> sums = topic_attention(pattern, torch.tensor([[0, 1, 2]]), torch.tensor([0, 0, 1]))
        >>> (sums.sum / sums.pairs)[0].round(decimals=3).tolist()
        [0.533, 0.25, 0.225]
        >>> sums.within_mean[0].round(decimals=3).tolist()  # the same, for one document
        [0.25, 0.225]
    """
    _check_weights(pattern)
    return TopicPairs.from_words(words, WordTopics.from_topics(topics)).sums(pattern)


def _check_weights(pattern: Float[Tensor, "batch head query key"]) -> None:
    """Refuse negative weights, such as logits. Weights of positions that do not count may be NaN."""
    if bool((pattern < 0).any()):
        raise InputError("pattern has negative weights; give attention probabilities")
