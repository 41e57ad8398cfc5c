"""Measure whether a model's answers depend on their prompts: right answers against other prompts' answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from mechclust.models.instruction_format import FormattedExample
from mechclust.training.tuning import score_answers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Pairs = list[tuple[int, int]]


def pairs_of(answers: Sequence[str]) -> Pairs:
    """Pair each prompt with the first later unpaired one that has another answer.

    Example:
        >>> pairs_of(["yes", "yes", "no", "no", "yes"])
        [(0, 2), (1, 3)]
    """
    unpaired = list(range(len(answers)))
    pairs = []
    while unpaired:
        first = unpaired.pop(0)
        second = next((i for i in unpaired if answers[i] != answers[first]), None)
        if second is not None:
            unpaired.remove(second)
            pairs.append((first, second))
    return pairs


def swapped_answers(prompts: Sequence[str], answers: Sequence[str], pairs: Pairs) -> tuple[list[str], list[str]]:
    """Return both prompts of each pair, with each other's answers.

    Example:
        >>> swapped_answers(["a?", "b?"], ["yes", "no"], [(0, 1)])
        (['a?', 'b?'], ['no', 'yes'])
    """
    swapped_prompts = []
    swapped = []
    for first, second in pairs:
        swapped_prompts += [prompts[first], prompts[second]]
        swapped += [answers[second], answers[first]]
    return swapped_prompts, swapped


def answer_margins(
    model: PreTrainedModel,
    nats: Float[Tensor, "prompt"],
    exchanged: Sequence[FormattedExample],
    pairs: Pairs,
    tokens_per_batch: int,
) -> Float[Tensor, "pair"]:
    """Return by how many nats both right answers of a pair are together more probable than when exchanged.

    A model whose answers do not depend on the prompt has 0 for every pair, whatever its habits, because both sides have
    the same two answers.

    Args:
        model: Hugging Face model.
        nats: negative log-likelihoods of the right answers.
        exchanged: results of ``swapped_answers``, as tokens.
        pairs: pairs of prompts.
        tokens_per_batch: as in ``score_answers``.
    """
    if not pairs:
        return torch.zeros(0, dtype=torch.float64)
    exchanged_nats = total_nats(score_answers(model, exchanged, tokens_per_batch).loss, exchanged)
    return exchanged_nats.view(-1, 2).sum(1) - nats[torch.tensor(pairs)].sum(1)


def total_nats(loss: Float[Tensor, "n"], examples: Sequence[FormattedExample]) -> Float[Tensor, "n"]:
    """Return the nats of whole answers from the means over their tokens."""
    return loss * torch.tensor([len(example.tokens) - example.start for example in examples], dtype=loss.dtype)
