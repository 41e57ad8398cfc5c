"""Probability and rank of a token in next-token logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int

from probes.functional.arrays import Array, computed_in_torch
from tasks import InputError


@dataclass(frozen=True)
class AnswerScores:
    """Probability and rank of one token per row of logits.

    Attributes:
        probability: softmax probability of the answer.
        rank: place of the answer among all tokens, 1 for the largest logit. The mean place among equal logits.
        top: the token with the largest logit, the first of several.

    Example:
        >>> answer_scores(torch.tensor([[0.0, 2.0, 1.0]]), torch.tensor([2])).rank
        tensor([2.], dtype=torch.float64)
    """

    probability: Float[Array, "row"]
    rank: Float[Array, "row"]
    top: Int[Array, "row"]


@computed_in_torch(not_finite=["logits"])
def answer_scores(logits: Float[Array, "row vocab"], answers: Int[Array, "row"]) -> AnswerScores:
    """Return the probability and the rank of one token per row of logits, in float64.

    Takes tensors, NumPy arrays or lists, and returns tensors for tensors, otherwise arrays.

    Args:
        logits: one row per example.
        answers: a token id per row.

    Raises:
        InputError: for a token id that the logits do not have.

    Example:
        >>> scores = answer_scores(torch.tensor([[0.0, 2.0, 0.0], [5.0, 1.0, 3.0]]), torch.tensor([0, 2]))
        >>> scores.rank.tolist(), scores.top.tolist(), scores.probability.round(decimals=3).tolist()
        ([2.5, 2.0], [1, 0], [0.107, 0.117])
    """
    d_vocab = logits.shape[-1]
    unknown = answers[(answers < 0) | (answers >= d_vocab)]
    if len(unknown):
        raise InputError(f"the answer {int(unknown[0])} is not a token id (ids are 0 to {d_vocab - 1}); give token ids")
    exact = logits.double()
    of_answer = exact.gather(1, answers[:, None])
    larger = (exact > of_answer).sum(dim=1)
    equal = (exact == of_answer).sum(dim=1)
    total = exact.logsumexp(dim=1)
    return AnswerScores(
        probability=torch.exp(of_answer[:, 0] - total),
        rank=torch.where(total.isnan(), torch.nan, 1 + larger + (equal - 1).double() / 2),
        top=exact.argmax(dim=1),
    )
