"""Estimate what a MOSSA run takes before it begins: steps, tokens, disk, memory and time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch

from mechclust.commands.cost import Cost, cka_cost
from mechclust.commands.mossa.config import N_PERMUTATIONS, MossaConfig
from mechclust.commands.mossa.inputs import SAMPLE, Inputs, rows_bytes
from mechclust.commands.mossa.layers import layers_bytes
from mechclust.commands.mossa.models import BASE, trained_on, training_examples, tuning_of
from mechclust.models.sizes import Sizes
from mechclust.report.resources import free_disk_bytes
from mechclust.report.text import GIB, size_text
from mechclust.training.tuning import TuneConfig, tuned_adapter_at
from probes.store.safetensors_files import safetensors_bytes
from tasks import InputError

_OPERATIONS_PER_TRAINED_TOKEN = 4  # per weight: forward, and back to the activations
_STEP_OVERHEAD_S = 1e-3  # of an optimiser step, even of a tiny model
_REPORT_BYTES = 64 * 2**20  # on disk for all but adapters and hidden states


@dataclass(frozen=True)
class Plan:
    """Steps, tokens, disk and memory of a run.

    Attributes:
        steps: optimiser steps by model that is trained.
        trained: tokens of the training examples, as often as they are seen.
        measured: tokens of the prompts, once for each model that is measured on them.
        adapter: bytes of an adapter that is being trained, with its last two checkpoints.
        rows: bytes of hidden states at most.
        layer: bytes of the last layer and the final norm of two models while they are compared.
        weights: bytes of the base's, at least.
        operations: multiplications and additions of all forward and backward passes, at least.
        halves: what half-samples and pairings of the tasks' prompts take, at most.
    """

    steps: dict[str, int]
    trained: float
    measured: float
    adapter: int
    rows: int
    layer: int
    weights: int
    operations: float
    halves: Cost

    @classmethod
    def from_inputs(cls, inputs: Inputs, config: MossaConfig) -> Plan:
        """Estimate from the tasks and the sizes of a model that is not loaded."""
        lengths = _lengths(inputs)
        steps = {}
        trained = 0.0
        for model in inputs.models:
            if model.kind != BASE and model.given is None:
                examples = training_examples(model, inputs.collection, config)
                tuning = tuning_of(model, inputs.collection, config)
                steps[model.name] = tuning.steps_for(len(examples))
                tasks = trained_on(model, inputs.collection)
                mean = sum(lengths[task.name][0] for task in tasks) / len(tasks)
                trained += steps[model.name] * tuning.per_step * mean
        each = 3 + config.nulls
        measured = sum(each * min(config.n_prompts, len(task.test)) * lengths[task.name][1] for task in inputs.measured)
        weights = inputs.sizes.least_weights
        itemsize = getattr(torch, config.dtype).itemsize
        return cls(
            steps,
            trained,
            measured,
            4 * _adapter_bytes(inputs.sizes, config.tuning),
            rows_bytes(inputs, config),
            _layer_bytes(inputs, config),
            weights * itemsize,
            weights * (_OPERATIONS_PER_TRAINED_TOKEN * trained + 2 * measured),
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

    def cost(self, speed: float | None) -> Cost:
        """Return the time and memory of one process, as far as they are known.

        Args:
            speed: multiplications and additions per second of the device, or ``None`` if it is elsewhere.
        """
        passes = 0.0 if speed is None else self.operations / speed
        steps = _STEP_OVERHEAD_S * sum(self.steps.values())
        return Cost(passes + steps + self.halves.seconds, self.halves.memory)

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


def _lengths(inputs: Inputs) -> dict[str, tuple[float, float]]:
    """Return the mean tokens of an example and of a prompt by task, from the first ones."""
    lengths = {}
    for task in inputs.collection:
        examples = task.train[:SAMPLE]
        answered = inputs.format.answered([e.prompt for e in examples], [e.answer for e in examples])
        prompts = inputs.format.prompts([e.prompt for e in (task.test or task.train)[:SAMPLE]])
        mean_answered = fmean(len(example.tokens) for example in answered)
        lengths[task.name] = (mean_answered, fmean(map(len, prompts)))
    return lengths


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
