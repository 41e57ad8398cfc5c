"""Trains the networks of the study one by one, and measures them during training."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from mechclust.models import ModelConfig, build_model, model_for
from mechclust.report.probe_trial import try_probes
from mechclust.studies.cluster_factors.config import (
    TRIED,
    ClusterFactorsConfig,
    jobs,
    measured_steps,
    network_shape,
    task_of,
    training_of,
)
from mechclust.studies.cluster_factors.measurements import probes_of
from mechclust.studies.cluster_factors.swap import swap_centroids
from mechclust.studies.extra_probes import TrainedModel
from mechclust.studies.kept import measure_once, on_device
from mechclust.studies.study import Job, check_machine
from mechclust.studies.trainings import Training
from mechclust.training import AccuracyCallback, Callback, CheckpointCallback, ProbeCallback, train
from probes import HookedModel, ProbeResult
from tasks import Batch, InstructionFollowing
from tasks.instructions import TRAIN_SUBSET, VALIDATION_SUBSET

_N_SWAPPED = 200  # validation examples whose states are changed, at least, if there are so many


def trainings(config: ClusterFactorsConfig) -> list[Training]:
    """Return the trainings of a run, by arm."""
    trained = []
    for arm in config.arms:
        job = Job(arm, config.seeds[0])
        network = _model_config(config, job)
        trained.append(Training(network, task_of(config, job), training_of(config, arm), len(config.seeds)))
    return trained


def check(config: ClusterFactorsConfig) -> None:
    """Refuse a device that is not here, and data that cannot be measured.

    Raises:
        InputError: naming the arm and the measure, before anything is trained.
    """
    check_machine(config)
    short = replace(config, n_init=1, n_permutations=1, n_shuffles=1)
    for arm in config.arms:
        if arm in TRIED:
            prompts = _prompts(task_of(config, Job(arm, config.seeds[0])))
            try_probes(probes_of(short, arm), prompts, f"examples of the arm {arm!r}", kind="measure")


def run_job(config: ClusterFactorsConfig, job: Job, out: Path) -> None:
    """Train one network and measure it at its checkpoints, keeping existing results."""
    results = out / "results" / job.name
    models = out / "models" / job.name
    task = task_of(config, job)
    steps = measured_steps(config)
    callbacks: list[Callback] = [
        CheckpointCallback(models, at=steps[-1:]),
        AccuracyCallback(results, task, VALIDATION_SUBSET),
        ProbeCallback(results, {VALIDATION_SUBSET: _prompts(task)}, probes_of(config, job.arm), at=steps),
    ]
    model = build_network(config, job)
    train(model, task, training_of(config, job.arm), models, callbacks, progress=True, name=job.name)
    measure_once(results / "swap.safetensors", partial(_swapped, model, task, job.seed))


def build_network(config: ClusterFactorsConfig, job: Job) -> HookedModel:
    """Return the network of a run before training."""
    return on_device(build_model(_model_config(config, job)), config.device)


def _model_config(config: ClusterFactorsConfig, job: Job) -> ModelConfig:
    return model_for(task_of(config, job), seed=job.seed, **network_shape(config, job.arm))


def _prompts(task: InstructionFollowing) -> list[Batch]:
    """Return the validation examples with their answers masked, so that no measured state has seen the answer."""
    return [_without_answer(batch) for batch in task.batches(VALIDATION_SUBSET)]


def _without_answer(batch: Batch) -> Batch:
    pos = torch.arange(batch.tokens.shape[1])
    positions = {name: position for name, position in batch.positions.items() if name != "output"}
    return replace(batch, attention_mask=pos <= batch.position("input")[:, None], positions=positions)


def _swapped(model: HookedModel, task: InstructionFollowing, seed: int) -> ProbeResult:
    (known,) = task.batches(TRAIN_SUBSET, task.n_eval)
    (validation,) = task.batches(VALIDATION_SUBSET, task.n_eval)
    spread = torch.arange(0, len(validation), max(1, len(validation) // _N_SWAPPED))  # examples are ordered by task
    return swap_centroids(model, task, known, validation.select(spread), seed)


def trained_models(config: ClusterFactorsConfig, out: Path) -> list[TrainedModel]:
    """Return every run's network at the end of training, with the validation examples."""
    steps = config.training.steps
    return [
        TrainedModel.at_last_step(out, job.name, task_of(config, job), VALIDATION_SUBSET, steps) for job in jobs(config)
    ]
