"""Trains the networks of the study one by one, and measures them during training."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mechclust.models import build_model, load_model, model_for
from mechclust.studies.cluster_factors.config import (
    TRAIN,
    VALIDATION,
    ClusterFactorsConfig,
    jobs,
    measured_steps,
    names_of,
    shape_of,
    task_of,
    training_of,
)
from mechclust.studies.cluster_factors.swap import swap_centroids
from mechclust.studies.extra_probes import TrainedModel
from mechclust.studies.kept import once
from mechclust.studies.study import Job
from mechclust.training import AccuracyCallback, Callback, CheckpointCallback, ProbeCallback, train
from mechclust.training.callbacks import loss_result
from probes import HookedModel, LinearDecodability, Probe, ProbeResult, TaskClusterARI, mean, token_at
from probes.engine.identity import fingerprint
from tasks import Batch, InstructionFollowing

_SWAPPED = 200  # validation examples whose states are changed


def run_job(config: ClusterFactorsConfig, job: Job, out: Path) -> None:
    """Train one network and measure it at its checkpoints; existing results are not recomputed."""
    task = task_of(config, job)
    model = built(config, job)
    results, models = out / "results" / job.name, out / "models" / job.name
    losses = train(
        model,
        task,
        training_of(config, job.arm),
        models,
        callbacks_of(config, job, out),
        progress=True,
        name=job.name,
    )
    own = fingerprint(model)
    once(results / "loss.safetensors", lambda: loss_result(losses), own)
    once(results / "swap.safetensors", partial(_swapped, model, task, job.seed), own)


def built(config: ClusterFactorsConfig, job: Job) -> HookedModel:
    """The network of a run before training."""
    model = build_model(model_for(task_of(config, job), seed=job.seed, **shape_of(config, job.arm)))
    if config.device != "cpu":
        model.to(config.device)
    return model


def callbacks_of(config: ClusterFactorsConfig, job: Job, out: Path) -> list[Callback]:
    """What is measured and kept during training: everything that ``train`` takes besides the network and its data.

    Any training loop that calls these at the checkpoints, for one network or many at once, writes the same files.
    """
    task, steps = task_of(config, job), measured_steps(config)
    results, models = out / "results" / job.name, out / "models" / job.name
    probes = _probes(config, job.arm)
    return [
        CheckpointCallback(models, at=[steps[-1]]),
        AccuracyCallback(results, task, VALIDATION),
        ProbeCallback(results, {VALIDATION: _prompts(task, VALIDATION)}, probes, at=steps),
        ProbeCallback(results, {TRAIN: _prompts(task, TRAIN)}, {"x": probes["x"]}, at=[steps[-1]]),
    ]


def _probes(config: ClusterFactorsConfig, arm: str) -> dict[str, Probe]:
    """By file name. Sites are layers 0 to n."""
    x, end = token_at("input"), token_at("instruction_end")
    ari: Any = partial(TaskClusterARI, n_init=config.n_init)
    counted, formula = {"n_permutations": config.n_permutations}, {"n_permutations": 0}
    found: dict[str, Probe] = {
        "x": ari("task", readout=x, also=("output",), within="input", **counted),
        "x-input": ari("input", readout=x, **formula),
        "x-task-given-output": ari("task", readout=x, given="output", **counted),
        "x-output-given-task": ari("output", readout=x, given="task", **counted),
        "x-linear": LinearDecodability("task", readout=x, n_shuffles=config.n_shuffles),
        "instruction": ari("task", readout=end, **formula),
        "mean": ari("task", readout=mean(), also=("output",), within="input", **counted),
        "mean-input": ari("input", readout=mean(), **formula),
    }
    return {name: found[name] for name in names_of(arm)}


def _prompts(task: InstructionFollowing, split: str) -> list[Batch]:
    """The examples of a split with their answers masked, so that no measured state has seen the answer."""
    return [_without_answer(batch) for batch in task.batches(split)]


def _without_answer(batch: Batch) -> Batch:
    at = torch.arange(batch.tokens.shape[1])
    positions = {name: where for name, where in batch.positions.items() if name != "output"}
    return replace(batch, attention_mask=at <= batch.position("input")[:, None], positions=positions)


def _swapped(model: HookedModel, task: InstructionFollowing, seed: int) -> ProbeResult:
    (known,), (asked,) = (list(task.batches(split, task.n_eval)) for split in (TRAIN, VALIDATION))
    every = torch.arange(0, len(asked), max(1, len(asked) // _SWAPPED))  # examples are ordered by task
    return swap_centroids(model, task, known, asked.select(every), seed)


def load_trained(config: ClusterFactorsConfig, out: Path, job: Job) -> HookedModel:
    """The network at the end of a run."""
    return load_model(out / "models" / job.name / f"step-{config.training.steps:06d}.safetensors")


def trained_models(config: ClusterFactorsConfig, out: Path) -> list[TrainedModel]:
    """Every run's network at the end of training, with the validation examples."""

    def load(job: Job) -> tuple[HookedModel, Iterable[Batch]]:
        return load_trained(config, out, job), task_of(config, job).batches(VALIDATION)

    return [TrainedModel(job.name, partial(load, job)) for job in jobs(config)]
