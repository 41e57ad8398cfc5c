"""A matrix over words, divided into blocks of topics."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes.functional.word_topics import WordTopics
from tasks import InputError


@dataclass(frozen=True)
class TopicBlocks:
    """A matrix over words, divided into blocks of topics.

    Attributes:
        means: float64 mean entry of each block.
        same: mean over all entries of two words of one topic, the diagonal included.
        same_off_diagonal: mean over these entries without the diagonal.
        different: mean over all entries of two words of different topics.
        spread: standard deviation of all entries without the diagonal.
    """

    means: Float[Tensor, "n_topics n_topics"]
    same: float
    same_off_diagonal: float
    different: float
    spread: float

    @property
    def gap(self) -> float:
        """Mean same-topic entry minus mean different-topic entry."""
        return self.same - self.different

    @property
    def effect(self) -> float:
        """Mean same-topic entry off the diagonal minus mean different-topic entry, in standard deviations.

        NaN if all entries off the diagonal are equal.
        """
        return (self.same_off_diagonal - self.different) / self.spread if self.spread else math.nan

    @property
    def separation(self) -> float:
        """Smallest same-topic block mean minus largest different-topic block mean."""
        other = self.means[~torch.eye(len(self.means), dtype=torch.bool)]
        return float(self.means.diagonal().min() - other.max())


def topic_blocks(matrix: Float[Tensor, "row column"], topics: Int[Tensor, "word"]) -> TopicBlocks:
    """Average the blocks of a matrix over words, such as ``W_V`` or ``W_E^T W_E``.

    Args:
        matrix: one row and one column per word.
        topics: topic of each word; negative: left out.

    Raises:
        InputError: for a matrix of the wrong size, or fewer than two topics.

    Example:
        >>> blocks = topic_blocks(torch.eye(4), torch.tensor([0, 0, 1, 1]))
        >>> blocks.means.tolist(), blocks.gap, blocks.same_off_diagonal
        ([[0.5, 0.0], [0.0, 0.5]], 0.5, 0.0)
    """
    known = WordTopics.from_topics(topics)
    if matrix.shape != (len(known.row), len(known.row)):
        raise InputError(f"the matrix has shape {tuple(matrix.shape)}; expected {len(known.row)} words both ways")
    has_topic = known.row.cpu() >= 0
    words = matrix.detach().cpu().double()[has_topic][:, has_topic]
    member = torch.nn.functional.one_hot(known.group).double()
    size = member.sum(dim=0)
    same = known.group[:, None] == known.group
    off_diagonal = ~torch.eye(len(words), dtype=torch.bool)
    return TopicBlocks(
        means=(member.T @ words @ member) / (size[:, None] * size[None, :]),
        same=float(words[same].mean()),
        same_off_diagonal=float(words[same & off_diagonal].mean()),
        different=float(words[~same].mean()),
        spread=float(words[off_diagonal].std(correction=0)),
    )
