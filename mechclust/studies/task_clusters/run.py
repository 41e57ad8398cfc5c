"""Trains the models of the task-cluster study, and measures them during training."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from mechclust.models import ModelConfig, build_model, model_for
from mechclust.report.probe_trial import try_probes
from mechclust.studies.extra_probes import TrainedModel
from mechclust.studies.kept import measure_once, on_device
from mechclust.studies.study import Job, check_machine
from mechclust.studies.task_clusters.config import TaskClustersConfig, jobs, pictured_steps, task_of
from mechclust.studies.trainings import Training
from mechclust.training import AccuracyCallback, Callback, CheckpointCallback, ProbeCallback, train
from mechclust.training.results_by_step import loss_result_by_step
from probes import Projection, TaskClusterARI, residual, token_at
from tasks.instructions import TRAIN_SUBSET, VALIDATION_SUBSET

_SPLITS = (TRAIN_SUBSET, VALIDATION_SUBSET)


def trainings(config: TaskClustersConfig) -> list[Training]:
    """Return the trainings, by arm."""
    first = [Job(arm, config.seeds[0]) for arm in config.arms]
    n_seeds = len(config.seeds)
    return [Training(_model_config(config, job), task_of(config, job), config.training, n_seeds) for job in first]


def _model_config(config: TaskClustersConfig, job: Job) -> ModelConfig:
    """Return the configuration of a run's network."""
    return model_for(
        task_of(config, job),
        n_layers=config.n_layers,
        d_model=config.d_model,
        n_heads=config.n_heads,
        tied=config.tied,
        seed=job.seed,
    )


def check(config: TaskClustersConfig) -> None:
    """Refuse a device that is not here, and data that cannot be measured.

    Raises:
        InputError: naming the arm, before anything is trained.
    """
    check_machine(config)
    short = replace(config, n_init=1, n_permutations=1)
    for arm in config.arms:
        task = task_of(config, Job(arm, config.seeds[0]))
        for split in _SPLITS:
            try_probes({"ari": _ari(short)}, task.batches(split), f"examples of the arm {arm!r}", kind="measure")


def _ari(config: TaskClustersConfig) -> TaskClusterARI:
    """Return the probe of clusters."""
    at = residual(final_norm=True)
    draws = config.n_permutations
    return TaskClusterARI(also=("output",), within="input", at=at, n_init=config.n_init, n_permutations=draws)


def run_job(config: TaskClustersConfig, job: Job, out: Path) -> None:
    """Train one model and measure it at its checkpoints, keeping existing results."""
    task = task_of(config, job)
    model = on_device(build_model(_model_config(config, job)), config.device)
    results = out / "results" / job.name
    models = out / "models" / job.name
    end = config.training.steps
    batches = {split: list(task.batches(split)) for split in _SPLITS}
    validation = {VALIDATION_SUBSET: batches[VALIDATION_SUBSET]}
    ari = _ari(config)
    callbacks: list[Callback] = [
        CheckpointCallback(models, at=[end]),
        AccuracyCallback(results, task, VALIDATION_SUBSET),
        ProbeCallback(results, batches, {"ari": ari}),
    ]
    if config.tsne:
        tsne = TaskClusterARI(**{**ari.parameters(), "reduce": "tsne"})
        callbacks.append(ProbeCallback(results, validation, {"ari-tsne": tsne}, at=[end]))
    if job == jobs(config)[0]:
        picture = Projection(at=residual(), readout=token_at("input"), method="tsne" if config.tsne else "pca")
        callbacks.append(ProbeCallback(results, validation, {"projection": picture}, at=pictured_steps(config)))
    losses = train(model, task, config.training, models, callbacks, progress=True, name=job.name)
    measure_once(results / "loss.safetensors", partial(loss_result_by_step, losses))


def trained_models(config: TaskClustersConfig, out: Path) -> list[TrainedModel]:
    """Return every run's model at the end of training, with the validation examples."""
    steps = config.training.steps
    return [
        TrainedModel.at_last_step(out, job.name, task_of(config, job), VALIDATION_SUBSET, steps) for job in jobs(config)
    ]
