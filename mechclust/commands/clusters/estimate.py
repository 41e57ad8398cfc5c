"""What a measurement will take: tokens, disk, memory and time, before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from mechclust.models.sizes import Sizes
from mechclust.report.folder import free_space, kept_bytes
from mechclust.report.resources import GIB, duration_text, size_text
from probes.functional.linear_decodability import ALPHAS
from tasks import Batch, InputError

# Bytes a layer takes per number of its hidden states: the rows (float32), what a probe keeps of them and the copies
# that k-means and the classifier make (float64); 53 were measured, with more prompts than dimensions.
_COPIES = 64
_TARGETS = 128 * 2**20  # bytes of the classifier's targets that are held at once, beside these
_REPORT = 64 * 2**20  # bytes on disk for all but hidden states
_ITERATIONS = 20  # of k-means, from one start


@dataclass(frozen=True)
class Statistics:
    """What is measured of each layer.

    Attributes:
        clusters: numbers of clusters, one for each time that states are clustered.
        n_init: k-means starts.
        classes: numbers of classes that the classifier reads, one for each label.
        labelings: the labels as they are and their shuffles.
        folds: of the classifier.
    """

    clusters: Sequence[int]
    n_init: int
    classes: Sequence[int]
    labelings: int
    folds: int

    def operations(self, n: int, d: int) -> int:
        """Multiplications and additions for ``n`` states of ``d`` dimensions, roughly."""
        rank = min(n, d)
        k_means = 2 * self.n_init * _ITERATIONS * n * d * sum(self.clusters)
        decomposed = 10 * rank**3 + 2 * n * d * rank
        fits = 4 * n * rank * sum(self.classes) * self.labelings * len(ALPHAS)
        return k_means + self.folds * (decomposed + fits)


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
        measuring: those of the statistics, roughly; ``None``: not known.
    """

    n_prompts: int
    n_models: int
    tokens: int
    positions: int
    disk: int | None
    layer: int | None
    operations: int | None
    measuring: int | None = None

    @classmethod
    def of(
        cls,
        batches: Sequence[Batch],
        sizes: Sizes,
        n_models: int,
        dtype: torch.dtype,
        statistics: Statistics | None = None,
    ) -> Estimate:
        """From the prompts as tokens and the sizes of a model that is not loaded."""
        n, tokens = sum(map(len, batches)), sum(int(batch.lengths().sum()) for batch in batches)
        positions = sum(batch.tokens.numel() for batch in batches)
        disk = layer = operations = measuring = None
        if sizes.n_layers is not None and sizes.d_model is not None:
            disk = n_models * n * (sizes.n_layers + 1) * sizes.d_model * dtype.itemsize
            layer = n * sizes.d_model * _COPIES + _TARGETS
            if statistics is not None:
                measuring = n_models * (sizes.n_layers + 1) * statistics.operations(n, sizes.d_model)
            if sizes.block_weights is not None:
                operations = 2 * n_models * positions * sizes.n_layers * sizes.block_weights
        return cls(n, n_models, tokens, positions, disk, layer, operations, measuring)

    def check(self, max_memory: float, out: Path, rows: Path, at_once: int = 1) -> None:
        """Refuse layers that do not fit in memory, and hidden states that do not fit on disk.

        Args:
            max_memory: GiB.
            out: folder of the hidden states and the report.
            rows: where hidden states may be kept already.
            at_once: layers that are measured side by side.

        Raises:
            InputError: with both numbers.
        """
        if self.layer is not None and self.layer * at_once > max_memory * GIB:
            what, fewer = "a layer", "fewer prompts (--max-rows)"
            if at_once > 1:
                what, fewer = f"{at_once} layers at once", "fewer --workers or prompts (--max-rows)"
            raise InputError(
                f"measuring {what} takes about {self.layer * at_once / GIB:.3g} GiB ({self.n_prompts} prompts), more "
                f"than max_memory = {max_memory:g}; give {fewer}, or raise --max-memory"
            )
        free = free_space(out)
        if self.disk is not None and (lacking := max(0, self.disk - kept_bytes(rows)) + _REPORT) > free:
            models = "the model" if self.n_models == 1 else f"{self.n_models} models"
            raise InputError(
                f"the hidden states of {models} take {size_text(self.disk)} on disk ({self.n_prompts} prompts), of "
                f"which {size_text(lacking)} with the report are still to be written, but {str(out)!r} has "
                f"{size_text(free)} free; give fewer prompts (--max-rows), --dtype bfloat16, or another folder with "
                "--out"
            )

    def text(self, speed: float | None, statistics: float | None = None, *, shared: bool = False) -> str:
        """In a sentence.

        Args:
            speed: multiplications and additions per second of the model's device.
            statistics: the same of the device on which statistics are computed.
            shared: whether several workers do it.
        """
        padding = 1 - self.tokens / self.positions
        said = [f"{self.n_prompts} prompts of {self.tokens} tokens ({padding:.0%} padding)"]
        if self.n_models > 1:
            said.append(f"{self.n_models} models")
        if self.disk is not None and self.layer is not None:
            said.append(
                f"hidden states: {size_text(self.disk)} on disk, about {size_text(self.layer)} of memory per layer"
            )
        if self.operations is not None and speed is not None:
            said.append(f"forward passes: at least {duration_text(self.operations / speed)}")
        if self.measuring is not None and statistics is not None:
            said.append(f"measuring: about {duration_text(self.measuring / statistics)}")
        if shared and (speed is not None or statistics is not None):
            said.append("times are for one worker; several workers share the work")
        return "; ".join(said)
