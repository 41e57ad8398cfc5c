"""What ``run`` measures, as batches: texts, token ids, what a tokenizer gives, rows of a data set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from probes.engine.hooks import HookedModel
from probes.engine.texts import TextTokenizer
from tasks import Batch, InputError, LabelledPrompts
from tasks.batch import token_batches
from tasks.errors import check_count

Batches: TypeAlias = Batch | Tensor | Mapping[str, Any] | Iterable[Batch | Tensor | Mapping[str, Any] | str]
"""A batch, token ids ``[batch pos]``, what a Hugging Face tokenizer gives, or an iterable of these, of texts or of rows
of a data set."""

_TAKES = (
    "a Batch, token ids [batch pos], a list of texts, what a Hugging Face tokenizer gives, rows of a data set with "
    "'input_ids' or 'text', or an iterable of these"
)


_WINDOW = 4096  # examples that are sorted by length together where they come as a stream


@dataclass
class _Row:
    """One example that has not found its batch yet.

    Attributes:
        text: of which ``ids`` are still to be found, or ``None``.
        ids: ``[pos]``.
        mask: ``[pos]``, where some of these are no tokens.
        labels: integers, or tensors without axes.
        strings: names of what would be labels, were they numbers.
    """

    text: str | None = None
    ids: Tensor | None = None
    mask: Tensor | None = None
    labels: Mapping[str, Any] = field(default_factory=dict)
    strings: Sequence[str] = ()
    number: int = -1

    def __len__(self) -> int:
        return 0 if self.ids is None else len(self.ids)

    def take(self, number: int) -> None:
        """The example's number; refused here where it has no tokens."""
        self.number = number
        if self.ids is not None and not len(self.ids):
            raise InputError(f"example {number} has no tokens; leave it out")


def each_batch(
    given: Batches,
    models: Mapping[str, HookedModel],
    *,
    reading: TextTokenizer | None = None,
    tokens_per_batch: int = 4096,
    progress: str | None = None,
    first: int = 0,
) -> Iterator[Batch]:
    """Whatever was given, as batches that the models can read, one after another as they are asked for.

    A ``Batch`` stays as it is. Texts, rows and padded sequences are gathered, freed of padding, and sorted by length,
    longest first: all of a list, and of a stream some thousand at a time. They are cut into batches of
    at most ``tokens_per_batch`` tokens, shorter ones padded on the right. Examples are numbered 0, 1, 2, ... as they
    were given. Of a data set's row, every number that is an integer becomes a label of that name. Empty batches are
    left out.

    Args:
        given: see ``run``.
        models: that will read them, by name.
        reading: turns texts into tokens, many at once; by default with the models' tokenizer.
        tokens_per_batch: most tokens of a batch, padding included, where it is not given as a ``Batch``.
        progress: the name of a progress bar, or ``None``.
        first: the number of the first example that brings none.

    Raises:
        InputError: for anything else, for an example of more tokens than ``tokens_per_batch``, and for tokens that a
            model cannot read, see ``readable``.
    """
    check_count(tokens_per_batch=(tokens_per_batch, 1))
    source: Iterable[Batch] = _numbered(given, reading or TextTokenizer(models), tokens_per_batch, first)
    if progress is not None:
        from tqdm.auto import tqdm

        whole = isinstance(given, Sequence) and all(isinstance(item, Batch) for item in given)
        total = len(given) if whole else None  # type: ignore[arg-type]
        source = tqdm(source, desc=progress, unit="batch", leave=False, total=total)
    for batch in source:
        if len(batch):
            yield readable(batch, models)


def one_batch(given: Batch | Tensor | Mapping[str, Any], model: HookedModel) -> Batch:
    """What was given as one batch that the model can read, in the order and with the padding it has.

    Raises:
        InputError: for something else than one batch, and as ``each_batch``.
    """
    pieces = list(_pieces(given))
    if rows := [piece for piece in pieces if isinstance(piece, _Row)]:
        for number, row in enumerate(rows):
            row.take(number)
        _encode(rows, TextTokenizer({"": model}))
        found = [_padded(rows)]
    else:
        found = [piece if isinstance(piece, Batch) else piece.batch(0) for piece in pieces]  # type: ignore[union-attr]
    if len(found) != 1 or not len(found[0]):
        raise InputError(
            f"on() measures one forward pass, but was given {sum(map(bool, map(len, found)))} batches; give one with "
            "examples"
        )
    return readable(found[0], {"": model})


def readable(batch: Batch, models: Mapping[str, HookedModel]) -> Batch:
    """The batch as the models can read it: ids that the attention mask hides and the vocabulary lacks become 0, and a
    mask that hides nothing is left out.

    Raises:
        InputError: for other ids outside a vocabulary, more tokens than a model's context, and an example without a
            real token.
    """
    batch.check_real()
    tokens, mask = batch.tokens, batch.attention_mask
    if tokens.dtype not in (torch.int32, torch.int64):  # all that embeddings take
        tokens = tokens.long()
    if mask is not None:
        mask = mask.to(tokens.device)
        if bool(mask.all()):
            batch, mask = replace(batch, attention_mask=None), None
    for name, model in models.items():
        cfg = getattr(model, "cfg", None)
        whose = f"model {name!r}" if name else "the model"
        _check_length(batch, getattr(cfg, "n_ctx", None), whose)
        size = getattr(cfg, "d_vocab", None)
        largest = size - 1 if isinstance(size, int) and size > 0 else torch.iinfo(tokens.dtype).max
        if not bool((outside := (tokens < 0) | (tokens > largest)).any()):
            continue
        if bool((wrong := outside if mask is None else outside & mask).any()):
            row, position = (int(i) for i in wrong.nonzero()[0])
            has = f" has {size} tokens (0 to {largest})" if size else " begins at 0"
            raise InputError(
                f"example index {int(batch.index[row])} has token id {int(tokens[row, position])} at position "
                f"{position}, but the vocabulary of {whose}{has}; use this model's own tokenizer, and mask padding "
                "(attention_mask)"
            )
        tokens = torch.where(outside, 0, tokens)
    return batch if tokens is batch.tokens else replace(batch, tokens=tokens)


def _check_length(batch: Batch, n_ctx: Any, whose: str) -> None:
    if not isinstance(n_ctx, int) or n_ctx < 1 or (width := batch.tokens.shape[1]) <= n_ctx:
        return
    lengths = batch.lengths()
    if bool((long := lengths > n_ctx).any()):
        raise InputError(
            f"example index {_first(batch, long)} has {int(lengths[long][0])} tokens, more than "
            f"{whose}'s context of {n_ctx}; shorten it"
        )
    raise InputError(
        f"sequences are padded to {width} tokens, more than {whose}'s context of {n_ctx}; pad them only to "
        f"the longest ({int(lengths.max())})"
    )


def _first(batch: Batch, chosen: Tensor) -> int:
    return int(batch.index[chosen.to(batch.index.device)][0])


# ---- from what was given to batches ----


def _numbered(given: Batches, reading: TextTokenizer, budget: int, first: int) -> Iterator[Batch]:
    """Batches of all that was given; examples that bring no index of their own get numbers."""
    whole = isinstance(given, (Sequence, Mapping, np.ndarray))  # in memory anyway: sorted as one
    count, waiting, texts = first, list[_Row](), list[_Row]()
    for piece in _pieces(given):
        if isinstance(piece, Batch):
            yield piece
            continue
        if isinstance(piece, _Tokens) and piece.mask is None:
            yield from _cut(piece.batch(count), budget)
            count += len(piece.tokens)
            continue
        for row in [piece] if isinstance(piece, _Row) else piece.rows():
            row.take(count)
            count += 1
            waiting.append(row)
            if row.text is not None:
                texts.append(row)
        if max(len(texts), 0 if whole else len(waiting)) >= _WINDOW:
            _encode(texts, reading)
            texts = []
            if not whole:
                yield from _sorted(waiting, budget)
                waiting = []
    _encode(texts, reading)
    yield from _sorted(waiting, budget)


def _cut(batch: Batch, budget: int) -> Iterator[Batch]:
    """Sequences of one length."""
    lengths = [batch.tokens.shape[1]] * len(batch)
    for rows in token_batches(lengths, budget, lambda i: f"example index {int(batch.index[i])}"):
        yield batch.select(slice(int(rows[0]), int(rows[-1]) + 1))


def _sorted(rows: list[_Row], budget: int) -> Iterator[Batch]:
    """Rows of like length together, longest first."""
    lengths = list(map(len, rows))
    for some in token_batches(lengths, budget, lambda i: f"example index {rows[i].number}"):
        yield _padded([rows[i] for i in some])


@dataclass
class _Tokens:
    """Sequences of one length, without numbers yet."""

    tokens: Tensor
    mask: Tensor | None = None
    labels: Mapping[str, Tensor] = field(default_factory=dict)
    strings: Sequence[str] = ()

    def batch(self, first: int) -> Batch:
        found = Batch(self.tokens, self.mask, labels=self.labels, lacks=_numbers_only(self.strings))
        return replace(found, index=found.index + first)

    def rows(self) -> Iterator[_Row]:
        """Each without its padding."""
        whole = self.batch(0)
        for i, tokens in enumerate(whole.tokens):
            mask = None if whole.attention_mask is None else whole.attention_mask[i]
            yield _unpadded(tokens, mask, {name: values[i] for name, values in whole.labels.items()}, self.strings)


def _unpadded(ids: Tensor, mask: Tensor | None, labels: Mapping[str, Any], strings: Sequence[str]) -> _Row:
    """A row from its first real token to its last; one without any stays as it is."""
    if mask is None or not len(real := mask.nonzero()[:, 0]):
        return _Row(None, ids, mask, labels, strings)
    place = slice(int(real[0]), int(real[-1]) + 1)
    return _Row(None, ids[place], None if len(real) == place.stop - place.start else mask[place], labels, strings)


def _pieces(given: Any) -> Iterator[Batch | _Tokens | _Row]:
    if isinstance(given, str):
        raise InputError(f"a single text was given ({given[:40]!r}); give a list of texts, [text]")
    if isinstance(given, (Batch, Tensor, np.ndarray, Mapping)):
        yield from _piece(given)
    elif isinstance(given, Iterable) and not isinstance(given, LabelledPrompts):
        for item in given:
            yield from _piece(item)
    else:
        way = ", which prompts.batches(tokenizer) makes batches of" if isinstance(given, LabelledPrompts) else ""
        raise InputError(f"expected {_TAKES}; got {type(given).__name__}{way}")


def _piece(item: Any) -> Iterator[Batch | _Tokens | _Row]:
    if isinstance(item, Batch):
        yield item
    elif isinstance(item, str):
        yield _Row(item)
    elif isinstance(item, np.ndarray) and item.dtype.kind in "USO":
        for text in item.ravel().tolist():
            yield from _piece(text)
    elif isinstance(item, (Tensor, np.ndarray)):
        yield _Tokens(torch.as_tensor(item))
    elif isinstance(item, Mapping):
        yield from _of_columns(item)
    elif isinstance(item, (list, tuple)) and len(item) == 1 and isinstance(item[0], (Tensor, np.ndarray)):
        yield from _piece(item[0])  # as a DataLoader gives what a TensorDataset of one tensor holds
    else:
        hint = ""
        if isinstance(item, (list, tuple)):
            tensors = len(item) > 0 and all(isinstance(each, Tensor) for each in item)
            hint = "'input_ids': tokens, 'task': labels" if tensors else "'input_ids': lists"
            hint = f"; give {'several tensors' if tensors else 'lists of token ids'} as {{{hint}}}"
        raise InputError(f"expected {_TAKES}; got an element of type {type(item).__name__}{hint}")


def _of_columns(item: Mapping[str, Any]) -> Iterator[_Tokens | _Row]:
    """One row, or many by column: ``datasets`` and tokenizers give both."""
    if "input_ids" not in item and "text" not in item:
        raise InputError(
            f"an element has {', '.join(map(repr, item)) or 'no fields'}, but neither 'input_ids' nor 'text'; "
            "rename the field that holds them, or give one part of a data set, such as data['train']"
        )
    if any(map(_any, _listed(item.get("token_type_ids", ())))):
        raise InputError(
            "token_type_ids has values other than 0 (pairs of texts), but a probe measures one text per example; "
            "tokenize one text at a time"
        )
    main = item["input_ids"] if "input_ids" in item else item["text"]
    many = not isinstance(main, str) and len(main) > 0 and (isinstance(main[0], str) or np.ndim(main[0]) > 0)
    rest = {name: value for name, value in item.items() if name not in ("input_ids", "text", "token_type_ids")}
    if not many:
        yield _row(main, rest)
    elif isinstance(main, (Tensor, np.ndarray)):
        mask = rest.pop("attention_mask", None)
        labels = {name: torch.as_tensor(value) for name, value in rest.items() if _is_label(value, len(main))}
        strings = [name for name, value in rest.items() if _length(value) == len(main) and _has_strings(value)]
        yield _Tokens(torch.as_tensor(main), None if mask is None else torch.as_tensor(mask), labels, strings)
    else:
        columns = {name: value for name, value in rest.items() if _length(value) == len(main)}
        for i, one in enumerate(main):
            yield _row(one, {name: value[i] for name, value in columns.items()})


def _row(main: Any, rest: Mapping[str, Any]) -> _Row:
    labels = {name: int(value) for name, value in rest.items() if _is_integer(value)}
    strings = [name for name, value in rest.items() if isinstance(value, str)]
    if isinstance(main, str):
        return _Row(main, labels=labels, strings=strings)
    mask, ids = rest.get("attention_mask"), _listed(main)
    if wrong := [i for i in ids if not _is_integer(i) or isinstance(i, bool)]:
        raise InputError(f"input_ids has {wrong[0]!r}; expected integer token ids")
    if mask is not None and len(mask) != len(ids):
        raise InputError(f"attention_mask has {len(mask)} values for {len(ids)} input_ids; expected one per token id")
    bits = None if mask is None else torch.tensor([bool(m) for m in _listed(mask)])
    return _unpadded(torch.tensor(ids, dtype=torch.int64), bits, labels, strings)


def _encode(rows: Sequence[_Row], reading: TextTokenizer) -> None:
    """Sets the ids of those that are texts, which are then let go."""
    if texts := [row for row in rows if row.text is not None]:
        for row, ids in zip(texts, reading([row.text or "" for row in texts]), strict=True):
            if not ids:
                raise InputError(f"example {row.number} ({(row.text or '')[:40]!r}) encodes to no tokens; leave it out")
            row.text, row.ids = None, torch.tensor(ids)


def _padded(rows: Sequence[_Row]) -> Batch:
    """Rows as one batch, padded on the right."""
    ids = [row.ids for row in rows if row.ids is not None]
    tokens = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    mask = torch.arange(tokens.shape[1]) < torch.tensor(list(map(len, ids)))[:, None]
    for i, row in enumerate(rows):
        if row.mask is not None:
            mask[i, : len(row)] = row.mask.to(mask.device)
    names = [name for name in rows[0].labels if all(name in row.labels for row in rows)]
    labels = {name: torch.tensor([int(row.labels[name]) for row in rows]) for name in names}
    numbers = torch.tensor([row.number for row in rows])
    device = tokens.device
    lacks = _numbers_only([name for row in rows for name in row.strings])
    return Batch(tokens, mask, labels=labels, index=numbers, lacks=lacks).to(device)


def _numbers_only(strings: Sequence[str]) -> dict[str, str]:
    """What is said of labels that are no numbers, to those who ask for them."""
    return {name: f"label {name!r} has strings; number them (0, 1, ...)" for name in strings}


# ---- what a value is ----


def _listed(value: Any) -> list[Any]:
    return value.tolist() if isinstance(value, (Tensor, np.ndarray)) else list(value)  # type: ignore[no-any-return]


def _any(value: Any) -> bool:
    return any(map(bool, value)) if isinstance(value, Iterable) else bool(value)


def _length(value: Any) -> int:
    """How many examples a column holds; -1 if it is not a column."""
    if isinstance(value, (Tensor, np.ndarray)):
        return len(value) if value.ndim else -1
    return len(value) if isinstance(value, Sequence) and not isinstance(value, str) else -1


def _is_integer(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.ndim == 0 and not value.is_floating_point() and not value.is_complex()
    return isinstance(value, (int, np.integer, np.bool_))


def _has_strings(value: Any) -> bool:
    return not isinstance(value, Tensor) and any(isinstance(each, str) for each in value)


def _is_label(value: Any, n: int) -> bool:
    """Whether it is one integer an example."""
    if isinstance(value, np.ndarray):
        return value.shape == (n,) and value.dtype.kind in "iub"
    if isinstance(value, Tensor):
        return value.shape == (n,) and not value.is_floating_point() and not value.is_complex()
    return isinstance(value, Sequence) and len(value) == n and all(map(_is_integer, value))
