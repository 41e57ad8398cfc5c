"""Estimate what a MOSSA run takes before it begins: steps, tokens, disk, memory and time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from mechclust.commands.cost import Cost, cka_cost
from mechclust.commands.mossa.config import N_PERMUTATIONS, MossaConfig
from mechclust.commands.mossa.inputs import SAMPLE, Inputs, chosen_examples, rows_bytes
from mechclust.commands.mossa.jobs import TaskJob, task_jobs
from mechclust.commands.mossa.learnt import ROLES
from mechclust.commands.mossa.models import BASE, Model, answered, training_examples, tuning_of
from mechclust.models.instruction_format import FormattedExample
from mechclust.models.sizes import Sizes
from mechclust.report.resources import free_disk_bytes
from mechclust.report.text import GIB, size_text
from mechclust.training.tuning import TuneConfig, tuned_adapter_at
from probes import CKA, NDims
from probes.store.safetensors_files import safetensors_bytes
from tasks import InputError

_PASSES = 2  # of a training step: forward, and back to the activations
_OTHER_THAN_PRODUCTS = 2.0  # gates, norms and the loss take about as long again
_READINGS_OF_ANSWERS = 2  # the right ones and exchanged ones
_STEP_OVERHEAD_S = 1e-3  # of an optimiser step, even of a tiny model
_STATES = 3  # of each weight in a checkpoint: itself, and AdamW's two moments
_CHECKPOINTS = 3  # one is written before the older of two goes
_REPORT_BYTES = 64 * 2**20  # on disk for all but adapters and hidden states


@dataclass(frozen=True)
class ModelTraining:
    """Training of one model: optimiser steps, tokens, and multiplications and additions of all passes."""

    steps: int
    tokens: float
    operations: float


@dataclass(frozen=True)
class Plan:
    """Steps, tokens, disk and memory of a run.

    Attributes:
        training: what each model takes that is trained, by its name.
        unfinished: names of those that the folder does not hold yet.
        measured: tokens of the prompts, with answers too, once for each model that is measured on them.
        operations: multiplications and additions of measuring.
        adapter: bytes of an adapter.
        at_once: adapters that are trained at once.
        rows: bytes of hidden states at most.
        layer: bytes of the last layer and the final norm of two models while they are compared.
        weights: bytes of the base's, at least.
        beside: bytes of the weights that are in memory beside the base's: of a model that was given, or rounded ones.
        halves: what half-samples and pairings of the tasks' prompts take, at most.
    """

    training: Mapping[str, ModelTraining]
    unfinished: Sequence[str]
    measured: float
    operations: float
    adapter: int
    at_once: int
    rows: int
    layer: int
    weights: int
    beside: int
    halves: Cost

    @classmethod
    def from_inputs(cls, inputs: Inputs, config: MossaConfig, out: Path) -> Plan:
        """Estimate from the tasks, the sizes of a model that is not loaded, and the adapters in the run's folder."""
        trained = [model for model in inputs.models if model.kind != BASE and model.given is None]
        measured = _Tokens()
        for job in task_jobs(inputs, (), config.nulls):
            measured += _measured_tokens(job, inputs, config)
        weights = inputs.sizes.least_weights * getattr(torch, config.dtype).itemsize
        return cls(
            training={model.name: _training(model, inputs, config) for model in trained},
            unfinished=[model.name for model in trained if tuned_adapter_at(model.folder(out)) is None],
            measured=measured.read,
            operations=measured.operations(inputs.sizes),
            adapter=_adapter_bytes(inputs.sizes, config.tuning),
            at_once=config.at_once if config.engine == "local" else config.workers or len(trained),
            rows=rows_bytes(inputs, config),
            layer=_layer_bytes(inputs, config),
            weights=weights,
            beside=_beside(inputs, config, weights),
            halves=_halves(inputs, config),
        )

    def lacking(self, out: Path) -> int:
        """Return the most bytes of hidden states, adapters and the report that the folder does not hold yet."""
        states = _CHECKPOINTS * _STATES * min(self.at_once, len(self.unfinished))
        kept = sum(safetensors_bytes(out / "adapters" / name) for name in self.unfinished)
        adapters = max(0, (len(self.unfinished) + states) * self.adapter - kept)
        return max(0, self.rows - safetensors_bytes(out / "rows")) + adapters + _REPORT_BYTES

    def check(self, config: MossaConfig, out: Path) -> None:
        """Refuse what does not fit on the disk, in ``max_memory`` or on the device.

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
        needed = (self.weights + max(self.beside, self.layer)) * config.at_once
        if needed > room:
            raise InputError(
                f"the base's weights and the comparison of a layer take {size_text(needed)} of memory ({config.dtype}, "
                f"{config.at_once} at a time), besides activations and logits, but {config.device} has "
                f"{size_text(room)} free; give --dtype bfloat16, fewer prompts (--n-prompts), or --device-map auto"
            )

    def cost(self, training_speed: float | None, speed: float | None) -> Cost:
        """Return the time and memory of one process, as far as they are known, without adapters that are trained.

        Args:
            training_speed: multiplications and additions per second of the device while it trains, or ``None`` if it is
                elsewhere.
            speed: those while it measures.
        """
        training = [self.training[name] for name in self.unfinished]
        seconds = self.halves.seconds + _STEP_OVERHEAD_S * sum(each.steps for each in training)
        if training_speed is not None:
            seconds += sum(each.operations for each in training) / training_speed
        if speed is not None:
            seconds += self.operations / speed
        return Cost(seconds, self.halves.memory)

    def text(self, out: Path) -> str:
        """Return the plan as a sentence, without its time."""
        parts = []
        if self.training:
            steps = sum(each.steps for each in self.training.values())
            tokens = sum(each.tokens for each in self.training.values())
            parts.append(f"{len(self.training)} adapters, {steps:,} steps on about {tokens:,.0f} tokens")
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
        lengths = [len(example.tokens) for example in examples]
        answers = [len(example.tokens) - example.start for example in examples]
        return cls(mean_longest(lengths, batch_size), mean_longest(answers, batch_size))

    def __add__(self, other: _Tokens) -> _Tokens:
        return _Tokens(self.read + other.read, self.predicted + other.predicted)

    def __mul__(self, times: float) -> _Tokens:
        return _Tokens(self.read * times, self.predicted * times)

    def operations(self, sizes: Sizes) -> float:
        """Return the multiplications and additions of a forward pass, as far as the sizes are known."""
        blocks = (sizes.n_layers or 0) * (sizes.block_weights or 0)
        return 2 * (self.read * blocks + self.predicted * sizes.embedding_weights)


def mean_longest(lengths: Sequence[int], n: int) -> float:
    """Return the mean of the longest of ``n`` lengths that are drawn at random, with replacement.

    Example:
        >>> mean_longest([4, 8], 1), mean_longest([4, 8], 2)
        (6.0, 7.0)
    """
    share_up_to = np.linspace(0, 1, len(lengths) + 1) ** n
    return float(np.diff(share_up_to) @ np.sort(lengths))


def _training(model: Model, inputs: Inputs, config: MossaConfig) -> ModelTraining:
    examples = training_examples(model, inputs.collection, config)
    tuning = tuning_of(model, inputs.collection, config)
    steps = tuning.steps_for(len(examples))
    n_read = steps * len(examples) / tuning.steps_per_epoch(len(examples))
    sample = answered(inputs.format, examples[:: math.ceil(len(examples) / (4 * SAMPLE))])
    operations = _Tokens.from_examples(sample, tuning.batch_size).operations(inputs.sizes)
    return ModelTraining(
        steps,
        n_read * _Tokens.from_examples(sample).read,
        n_read * _PASSES * _OTHER_THAN_PRODUCTS * operations,
    )


def _measured_tokens(job: TaskJob, inputs: Inputs, config: MossaConfig) -> _Tokens:
    """Return the tokens of a task's prompts and answers, once for each model that reads them."""
    task = inputs.collection[job.task]
    sample = chosen_examples(task, SAMPLE)
    prompts = inputs.format.prompts([example.prompt for example in sample])
    states = _Tokens(fmean(map(len, prompts))) * (len(job.models) * min(config.n_prompts, len(task.test)))
    readings = _READINGS_OF_ANSWERS * sum(role in ROLES for role in job.models)
    answers = _Tokens.from_examples(answered(inputs.format, sample)) * (
        readings * min(config.n_answers, len(task.test))
    )
    return states + answers


def _halves(inputs: Inputs, config: MossaConfig) -> Cost:
    """Return the cost of half-samples of both models' CKA with a control, and of pairings of the tuned one's."""
    n_layers = 1 + (inputs.sizes.n_layers or 0)
    width = inputs.sizes.d_model or 1
    units = config.units is not None
    costs = [
        cka_cost(min(config.n_prompts, len(task.test)), width, N_PERMUTATIONS, 2 * config.n_resamples, units=units)
        for task in inputs.measured
    ]
    return Cost(n_layers * sum(cost.seconds for cost in costs), max(cost.memory for cost in costs))


def _layer_bytes(inputs: Inputs, config: MossaConfig) -> int:
    """Return the bytes of one layer for the task with most prompts."""
    d = inputs.sizes.d_model or 0
    n = min(config.n_prompts, max(len(task.test) for task in inputs.measured))
    if not d:
        return 0
    both = [d, d]  # the last layer is compared twice, the second time after the final norm
    svcca = 3 * 4 * n * sum(both + both) if config.svcca else 0
    return max(CKA(form="rows").memory(both, both, n=n), NDims().memory(both + both, n), svcca)


def _adapter_bytes(sizes: Sizes, tuning: TuneConfig) -> int:
    """Return the bytes of a float32 adapter beside layers of the model's width."""
    return 4 * 2 * tuning.rank * len(tuning.modules) * (sizes.n_layers or 0) * (sizes.d_model or 0)


def _beside(inputs: Inputs, config: MossaConfig, weights: int) -> int:
    """Return the bytes of weights beside the base's: a whole model that was given, or the rounded ones of training."""
    if any(model.given is not None and not model.given.is_adapter for model in inputs.models):
        return weights
    return weights // 2 if config.trains and config.tuning.bf16 and config.dtype == "float32" else 0
