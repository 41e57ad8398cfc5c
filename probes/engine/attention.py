"""Attention of one layer, to be summed without its pattern, and the readouts that reduce it inside the hook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from probes.engine.readout import Readout
from probes.functional.arrays import exact_dtype
from probes.functional.attention_entropy import entropy_of_rows
from tasks import Batch, InputError

_MAX_NUMBERS_AT_ONCE = 2**24  # in a block of rows: 64 MiB
_MAX_NUMBERS_AT_ONCE_ON_GPU = 2**26
_QUERIES_AT_ONCE = 64  # in a block of positions of the same words
_QUERIES_AT_ONCE_ON_GPU = 256


class Attention(ABC):
    """Attention of one layer on one batch: what a hook at ``attention()`` receives.

    Its methods give the sums that probes need without the pattern ``[batch head query key]``, which is too large for
    long texts: memory is linear in the length, times a block of rows. Weights are in float32 or better, and sums over
    queries in float64; sums over keys of queries and keys in half precision on a GPU have that precision.

    The weights of a query that sees no key, such as left padding, mean nothing.

    Attributes:
        shape: numbers of examples, heads, queries and keys.
        device: where it lies.
        columns_at_once: how many columns of values ``apply`` takes for the price of one.

    Example:
        >>> layer = EagerAttention(torch.tensor([[[[1.0, 0.0], [0.25, 0.75]]]]))
        >>> layer.mass(torch.tensor([[0, 1]]), n_classes=2).tolist()
        [[[[1.0, 0.0], [0.25, 0.75]]]]
        >>> layer.at(torch.tensor([[[-1], [0]]])).tolist()  # the token before, if there is one
        [[[[0.0], [0.25]]]]
    """

    shape: tuple[int, int, int, int]
    device: torch.device
    columns_at_once = 64

    # ---- what differs between sources ----

    @abstractmethod
    def rows(
        self, queries: Int[Tensor, "query"], keys: Int[Tensor, "key"] | None = None
    ) -> Float[Tensor, "batch head query key"]:
        """Return the attention of some queries to some keys, or to all."""

    @abstractmethod
    def example(self, number: int) -> Attention:
        """Return the attention of one example of the batch, as a batch of one."""

    @abstractmethod
    def detach(self) -> Attention:
        """Return the same attention without gradients."""

    @abstractmethod
    def to(self, *args: Any, **kwargs: Any) -> Attention:
        """Return the attention on another device."""

    def dim(self) -> int:
        """Return 0: caches of TransformerLens ask, and slice what has axes."""
        return 0

    def apply(self, values: Float[Tensor, "batch key column"]) -> Float[Tensor, "batch head query column"]:
        """Return the sum of the keys' values, weighted by attention, for every query and head."""
        exact = exact_dtype(self.device)
        blocks = [torch.einsum("bhqk,bkc->bhqc", rows.to(exact), values.to(exact)) for _, rows in self._blocks()]
        return torch.cat(blocks, dim=2)

    def entropy(self) -> Float[Tensor, "batch head query"]:
        """Return the entropy of each query's attention, in nats."""
        return torch.cat([entropy_of_rows(rows) for _, rows in self._blocks()], dim=2)

    def at(self, keys: Int[Tensor, "batch query place"]) -> Float[Tensor, "batch head query place"]:
        """Return each query's attention to a few keys of its own; 0 for keys below 0, which stand for none."""
        self._check("keys", keys, 2)
        blocks = []
        for queries, rows in self._blocks():
            chosen = keys[:, None, queries].expand(-1, self.shape[1], -1, -1)
            blocks.append(torch.where(chosen >= 0, rows.gather(3, chosen.clamp(min=0)), 0))
        return torch.cat(blocks, dim=2)

    def reach(
        self, real: Bool[Tensor, "batch key"]
    ) -> tuple[Float[Tensor, "batch head query"], Float[Tensor, "batch head query"]]:
        """Return each query's attention to real keys before it, and its mean distance in tokens to all real keys.

        The mean is weighted by attention, and both are in float64.
        """
        exact = exact_dtype(self.device)
        keys = torch.arange(self.shape[3], device=self.device)
        earlier = []
        distances = []
        for queries, rows in self._blocks():
            rows = torch.where(real[:, None, None], rows.to(exact), 0)
            earlier.append((rows * (keys < queries[:, None])).sum(dim=-1))
            distances.append((rows * (keys - queries[:, None]).abs()).sum(dim=-1))
        return torch.cat(earlier, dim=2), torch.cat(distances, dim=2)

    def looks_ahead(self, real: Bool[Tensor, "batch key"]) -> Bool[Tensor, "batch"]:
        """Return which examples have a real query with weight on a real key behind it."""
        looks = torch.zeros_like(real[:, 0])
        keys = torch.arange(self.shape[3], device=self.device)
        for queries, rows in self._blocks():
            is_later = (keys > queries[:, None]) & real[:, queries, None] & real[:, None]
            looks |= ((rows > 0) & is_later[:, None]).flatten(1).any(dim=1)
        return looks

    def _blocks(self) -> Iterator[tuple[Int[Tensor, "block"], Float[Tensor, "batch head block key"]]]:
        """Yield all rows, a block of queries at a time."""
        for part in self.parts():
            queries = torch.arange(part.start, part.stop, device=self.device)
            yield queries, self.rows(queries)

    def parts(self, numbers_per_query: int | None = None) -> Iterator[slice]:
        """Yield the queries in blocks that fit in memory, if each query needs so many numbers (by default its rows)."""
        batch, head, query, key = self.shape
        most = _MAX_NUMBERS_AT_ONCE_ON_GPU if self.device.type == "cuda" else _MAX_NUMBERS_AT_ONCE
        at_once = max(1, most // max(1, numbers_per_query or batch * head * key))
        for start in range(0, query, at_once):
            yield slice(start, min(start + at_once, query))

    # ---- sums ----

    def pattern(self) -> Float[Tensor, "batch head query key"]:
        """Return the whole pattern. For short texts: its memory is the square of the length, times heads."""
        return self.rows(torch.arange(self.shape[2], device=self.device))

    def mass(self, labels: Int[Tensor, "batch key"], n_classes: int) -> Float[Tensor, "batch head query class"]:
        """Return each query's attention to the keys of each class.

        Args:
            labels: each key's class; below 0: none.
            n_classes: labels are smaller.

        Raises:
            InputError: for labels of another length than the text, or too large.
        """
        return torch.cat([*self._masses(labels, n_classes)], dim=3)

    def between(self, labels: Int[Tensor, "batch pos"], n_classes: int) -> Float[Tensor, "batch head class class"]:
        """Return attention summed over the queries (third axis) and the keys (last axis) of each class, in float64.

        Args:
            labels: each position's class, as query and as key; below 0: none.
            n_classes: labels are smaller.

        Raises:
            InputError: as ``mass``.
        """
        self._check_labels(labels, n_classes)
        if self.device.type == "cpu" and n_classes > self.columns_at_once:
            return self._between_many(labels, n_classes)
        of_query = labels[:, :, None] == torch.arange(n_classes, device=self.device)
        masses = self._masses(labels, n_classes)
        return torch.cat([self._over_queries("bhqk,bqc->bhck", mass, of_query) for mass in masses], dim=3)

    def _between_many(
        self, labels: Int[Tensor, "batch pos"], n_classes: int
    ) -> Float[Tensor, "batch head class class"]:
        """Return ``between`` from one pass over the rows, in the order of their classes."""
        sums = torch.zeros(*self.shape[:2], n_classes, n_classes, dtype=exact_dtype(self.device), device=self.device)
        for number, classes in enumerate(labels):
            layer = self.example(number)
            in_order, order = classes.sort(stable=True)
            positions = order[in_order >= 0]
            of_position = in_order[in_order >= 0]
            for part in layer.parts():
                of_query = of_position[part]
                if not len(of_query):  # the rest has no class
                    break
                rows = layer.rows(positions[part], positions)[0].to(sums.dtype)
                first = int(of_query[0])
                of_class = rows.new_zeros(len(rows), int(of_query[-1]) + 1 - first, rows.shape[2])
                of_class.index_add_(1, of_query - first, rows)
                sums[number, :, first : first + of_class.shape[1]].index_add_(2, of_position, of_class)
        return sums

    def _over_queries(
        self, equation: str, mass: Float[Tensor, "batch head query _"], counts: Bool[Tensor, "batch query column"]
    ) -> Float[Tensor, "batch head *sums"]:
        """Sum masses over the queries that count, in float64."""
        exact = exact_dtype(self.device)
        sums = []
        for part in self.parts(mass[:, :, 0].numel()):
            sums.append(torch.einsum(equation, mass[:, :, part].to(exact), counts[:, part].to(exact)))
        return torch.stack(sums).sum(dim=0)

    def _masses(
        self, labels: Int[Tensor, "batch key"], n_classes: int
    ) -> Iterator[Float[Tensor, "batch head query _"]]:
        """Yield the masses of a few classes at a time."""
        self._check_labels(labels, n_classes)
        for classes in torch.split(torch.arange(n_classes, device=self.device), self.columns_at_once):
            yield self.apply((labels[:, :, None] == classes).float())

    def relabelled_mass(
        self,
        words: Int[Tensor, "batch pos"],
        labels: Int[Tensor, "labelling word"],
        meet: Bool[Tensor, "class class"] | None = None,
    ) -> tuple[Float[Tensor, "batch head"], Float[Tensor, "batch head labelling"]]:
        """Sum attention between words whose classes meet, for many ways of labelling the words with classes.

        In short texts attention is summed between all their words, and a labelling is a sum over these. In long ones
        the classes of all labellings are summed next to each other. The cheaper way is taken.

        Args:
            words: each position's word; below 0: none.
            labels: each word's class, in every labelling.
            meet: which classes meet; ``None``: each only itself.

        Returns:
            Attention between positions of the same word, the diagonal included, and between positions of different
            words whose classes meet, both in float64.

        Raises:
            InputError: for words of another length than the text.
        """
        self._check("words", words, 1)
        ranks, words_of_text = _ranked(words)
        n_classes = int(labels.max()) + 1 if meet is None else len(meet)
        if words_of_text.shape[1] <= len(labels) * n_classes:
            return self._by_pairs_of_words(ranks, words_of_text, labels, meet)
        of_position = torch.where(words >= 0, labels[:, words.clamp(min=0)], -1)
        same = self._same_word_mass(words)
        return same, self._by_classes(of_position, n_classes, meet) - same[..., None]

    @staticmethod
    def relabelled_pairs(
        words: Int[Tensor, "batch pos"],
        labels: Int[Tensor, "labelling word"],
        meet: Bool[Tensor, "class class"] | None = None,
    ) -> tuple[Int[Tensor, "batch"], Int[Tensor, "batch labelling"]]:
        """Count the pairs of positions over which ``relabelled_mass`` sums attention. A class meets itself.

        Example:
            >>> Attention.relabelled_pairs(torch.tensor([[0, 0, 1, 2]]), torch.tensor([[0, 0, 1], [0, 1, 1]]))
            (tensor([6]), tensor([[4, 2]]))
        """
        n_classes = int(labels.max()) + 1 if meet is None else len(meet)
        same = []
        meeting = []
        for text in words:
            distinct, counts = torch.unique(text[text >= 0], return_counts=True)
            counts = counts.to(exact_dtype(words.device))
            by_class = counts.new_zeros(len(labels), n_classes)
            by_class.scatter_add_(1, labels[:, distinct], counts.expand(len(labels), -1))
            partners = by_class if meet is None else by_class @ meet.to(by_class.dtype)
            same.append(counts.square().sum())
            meeting.append((by_class * partners).sum(dim=1) - same[-1])
        return torch.stack(same).round().long(), torch.stack(meeting).round().long()

    def _by_pairs_of_words(
        self,
        ranks: Int[Tensor, "batch pos"],
        words_of_text: Int[Tensor, "batch word"],
        labels: Int[Tensor, "labelling _"],
        meet: Bool[Tensor, "class class"] | None,
    ) -> tuple[Float[Tensor, "batch head"], Float[Tensor, "batch head labelling"]]:
        """Return ``relabelled_mass`` as sums over the words that a text has."""
        between = self.between(ranks, words_of_text.shape[1])
        same = between.diagonal(dim1=2, dim2=3).sum(dim=-1)
        meeting = []
        for words, sums in zip(words_of_text, between, strict=True):
            words = words[words >= 0]
            n = len(words)
            others = ~torch.eye(n, dtype=torch.bool, device=self.device)
            of_word_pair = sums[:, :n, :n].flatten(1)
            columns = []
            for part in torch.split(labels, max(1, _MAX_NUMBERS_AT_ONCE // max(1, 8 * n * n))):
                classes = part[:, words]
                meets = _meets(classes[:, :, None], classes[:, None, :], meet) & others
                columns.append(of_word_pair @ meets.flatten(1).T.to(of_word_pair.dtype))
            meeting.append(torch.cat(columns, dim=1))
        return same, torch.stack(meeting)

    def _by_classes(
        self, labels: Int[Tensor, "labelling batch pos"], n_classes: int, meet: Bool[Tensor, "class class"] | None
    ) -> Float[Tensor, "batch head labelling"]:
        """Return attention between all positions whose classes meet, with the classes of all labellings in a row."""
        meeting = torch.zeros(*self.shape[:2], len(labels), dtype=exact_dtype(self.device), device=self.device)
        n_columns = len(labels) * n_classes
        for columns in torch.split(torch.arange(n_columns, device=self.device), self.columns_at_once):
            labelling = columns // n_classes
            label = (columns % n_classes)[:, None, None]
            of_column = labels[labelling]
            is_key = of_column == label
            is_query = is_key if meet is None else (of_column >= 0) & _meets(of_column.clamp(min=0), label, meet)
            mass = self.apply(rearrange(is_key, "column batch key -> batch key column").float())
            is_query = rearrange(is_query, "column batch query -> batch query column")
            meeting.index_add_(2, labelling, self._over_queries("bhqc,bqc->bhc", mass, is_query))
        return meeting

    def _same_word_mass(self, words: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch head"]:
        """Return attention between positions of the same word, over blocks of positions sorted by word."""
        same = torch.zeros(*self.shape[:2], dtype=exact_dtype(self.device), device=self.device)
        for number, words_of_text in enumerate(words):
            layer = self.example(number)
            for queries, keys, is_same in attention_pairs_by_word(words_of_text):
                rows = layer.rows(queries, keys)[0]
                same[number] += torch.where(is_same, rows, 0).sum(dim=(1, 2)).to(same.dtype)
        return same

    def _check_labels(self, labels: Int[Tensor, "batch pos"], n_classes: int) -> None:
        """Refuse labels of another batch, or too large ones."""
        self._check("labels", labels, 1)
        if labels.numel() and int(labels.max()) >= n_classes:
            raise InputError(f"labels has a class {int(labels.max())}, but n_classes is {n_classes}; give more classes")

    def _check(self, name: str, positions: Int[Tensor, "batch pos *rest"], axis: int) -> None:
        """Refuse labels or keys that are not those of this batch."""
        batch, _, query, key = self.shape
        expected = (batch, key if axis == 1 else query)
        if positions.shape[:2] != expected:
            raise InputError(
                f"{name} has shape {list(positions.shape)} for {batch} texts of {expected[1]} tokens; give one "
                "for each token, padding included"
            )


class EagerAttention(Attention):
    """Attention whose pattern is known.

    Args:
        weights: the pattern, probabilities over keys.
        real: false at padding, whose weights are 0, where a model may give NaN. ``None``: no padding.
    """

    def __init__(
        self, weights: Float[Tensor, "batch head query key"], real: Bool[Tensor, "batch key"] | None = None
    ) -> None:
        self.weights = weights
        self.real = real
        batch, head, query, key = weights.shape
        self.shape = (batch, head, query, key)
        self.device = weights.device

    def rows(
        self, queries: Int[Tensor, "query"], keys: Int[Tensor, "key"] | None = None
    ) -> Float[Tensor, "batch head query key"]:
        """Return the attention of some queries to some keys, or to all."""
        rows = self.weights[:, :, queries]
        if self.real is not None:
            rows = torch.where(self.real[:, None, queries, None] & self.real[:, None, None], rows, 0)
        if rows.dtype in (torch.float16, torch.bfloat16):
            rows = rows.float()
        return rows if keys is None else rows[..., keys]

    def example(self, number: int) -> EagerAttention:
        """Return the attention of one example of the batch, as a batch of one."""
        part = slice(number, number + 1)
        return EagerAttention(self.weights[part], None if self.real is None else self.real[part])

    def detach(self) -> EagerAttention:
        """Return the same attention without gradients."""
        return EagerAttention(self.weights.detach(), self.real)

    def to(self, *args: Any, **kwargs: Any) -> EagerAttention:
        """Return the attention on another device."""
        weights = self.weights.to(*args, **kwargs)
        return EagerAttention(weights, None if self.real is None else self.real.to(weights.device))


class AttentionReadout(Readout):
    """Reduces the attention of a layer inside the hook, so that nothing as large as a pattern leaves it.

    A subclass writes ``read``, which leaves out padding. It is a frozen dataclass, so that its ``repr`` rebuilds it.
    Its probe measures at ``attention()``, and gets what ``read`` returns.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class FirstKey(AttentionReadout):
        ...     '''Attention of the last token to the first, of each example and head.'''
        ...     def read(self, attention, batch):
        ...         examples = torch.arange(len(batch))
        ...         first = batch.first_positions()[:, None, None].expand(-1, batch.tokens.shape[1], 1)
        ...         return attention.at(first)[examples, :, batch.last_positions(), 0]
        >>> FirstKey()
        FirstKey()
        >>> batch = Batch(torch.tensor([[5, 6]]))
        >>> FirstKey()(torch.tensor([[[[1.0, 0.0], [0.5, 0.5]]]]), batch)
        tensor([[0.5000]])
    """

    row_per_example = False

    def __call__(
        self, activation: Attention | Float[Tensor, "batch head query key"], batch: Batch
    ) -> Shaped[Tensor, "batch ..."]:
        attention = _attention_of(activation, batch)
        return self.read(attention, batch.to(attention.device))

    def read(self, attention: Attention, batch: Batch) -> Shaped[Tensor, "batch ..."]:
        """Return what a probe needs of a layer's attention, with an axis for examples first. Subclasses write this."""
        raise NotImplementedError  # pragma: no cover - abstract


def pattern_of(
    activation: Attention | Float[Tensor, "batch head query key"],
) -> Float[Tensor, "batch head query key"]:
    """Return the pattern of what a hook at ``attention()`` receives, for short texts.

    Example:
        >>> pattern_of(EagerAttention(torch.eye(2)[None, None])).tolist()
        [[[[1.0, 0.0], [0.0, 1.0]]]]
    """
    return activation.pattern() if isinstance(activation, Attention) else activation


def attention_pairs_by_word(
    words: Int[Tensor, "pos"],
) -> Iterator[tuple[Int[Tensor, "query"], Int[Tensor, "key"], Bool[Tensor, "query key"]]]:
    """Yield a few positions of a text, all positions of their words, and which of these pairs have the same word.

    Positions are sorted by word, so that together the blocks have few pairs of different words.

    Args:
        words: each position's word; below 0: none.

    Example:
        >>> [(queries, keys, same)] = attention_pairs_by_word(torch.tensor([7, 3, 7]))
        >>> queries.tolist(), same.int().tolist()
        ([1, 0, 2], [[1, 0, 0], [0, 1, 1], [0, 1, 1]])
    """
    in_order, order = words.sort(stable=True)
    order = order[in_order >= 0]
    in_order = in_order[in_order >= 0]
    at_once = _QUERIES_AT_ONCE_ON_GPU if words.device.type == "cuda" else _QUERIES_AT_ONCE
    for start in range(0, len(order), at_once):
        block = in_order[start : start + at_once]
        first = int(torch.searchsorted(in_order, block[0]))
        last = int(torch.searchsorted(in_order, block[-1], right=True))
        yield order[start : start + at_once], order[first:last], block[:, None] == in_order[first:last]


def _attention_of(activation: Any, batch: Batch) -> Attention:
    """Return an activation as attention, without a copy of a pattern.

    Raises:
        InputError: for an activation that is no attention of this batch.
    """
    examples, length = batch.tokens.shape
    shape = tuple(activation.shape)
    if len(shape) != 4 or (shape[0], *shape[2:]) != (examples, length, length):
        raise InputError(
            f"an activation has shape {shape}; expected attention patterns [batch head query key] for {length} tokens: "
            "measure at attention(), and without the keys of a cache"
        )
    if isinstance(activation, Attention):
        return activation
    mask = batch.attention_mask
    return EagerAttention(activation, None if mask is None else mask.to(activation.device))


def _ranked(words: Int[Tensor, "batch pos"]) -> tuple[Int[Tensor, "batch pos"], Int[Tensor, "batch _"]]:
    """Return each position's word as a rank among the words of its text, and the words by rank, filled up with -1."""
    ranks = torch.full_like(words, -1)
    words_of_text = []
    for rank, text in zip(ranks, words, strict=True):
        distinct, inverse = torch.unique(text[text >= 0], return_inverse=True)
        rank[text >= 0] = inverse
        words_of_text.append(distinct)
    filled = torch.nn.utils.rnn.pad_sequence(words_of_text, batch_first=True, padding_value=-1)
    return ranks, filled


def _meets(
    first: Int[Tensor, "*#shape"], second: Int[Tensor, "*#shape"], meet: Bool[Tensor, "class class"] | None
) -> Bool[Tensor, "*#shape"]:
    """Return whether two classes meet; broadcasts."""
    if meet is None:
        return first == second
    pairs = first * len(meet) + second
    return meet.flatten().index_select(0, pairs.flatten()).reshape(pairs.shape)  # on the CPU, twice as fast as meet[]
