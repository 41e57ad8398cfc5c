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

_BLOCK_SIZE = 500  # documents drawn at once
_SEED_STRIDE = 10**6  # distance between the document seeds of one run and the next

_Square = Float[Tensor, "d_vocab d_vocab"]


class DocumentMoments(NamedTuple):
    """The moments of documents that the squared loss depends on, in float64.

    With ``s`` the share of each token among those a document shows, and ``y`` the correct word at a selected position:

    Attributes:
        inputs: mean of ``s s^T``.
        targets: mean of ``y s^T``.
    """

    inputs: _Square
    targets: _Square


def moments_of(task: TopicDocuments) -> DocumentMoments:
    """Average over the selected positions of all training documents.

    Memory: the documents of ``task``, and ``O(d_vocab^2)``.

    Example:
        >>> task = TopicDocuments(n_documents=20, sampler="subset", objective="squared", boundaries=False)
        >>> moments = moments_of(task)
        >>> round(float(moments.inputs.sum()), 6), round(float(moments.targets.sum()), 6)  # of shares that sum to 1
        (1.0, 1.0)
    """
    inputs = torch.zeros(task.d_vocab, task.d_vocab, dtype=torch.float64)
    targets = torch.zeros_like(inputs)
    n_selected = 0
    for batch in task.batches("train", _BLOCK_SIZE):
        assert batch.loss_mask is not None
        assert batch.targets is not None
        assert batch.attention_mask is not None
        shown = torch.zeros(len(batch), task.d_vocab, dtype=torch.float64)
        shown.scatter_add_(1, batch.tokens, batch.attention_mask.double())
        shown /= shown.sum(dim=1, keepdim=True)
        correct = torch.zeros_like(shown)
        correct.scatter_add_(1, batch.targets, batch.loss_mask.double())
        selected = correct.sum(dim=1, keepdim=True)
        inputs += shown.T @ (selected * shown)
        targets += correct.T @ shown
        n_selected += int(selected.sum())
    return DocumentMoments(inputs / n_selected, targets / n_selected)


def population_moments(task: TopicDocuments) -> DocumentMoments:
    """Average over all documents of the theory as long as ``task``'s, with exact mask shares in each.

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
    n = task.lengths[0]
    words = slice(N_SPECIAL, None)
    pairs = _word_pairs(task)
    even = torch.full((task.n_words,), 1 / task.n_words, dtype=torch.float64)
    selected, correct, other = _counts(task)
    shown = n - selected + correct
    mask = selected - correct - other
    mean = torch.zeros(task.d_vocab, dtype=torch.float64)
    mean[words] = (shown + other) / n * even
    mean[MASK] = mask / n
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
    itself = correct / selected  # chance that y is one of the shown words
    targets[words, words] = ((shown - itself) * pairs + other * even[:, None] * even + itself * torch.diag(even)) / n
    return DocumentMoments(inputs, targets)


def _word_pairs(task: TopicDocuments) -> Float[Tensor, "word word"]:
    """Return the chance that two positions of a document have these words of its topics."""
    tau = task.topics_per_document
    topic = task.token_topics[N_SPECIAL:]
    same = (topic[:, None] == topic).double()
    both = tau * (tau - 1) / (task.n_topics * (task.n_topics - 1))  # two topics in one document
    return (same * tau / task.n_topics + (1 - same) * both) / (tau * task.words_per_topic) ** 2


def _counts(task: TopicDocuments) -> tuple[int, int, int]:
    """Count the selected positions of a document, those that show the correct word, and those that show another."""
    selected = max(_n_below(task, 1.0), 1)
    correct = min(_n_below(task, task.correct_share), selected)
    correct_or_other = min(_n_below(task, task.correct_share + task.random_share), selected)
    return selected, correct, correct_or_other - correct


def _n_below(task: TopicDocuments, share: float) -> int:
    """Count the positions of a document, in random order, that lie within a share of the selected ones."""
    n = task.lengths[0]
    return sum(rank / n < share * task.selected_share - 1e-9 for rank in range(n))


def minimiser(moments: DocumentMoments, weight_decay: float) -> _Square:
    """Solve for the ``W_V`` that minimises the squared loss plus ``weight_decay / 2`` times its squared norm.

    It is in the paper's orientation. The loss is summed over outputs: gradient descent on their average converges to it
    with the weight decay divided by their number, given uniform attention and one-hot input.

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


def value_distance(value: _Square, other: _Square, task: TopicDocuments) -> float:
    """Return the Frobenius distance of two value matrices over the entries from a token that documents show to a word.

    It is relative to the norm of ``other``'s entries there.
    """
    words = task.token_topics >= 0
    shown = stage_one_value(task).abs().sum(dim=0) > 0
    difference = (value - other).double()[words][:, shown]
    return float(difference.norm() / other.double()[words][:, shown].norm())


def drawn_moments(task: TopicDocuments, ladder: Sequence[int], seed: int) -> Iterator[DocumentMoments]:
    """Yield the moments of increasing numbers of documents: the first ``ladder[0]``, the first ``ladder[1]``, ...

    Args:
        task: defines the documents.
        ladder: numbers of documents, ascending.
        seed: each draws different documents.
    """
    inputs = torch.zeros(task.d_vocab, task.d_vocab, dtype=torch.float64)
    targets = torch.zeros_like(inputs)
    n_drawn = 0
    block_seed = _SEED_STRIDE * (seed + 1)
    for n_documents in ladder:
        while n_drawn < n_documents:
            n = min(_BLOCK_SIZE, n_documents - n_drawn)
            moments = moments_of(replace(task, n_documents=n, seed=block_seed))
            inputs += n * moments.inputs
            targets += n * moments.targets
            n_drawn += n
            block_seed += 1
        yield DocumentMoments(inputs / n_drawn, targets / n_drawn)
