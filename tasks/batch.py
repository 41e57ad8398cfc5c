"""The record that travels from tasks to models and probes."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter, methodcaller
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from jaxtyping import Bool, Integer, Num, Shaped
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from tasks.errors import InputError
from tasks.settings import check_count

PerExample: TypeAlias = Integer[Tensor, "batch"]
PerToken: TypeAlias = Integer[Tensor, "batch pos"]
TokenMask: TypeAlias = Bool[Tensor, "batch pos"]
_NOT_SORTABLE = (torch.bool, torch.uint16, torch.uint32, torch.uint64)
_Transform: TypeAlias = Callable[[Shaped[Tensor, "batch ..."]], Shaped[Tensor, "row ..."]]
if TYPE_CHECKING:
    ExampleIndex: TypeAlias = PerExample
else:  # None may be given, and becomes 0..batch-1
    ExampleIndex = PerExample | None


@dataclass(frozen=True, repr=False)
class Batch:
    """Labelled token sequences.

    Attributes:
        tokens: token ids.
        attention_mask: true on real tokens. ``None`` if every token is real. Numbers 0 and 1, as tokenizers give them,
            become bool.
        targets: token ids the loss compares with, or ``None``.
        loss_mask: true at positions that the loss counts, or ``None``. Numbers 0 and 1 become bool.
        positions: named positions, such as ``{"input": ...}``.
        labels: named integer labels, per example or per token. Bools become 0 and 1, unsigned integers of more than 8
            bits int64.
        index: the examples' stable identities. Probes that keep rows order them by it, so that the order of batches
            cannot change a result. Defaults to ``0..batch-1``.
        lacks: error messages for labels that the batch does not have. The key is the label's name and the value the
            whole message. The key ``""`` holds only the advice, for any other name. ``%r`` in it becomes that name.

    Raises:
        InputError: when a field is no tensor, or its shape does not fit ``tokens``, or when tokens, targets, index or
            labels are not integers.

    Example:
        >>> batch = Batch(torch.tensor([[1, 2], [3, 4]]), labels={"task": torch.tensor([0, 1])})
        >>> len(batch), batch.index.tolist()
        (2, [0, 1])
        >>> batch.select(torch.tensor([1])).labels["task"].tolist()
        [1]
    """

    tokens: PerToken
    attention_mask: TokenMask | Num[Tensor, "batch pos"] | None = None
    targets: PerToken | None = None
    loss_mask: TokenMask | Num[Tensor, "batch pos"] | None = None
    positions: Mapping[str, PerExample] = field(default_factory=dict)
    labels: Mapping[str, Shaped[Tensor, "batch"] | Shaped[Tensor, "batch pos"]] = field(default_factory=dict)
    index: ExampleIndex = None  # type: ignore[assignment]  # filled in __post_init__
    lacks: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_types()
        self._check_tokens()
        self._fill_index()
        self._check_index()
        self._turn_masks_into_bool()
        self._check_masks_and_targets()
        self._check_positions()
        self._check_labels()
        self._turn_into_int64()

    # ---- checks and conversions ----

    def _check_types(self) -> None:
        """Refuse lists and arrays: the batch would carry them to code that needs tensors."""
        optional = ("attention_mask", "targets", "loss_mask", "index")
        values = {"tokens": self.tokens}
        values |= {name: getattr(self, name) for name in optional if getattr(self, name) is not None}
        for kind in ("positions", "labels"):
            named = getattr(self, kind)
            if not isinstance(named, Mapping):
                raise InputError(f"{kind} is a {type(named).__name__}; expected tensors by name")
            values |= {f"{kind}[{name!r}]": value for name, value in named.items()}
        for name, value in values.items():
            if not isinstance(value, Tensor):
                raise InputError(f"{name} is a {type(value).__name__}; expected a torch tensor")

    def _check_tokens(self) -> None:
        if self.tokens.ndim != 2:
            raise InputError(
                f"tokens has shape {tuple(self.tokens.shape)}; expected [batch pos]: "
                "stack the sequences, padded to one length"
            )
        _check_integers("tokens", self.tokens, "integer token ids")

    def _fill_index(self) -> None:
        if self.index is None:
            object.__setattr__(self, "index", torch.arange(len(self.tokens), device=self.tokens.device))

    def _check_index(self) -> None:
        _check_integers("index", self.index, "integers, one per example")
        _check_one_per_example("index", self.index, len(self))

    def _turn_masks_into_bool(self) -> None:
        expected = {
            "attention_mask": "1 on real tokens and 0 on padding",
            "loss_mask": "1 where the loss counts and 0 elsewhere",
        }
        for name, meaning in expected.items():
            mask = getattr(self, name)
            if mask is None or mask.dtype == torch.bool:
                continue
            if bool(((mask != 0) & (mask != 1)).any()):
                raise InputError(f"{name} has a number besides 0 and 1; expected {meaning}")
            object.__setattr__(self, name, mask.bool())

    def _check_masks_and_targets(self) -> None:
        expected = tuple(self.tokens.shape)
        for name, values in self._masks_and_targets().items():
            if values.shape != expected:
                raise InputError(f"{name} has shape {tuple(values.shape)}; expected {expected} like tokens")
        if self.targets is not None:
            _check_integers("targets", self.targets, "integer token ids")

    def _check_positions(self) -> None:
        for name, values in self.positions.items():
            _check_one_per_example(f"positions[{name!r}]", values, len(self))

    def _check_labels(self) -> None:
        per_token = tuple(self.tokens.shape)
        per_example = per_token[:1]
        for name, values in self.labels.items():
            if values.shape not in (per_example, per_token):
                raise InputError(
                    f"labels[{name!r}] has shape {tuple(values.shape)}; expected {per_example} per example "
                    f"or {per_token} per token"
                )
            if not _is_integer(values) and values.dtype != torch.bool:
                raise InputError(
                    f"labels[{name!r}] is {values.dtype}; expected integers, one for each class: give classes, such as "
                    "torch.unique(values, return_inverse=True)[1]"
                )

    def _turn_into_int64(self) -> None:
        """Turn bools and the types that PyTorch cannot sort or index into int64."""
        labels = {name: _sortable(f"labels[{name!r}]", values) for name, values in self.labels.items()}
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "index", _sortable("index", self.index).long())

    # ---- reading ----

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        """Return one line, whatever the size.

        Example:
            >>> Batch(torch.tensor([[1, 2], [3, 4]]), labels={"task": torch.tensor([0, 1])})
            Batch(2 sequences of 2 tokens, labels: ['task'])
        """
        n_sequences, n_tokens = self.tokens.shape
        text = f"{n_sequences} sequences of {n_tokens} tokens"
        if self.labels:
            text += f", labels: {reprlib.repr(list(self.labels))}"
        if self.positions:
            text += f", positions: {reprlib.repr(list(self.positions))}"
        return f"Batch({text})"

    def label(self, name: str, per: Literal["example", "token"] | None = None) -> PerExample | PerToken:
        """Return the label called ``name``, of either kind or of the kind ``per``.

        Raises:
            InputError: for an unknown name, listing the known ones, or a label of the other kind.
        """
        if name not in self.labels:
            raise InputError(self.lacks.get(name) or self._no_label_text(name))
        label = self.labels[name]
        kind = "example" if label.ndim == 1 else "token"
        if per is not None and per != kind:
            raise InputError(f"label {name!r} is per {kind}; give a label with one value per {per}")
        return label

    def _no_label_text(self, name: str) -> str:
        known = ", ".join(map(repr, self.labels)) or "no labels"
        way_out = self.lacks[""] % name if "" in self.lacks else "add it to Batch.labels"
        return f"no label {name!r} in this batch (it has {known}); {way_out}"

    def position(self, name: str) -> PerExample:
        """Return the position called ``name``.

        Raises:
            InputError: for an unknown name, listing the known ones.
        """
        if name not in self.positions:
            known = ", ".join(map(repr, self.positions)) or "no named positions"
            raise InputError(f"no position {name!r} in this batch (it has {known}); add it to Batch.positions")
        return self.positions[name]

    def token_mask(self) -> TokenMask:
        """Return which positions hold real tokens. All do if there is no attention mask."""
        if self.attention_mask is None:
            return torch.ones_like(self.tokens, dtype=torch.bool)
        return self.attention_mask

    def words(self, label: str | None = None) -> PerToken:
        """Return the word at each position, -1 at padding: its token, or the per-token label called ``label``."""
        words = (self.tokens if label is None else self.label(label, per="token")).long()
        return words if self.attention_mask is None else torch.where(self.attention_mask, words, -1)

    def lengths(self) -> PerExample:
        """Return the number of real tokens in each sequence."""
        if self.attention_mask is None:
            return torch.full((len(self),), self.tokens.shape[1], device=self.tokens.device)
        return self.attention_mask.sum(dim=1)

    def first_positions(self) -> PerExample:
        """Return the position of each sequence's first real token, whichever side is padded.

        Raises:
            InputError: see ``check_examples_are_real``.
        """
        self.check_examples_are_real()
        if self.attention_mask is None or len(self) == 0:
            return torch.zeros(len(self), dtype=torch.long, device=self.tokens.device)
        return self.attention_mask.long().argmax(dim=1)

    def last_positions(self) -> PerExample:
        """Return the position of each sequence's last real token, whichever side is padded.

        Raises:
            InputError: see ``check_examples_are_real``.
        """
        self.check_examples_are_real()
        last = self.tokens.shape[1] - 1
        if self.attention_mask is None or len(self) == 0:
            return torch.full((len(self),), last, device=self.tokens.device)
        distance_from_end = self.attention_mask.flip(1).long().argmax(dim=1)
        return last - distance_from_end

    def check_examples_are_real(self) -> None:
        """Refuse an example without a real token: all that could be measured of it is padding.

        Raises:
            InputError: naming the example.
        """
        if len(self) > 0 and self.tokens.shape[1] == 0:
            raise InputError(f"example index {int(self.index[0])} has no tokens; leave it out")
        if self.attention_mask is None:
            return
        has_real_token = self.attention_mask.any(dim=1)
        if not bool(has_real_token.all()):
            first = self.index[~has_real_token.to(self.index.device)][0]
            raise InputError(
                f"example index {int(first)} has no real token (its attention mask is all 0); leave it out"
            )

    @property
    def padded_right(self) -> bool:
        """Whether padding, if any, follows the real tokens: a causal model then needs no mask."""
        mask = self.attention_mask
        return mask is None or bool((mask[:, 1:] <= mask[:, :-1]).all())

    # ---- making other batches ----

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch with every tensor on ``device``, itself if all are there already."""
        tensors = [self.tokens, self.index, *self._masks_and_targets().values()]
        tensors += [*self.positions.values(), *self.labels.values()]
        if all(tensor.device == torch.device(device) for tensor in tensors):
            return self
        return self._apply(methodcaller("to", device))

    def select(self, rows: Shaped[Tensor, "row"] | slice) -> Batch:
        """Return the given examples, in the given order."""
        return self._apply(itemgetter(rows))

    def split(self, batch_size: int) -> Iterator[Batch]:
        """Yield the examples in consecutive batches of ``batch_size``. The last may be smaller."""
        check_count(batch_size=(batch_size, 1))
        for start in range(0, len(self), batch_size):
            yield self.select(slice(start, start + batch_size))

    def padded_to(self, length: int) -> Batch:
        """Return the batch padded on the right to ``length`` tokens.

        Raises:
            InputError: for fewer tokens than the batch has.

        Example:
            >>> batch = Batch(torch.tensor([[1, 2]])).padded_to(3)
            >>> batch.tokens.tolist(), batch.attention_mask.tolist()
            ([[1, 2, 0]], [[True, True, False]])
        """
        n_tokens = self.tokens.shape[1]
        if length < n_tokens:
            raise InputError(f"length is {length}, but the batch has {n_tokens} tokens; give at least that")
        attention_mask = self.token_mask()
        loss_mask = self.loss_mask
        if loss_mask is None and self.targets is not None:
            loss_mask = attention_mask  # without a mask, the loss would count padding
        with_masks = replace(self, attention_mask=attention_mask, loss_mask=loss_mask)
        return with_masks._apply(partial(_pad_tokens, n_padding=length - n_tokens))

    @staticmethod
    def concat(batches: Sequence[Batch]) -> Batch:
        """Return one batch of all examples.

        Raises:
            InputError: for no batches, and for batches that differ in their fields or sequence length.
        """
        if not batches:
            raise InputError("no batches to join; give at least one")
        _check_same_fields(batches)
        return _joined(batches, torch.cat)

    def _masks_and_targets(self) -> dict[str, Shaped[Tensor, "..."]]:
        """Return the masks and targets that are there, by name."""
        fields = {"attention_mask": self.attention_mask, "targets": self.targets, "loss_mask": self.loss_mask}
        return {name: values for name, values in fields.items() if values is not None}

    def _apply(self, function: _Transform) -> Batch:
        """Return a batch with the function applied to every tensor."""
        return _joined([self], lambda parts: function(parts[0]))

    def _fields_text(self) -> str:
        """Describe the fields that batches must have in common to be joined."""
        labels = [f"{name} {values.ndim}-d" for name, values in sorted(self.labels.items())]
        names = [*self._masks_and_targets(), *sorted(self.positions), *labels]
        return f"{self.tokens.shape[1]} tokens per row and {', '.join(names) or 'no other fields'}"


def pad_right(
    rows: Sequence[Integer[Tensor, "_"]], pad_value: int = 0
) -> tuple[Integer[Tensor, "batch pos"], Bool[Tensor, "batch pos"]]:
    """Return rows as one tensor, padded on the right, and which positions are not padding (on the CPU).

    Example:
        >>> tokens, mask = pad_right([torch.tensor([5, 6]), torch.tensor([7])])
        >>> tokens.tolist(), mask.tolist()
        ([[5, 6], [7, 0]], [[True, True], [True, False]])
    """
    padded = pad_sequence(list(rows), batch_first=True, padding_value=pad_value)
    lengths = torch.tensor([len(row) for row in rows])
    return padded, torch.arange(padded.shape[1]) < lengths[:, None]


def _joined(batches: Sequence[Batch], join: Callable[[list[Shaped[Tensor, "..."]]], Shaped[Tensor, "..."]]) -> Batch:
    """Return one batch, in which each tensor is joined from the batches' tensors."""
    first = batches[0]
    lacks: dict[str, str] = {}
    for batch in batches:
        lacks.update(batch.lacks)
    fields = ["tokens", "index", *first._masks_and_targets()]
    return Batch(
        **{name: join([getattr(batch, name) for batch in batches]) for name in fields},
        positions={name: join([batch.positions[name] for batch in batches]) for name in first.positions},
        labels={name: join([batch.labels[name] for batch in batches]) for name in first.labels},
        lacks=lacks,
    )


def _is_integer(values: Shaped[Tensor, "..."]) -> bool:
    return not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)


def _check_integers(name: str, values: Shaped[Tensor, "..."], expected: str) -> None:
    if not _is_integer(values):
        raise InputError(f"{name} is {values.dtype}; expected {expected}: give {name}.long()")


def _sortable(name: str, values: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
    """Return integers or bools in a type that PyTorch sorts and indexes."""
    if values.dtype not in _NOT_SORTABLE:
        return values
    whole = values.long()
    if values.dtype == torch.uint64 and bool((whole < 0).any()):
        raise InputError(f"{name} has a number of 2**63 or more; give smaller ones, such as 0, 1, ...")
    return whole


def _check_one_per_example(name: str, values: Shaped[Tensor, "..."], n_examples: int) -> None:
    if values.shape != (n_examples,):
        raise InputError(f"{name} has shape {tuple(values.shape)}; expected {(n_examples,)}, one per example")


def _pad_tokens(values: Shaped[Tensor, "batch *pos"], n_padding: int) -> Shaped[Tensor, "batch *padded_pos"]:
    """Add zeros, or false, on the right of values per token. Values per example stay unchanged."""
    return F.pad(values, (0, n_padding)) if values.ndim == 2 else values


def _check_same_fields(batches: Sequence[Batch]) -> None:
    expected = batches[0]._fields_text()
    for number, batch in enumerate(batches):
        fields = batch._fields_text()
        if fields != expected:
            raise InputError(
                f"batch {number} has {fields}, but batch 0 has {expected}; join batches of the same fields"
            )
