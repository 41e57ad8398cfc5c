"""What a measurement will take: tokens, disk, memory and time, before it begins."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mechclust.models.sizes import Sizes
from tasks import Batch, InputError

_GIB = 2**30
# Bytes a layer takes per number of its hidden states: the rows (float32), what a probe keeps of them and the copies
# that k-means and the classifier make (float64); 53 were measured, with more prompts than dimensions.
_COPIES = 64
_SECONDS = 0.05  # of the matrix product that is timed


@dataclass(frozen=True)
class Estimate:
    """Of ``n_models`` models on the same prompts.

    Attributes:
        n_prompts: how many.
        n_models: the model and the untrained ones.
        tokens: of the prompts.
        positions: tokens with padding.
        disk: bytes of the hidden states of all models.
        layer: bytes of memory for one layer, with the copies that measuring makes.
        operations: multiplications and additions of all forward passes, at least; ``None``: not known.
    """

    n_prompts: int
    n_models: int
    tokens: int
    positions: int
    disk: int | None
    layer: int | None
    operations: int | None

    @classmethod
    def of(cls, batches: Sequence[Batch], sizes: Sizes, n_models: int, dtype: torch.dtype) -> Estimate:
        """From the prompts as tokens and the sizes of a model that is not loaded."""
        n, tokens = sum(map(len, batches)), sum(int(batch.lengths().sum()) for batch in batches)
        positions = sum(batch.tokens.numel() for batch in batches)
        disk = layer = operations = None
        if sizes.n_layers is not None and sizes.d_model is not None:
            disk = n_models * n * (sizes.n_layers + 1) * sizes.d_model * dtype.itemsize
            layer = n * sizes.d_model * _COPIES
            if sizes.block_weights is not None:
                operations = 2 * n_models * positions * sizes.n_layers * sizes.block_weights
        return cls(n, n_models, tokens, positions, disk, layer, operations)

    def check(self, max_memory: float) -> None:
        """Refuse a layer that does not fit.

        Raises:
            InputError: with both numbers.
        """
        if self.layer is not None and self.layer > max_memory * _GIB:
            raise InputError(
                f"measuring a layer takes about {self.layer / _GIB:.3g} GiB ({self.n_prompts} prompts), more than "
                f"max_memory = {max_memory:g}; give fewer prompts (--max-rows), or raise --max-memory"
            )

    def text(self, speed: float | None) -> str:
        """In a sentence.

        Args:
            speed: multiplications and additions per second of the device.
        """
        padding = 1 - self.tokens / self.positions
        said = [f"{self.n_prompts} prompts of {self.tokens} tokens ({padding:.0%} padding)"]
        if self.n_models > 1:
            said.append(f"{self.n_models} models")
        if self.disk is not None and self.layer is not None:
            said.append(f"hidden states: {_size(self.disk)} on disk, about {_size(self.layer)} of memory for a layer")
        if self.operations is not None and speed is not None:
            said.append(f"forward passes: at least {_duration(self.operations / speed)}")
        return "; ".join(said)


def matmul_speed(device: str, dtype: torch.dtype, width: int, rows: int) -> float:
    """Multiplications and additions per second of a short matrix product.

    Args:
        device: where.
        dtype: of its numbers.
        width: of the square matrix.
        rows: of what it is multiplied with.
    """
    x = torch.ones(rows, width, device=device, dtype=dtype)
    weights = torch.ones(width, width, device=device, dtype=dtype)
    float((x @ weights)[0, 0])  # the first is slow, and reading a number waits for the device
    start, times = time.perf_counter(), 0
    while (taken := time.perf_counter() - start) < _SECONDS or not times:
        float((x @ weights)[0, 0])
        times += 1
    return 2.0 * times * rows * width * width / taken


def _size(n: float) -> str:
    """Bytes in words."""
    for unit, size in (("GiB", _GIB), ("MiB", 2**20)):
        if n >= size:
            return f"{n / size:.3g} {unit}"
    return f"{n / 1024:.3g} KiB"


def _duration(seconds: float) -> str:
    if seconds < 1:
        return "a second"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
