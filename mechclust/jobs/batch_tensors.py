"""Batches on their way to workers: as tensors by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jaxtyping import Shaped
from torch import Tensor

from probes.store.digest import digest_of
from tasks import Batch

_OPTIONAL = ("attention_mask", "targets", "loss_mask")
_NAMED = ("positions", "labels")


def tensors_of_batch(batch: Batch) -> dict[str, Shaped[Tensor, "batch ..."]]:
    """Return all tensors of a batch: ``tokens``, ``index``, the optional ones it has, ``labels/task`` and so on.

    Example:
        >>> import torch
        >>> list(tensors_of_batch(Batch(torch.tensor([[1, 2]]), labels={"task": torch.tensor([0])})))
        ['tokens', 'index', 'labels/task']
    """
    tensors = {"tokens": batch.tokens, "index": batch.index}
    for name in _OPTIONAL:
        if getattr(batch, name) is not None:
            tensors[name] = getattr(batch, name)
    for kind in _NAMED:
        for name, values in getattr(batch, kind).items():
            tensors[f"{kind}/{name}"] = values
    return tensors


def batch_of_tensors(
    tensors: Mapping[str, Shaped[Tensor, "batch ..."]], lacks: Mapping[str, str] | None = None
) -> Batch:
    """Return the batch that ``tensors_of_batch`` took apart, with its ``lacks``."""
    fields: dict[str, Any] = {kind: {} for kind in _NAMED}
    for name, values in tensors.items():
        kind, slash, label = name.partition("/")
        if slash:  # a label may have an empty name, as pandas writes a table's index
            fields[kind][label] = values
        else:
            fields[name] = values
    return Batch(**fields, lacks=lacks or {})


def batch_tensors_digest(batches: Iterable[Batch]) -> str:
    """Return 32 hexadecimal digits that identify these batches."""
    parts: list[str | Tensor] = []
    for batch in batches:
        for name, values in sorted(tensors_of_batch(batch).items()):
            parts += [name, values]
    return digest_of(parts)
