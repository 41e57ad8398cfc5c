"""The minimiser of the squared loss under uniform attention and weight decay, for some documents and for all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mechclust.studies.topic_structure.theory import check_plain_topics, stage_one_value
from tasks import InputError, TopicDocuments
from tasks.topic_documents import MASK, N_SPECIAL

_BLOCK = 500  # documents drawn at once
_SEEDS = 10**6  # distance between the document seeds of one run and the next


class DocumentMoments(NamedTuple):
    """The moments of documents that the squared loss depends on, in float64.

    With ``s`` the share of each token among those a document shows, and ``y`` the correct word at a selected position:

    Attributes:
        inputs: ``[d_vocab d_vocab]`` mean of ``s s^T``.
        targets: ``[d_vocab d_vocab]`` mean of ``y s^T``.
    """

    inputs: Float[Tensor, "d_vocab d_vocab"]
    targets: Float[Tensor, "d_vocab d_vocab"]


def moments_of(task: TopicDocuments) -> DocumentMoments:
    """Means over the selected positions of all training documents.

    Memory: the documents of ``task``, and ``O(d_vocab^2)``.

    Example:
        >>> task = TopicDocuments(n_documents=20, sampler="subset", objective="squared", boundaries=False)
        >>> moments = moments_of(task)
        >>> round(float(moments.inputs.sum()), 6), round(float(moments.targets.sum()), 6)  # of shares that sum to 1
        (1.0, 1.0)
    """
    d, selected = task.d_vocab, 0
    inputs, targets = (torch.zeros(d, d, dtype=torch.float64) for _ in range(2))
    for batch in task.batches("train", _BLOCK):
        assert batch.loss_mask is not None
        assert batch.targets is not None
        assert batch.attention_mask is not None
        shown, wanted = (torch.zeros(len(batch), d, dtype=torch.float64) for _ in range(2))
        shown.scatter_add_(1, batch.tokens, batch.attention_mask.double())
        shown /= shown.sum(dim=1, keepdim=True)
        wanted.scatter_add_(1, batch.targets, batch.loss_mask.double())
        n = wanted.sum(dim=1, keepdim=True)
        inputs += shown.T @ (n * shown)
        targets += wanted.T @ shown
        selected += int(n.sum())
    return DocumentMoments(inputs / selected, targets / selected)


def population_moments(task: TopicDocuments) -> DocumentMoments:
    """The means over all documents of the theory as long as ``task``'s, with exact mask shares in each.

    Given a document's topics, its words are independent, so the products of the shares are those of a multinomial
    sample. A selected position that shows its own word puts that word into both ``s`` and ``y``; this is the only way
    in which a word of a topic predicts itself better than the topic's other words.

    Raises:
        InputError: for documents of another kind.

    Example:
        >>> task = TopicDocuments(sampler="subset", boundaries=False, exact_shares=True, lengths=(400, 400))
        >>> targets = population_moments(task).targets
        >>> [f"{float(targets[4, j]):.2e}" for j in (4, 5, 14, 1)]  # its own word, its topic's, another, MASK
        ['4.36e-04', '4.34e-04', '4.95e-05', '1.20e-03']
    """
    if task.sampler != "subset" or not task.exact_shares or task.boundaries or task.lengths[0] != task.lengths[1]:
        raise InputError(
            "population moments are known for documents with sampler 'subset', exact_shares, no boundaries and one "
            f"length; sampler is {task.sampler!r}, exact_shares {task.exact_shares}, boundaries {task.boundaries}, "
            f"lengths {task.lengths}"
        )
    check_plain_topics(task)
    n, tau, words = task.lengths[0], task.topics_per_document, slice(N_SPECIAL, None)
    topic = task.token_topics[words]
    same = (topic[:, None] == topic).double()
    both = tau * (tau - 1) / (task.n_topics * (task.n_topics - 1))  # two topics in one document
    pairs = (same * tau / task.n_topics + (1 - same) * both) / (tau * task.words_per_topic) ** 2
    even = torch.full((task.n_words,), 1 / task.n_words, dtype=torch.float64)
    selected, right, other = _counts(task)
    shown, mask = n - selected + right, selected - right - other
    mean = torch.zeros(task.d_vocab, dtype=torch.float64)
    mean[words], mean[MASK] = (shown + other) / n * even, mask / n
    inputs = mean[:, None] * mean
    # Among the shown words: the topics' own, those drawn at random, and pairs of both kinds.
    inputs[words, words] = (
        shown * (shown - 1) * pairs
        + other * (other - 1) * even[:, None] * even
        + 2 * shown * other * even[:, None] * even
        + (shown + other) * torch.diag(even)
    ) / n**2
    targets = torch.zeros_like(inputs)
    targets[words, MASK] = mask / n * even
    own = right / selected  # chance that y is one of the shown words
    targets[words, words] = ((shown - own) * pairs + other * even[:, None] * even + own * torch.diag(even)) / n
    return DocumentMoments(inputs, targets)


def _counts(task: TopicDocuments) -> tuple[int, int, int]:
    """Selected positions of a document: those that show the correct word and those that show another."""
    n = task.lengths[0]
    below = [
        sum(rank / n < share * task.selected_share - 1e-9 for rank in range(n))
        for share in (1.0, task.correct_share, task.correct_share + task.random_share)
    ]
    selected = max(below[0], 1)
    return selected, min(below[1], selected), min(below[2], selected) - min(below[1], selected)


def minimiser(moments: DocumentMoments, weight_decay: float) -> Float[Tensor, "d_vocab d_vocab"]:
    """``W_V`` that minimises the squared loss plus ``weight_decay / 2`` times its squared norm (paper's orientation).

    Gradient descent with this weight decay converges to it, given uniform attention and one-hot input.

    Raises:
        InputError: for a decay that is not positive: the minimiser is not unique then.

    Example:
        >>> task = TopicDocuments(sampler="subset", boundaries=False, exact_shares=True, lengths=(10_000, 10_000))
        >>> value = minimiser(population_moments(task), weight_decay=6e-5)
        >>> [round(float(value[4, j]), 3) for j in (5, 14, 1)]  # the closed form: .108, -.008, .054
        [0.107, -0.007, 0.054]
    """
    if not weight_decay > 0:
        raise InputError(f"weight_decay is {weight_decay}; expected a positive number")
    ridge = moments.inputs + weight_decay / 2 * torch.eye(len(moments.inputs), dtype=torch.float64)
    return torch.linalg.solve(ridge, moments.targets.T).T


def distance(value: Tensor, other: Tensor, task: TopicDocuments) -> float:
    """Relative Frobenius distance of two value matrices over the entries from a token that documents show to a word.

    Relative to the norm of ``other``'s entries there.
    """
    words, seen = task.token_topics >= 0, stage_one_value(task).abs().sum(dim=0) > 0
    difference, size = ((x.double())[words][:, seen].norm() for x in (value - other, other))
    return float(difference / size)


def drawn(task: TopicDocuments, ladder: Sequence[int], seed: int) -> Iterator[DocumentMoments]:
    """Moments of increasing numbers of documents: the first ``ladder[0]``, the first ``ladder[1]``, ...

    Args:
        task: defines the documents.
        ladder: numbers of documents, ascending.
        seed: each draws different documents.
    """
    inputs, targets = (torch.zeros(task.d_vocab, task.d_vocab, dtype=torch.float64) for _ in range(2))
    done, block = 0, 0
    for wanted in ladder:
        while done < wanted:
            n = min(_BLOCK, wanted - done)
            of = moments_of(replace(task, n_documents=n, seed=_SEEDS * (seed + 1) + block))
            inputs, targets, done, block = inputs + n * of.inputs, targets + n * of.targets, done + n, block + 1
        yield DocumentMoments(inputs / done, targets / done)
