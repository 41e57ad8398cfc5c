"""Scores of the answers that a language model is to give."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from mechclust.models.instruction_format import FormattedExample
from mechclust.models.short_logits import are_equal
from probes.engine.devices import device_of
from probes.engine.hooked_model import evaluation_mode
from tasks import InputError
from tasks.batch_rows import token_batch_rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel

IGNORED = -100  # Hugging Face's, of labels without a loss


@dataclass(frozen=True)
class ExampleScores:
    """One value per example.

    Attributes:
        loss: mean negative log-likelihood of the answer's tokens, its end included, in nats.
        exact: whether each of them is the likeliest next token, so that greedy decoding gives exactly this answer.
    """

    loss: Float[Tensor, "example"]
    exact: Bool[Tensor, "example"]


@torch.inference_mode()
def score_answers(
    model: PreTrainedModel, examples: Sequence[FormattedExample], tokens_per_batch: int = 4096
) -> ExampleScores:
    """Return loss and exact matches from one forward pass per batch, with the right answers fed in.

    Args:
        model: a Hugging Face causal language model. Its dropout is off while this runs.
        examples: prompts with answers.
        tokens_per_batch: most tokens of a batch, padding included.

    Returns:
        Float64 and bool, in the examples' order.

    Raises:
        InputError: for examples that the model cannot read, see ``check_answers_fit``, or longer than a batch.
    """
    check_answers_fit(model, examples, "the answers")
    loss = torch.full((len(examples),), torch.nan, dtype=torch.float64)
    exact = torch.zeros(len(examples), dtype=torch.bool)
    device = device_of(model)
    collate = answer_collator(model)
    options = _without_cache(model)
    lengths = [len(example.tokens) for example in examples]
    with evaluation_mode(model):
        for rows in token_batch_rows(lengths, tokens_per_batch, _name_of):
            inputs = {name: x.to(device) for name, x in collate([examples[i] for i in rows]).items()}
            labels = inputs.pop("labels")[:, 1:]
            logits = model(**inputs, **options).logits[:, :-1]
            known = labels != IGNORED
            logits = logits[known].float()  # with a large vocabulary a copy of all takes much memory
            labels = labels[known]
            token_loss = cross_entropy(logits, labels, reduction="none").cpu().double()
            right = (logits.argmax(-1) == labels).cpu()
            known = known.cpu()
            index = torch.as_tensor(rows)
            row = known.nonzero()[:, 0]
            loss[index] = torch.zeros(len(rows), dtype=torch.float64).index_add_(0, row, token_loss) / known.sum(1)
            exact[index] = torch.ones(len(rows), dtype=torch.bool).index_fill_(0, row[~right], False)
    return ExampleScores(loss, exact)


def _name_of(row: int) -> str:
    return f"example {row + 1}"


def check_answers_fit(model: PreTrainedModel, examples: Sequence[FormattedExample], name: str) -> None:
    """Refuse examples with more tokens than a model has positions, and tokens of another model.

    Raises:
        InputError: naming the excess, and the limit.
    """
    config = model.config.get_text_config()
    longest = max((len(example.tokens) for example in examples), default=0)
    limit = getattr(config, "max_position_embeddings", None) or 0
    if longest > limit > 0:
        raise InputError(
            f"an example of {name} has {longest} tokens with its answer, but the model takes {limit}; "
            f"give --cutoff {limit}"
        )
    highest = max((max(example.tokens) for example in examples), default=0)
    if highest >= config.vocab_size:
        raise InputError(
            f"an example of {name} has the token {highest}, but the model's vocabulary has {config.vocab_size} tokens; "
            "give the tokenizer of this model"
        )


def answer_collator(model: PreTrainedModel) -> Callable[[Sequence[FormattedExample]], dict[str, Int[Tensor, "..."]]]:
    """Return ``padded_answers`` for this Hugging Face model, which reads six tokens to find out how to pad."""
    can_cut_logits = {"logits_to_keep", "position_ids"} <= {*_takes(model)}
    return partial(padded_answers, all_logits=not can_cut_logits or _reads_left_padding(model))


def _reads_left_padding(model: PreTrainedModel) -> bool:
    """Return whether masked padding on the left changes logits, as in convolutions (RecurrentGemma).

    In half precision, changes below 10% are not noticed.
    """
    batch = padded_answers([FormattedExample([1, 1, 1], 1), FormattedExample([1, 1], 1)])
    del batch["labels"]
    device = device_of(model)
    with evaluation_mode(model), torch.no_grad():
        alone, padded = model(**{name: x.to(device) for name, x in batch.items()}, **_without_cache(model)).logits
    return not are_equal([padded[1:]], [alone[:2]])


def _without_cache(model: Any) -> dict[str, bool]:
    return {"use_cache": False} if "use_cache" in _takes(model) else {}


def _takes(model: Any) -> Collection[str]:
    """Return the names of a forward pass's arguments. Peft passes on unknown ones."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return inspect.signature(inner.forward).parameters


def padded_answers(examples: Sequence[FormattedExample], *, all_logits: bool = False) -> dict[str, Int[Tensor, "..."]]:
    """Return a batch with labels for the answers' tokens alone.

    It is padded on the left, so that all answers end at the last position. Logits are requested from the first position
    whose next token is of an answer (``logits_to_keep``), and labels are of those positions. Otherwise the head of a
    model with a large vocabulary takes most of the time and memory.

    Args:
        examples: prompts with answers.
        all_logits: for models that give logits of all positions, count them themselves, or read padding on the left:
            padded on the right.
    """
    sequences = [torch.tensor(example.tokens) for example in examples]
    tokens = pad_sequence(sequences, batch_first=True, padding_side="right" if all_logits else "left")
    columns = torch.arange(tokens.shape[1])
    lengths = torch.tensor([len(example.tokens) for example in examples])[:, None]
    padding = torch.zeros_like(lengths) if all_logits else len(columns) - lengths  # in front of each example
    positions = columns - padding  # of each token in its example
    starts = torch.tensor([example.start for example in examples])[:, None]
    labels = tokens.masked_fill((positions < starts) | (positions >= lengths), IGNORED)
    is_real = (positions >= 0) & (positions < lengths)
    batch = {"input_ids": tokens, "attention_mask": is_real.long()}
    if all_logits:
        return {**batch, "labels": labels}
    first = int((padding + starts).min()) - 1
    return {
        **batch,
        "position_ids": positions.clamp(min=0),
        "labels": labels[:, first:],
        "logits_to_keep": columns[first:],
    }
