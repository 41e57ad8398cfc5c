"""Shards of a data set: drawn by the driver, or by the workers themselves."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import torch

from probes.engine.batches import Batches, each_batch, readable
from probes.engine.hooks import HookedModel
from probes.engine.identity import fingerprint
from probes.engine.recorder import HookedModels
from probes.engine.texts import TextTokenizer
from probes.store import digest
from tasks import Batch, InputError
from tasks.errors import check_count
from tasks.text.beginning import Bos

Load: TypeAlias = Callable[[], HookedModels]
Given: TypeAlias = Batches | Sequence[Callable[[], Batches]]

_OPTIONAL = ("attention_mask", "targets", "loss_mask")
_NAMED = ("positions", "labels")
_SPAN = 2**32  # indices that the examples of one function may take


@dataclass(frozen=True)
class Loaded:
    """What a worker holds: the model, or several by name, and what tells each from others."""

    model: HookedModels
    fingerprints: Mapping[str, str]

    @classmethod
    def by(cls, load: Load) -> Loaded:
        """What this function gives."""
        model = load()
        models = dict(model) if isinstance(model, Mapping) else {"": model}
        return cls(model, {name: fingerprint(each) for name, each in models.items()})

    @property
    def models(self) -> dict[str, HookedModel]:
        """By name; ``""`` for a single one."""
        return dict(self.model) if isinstance(self.model, Mapping) else {"": self.model}


@dataclass(frozen=True)
class Shard:
    """Some of the examples.

    Attributes:
        number: from 0.
        given: its batches, packed, or the function that gives them.
        texts: ``tokenizer`` and ``bos``, for what a function gives.
        tokens_per_batch: most tokens of a batch, for what a function gives.
    """

    number: int
    given: bytes | Callable[[], Batches]
    texts: Mapping[str, Any]
    tokens_per_batch: int

    @property
    def name(self) -> str:
        """In errors."""
        return f"shard {self.number}"

    def reading(self, models: Mapping[str, HookedModel]) -> TextTokenizer:
        """What turns the shard's texts into tokens for these models."""
        return TextTokenizer(models, **self.texts)

    def batches(self, models: Mapping[str, HookedModel], reading: TextTokenizer) -> Iterator[Batch]:
        """As ``run`` would give them to these models."""
        if isinstance(self.given, bytes):
            yield from (readable(_unpacked(*packed), models) for packed in pickle.loads(self.given))
        else:
            yield from each_batch(
                self.given(),
                models,
                reading=reading,
                tokens_per_batch=self.tokens_per_batch,
                first=self.number * _SPAN,
            )


def reading_of(tokenizer: Any, bos: Bos) -> TextTokenizer:
    """What turns texts into tokens in the driver, which has no model."""
    return TextTokenizer({}, tokenizer, bos, lacking="the workers have the model")


def shards_of(batches: Given, size: int, *, reading: TextTokenizer, tokens_per_batch: int) -> Iterator[Shard]:
    """Shards of at least ``size`` examples (the last has the rest), one after another as they are asked for.

    A batch is never cut. Of functions, one shard each.
    """
    texts = {"tokenizer": reading.tokenizer, "bos": reading.bos}
    if functions := _functions(batches):
        for number, function in enumerate(functions):
            yield Shard(number, function, texts, tokens_per_batch)
        return
    drawn = each_batch(cast(Batches, batches), {}, reading=reading, tokens_per_batch=tokens_per_batch)
    for number, some in enumerate(_grouped(drawn, size)):
        packed = pickle.dumps([(arrays_of(batch), dict(batch.lacks)) for batch in some])
        yield Shard(number, packed, {}, tokens_per_batch)


def count_shards(batches: Given) -> int | None:
    """How many there will be, where it is known."""
    return len(_functions(batches)) or None


def check_sharded_inputs(batches: Given, **sizes: int) -> None:
    """Refuse what cannot be cut into shards, before work starts."""
    check_count(**{name: (size, 1) for name, size in sizes.items()})
    functions = _functions(batches)
    if functions and not all(map(callable, functions)):
        raise InputError("batches has functions and something else; give functions only, one for each shard")


def _functions(batches: Given) -> Sequence[Callable[[], Batches]]:
    return batches if isinstance(batches, (list, tuple)) and any(map(callable, batches)) else ()


def _grouped(batches: Iterable[Batch], size: int) -> Iterator[list[Batch]]:
    waiting: list[Batch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(map(len, waiting)) >= size:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


# ---- a batch between processes ----


def arrays_of(batch: Batch) -> dict[str, np.ndarray]:
    """All that a batch holds, by name."""
    found = {"tokens": batch.tokens, "index": batch.index}
    found |= {name: value for name in _OPTIONAL if (value := getattr(batch, name)) is not None}
    found |= {f"{kind}/{name}": value for kind in _NAMED for name, value in getattr(batch, kind).items()}
    return {name: value.detach().cpu().numpy() for name, value in found.items()}


def _unpacked(arrays: Mapping[str, np.ndarray], lacks: Mapping[str, str]) -> Batch:
    fields: dict[str, Any] = {kind: {} for kind in _NAMED}
    for name, array in arrays.items():
        kind, _, inner = name.partition("/")
        if inner:
            fields[kind][inner] = torch.from_numpy(array)
        else:
            fields[kind] = torch.from_numpy(array)
    return Batch(**fields, lacks=lacks)


def batches_digest(batches: Iterable[Batch]) -> str:
    """32 hexadecimal digits that tell these batches from all others."""
    arrays = (part for batch in batches for part in sorted(arrays_of(batch).items()))
    return digest.digest_of(x for part in arrays for x in part)
