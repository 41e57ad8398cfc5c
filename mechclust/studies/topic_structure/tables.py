"""How much of a table over words, such as the attention scores, is a matter of their topics, over training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from probes import ProbeResult
from probes.functional.word_topics import WordTopics
from probes.store.versions import package_versions
from tasks import InputError, TopicDocuments
from tasks.settings import check_at_least
from tasks.topic_documents import N_SPECIAL

SCORES = "W_K^T W_Q"
ATTENTION = "attention"
VALUES = "W_V"

_Table = Float[Tensor, "word word"]


class TableTopics(NamedTuple):
    """Measures of a table over words, by ``table_topics``.

    Attributes:
        rank: effective rank, the participation ratio of the squared singular values: ``(sum s^2)^2 / sum s^4``.
        common: share of the table's variance that is the same in all rows, in ``[0, 1]``.
        explained: share of the table's variance that the topics of row and column explain, in ``[0, 1]``.
        explained_null: 95th percentile of ``explained`` when topics are given to the words at random.
        contrast: mean entry of two words that share a topic minus that of two that do not, the diagonal left out, in
            standard deviations of all entries.
        contrast_null: 95th percentile of ``contrast`` when topics are given to the words at random.
    """

    rank: float
    common: float
    explained: float
    explained_null: float
    contrast: float
    contrast_null: float


def table_topics(
    table: Float[Tensor, "row column"], members: Bool[Tensor, "word topic"], n_permutations: int = 200, seed: int = 0
) -> TableTopics:
    """Measure how a table over words is related to their topics.

    Each row is centred first: a softmax over columns is not changed by a constant added to a row. ``explained`` is the
    variance between blocks, over the variance of the table; words with the same set of topics form a block.

    Args:
        table: one row and one column per word.
        members: whether a word belongs to a topic.
        n_permutations: relabellings behind ``explained_null`` and ``contrast_null``.
        seed: seed of these.

    Returns:
        NaN throughout for a table whose rows are constant or that has entries that are not finite.

    Raises:
        InputError: for a table of the wrong size, a word without a topic, fewer than two topics, or no permutations.

    Example:
        >>> topics = torch.tensor([0, 0, 1, 1, 2, 2])
        >>> members = topics[:, None] == torch.arange(3)
        >>> measures = table_topics((topics[:, None] == topics).double(), members)
        >>> round(measures.rank, 6), round(measures.explained, 6)
        (2.0, 1.0)
    """
    if table.shape != (len(members), len(members)):
        raise InputError(f"table has shape {tuple(table.shape)}; expected {len(members)} words both ways")
    if not bool(members.any(dim=1).all()):
        raise InputError("a word has no topic; leave out its row and column")
    check_at_least(n_permutations=(n_permutations, 1))
    centred = table.detach().double()
    centred = centred - centred.mean(dim=1, keepdim=True)
    total = centred.square().sum()
    if not (total > 0 and total.isfinite()):
        return TableTopics(*[float("nan")] * len(TableTopics._fields))
    draw = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(members), generator=draw) for _ in range(n_permutations)]
    measured, *null = _topic_measures(centred, members, [torch.arange(len(members)), *orders])
    explained_null, contrast_null = torch.stack(null).quantile(0.95, dim=0).tolist()
    squares = torch.linalg.svdvals(centred).square()
    return TableTopics(
        rank=float(squares.sum().square() / squares.square().sum()),
        common=float(len(members) * centred.mean(dim=0).square().sum() / total),
        explained=float(measured[0]),
        explained_null=explained_null,
        contrast=float(measured[1]),
        contrast_null=contrast_null,
    )


def _topic_measures(
    centred: _Table, members: Bool[Tensor, "word topic"], orders: Sequence[Int[Tensor, "word"]]
) -> list[Float[Tensor, "2"]]:
    """Return ``explained`` and ``contrast`` with the words in each order."""
    topics = WordTopics.from_topics(members)
    block = F.one_hot(topics.group).double()
    block /= block.sum(dim=0).sqrt()
    same = topics.meet(topics.group[:, None], topics.group).double()
    different = 1 - same
    same.fill_diagonal_(0)
    total = centred.square().sum()
    spread = centred.std(correction=0)
    measures = []
    for order in orders:
        moved = centred[order][:, order]
        explained = (block.T @ moved @ block).square().sum() / total
        gap = (moved * same).sum() / same.sum() - (moved * different).sum() / different.sum()
        measures.append(torch.stack([explained, gap / spread]))
    return measures


def _between_words(matrix: Float[Tensor, "d_vocab d_vocab"]) -> _Table:
    return matrix[N_SPECIAL:, N_SPECIAL:].double()


class TopicTables:
    """``table_topics`` of three tables of a network at some steps, as a callback for a training loop.

    The attention scores (rows: queries); the attention in a document in which every word occurs once, their softmax;
    and the values (rows: the words attended to, columns: what they add to the output).

    Args:
        task: gives the words' topics.
        at: steps at which it measures.
        n_permutations: relabellings behind each null.

    Raises:
        InputError: when called, for a network whose words are not one-hot vectors in and out.
    """

    def __init__(self, task: TopicDocuments, at: Sequence[int], n_permutations: int = 200) -> None:
        self._members = task.token_membership[N_SPECIAL:]
        self._at = at
        self._n_permutations = n_permutations
        self._measured: dict[int, list[TableTopics]] = {}

    @torch.no_grad()
    def __call__(self, step: int, model: Any) -> None:
        """Measure the tables before ``step``."""
        if step not in self._at:
            return
        config = model.config
        if (config.embedding, config.decoder, config.input) != ("one-hot", "identity", "plain"):
            raise InputError("tables over words need a plain one-hot embedding and the identity as decoder")
        attn = model.blocks[0].attn
        scores = _between_words(attn.W_Q @ attn.W_K.T / len(attn.W_Q) ** 0.5)
        tables = (scores, scores.softmax(dim=1), _between_words(attn.W_V))
        self._measured[step] = [table_topics(table, self._members, self._n_permutations, seed=step) for table in tables]

    def compute(self) -> ProbeResult:
        """Return the measures of ``TableTopics`` with axes (step, table)."""
        values = torch.tensor(list(self._measured.values()), dtype=torch.float64)
        return ProbeResult(
            probe="TopicTables",
            values={name: values[..., i] for i, name in enumerate(TableTopics._fields)},
            axes=dict.fromkeys(TableTopics._fields, ("step", "table")),
            coords={"step": [str(step) for step in self._measured], "table": [SCORES, ATTENTION, VALUES]},
            metadata={"n_permutations": self._n_permutations, "versions": package_versions()},
        )
