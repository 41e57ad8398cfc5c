"""Digests of examples, to recognise them without keeping them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int, Int64
from torch import Tensor

from probes.store.splitmix64 import splitmix64
from tasks import Batch


@dataclass
class ExamplesDigest:
    """A digest of examples that does not depend on their order or their batches.

    Attributes:
        count: number of examples.
        total: sum of their hashes.
    """

    count: int = 0
    total: int = 0

    def add(self, batch: Batch) -> None:
        """Add the examples of a batch."""
        self.add_digests(batch.index.to(batch.tokens.device), token_digests(batch))

    def add_digests(self, index: Int[Tensor, "example"], tokens: Int64[Tensor, "example"]) -> None:
        """Add examples by their index and ``token_digests``."""
        self.total += int(splitmix64(splitmix64(index) + tokens).sum())
        self.count += len(index)

    def merge(self, other: ExamplesDigest) -> None:
        """Add the examples of another digest, none of which was added before."""
        self.total += other.total
        self.count += other.count

    def state(self) -> list[int]:
        """Return the whole state, as JSON."""
        return [self.count, self.total]

    def record(self, models: Mapping[str, str]) -> dict[str, Any]:
        """Return the digest and the models' fingerprints for a result's metadata.

        Args:
            models: fingerprints by name, ``""`` for a single one.
        """
        return {"examples": self.digest, "model": models.get("", dict(models))}

    @property
    def digest(self) -> str:
        """Number of examples, and 16 hexadecimal digits."""
        return f"{self.count}-{self.total % 2**64:016x}"


def token_digests(batch: Batch) -> Int64[Tensor, "batch"]:
    """Return a hash of each example's real tokens in their order, which does not depend on the padding."""
    batch = batch.to(batch.tokens.device)
    mask = torch.ones_like(batch.tokens) if batch.attention_mask is None else batch.attention_mask.long()
    by_position = splitmix64(splitmix64(batch.tokens) + mask.cumsum(dim=1))
    return (by_position * mask).sum(dim=1)
