"""A data set cut into shards, each measured by one worker."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch

from mechclust.jobs.batch_tensors import batch_of_tensors, tensors_of_batch
from probes.engine.batches import Batches, each_batch, readable_batch
from probes.engine.hooked_model import HookedModel
from probes.engine.text_tokenizer import TextTokenizer
from tasks import Batch, InputError
from tasks.settings import check_count
from tasks.text.bos_token import Bos

ShardedBatches: TypeAlias = Batches | Sequence[Callable[[], Batches]]
_INDICES_PER_FUNCTION = 2**32  # indices that the examples of one function may take


@dataclass(frozen=True)
class DataShard:
    """Some of the examples.

    Attributes:
        number: from 0.
        source: its batches, packed, or the function that gives them.
        texts: ``tokenizer`` and ``bos``, for a function's texts.
        tokens_per_batch: most tokens of a function's batch.
    """

    number: int
    source: bytes | Callable[[], Batches]
    texts: Mapping[str, Any]
    tokens_per_batch: int

    @property
    def name(self) -> str:
        """Its name in errors."""
        return f"shard {self.number}"

    def reading(self, models: Mapping[str, HookedModel]) -> TextTokenizer:
        """Return the tokenizer of the shard's texts for these models."""
        return TextTokenizer(models, **self.texts)

    def batches(self, models: Mapping[str, HookedModel], reading: TextTokenizer) -> Iterator[Batch]:
        """Yield the batches as ``run`` would give them to these models."""
        if isinstance(self.source, bytes):
            return (readable_batch(batch, models) for batch in _unpacked_batches(self.source))
        first = self.number * _INDICES_PER_FUNCTION
        return each_batch(self.source(), models, reading=reading, tokens_per_batch=self.tokens_per_batch, first=first)


def tokenizer_of_data_shards(tokenizer: Any, bos: Bos) -> TextTokenizer:
    """Return the tokenizer of texts in the driver, which has no model."""
    return TextTokenizer({}, tokenizer, bos, lacking="the workers have the model")


def shards_of(
    batches: ShardedBatches, size: int, *, reading: TextTokenizer, tokens_per_batch: int
) -> Iterator[DataShard]:
    """Yield shards of at least ``size`` examples (the last has the rest), drawn when they are needed.

    A batch is never cut. Each function is one shard.
    """
    functions = _functions(batches)
    texts = {"tokenizer": reading.tokenizer, "bos": reading.bos}
    for number, function in enumerate(functions):
        yield DataShard(number, function, texts, tokens_per_batch)
    if not functions:
        drawn = each_batch(cast(Batches, batches), {}, reading=reading, tokens_per_batch=tokens_per_batch)
        for number, group in enumerate(_grouped(drawn, size)):
            yield DataShard(number, _packed_batches(group), {}, tokens_per_batch)


def count_data_shards(batches: ShardedBatches) -> int | None:
    """Return how many shards there will be, if it is known."""
    return len(_functions(batches)) or None


def check_data_shards(batches: ShardedBatches, **sizes: int) -> None:
    """Refuse inputs that cannot be cut into shards, before work starts."""
    check_count(**{name: (size, 1) for name, size in sizes.items()})
    if not all(map(callable, _functions(batches))):
        raise InputError("batches has functions and something else; give functions only, one for each shard")


def _functions(batches: ShardedBatches) -> Sequence[Callable[[], Batches]]:
    return batches if isinstance(batches, (list, tuple)) and any(map(callable, batches)) else ()


def _grouped(batches: Iterable[Batch], size: int) -> Iterator[list[Batch]]:
    group: list[Batch] = []
    for batch in batches:
        group.append(batch)
        if sum(map(len, group)) >= size:
            yield group
            group = []
    if group:
        yield group


def _packed_batches(batches: Iterable[Batch]) -> bytes:
    """Return batches as bytes. As arrays: a tensor that is part of another would take all of that with it."""
    packed = []
    for batch in batches:
        arrays = {name: values.detach().cpu().numpy() for name, values in tensors_of_batch(batch).items()}
        packed.append((arrays, dict(batch.lacks)))
    return pickle.dumps(packed)


def _unpacked_batches(packed: bytes) -> Iterator[Batch]:
    """Yield the batches that ``_packed_batches`` was given."""
    for arrays, lacks in pickle.loads(packed):
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        yield batch_of_tensors(tensors, lacks)
