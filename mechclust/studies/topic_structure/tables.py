"""How much of a table over words, such as the attention scores, is a matter of their topics, over training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from probes import ProbeResult
from probes.files import versions
from tasks import InputError, TopicDocuments
from tasks.topic_documents import N_SPECIAL

SCORES, ATTENTION, VALUES = "W_K^T W_Q", "attention", "W_V"


class TableTopics(NamedTuple):
    """What ``table_topics`` found.

    Attributes:
        rank: effective rank, the participation ratio of the squared singular values: ``(sum s^2)^2 / sum s^4``.
        explained: share of the table's variance that the topics of row and column explain, in ``[0, 1]``.
        null: 95th percentile of ``explained`` when topics are given to the words at random.
        contrast: mean entry of two words that share a topic minus that of two that do not, the diagonal left out, in
            standard deviations of all entries.
    """

    rank: float
    explained: float
    null: float
    contrast: float


def table_topics(
    table: Float[Tensor, "n n"], members: Bool[Tensor, "n n_topics"], n_permutations: int = 200, seed: int = 0
) -> TableTopics:
    """How a table over words is related to their topics.

    Each row is centred first: a softmax over columns is not changed by a constant added to a row. ``explained`` is the
    squared norm of the projection onto the tables that depend on the topics of row and column only, over the squared
    norm of the table. For disjoint topics, that is the variance between blocks.

    Args:
        table: one row and one column per word.
        members: whether a word belongs to a topic.
        n_permutations: relabellings behind ``null``.
        seed: seed of these.

    Returns:
        NaN throughout for a table whose rows are constant.

    Raises:
        InputError: for a table of the wrong size.

    Example:
        >>> topics = torch.tensor([0, 0, 1, 1, 2, 2])
        >>> members = topics[:, None] == torch.arange(3)
        >>> found = table_topics((topics[:, None] == topics).double(), members)
        >>> round(found.rank, 6), round(found.explained, 6)
        (2.0, 1.0)
    """
    if table.shape != (len(members), len(members)):
        raise InputError(f"table has shape {tuple(table.shape)}; expected {len(members)} words both ways")
    centred = table.detach().double()
    centred = centred - centred.mean(dim=1, keepdim=True)
    total = centred.square().sum()
    if not total > 0:
        return TableTopics(*[float("nan")] * len(TableTopics._fields))
    member = members.double()
    rows, columns = _basis(torch.cat([torch.ones_like(member[:, :1]), member], dim=1)), _basis(member - member.mean(0))
    squares = torch.linalg.svdvals(centred).square()

    def explained(order: Tensor | slice = slice(None)) -> Tensor:
        return (rows[order].T @ centred @ columns[order]).square().sum() / total

    draw = torch.Generator().manual_seed(seed)
    null = torch.stack([explained(torch.randperm(len(member), generator=draw)) for _ in range(n_permutations)])
    share, same = (member @ member.T) > 0, ~torch.eye(len(member), dtype=torch.bool)
    gap = centred[share & same].mean() - centred[~share].mean()
    return TableTopics(
        rank=float(squares.sum().square() / squares.square().sum()),
        explained=float(explained()),
        null=float(null.quantile(0.95)),
        contrast=float(gap / centred.std(correction=0)),
    )


def _basis(columns: Float[Tensor, "n k"]) -> Float[Tensor, "n rank"]:
    """An orthonormal basis of the span of some columns."""
    u, s, _ = torch.linalg.svd(columns, full_matrices=False)
    return u[:, s > 1e-9 * s[0]]


class TopicTables:
    """``table_topics`` of three tables of a network at some steps, as a callback for a training loop.

    The attention scores (rows: queries); the attention in a document in which every word occurs once, their softmax;
    and the values (rows: the words attended to, columns: what they add to the output). Needs one-hot embeddings and the
    identity as decoder.

    Args:
        task: gives the words' topics.
        at: steps at which it measures.
        n_permutations: relabellings behind each null.
    """

    def __init__(self, task: TopicDocuments, at: Sequence[int], n_permutations: int = 200) -> None:
        self._members, self._at, self._n = task.token_membership[N_SPECIAL:], at, n_permutations
        self._found: dict[int, list[TableTopics]] = {}

    @torch.no_grad()
    def __call__(self, step: int, model: Any) -> None:
        """Measure the tables before ``step``."""
        if step not in self._at:
            return
        attn = model.blocks[0].attn
        scores, values = (
            table[N_SPECIAL:, N_SPECIAL:].double() for table in (attn.W_Q @ attn.W_K.T / len(attn.W_Q) ** 0.5, attn.W_V)
        )
        self._found[step] = [
            table_topics(table, self._members, self._n, seed=step) for table in (scores, scores.softmax(dim=1), values)
        ]

    def compute(self) -> ProbeResult:
        """The measures of ``TableTopics`` with axes (step, table)."""
        values = torch.tensor([[list(of) for of in tables] for tables in self._found.values()], dtype=torch.float64)
        return ProbeResult(
            probe="TopicTables",
            values={name: values[..., i] for i, name in enumerate(TableTopics._fields)},
            axes=dict.fromkeys(TableTopics._fields, ("step", "table")),
            coords={"step": [str(step) for step in self._found], "table": [SCORES, ATTENTION, VALUES]},
            metadata={"n_permutations": self._n, "versions": versions()},
        )
