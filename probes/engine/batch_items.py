"""Read everything that ``run`` accepts as items: batches, token ids of one length, and single examples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from tasks import Batch, InputError, LabelledPrompts

_ACCEPTED = (
    "a Batch, token ids [batch pos], a list of texts, what a Hugging Face tokenizer gives, rows of a data set with "
    "'input_ids' or 'text', or an iterable of these"
)
_EXPECTED = {"input_ids": "integer token ids", "text": "a text or a list of texts"}
_NOT_LABELS = ("input_ids", "text", "token_type_ids", "position_ids")


@dataclass
class ExampleItem:
    """One example that is not part of a batch yet.

    Attributes:
        text: text to be turned into ``ids``. ``None`` afterwards, and for an example that came as token ids.
        ids: token ids.
        mask: true for real tokens, or ``None`` if all are.
        labels: integers, or tensors without axes.
        string_columns: names of columns that would be labels if they were numbers of at most 64 bits.
        number: the example's index.
    """

    text: str | None = None
    ids: Int[Tensor, "pos"] | None = None
    mask: Bool[Tensor, "pos"] | None = None
    labels: Mapping[str, Any] = field(default_factory=dict)
    string_columns: Sequence[str] = ()
    number: int = -1

    def __len__(self) -> int:
        return 0 if self.ids is None else len(self.ids)

    def set_number(self, number: int) -> None:
        """Set the example's index.

        Raises:
            InputError: for an example without tokens.
        """
        self.number = number
        if self.ids is not None and not len(self.ids):
            raise InputError(f"example {number} has no tokens; leave it out")

    def without_padding(self) -> ExampleItem:
        """Return the example from its first real token to its last, or unchanged if it has none."""
        if self.ids is None or self.mask is None:
            return self
        real = self.mask.nonzero()[:, 0]
        if not len(real):
            return self
        place = slice(int(real[0]), int(real[-1]) + 1)
        mask = self.mask[place]
        return replace(self, ids=self.ids[place], mask=None if len(real) == len(mask) else mask)


@dataclass
class SequenceBatchItem:
    """Sequences of one length, without an index yet.

    Attributes:
        tokens: token ids ``[batch pos]``, not checked yet.
        mask: ``[batch pos]``, true or 1 for real tokens, or ``None`` if all are.
        labels: integers for each sequence.
        string_columns: names of columns that would be labels if they were numbers of at most 64 bits.
    """

    tokens: Shaped[Tensor, "..."]
    mask: Shaped[Tensor, "..."] | None = None
    labels: Mapping[str, Shaped[Tensor, "..."]] = field(default_factory=dict)
    string_columns: Sequence[str] = ()

    def batch(self, first: int = 0) -> Batch:
        """Return them as a batch, numbered from ``first``."""
        batch = Batch(self.tokens, self.mask, labels=self.labels, lacks=_reasons_for_strings(self.string_columns))
        return replace(batch, index=batch.index + first)

    def examples(self) -> Iterator[ExampleItem]:
        """Yield each sequence, with its padding."""
        batch = self.batch()
        for i, ids in enumerate(batch.tokens):
            mask = None if batch.attention_mask is None else batch.attention_mask[i]
            labels = {name: values[i] for name, values in batch.labels.items()}
            yield ExampleItem(None, ids, mask, labels, self.string_columns)


def _reasons_for_strings(string_columns: Iterable[str]) -> dict[str, str]:
    """Return ``Batch.lacks`` for columns of strings."""
    reason = "has strings, or integers of more than 64 bits; number them (0, 1, ...)"
    return {name: f"label {name!r} {reason}" for name in string_columns}


def items_of(given: Any) -> Iterator[Batch | SequenceBatchItem | ExampleItem]:
    """Yield everything that was given to ``run``, item by item.

    Raises:
        InputError: for anything that ``run`` does not accept.
    """
    if isinstance(given, str):
        raise InputError(f"a single text was given ({given[:40]!r}); give a list of texts, [text]")
    if isinstance(given, LabelledPrompts):
        way = "which prompts.batches(tokenizer) makes batches of"
        raise InputError(f"expected {_ACCEPTED}; got {type(given).__name__}, {way}")
    if hasattr(given, "iterrows") or hasattr(given, "iter_rows"):  # pandas, polars: iteration gives names of columns
        way = "df.to_dict('records') in pandas, df.to_dicts() in polars"
        raise InputError(f"a data frame was given; give its rows: {way}")
    if isinstance(given, (Batch, Tensor, np.ndarray, Mapping)):
        yield from _items_of_element(given)
    elif isinstance(given, Iterable):
        for element in given:
            yield from _items_of_element(element)
    else:
        raise InputError(f"expected {_ACCEPTED}; got {type(given).__name__}")


def _items_of_element(element: Any) -> Iterator[Batch | SequenceBatchItem | ExampleItem]:
    if isinstance(element, Batch):
        yield element
    elif isinstance(element, str):
        yield ExampleItem(element)
    elif isinstance(element, np.ndarray) and element.dtype.kind in "USO":
        for text in element.ravel().tolist():
            yield from _items_of_element(text)
    elif isinstance(element, (Tensor, np.ndarray)):
        yield SequenceBatchItem(torch.as_tensor(element))
    elif isinstance(element, Mapping):
        yield from _items_of_mapping(element)
    elif isinstance(element, (list, tuple)) and len(element) == 1 and isinstance(element[0], (Tensor, np.ndarray)):
        yield from _items_of_element(element[0])  # a DataLoader of a TensorDataset with one tensor
    else:
        raise InputError(f"expected {_ACCEPTED}; got an element of type {type(element).__name__}{_hint(element)}")


def _hint(element: Any) -> str:
    if not isinstance(element, (list, tuple)):
        return ""
    if len(element) > 0 and all(isinstance(part, Tensor) for part in element):
        return "; give several tensors as {'input_ids': tokens, 'task': labels}"
    return "; give lists of token ids as {'input_ids': lists}"


def _items_of_mapping(mapping: Mapping[str, Any]) -> Iterator[SequenceBatchItem | ExampleItem]:
    """Yield one example, or many by column. ``datasets`` and tokenizers give both."""
    mapping = {name: _column(value) for name, value in mapping.items() if value is not None or name in _EXPECTED}
    if "input_ids" not in mapping and "text" not in mapping:
        raise InputError(
            f"an element has {', '.join(map(repr, mapping)) or 'no fields'}, but neither 'input_ids' nor 'text'; "
            "rename the field that holds them, or give one part of a data set, such as data['train']"
        )
    if any(map(_has_true, _as_list(mapping.get("token_type_ids", ())))):
        raise InputError(
            "token_type_ids has values other than 0 (pairs of texts), but a probe measures one text per example; "
            "tokenize one text at a time"
        )
    if "position_ids" in mapping:
        _check_positions(_as_list(mapping["position_ids"]), _as_list(mapping.get("attention_mask", ())))
    name, main = _main_field(mapping)
    rest = {name: value for name, value in mapping.items() if name not in _NOT_LABELS}
    if is_one_example(main):
        yield _example(name, main, rest)
    elif isinstance(main, (Tensor, np.ndarray)):
        yield _sequences(main, rest)
    else:
        mask = rest.get("attention_mask")
        if mask is not None and _column_length(mask) != len(main):
            raise InputError(f"attention_mask is not a list of {len(main)} masks; give one for each of the input_ids")
        columns = {name: value for name, value in rest.items() if _column_length(value) == len(main)}
        for i, one in enumerate(main):
            yield _example(name, one, {column: value[i] for column, value in columns.items()})


def _main_field(mapping: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the name and value of the field with token ids, or else texts. Refuse a value without elements."""
    name = "input_ids" if "input_ids" in mapping else "text"
    value = _column(mapping[name])
    if isinstance(value, Mapping) or not hasattr(value, "__getitem__") or getattr(value, "ndim", 1) == 0:
        raise InputError(f"{name} is {str(value)[:40]}; expected {_EXPECTED[name]}")
    return name, value


def _check_positions(positions: Sequence[Any], masks: Sequence[Any]) -> None:
    """Refuse positions that do not count real tokens from 0, such as those of texts packed into one row."""
    if positions and isinstance(positions[0], Iterable):
        for row, mask in zip_longest(positions, masks[: len(positions)], fillvalue=()):
            _check_positions(_as_list(row), _as_list(mask))
        return
    real = [position for position, is_real in zip_longest(positions, masks, fillvalue=True) if is_real]
    if real != list(range(len(real))):
        raise InputError(
            "position_ids does not count each text's tokens from 0, but a probe measures one text per example; give "
            "one text at a time, without position_ids"
        )


def _sequences(tokens: Shaped[Tensor, "..."] | Shaped[np.ndarray, "..."], rest: Mapping[str, Any]) -> SequenceBatchItem:
    mask = rest.get("attention_mask")
    labels = {}
    string_columns = []
    for name, value in rest.items():
        if name == "attention_mask":
            continue
        if _is_label(value, len(tokens)):
            labels[name] = torch.as_tensor(value)
        if _column_length(value) == len(tokens) and _has_no_numbers(value):
            string_columns.append(name)
    return SequenceBatchItem(
        torch.as_tensor(tokens), None if mask is None else torch.as_tensor(mask), labels, string_columns
    )


def _example(field: str, main: Any, rest: Mapping[str, Any]) -> ExampleItem:
    labels = {name: int(value) for name, value in rest.items() if _is_integer(value) and fits_int64(value)}
    string_columns = [name for name, value in rest.items() if _is_no_number(value)]
    if isinstance(main, str):
        return ExampleItem(main, labels=labels, string_columns=string_columns)
    ids = _as_list(main) if isinstance(main, Iterable) else main
    if not isinstance(ids, list):
        raise InputError(f"{field} has {ids!r}; expected {_EXPECTED[field]}")
    for token in ids:
        if not _is_integer(token) or isinstance(token, bool):
            raise InputError(f"{field} has {token!r}; expected {_EXPECTED[field]}")
    mask = rest.get("attention_mask")
    is_real = None
    if mask is not None:
        values = _as_list(mask) if _column_length(mask) >= 0 else [mask]
        if len(values) != len(ids):
            raise InputError(
                f"attention_mask has {len(values)} values for {len(ids)} input_ids; expected one per token id"
            )
        for value in values:
            if value not in (0, 1):
                raise InputError(f"attention_mask has {value!r}; expected 1 on real tokens and 0 on padding")
        is_real = torch.tensor([bool(value) for value in values])
    return ExampleItem(None, torch.tensor(ids, dtype=torch.int64), is_real, labels, string_columns)


# ---- kinds of values ----


def is_one_example(values: Any) -> bool:
    """Return whether ``input_ids`` or ``text`` of a mapping is of one example, not of several by column."""
    return isinstance(values, str) or not len(values) or not (isinstance(values[0], str) or np.ndim(values[0]) > 0)


def _column(value: Any) -> Any:
    """Return a column of pandas, or of texts in an array, as a list, and anything else unchanged."""
    is_numbers = isinstance(value, Tensor) or (isinstance(value, np.ndarray) and value.dtype.kind not in "USO")
    return value if is_numbers or not hasattr(value, "tolist") else value.tolist()


def _as_list(value: Any) -> list[Any]:
    return value.tolist() if isinstance(value, (Tensor, np.ndarray)) else list(value)  # type: ignore[no-any-return]


def _has_true(value: Any) -> bool:
    return any(map(bool, value)) if isinstance(value, Iterable) else bool(value)


def _column_length(value: Any) -> int:
    """Return the number of examples of a column, or -1 for anything else."""
    if isinstance(value, (Tensor, np.ndarray)):
        return len(value) if value.ndim else -1
    return len(value) if isinstance(value, Sequence) and not isinstance(value, str) else -1


def _is_integer(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.ndim == 0 and not value.is_floating_point() and not value.is_complex()
    return isinstance(value, (int, np.integer, np.bool_))


def fits_int64(value: Any) -> bool:
    """Return whether a tensor of 64-bit integers can hold an integer."""
    return -(2**63) <= int(value) < 2**63


def _is_no_number(value: Any) -> bool:
    """Return whether a value could only be a label if it were numbered."""
    return isinstance(value, str) or (_is_integer(value) and not fits_int64(value))


def _has_no_numbers(value: Any) -> bool:
    return not isinstance(value, Tensor) and any(map(_is_no_number, value))


def _is_label(value: Any, n: int) -> bool:
    """Return whether a column has one integer for each of ``n`` examples."""
    if isinstance(value, np.ndarray):
        return value.shape == (n,) and value.dtype.kind in "iub"
    if isinstance(value, Tensor):
        return value.shape == (n,) and not value.is_floating_point() and not value.is_complex()
    return (
        isinstance(value, Sequence) and len(value) == n and all(_is_integer(one) and fits_int64(one) for one in value)
    )


def count_batch_examples(given: Any) -> int | None:
    """Return how many examples there are at least, if that can be known without drawing them."""
    if isinstance(given, (Tensor, np.ndarray)) and not given.ndim:
        return None
    if isinstance(given, (Batch, Tensor)):
        return len(given)
    if isinstance(given, Mapping):
        _, values = _main_field({"text": (), **given})
        return 1 if is_one_example(values) else len(values)
    if isinstance(given, (list, tuple)):
        return sum(1 if isinstance(item, str) else count_batch_examples(item) or 0 for item in given)
    return len(given) if hasattr(given, "__len__") else None
