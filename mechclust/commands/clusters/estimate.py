"""Estimate what a measurement will take before it begins: tokens, disk, memory and time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mechclust.commands.clusters.config import MAX_QUERIES, ClustersConfig
from mechclust.commands.clusters.inputs import Inputs
from mechclust.commands.cost import HALF_CLUSTERING_OVERHEAD_S, LABEL_WIDTH, Cost, relabelling_seconds
from mechclust.report.matmul_speed import matmul_speed
from mechclust.report.resources import free_disk_bytes
from mechclust.report.text import GIB, duration_text, size_text
from probes.functional.linear_decodability import ALPHAS
from probes.rows.kept_rows import activations_dtype
from probes.store.safetensors_files import safetensors_bytes
from tasks import InputError

# Bytes per number of a layer's hidden states: the rows (float32), the probe's copy, and the copies that k-means and the
# classifier make (float64). 53 were measured, with more prompts than dimensions.
_BYTES_PER_NUMBER = 64
_TARGET_BYTES = 128 * 2**20  # the classifier's targets that are in memory at once
_REPORT_BYTES = 64 * 2**20  # on disk, for all but hidden states
_K_MEANS_ITERATIONS = 20  # from one start


@dataclass(frozen=True)
class Statistics:
    """Sizes of the statistics that are computed of each layer.

    Attributes:
        clusters: numbers of clusters, one for each time that states are clustered.
        n_starts: k-means starts of a model, on average: those of all prompts, and two for each half of the trained
            model's.
        classes: numbers of classes that the classifier reads, one for each label.
        labelings: number of labelings: the labels as they are, and their shuffles.
        folds: of the classifier.
        searches: how many times nearest neighbours are found.
    """

    clusters: Sequence[int]
    n_starts: int
    classes: Sequence[int]
    labelings: int
    folds: int
    searches: int = 0

    @classmethod
    def from_inputs(cls, inputs: Inputs, config: ClustersConfig) -> Statistics:
        """Return the sizes for these prompts and settings."""
        classes = [len(set(inputs.labels[name])) for name in config.labels]
        clusters = classes if config.n_clusters is None else [config.n_clusters] * len(classes)
        n_clusterings = 1 if config.given == "none" else 2
        n_starts = config.n_init + config.n_resamples // (1 + config.untrained)
        n_labelings = 1 + config.n_shuffles // (1 + config.untrained)
        searches = 0 if inputs.held_out is None else 2
        folds = config.folds(inputs.labels)
        return cls(clusters * n_clusterings, n_starts, classes, n_labelings, folds, searches)

    def operations(self, n: int, d: int) -> int:
        """Return roughly how many multiplications and additions ``n`` states of ``d`` dimensions take."""
        rank = min(n, d)
        k_means = 2 * self.n_starts * _K_MEANS_ITERATIONS * n * d * sum(self.clusters)
        decomposition = 10 * rank**3 + 2 * n * d * rank
        fits = 4 * n * rank * sum(self.classes) * self.labelings * len(ALPHAS)
        neighbours = 2 * self.searches * min(n, MAX_QUERIES) * n * d
        return k_means + self.folds * (decomposition + fits) + neighbours


@dataclass(frozen=True)
class Estimate:
    """Estimated cost of measuring a model and its copies with random weights on the same prompts.

    Attributes:
        n_prompts: number of prompts.
        n_models: number of models.
        tokens: tokens of the prompts.
        positions: tokens with padding.
        disk: bytes of the hidden states of all models.
        layer: bytes of memory for one layer, with the copies that measuring makes.
        operations: multiplications and additions of all forward passes, at least; ``None`` if not known.
        measuring: multiplications and additions of the statistics, roughly; ``None`` if not known.
        drawing: what permutations and half-samples take besides, at most, and their memory.
        smaller: setting with which hidden states take less room on disk, if there is any, with a comma.
    """

    n_prompts: int
    n_models: int
    tokens: int
    positions: int
    disk: int | None
    layer: int | None
    operations: int | None
    measuring: int | None
    drawing: Cost
    smaller: str = ""

    @classmethod
    def from_inputs(cls, inputs: Inputs, config: ClustersConfig, model: Any = None) -> Estimate:
        """Estimate from the prompts as tokens and the sizes of a model.

        Args:
            inputs: the prompts.
            config: the settings.
            model: the model, if it is in memory. Its hidden states have its own dtype, not that of the settings.
        """
        dtype = getattr(torch, config.dtype) if model is None else activations_dtype(model)
        if config.position == "mean":
            dtype = torch.promote_types(dtype, torch.float32)  # as means over tokens are
        smaller = "--dtype bfloat16, " if model is None and config.position != "mean" and dtype.itemsize > 2 else ""
        n = len(inputs)
        n_models = 1 + config.untrained
        positions = sum(batch.tokens.numel() for batch in inputs.batches)
        disk = layer = operations = measuring = None
        sizes = inputs.sizes
        if sizes.n_layers is not None and sizes.d_model is not None:
            layers = n_models * (sizes.n_layers + 1)
            disk = layers * n * sizes.d_model * dtype.itemsize
            layer = n * sizes.d_model * _BYTES_PER_NUMBER + _TARGET_BYTES
            measuring = layers * Statistics.from_inputs(inputs, config).operations(n, sizes.d_model)
            if sizes.block_weights is not None:
                operations = 2 * n_models * positions * sizes.n_layers * sizes.block_weights
        tokens = sum(int(batch.lengths().sum()) for batch in inputs.batches)
        drawing = _drawing(inputs, config)
        return cls(n, n_models, tokens, positions, disk, layer, operations, measuring, drawing, smaller)

    def check(self, max_memory: float, out: Path, rows: Path, at_once: int = 1) -> None:
        """Refuse layers that do not fit in memory, and hidden states that do not fit on disk.

        Args:
            max_memory: GiB.
            out: folder of the hidden states and the report.
            rows: folder in which some hidden states may be already.
            at_once: layers that are measured at the same time.

        Raises:
            InputError: with the size that is needed and the one that is allowed or free.
        """
        if self.layer is not None:
            self._check_memory(self.layer * at_once / GIB, max_memory, at_once)
        if self.disk is not None:
            self._check_disk(self.disk, out, rows)

    def _check_memory(self, needed: float, max_memory: float, at_once: int) -> None:
        if needed <= max_memory:
            return
        what = "a layer"
        fewer = "fewer prompts (--max-rows)"
        if at_once > 1:
            what = f"{at_once} layers at once"
            fewer = "fewer --workers or prompts (--max-rows)"
        raise InputError(
            f"measuring {what} takes about {needed:.3g} GiB ({self.n_prompts} prompts), more than max_memory = "
            f"{max_memory:g}; give {fewer}, or raise --max-memory"
        )

    def _check_disk(self, needed: int, out: Path, rows: Path) -> None:
        to_write = max(0, needed - safetensors_bytes(rows)) + _REPORT_BYTES
        free = free_disk_bytes(out)
        if to_write <= free:
            return
        models = "the model" if self.n_models == 1 else f"{self.n_models} models"
        raise InputError(
            f"the hidden states of {models} take {size_text(needed)} on disk ({self.n_prompts} prompts), of which "
            f"{size_text(to_write)} with the report are still to be written, but {str(out)!r} has {size_text(free)} "
            f"free; give fewer prompts (--max-rows), {self.smaller}or another folder with --out"
        )

    def seconds(self, speed: float | None, statistics: float | None) -> float:
        """Return how long one process takes, as far as that is known; the speeds are those of ``text``."""
        forward = 0.0 if self.operations is None or speed is None else self.operations / speed
        measuring = 0.0 if self.measuring is None or statistics is None else self.measuring / statistics
        return forward + measuring + self.drawing.seconds

    def text(self, speed: float | None, statistics: float | None = None, *, shared: bool = False) -> str:
        """Return the estimate in words.

        Args:
            speed: multiplications and additions per second of the model's device.
            statistics: multiplications and additions per second of the device on which statistics are computed.
            shared: whether several workers share the work.
        """
        padding = 1 - self.tokens / self.positions
        parts = [f"{self.n_prompts} prompts of {self.tokens} tokens ({padding:.0%} padding)"]
        if self.n_models > 1:
            parts.append(f"{self.n_models} models")
        if self.disk is not None and self.layer is not None:
            memory = f"about {size_text(self.layer)} of memory per layer"
            parts.append(f"hidden states: {size_text(self.disk)} on disk, {memory}")
        if self.operations is not None and speed is not None:
            parts.append(f"forward passes: at least {duration_text(self.operations / speed)}")
        if self.measuring is not None and statistics is not None:
            parts.append(f"measuring: about {duration_text(self.measuring / statistics)}")
        if shared and (speed is not None or statistics is not None):
            parts.append("times are for one worker; several workers share the work")
        return "; ".join(parts)


def _drawing(inputs: Inputs, config: ClustersConfig) -> Cost:
    """Return the cost of permutations and half-samples, but for the multiplications that ``Statistics`` counts."""
    n = len(inputs)
    n_clusterings = len(config.labels) * (1 if config.given == "none" else 2)
    n_tested = n_clusterings + (inputs.held_out is not None)  # and the nearest neighbours
    relabellings = (1 + config.untrained) * n_tested * config.n_permutations
    shuffles = len(config.labels) * config.n_shuffles  # as halves, of the trained model alone
    halves = n_clusterings * config.n_resamples
    n_layers = 1 + (inputs.sizes.n_layers or 0)
    seconds = (relabellings + shuffles) * relabelling_seconds(n, LABEL_WIDTH)
    seconds += halves * HALF_CLUSTERING_OVERHEAD_S
    return Cost(n_layers * seconds, 8.0 * (n * config.n_resamples + config.n_permutations))


def device_speeds(estimate: Estimate, inputs: Inputs, config: ClustersConfig) -> tuple[float | None, float | None]:
    """Return the speeds of the model's device and of the statistics' device, if an estimate of time needs them."""
    width = inputs.sizes.d_model or 1
    model = statistics = None
    if estimate.operations is not None:
        model = config.forward_speed(width)
    if estimate.measuring is not None:
        device = config.statistics or "cpu"
        statistics = matmul_speed(device, torch.float64, width, 512, one_thread=config.one_thread)
    return model, statistics
