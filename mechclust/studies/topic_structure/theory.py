"""Closed forms of the topic-structure study: what the value matrix learns under uniform attention."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from tasks import InputError, TopicDocuments
from tasks.topic_documents import MASK, N_SPECIAL


def check_plain_topics(task: TopicDocuments) -> None:
    """Refuse documents whose topics overlap, or whose words are not equally frequent within a topic."""
    if task.overlap or task.zipf:
        raise InputError(
            f"overlap is {task.overlap} and zipf {task.zipf:g}; the closed forms need disjoint topics of equally "
            "frequent words (both 0)"
        )


def _kept(task: TopicDocuments) -> float:
    """Return ``1 - (1 - p_c) p_m``, the share of a document's words that are shown unchanged."""
    check_plain_topics(task)
    if task.sampler == "subset" and task.topics_per_document == task.n_topics:
        raise InputError(
            f"topics_per_document is {task.topics_per_document} of {task.n_topics} topics; with all topics in every "
            "document nothing tells them apart: expected fewer"
        )
    kept = 1 - (1 - task.correct_share) * task.selected_share
    if kept <= 0:
        raise InputError("selected_share is 1 and correct_share 0: no document shows its words, so nothing is learnt")
    return kept


def theory_gap(task: TopicDocuments) -> float:
    """Return the mean same-topic entry minus the mean different-topic entry at the optimum of the squared loss.

    It is ``1 / (v (1 - (1 - p_c) p_m))``, for ``W_V`` with one-hot embeddings and for ``W_E^T W_E`` with
    ``W_V = I``, in the limit of long documents. Words only; the diagonal counts as same-topic.

    Source: Li, Li & Risteski (ICML 2023), the theorems on uniform attention.

    Raises:
        InputError: if there is no such optimum: all topics in every document, no word shown, or topics that overlap or
            whose words are not equally frequent.

    Example:
        >>> round(theory_gap(TopicDocuments()), 6)
        0.115607
    """
    return 1 / (task.words_per_topic * _kept(task))


def stage_one_value(task: TopicDocuments) -> Float[Tensor, "d_vocab d_vocab"]:
    """Return the minimum-norm ``W_V`` that minimises the squared loss under uniform attention.

    Decoder and embedding are the identity and documents are long, however their topics are drawn.
    With ``a = 1 - (1 - p_c) p_m`` the share of words that are shown unchanged and
    ``m = (1 - p_c - p_r) p_m`` that of MASK, a document whose words are distributed as ``p`` shows
    ``a p + p_r p_m / (T v)`` of each word and ``m`` of MASK, and ``W_V`` turns that back into ``p``.
    Weight decay selects this one of all such matrices.

    Returns:
        float64, in the paper's orientation: entry ``[i, j]`` is what token ``j`` adds to output ``i``
        (``TopicTransformer`` holds its transpose). One value in each same-topic block, one in
        each different-topic block, one in the words' rows of the MASK column; 0 elsewhere.

    Raises:
        InputError: as ``theory_gap``.

    Example:
        >>> value = stage_one_value(TopicDocuments())
        >>> [round(float(value[4, j]), 6) for j in (4, 5, 14, 1, 2)]  # its own, its topic's, another, MASK, START
        [0.10802, 0.10802, -0.007587, 0.054191, 0.0]
    """
    gap = theory_gap(task)
    shown_at_random = task.random_share * task.selected_share
    masked = (1 - task.correct_share - task.random_share) * task.selected_share
    # Spec 3's O2 with both terms of its fractions times m^2: also defined where nothing shows MASK.
    scale = (1 - masked) ** 2 + task.n_words * masked**2
    other = -((1 - masked) * shown_at_random * gap / task.n_topics + masked**2 * task.words_per_topic * gap) / scale
    topic = task.token_topics[N_SPECIAL:]
    value = torch.zeros(task.d_vocab, task.d_vocab, dtype=torch.float64)
    value[N_SPECIAL:, N_SPECIAL:] = other + gap * (topic[:, None] == topic).double()
    value[N_SPECIAL:, MASK] = masked / scale
    return value
