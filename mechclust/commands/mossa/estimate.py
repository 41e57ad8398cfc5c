"""Estimate what a MOSSA run takes before it begins: steps, tokens, disk, memory and time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from mechclust.commands.cost import Cost, cka_cost
from mechclust.commands.mossa.config import N_PERMUTATIONS, MossaConfig
from mechclust.commands.mossa.inputs import SAMPLE, Inputs, rows_bytes
from mechclust.commands.mossa.layers import layers_bytes
from mechclust.commands.mossa.models import BASE, trained_on, training_examples, tuning_of
from mechclust.models.instruction_format import FormattedExample
from mechclust.models.sizes import Sizes
from mechclust.report.resources import free_disk_bytes
from mechclust.report.text import GIB, size_text
from mechclust.training.tuning import TuneConfig, tuned_adapter_at
from probes.store.safetensors_files import safetensors_bytes
from tasks import InputError
from tasks.text.instructions import Example

# Forward, and back to the activations; all but products (gates, norms, the loss) takes about as long as these.
_PASSES_PER_TRAINED_TOKEN = 4
_READINGS_OF_ANSWERS = 3 * 2  # by base, tuned model and control, with the right answers and exchanged ones
_STEP_OVERHEAD_S = 1e-3  # of an optimiser step, even of a tiny model
_REPORT_BYTES = 64 * 2**20  # on disk for all but adapters and hidden states


@dataclass(frozen=True)
class Plan:
    """Steps, tokens, disk and memory of a run.

    Attributes:
        steps: optimiser steps by model that is trained.
        trained: tokens of the training examples, as often as they are seen.
        measured: tokens of the prompts, with answers too, once for each model that is measured on them.
        adapter: bytes of an adapter that is being trained, with its last two checkpoints.
        rows: bytes of hidden states at most.
        layer: bytes of the last layer and the final norm of two models while they are compared.
        weights: bytes of the base's, at least.
        training: multiplications and additions of all forward and backward passes, at least.
        measuring: those of all forward passes afterwards.
        halves: what half-samples and pairings of the tasks' prompts take, at most.
    """

    steps: dict[str, int]
    trained: float
    measured: float
    adapter: int
    rows: int
    layer: int
    weights: int
    training: float
    measuring: float
    halves: Cost

    @classmethod
    def from_inputs(cls, inputs: Inputs, config: MossaConfig) -> Plan:
        """Estimate from the tasks and the sizes of a model that is not loaded."""
        steps = {}
        trained = training = 0.0
        for model in inputs.models:
            if model.kind != BASE and model.given is None:
                tuning = tuning_of(model, inputs.collection, config)
                steps[model.name] = tuning.steps_for(len(training_examples(model, inputs.collection, config)))
                n = steps[model.name] * tuning.per_step
                sample = [x for task in trained_on(model, inputs.collection) for x in _answered(inputs, task.train)]
                trained += n * _Tokens.from_examples(sample).read
                in_batches = _Tokens.from_examples(sample, tuning.batch_size)
                training += n * _PASSES_PER_TRAINED_TOKEN * in_batches.operations(inputs.sizes)
        measured = _Tokens()
        for task in inputs.measured:
            prompts = inputs.format.prompts([x.prompt for x in task.test[:SAMPLE]])
            each = 3 + config.nulls
            measured += _Tokens(fmean(map(len, prompts))) * (each * min(config.n_prompts, len(task.test)))
            example = _Tokens.from_examples(_answered(inputs, task.train))
            measured += example * (_READINGS_OF_ANSWERS * min(config.n_answers, len(task.test)))
        weights = inputs.sizes.least_weights
        itemsize = getattr(torch, config.dtype).itemsize
        return cls(
            steps,
            trained,
            measured.read,
            4 * _adapter_bytes(inputs.sizes, config.tuning),
            rows_bytes(inputs, config),
            _layer_bytes(inputs, config),
            weights * itemsize,
            training,
            measured.operations(inputs.sizes),
            _halves(inputs, config),
        )

    def lacking(self, out: Path) -> int:
        """Return the most bytes of hidden states, adapters and the report that the folder does not hold yet.

        Finished adapters need no more room, and those that were begun and kept hidden states need less.
        """
        folders = [out / "adapters" / name for name in self.steps]
        begun = [folder for folder in folders if tuned_adapter_at(folder) is None]
        adapters = sum(max(0, self.adapter - safetensors_bytes(folder)) for folder in begun)
        return max(0, self.rows - safetensors_bytes(out / "rows")) + adapters + _REPORT_BYTES

    def check(self, config: MossaConfig, out: Path) -> None:
        """Refuse what does not fit on the disk or the device.

        Raises:
            InputError: with both numbers.
        """
        free = free_disk_bytes(out)
        lacking = self.lacking(out)
        if lacking > free:
            raise InputError(
                f"the run needs up to {size_text(lacking)} more on disk, but {str(out)!r} has "
                f"{size_text(free)} free; give fewer prompts (--n-prompts), or another folder with --out"
            )
        if self.layer * config.at_once > config.max_memory * GIB:
            raise InputError(
                f"comparing the last layer takes up to {size_text(self.layer * config.at_once)} of memory "
                f"({config.at_once} at a time), more than --max-memory {config.max_memory:g}; raise it, or give fewer "
                "prompts (--n-prompts)"
            )
        if not self.weights or not config.device.startswith("cuda") or config.engine != "local":
            return
        room = torch.cuda.mem_get_info(torch.device(config.device))[0]
        needed = (self.weights + self.layer) * config.at_once
        if needed > room:
            raise InputError(
                f"the base's weights and the comparison of a layer take {size_text(needed)} of memory ({config.dtype}, "
                f"{config.at_once} at a time), besides activations and logits, but {config.device} has "
                f"{size_text(room)} free; give --dtype bfloat16, fewer prompts (--n-prompts), or --device-map auto"
            )

    def cost(self, training_speed: float | None, speed: float | None) -> Cost:
        """Return the time and memory of one process, as far as they are known.

        Args:
            training_speed: multiplications and additions per second of the device while it trains, or ``None`` if it is
                elsewhere.
            speed: those while it measures.
        """
        training = 0.0 if training_speed is None else self.training / training_speed
        measuring = 0.0 if speed is None else self.measuring / speed
        steps = _STEP_OVERHEAD_S * sum(self.steps.values())
        return Cost(training + measuring + steps + self.halves.seconds, self.halves.memory)

    def text(self, out: Path) -> str:
        """Return the plan as a sentence, without its time."""
        parts = []
        if self.steps:
            steps = sum(self.steps.values())
            parts.append(f"{len(self.steps)} adapters, {steps:,} steps on about {self.trained:,.0f} tokens")
        parts.append(f"measuring: about {self.measured:,.0f} tokens")
        parts.append(f"disk: up to {size_text(self.lacking(out))}")
        if self.weights:
            parts.append(f"memory: {size_text(self.weights)} for the base, besides activations and logits")
        return "; ".join(parts)


@dataclass(frozen=True)
class _Tokens:
    """Tokens that a model reads, and those among them whose next token it predicts."""

    read: float = 0.0
    predicted: float = 0.0

    @classmethod
    def from_examples(cls, examples: Sequence[FormattedExample], batch_size: int = 1) -> _Tokens:
        """Return the mean tokens of an example, in batches with their padding."""
        answers = [len(example.tokens) - example.start for example in examples]
        return cls(
            mean_longest([len(example.tokens) for example in examples], batch_size), mean_longest(answers, batch_size)
        )

    def __add__(self, other: _Tokens) -> _Tokens:
        return _Tokens(self.read + other.read, self.predicted + other.predicted)

    def __mul__(self, times: float) -> _Tokens:
        return _Tokens(self.read * times, self.predicted * times)

    def operations(self, sizes: Sizes) -> float:
        """Return the multiplications and additions of a forward pass, as far as the sizes are known."""
        blocks = (sizes.n_layers or 0) * (sizes.block_weights or 0)
        return 2 * (self.read * blocks + self.predicted * (sizes.least_weights - blocks))


def mean_longest(lengths: Sequence[int], n: int) -> float:
    """Return the mean of the longest of ``n`` lengths that are drawn at random."""
    shares = np.linspace(0, 1, len(lengths) + 1) ** n
    return float(np.diff(shares) @ np.sort(lengths))


def _answered(inputs: Inputs, examples: Sequence[Example]) -> list[FormattedExample]:
    sample = examples[:SAMPLE]
    return inputs.format.answered([example.prompt for example in sample], [example.answer for example in sample])


def _halves(inputs: Inputs, config: MossaConfig) -> Cost:
    """Return the cost of half-samples of both models' CKA with a control, and of pairings of the tuned one's."""
    n_layers = 1 + (inputs.sizes.n_layers or 0)
    width = inputs.sizes.d_model or 1
    seconds = memory = 0.0
    for task in inputs.measured:
        n = min(config.n_prompts, len(task.test))
        cost = cka_cost(n, width, N_PERMUTATIONS, 2 * config.n_resamples)
        seconds += n_layers * cost.seconds
        memory = cost.memory
    return Cost(seconds, memory)


def _layer_bytes(inputs: Inputs, config: MossaConfig) -> int:
    """Return the bytes of one layer for the task with most prompts."""
    d = inputs.sizes.d_model or 0
    n = min(config.n_prompts, max(len(task.test) for task in inputs.measured))
    return layers_bytes([d, d], [d, d], n, n * config.svcca) if d else 0


def _adapter_bytes(sizes: Sizes, tuning: TuneConfig) -> int:
    """Return the bytes of a float32 adapter, with the optimiser's state of a checkpoint."""
    return 3 * 4 * 2 * tuning.rank * len(tuning.modules) * (sizes.n_layers or 0) * (sizes.d_model or 0)
