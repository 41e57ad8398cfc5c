"""Whether a model's answers depend on their prompts: right answers against those of other prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mechclust.models.instructions import Answered
from mechclust.training.tuning import score_answers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Pairs = list[tuple[int, int]]


def pairs_of(answers: Sequence[str]) -> Pairs:
    """Prompts two by two, each with the first one behind it that is still alone and has another answer.

    Example:
        >>> pairs_of(["yes", "yes", "no", "no", "yes"])
        [(0, 2), (1, 3)]
    """
    alone, found = list(range(len(answers))), []
    while alone:
        one = alone.pop(0)
        other = next((i for i in alone if answers[i] != answers[one]), None)
        if other is not None:
            alone.remove(other)
            found.append((one, other))
    return found


def swapped_answers(prompts: Sequence[str], answers: Sequence[str], pairs: Pairs) -> tuple[list[str], list[str]]:
    """Both prompts of each pair, with each other's answers.

    Example:
        >>> swapped_answers(["a?", "b?"], ["yes", "no"], [(0, 1)])
        (['a?', 'b?'], ['no', 'yes'])
    """
    ordered = [i for pair in pairs for i in pair]
    others = [i for one, other in pairs for i in (other, one)]
    return [prompts[i] for i in ordered], [answers[i] for i in others]


def margins(
    model: PreTrainedModel, nats: Tensor, exchanged: Sequence[Answered], pairs: Pairs, tokens_per_batch: int
) -> Tensor:
    """``[pair]`` by how many nats both right answers together are more probable than the same two exchanged.

    A model whose answers do not depend on the prompt has 0 for every pair, whatever its habits: both sides are of the
    same two answers.

    Args:
        model: Hugging Face's.
        nats: ``[prompt]`` negative log-likelihoods of the right answers.
        exchanged: what ``swapped_answers`` gave, as tokens.
        pairs: of prompts.
        tokens_per_batch: as in ``score_answers``.
    """
    if not pairs:
        return torch.zeros(0, dtype=torch.float64)
    other = total(score_answers(model, exchanged, tokens_per_batch).loss, exchanged).view(-1, 2).sum(1)
    return other - nats[torch.tensor(pairs)].sum(1)


def total(loss: Tensor, examples: Sequence[Answered]) -> Tensor:
    """``[n]`` nats of whole answers from the means over their tokens."""
    return loss * torch.tensor([len(example.tokens) - example.start for example in examples], dtype=loss.dtype)
