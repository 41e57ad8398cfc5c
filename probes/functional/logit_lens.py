"""Where a token stands in next-token logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int

from probes.functional.arrays import Array, Labels, computed_in_torch
from tasks import InputError


@dataclass(frozen=True)
class AnswerScores:
    """What logits say of one token per row.

    Attributes:
        probability: ``[n]`` softmax probability of the answer.
        rank: ``[n]`` place of the answer among all tokens, 1 for the largest logit; the mean place among equal logits.
        top: ``[n]`` the token with the largest logit, the first of several.
    """

    probability: Float[Array, "n"]
    rank: Float[Array, "n"]
    top: Int[Array, "n"]


@computed_in_torch("logits", labels=["answers"])
def answer_scores(logits: Float[Array, "n d_vocab"], answers: Labels) -> AnswerScores:
    """Probability and rank of one token per row of logits, in float64.

    Takes tensors or NumPy arrays, and returns the same kind.

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
    if len(wrong := answers[(answers < 0) | (answers >= d_vocab)]):
        raise InputError(f"the answer {int(wrong[0])} is not a token id (ids are 0 to {d_vocab - 1}); give token ids")
    exact = logits.double()
    own = exact.gather(1, answers[:, None])
    larger, equal = (exact > own).sum(dim=1), (exact == own).sum(dim=1)
    return AnswerScores(
        probability=torch.exp(own[:, 0] - exact.logsumexp(dim=1)),
        rank=1 + larger + (equal - 1).double() / 2,
        top=exact.argmax(dim=1),
    )
