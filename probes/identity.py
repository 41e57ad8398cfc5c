"""Which examples were measured, and on which model: told apart without keeping them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from probes.hooks import HookedModel
from probes.state import hashed
from tasks import Batch


class Examples:
    """A digest of examples that does not depend on their order or their batches."""

    def __init__(self) -> None:
        self._sum = torch.zeros((), dtype=torch.int64)
        self.count = 0

    def add(self, batch: Batch) -> None:
        """Also these."""
        self.add_digests(batch.index.to(batch.tokens.device), token_digests(batch))

    def add_digests(self, index: Tensor, tokens: Tensor) -> None:
        """Also these, by their index and ``token_digests``."""
        self._sum += hashed(hashed(index) + tokens).sum().cpu()  # wraps around
        self.count += len(index)

    def record(self, models: Mapping[str, str]) -> dict[str, Any]:
        """For a result's metadata: the digest, and the fingerprint of the model, or of several by name."""
        return {"examples": self.digest, "model": models.get("", dict(models))}

    @property
    def digest(self) -> str:
        """Number of examples, and 16 hexadecimal digits."""
        return f"{self.count}-{int(self._sum) % 2**64:016x}"


def token_digests(batch: Batch) -> Tensor:
    """``[batch]`` int64 of each example's real tokens in their order, whatever the padding."""
    mask = torch.ones_like(batch.tokens) if batch.attention_mask is None else batch.attention_mask.long()
    each = hashed(hashed(batch.tokens) + mask.cumsum(dim=1))
    return (each * mask).sum(dim=1)


def fingerprint(model: HookedModel) -> str:
    """Tells models apart by up to 1,024 numbers of every weight; does not read them all."""
    digest = hashlib.sha256()
    for name, weight in model.named_parameters():
        flat = weight.detach().flatten()
        some = flat[:: max(1, len(flat) // 1024)].float().cpu().contiguous()
        digest.update(f"{name} {weight.dtype} {list(weight.shape)}".encode() + some.numpy().tobytes())
    return digest.hexdigest()
