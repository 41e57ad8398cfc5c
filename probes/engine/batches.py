"""Gather everything that ``run`` accepts into batches that models can read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from probes.engine.batch_items import ExampleItem, SequenceBatchItem, items_of
from probes.engine.hooked_model import HookedModel
from probes.engine.text_tokenizer import TextTokenizer
from tasks import Batch, InputError
from tasks.batch import pad_right
from tasks.batch_rows import token_batch_rows
from tasks.settings import check_count

TokenIds: TypeAlias = Tensor | np.ndarray  # [batch pos], checked when they are read
Batches: TypeAlias = Batch | TokenIds | Mapping[str, Any] | Iterable[Batch | TokenIds | Mapping[str, Any] | str]
"""A batch, token ids ``[batch pos]``, what a Hugging Face tokenizer gives, or an iterable of these, of texts or of rows
of a data set."""

_STREAM_WINDOW = 4096  # texts encoded together, and examples of a stream that are sorted by length together


def each_batch(
    given: Batches,
    models: Mapping[str, HookedModel],
    *,
    reading: TextTokenizer | None = None,
    tokens_per_batch: int = 4096,
    progress: str | None = None,
    first: int = 0,
) -> Iterator[Batch]:
    """Yield the input as batches that the models can read.

    A ``Batch`` is yielded unchanged. Texts, rows and padded sequences are freed of padding and sorted by length,
    longest first. A list is sorted as a whole, a stream in windows of some thousand examples. They are cut into batches
    of at most ``tokens_per_batch`` tokens, with shorter sequences padded on the right. Examples are numbered from 0 in
    the order given. Every integer of a data set's row becomes a label of that name. Empty batches are left out.

    Args:
        given: see ``run``.
        models: models that will read the batches, by name.
        reading: turns many texts into tokens, by default with the models' tokenizer.
        tokens_per_batch: most tokens of a batch, padding included. A ``Batch`` is not divided.
        progress: the name of a progress bar, or ``None``.
        first: the number of the first example without an index.

    Raises:
        InputError: for anything else, for an example of more tokens than ``tokens_per_batch``, and for tokens that a
            model cannot read, see ``readable_batch``.
    """
    check_count(tokens_per_batch=(tokens_per_batch, 1))
    source: Iterable[Batch] = _gathered(given, reading or TextTokenizer(models), tokens_per_batch, first)
    if progress is not None:
        from tqdm.auto import tqdm

        is_counted = isinstance(given, Sequence) and all(isinstance(item, Batch) for item in given)
        total = len(given) if is_counted else None  # type: ignore[arg-type]
        source = tqdm(source, desc=progress, unit="batch", leave=False, total=total)
    for batch in source:
        if len(batch):
            yield readable_batch(batch, models)


def one_batch(given: Batch | TokenIds | Mapping[str, Any], model: HookedModel) -> Batch:
    """Return the input as one batch that the model can read, in its order and with its padding.

    Raises:
        InputError: for something else than one batch, and as ``each_batch``.
    """
    items = list(items_of(given))
    examples = [item for item in items if isinstance(item, ExampleItem)]
    if examples:
        for number, example in enumerate(examples):
            example.set_number(number)
        _encode(examples, TextTokenizer({"": model}))
        batches = [_padded(examples)]
    else:
        batches = [item.batch() if isinstance(item, SequenceBatchItem) else item for item in items]  # type: ignore[misc]
    if len(batches) != 1 or not len(batches[0]):
        n = sum(len(batch) > 0 for batch in batches)
        raise InputError(f"on() measures one forward pass, but was given {n} batches; give one with examples")
    return readable_batch(batches[0], {"": model})


# ---- readable batches ----


def readable_batch(batch: Batch, models: Mapping[str, HookedModel]) -> Batch:
    """Return the batch as the models can read it.

    Ids that the attention mask hides and the vocabulary lacks become 0. A mask that hides no token is left out.

    Raises:
        InputError: for other ids outside a vocabulary, more tokens than a model's context, and an example without a
            real token.
    """
    batch.check_examples_are_real()
    tokens = batch.tokens
    if tokens.dtype not in (torch.int32, torch.int64):  # other integers cannot be embedded
        tokens = tokens.long()
    if batch.attention_mask is not None and bool(batch.attention_mask.all()):
        batch = replace(batch, attention_mask=None)
    for name, model in models.items():
        cfg = getattr(model, "cfg", None)
        owner = f"model {name!r}" if name else "the model"
        _check_length(batch, getattr(cfg, "n_ctx", None), owner)
        tokens = _within_vocabulary(tokens, batch, getattr(cfg, "d_vocab", None), owner)
    return batch if tokens is batch.tokens else replace(batch, tokens=tokens)


def _within_vocabulary(
    tokens: Int[Tensor, "batch pos"], batch: Batch, size: Any, owner: str
) -> Int[Tensor, "batch pos"]:
    """Return the tokens with 0 for hidden ids outside the vocabulary, and refuse other ids outside."""
    is_known = isinstance(size, int) and size > 0
    largest = size - 1 if is_known else torch.iinfo(tokens.dtype).max
    is_outside = (tokens < 0) | (tokens > largest)
    if not bool(is_outside.any()):
        return tokens
    is_wrong = is_outside
    if batch.attention_mask is not None:
        is_wrong = is_outside & batch.attention_mask.to(tokens.device)
    if bool(is_wrong.any()):
        row, position = is_wrong.nonzero()[0].tolist()
        vocabulary = f" has {size} tokens (0 to {largest})" if size else " begins at 0"
        raise InputError(
            f"example index {int(batch.index[row])} has token id {int(tokens[row, position])} at position "
            f"{position}, but the vocabulary of {owner}{vocabulary}; use this model's own tokenizer, and mask padding "
            "(attention_mask)"
        )
    return torch.where(is_outside, 0, tokens)


def _check_length(batch: Batch, n_ctx: Any, owner: str) -> None:
    width = batch.tokens.shape[1]
    if not isinstance(n_ctx, int) or n_ctx < 1 or width <= n_ctx:
        return
    lengths = batch.lengths()
    too_long = (lengths > n_ctx).nonzero()
    if len(too_long):
        row = int(too_long[0])
        raise InputError(
            f"example index {int(batch.index[row])} has {int(lengths[row])} tokens, more than {owner}'s context of "
            f"{n_ctx}; shorten it"
        )
    raise InputError(
        f"sequences are padded to {width} tokens, more than {owner}'s context of {n_ctx}; pad them only to "
        f"the longest ({int(lengths.max())})"
    )


# ---- from items to batches ----


def _gathered(given: Batches, reading: TextTokenizer, max_tokens: int, first: int) -> Iterator[Batch]:
    """Yield batches of everything that was given, with numbers for examples without an index."""
    is_in_memory = isinstance(given, (Sequence, Mapping, np.ndarray))  # then all examples are sorted together
    number = first
    waiting: list[ExampleItem] = []
    for item in items_of(given):
        if isinstance(item, Batch):
            yield item
            continue
        if isinstance(item, SequenceBatchItem) and item.mask is None:
            yield from _cut(item.batch(number), max_tokens)
            number += len(item.tokens)
            continue
        for example in [item] if isinstance(item, ExampleItem) else item.examples():
            unpadded = example.without_padding()
            unpadded.set_number(number)
            number += 1
            waiting.append(unpadded)
        if not is_in_memory and len(waiting) >= _STREAM_WINDOW:
            yield from _sorted_by_length(waiting, reading, max_tokens)
            waiting = []
    yield from _sorted_by_length(waiting, reading, max_tokens)


def _cut(batch: Batch, max_tokens: int) -> Iterator[Batch]:
    """Yield parts of a batch of sequences of one length."""
    lengths = [batch.tokens.shape[1]] * len(batch)
    for rows in token_batch_rows(lengths, max_tokens, partial(_example_name, batch.index)):
        yield batch.select(slice(int(rows[0]), int(rows[-1]) + 1))


def _sorted_by_length(examples: list[ExampleItem], reading: TextTokenizer, max_tokens: int) -> Iterator[Batch]:
    """Yield batches of examples of similar length, longest first."""
    _encode(examples, reading)
    lengths = [len(example) for example in examples]
    numbers = [example.number for example in examples]
    for places in token_batch_rows(lengths, max_tokens, partial(_example_name, numbers)):
        yield _padded([examples[i] for i in places])


def _example_name(index: Sequence[int] | Int[Tensor, "batch"], place: int) -> str:
    return f"example index {int(index[place])}"


def _encode(examples: Sequence[ExampleItem], reading: TextTokenizer) -> None:
    """Replace the texts of examples that have one by token ids, some thousand at a time."""
    texts = [(example, example.text) for example in examples if example.text is not None]
    for start in range(0, len(texts), _STREAM_WINDOW):
        window = texts[start : start + _STREAM_WINDOW]
        for (example, text), ids in zip(window, reading([text for _, text in window]), strict=True):
            if not ids:
                raise InputError(f"example {example.number} ({text[:40]!r}) encodes to no tokens; leave it out")
            example.text = None
            example.ids = torch.tensor(ids)


def _padded(examples: Sequence[ExampleItem]) -> Batch:
    """Return examples as one batch, padded on the right."""
    tokens, mask = pad_right([example.ids for example in examples if example.ids is not None])
    string_columns: dict[str, None] = {}
    for i, example in enumerate(examples):
        if example.mask is not None:
            mask[i, : len(example)] = example.mask.to(mask.device)
        string_columns |= dict.fromkeys(example.string_columns)
    shared = [name for name in examples[0].labels if all(name in example.labels for example in examples)]
    labels = {name: torch.tensor([int(example.labels[name]) for example in examples]) for name in shared}
    batch = SequenceBatchItem(tokens, mask, labels, list(string_columns)).batch()
    return replace(batch, index=torch.tensor([example.number for example in examples])).to(tokens.device)
