"""Trains attention-only networks on repeated tokens, measures roles of heads during training, and ablates heads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from mechclust.models import ModelConfig, build_model, model_for
from mechclust.studies.extra_probes import TrainedModel
from mechclust.studies.induction_heads.config import LAYERS_OF_ARM, SPLIT, InductionHeadsConfig, jobs, task_of
from mechclust.studies.kept import measure_once, on_device
from mechclust.studies.study import Job
from mechclust.studies.trainings import Training
from mechclust.training import Callback, CheckpointCallback, ProbeCallback, train
from mechclust.training.results_by_step import loss_result_by_step
from probes import HeadRoles, HookedModel, ProbeResult
from probes.engine.devices import device_of
from probes.engine.hooked_model import evaluation_mode, forward
from probes.engine.record import record
from tasks import Batch, RepeatedTokens


def trainings(config: InductionHeadsConfig) -> list[Training]:
    """Return the trainings, by number of layers."""
    first = [Job(arm, config.seeds[0]) for arm in LAYERS_OF_ARM]
    n_seeds = len(config.seeds)
    return [Training(_model_config(config, job), task_of(config, job), config.training, n_seeds) for job in first]


def _model_config(config: InductionHeadsConfig, job: Job) -> ModelConfig:
    """Return the configuration of a run's network."""
    return model_for(
        task_of(config, job),
        n_layers=LAYERS_OF_ARM[job.arm],
        d_model=config.d_model,
        n_heads=config.n_heads,
        attn_only=True,
        init_std=config.init_std,
        seed=job.seed,
    )


def run_job(config: InductionHeadsConfig, job: Job, out: Path) -> None:
    """Train one network, measure its heads at its checkpoints and ablate them at the end, keeping existing results."""
    task = task_of(config, job)
    model = on_device(build_model(_model_config(config, job)), config.device)
    results = out / "results" / job.name
    models = out / "models" / job.name
    batches = {SPLIT: list(task.batches(SPLIT))}
    callbacks: list[Callback] = [
        CheckpointCallback(models, at=[config.training.steps]),
        ProbeCallback(results, batches, {"roles": HeadRoles(n_permutations=0)}),
    ]
    losses = train(model, task, config.training, models, callbacks, progress=True, name=job.name)
    measure_once(results / "loss.safetensors", partial(loss_result_by_step, losses))
    measure_once(results / "ablations.safetensors", partial(measure_ablations, model, task))


def measure_ablations(model: HookedModel, task: RepeatedTokens) -> ProbeResult:
    """Measure by how much the loss on the test sequences rises if outputs of heads are replaced by their means.

    Returns:
        Rises in nats: ``alone`` (layer, head) for one head at a time, ``together`` (layer) for all heads of a layer.
    """
    batch = next(task.batches(SPLIT, batch_size=task.n_test)).to(device_of(model))
    n_layers = model.cfg.n_layers
    n_heads = model.cfg.n_heads
    loss = loss_without(model, task, batch, 0, [])
    alone = torch.tensor(
        [[loss_without(model, task, batch, layer, [head]) for head in range(n_heads)] for layer in range(n_layers)]
    )
    together = torch.tensor([loss_without(model, task, batch, layer, range(n_heads)) for layer in range(n_layers)])
    return ProbeResult(
        "Ablations",
        {"alone": alone - loss, "together": together - loss},
        {"alone": ("layer", "head"), "together": ("layer",)},
        {"layer": [str(layer) for layer in range(n_layers)], "head": [str(head) for head in range(n_heads)]},
    )


def loss_without(model: HookedModel, task: RepeatedTokens, batch: Batch, layer: int, heads: Sequence[int]) -> float:
    """Return the loss in nats if the outputs of these heads are replaced by their means over the sequences."""
    change = partial(_put_means, list(heads))
    with evaluation_mode(model), torch.inference_mode(), record(model, [f"blocks.{layer}.attn.hook_z"], change):
        return float(task.loss(forward(model, batch), batch))


def _put_means(
    heads: list[int], name: str, z: Float[Tensor, "batch pos head d_head"]
) -> Float[Tensor, "batch pos head d_head"]:
    changed = z.clone()
    changed[:, :, heads] = z[:, :, heads].mean(dim=0, keepdim=True)
    return changed


def trained_models(config: InductionHeadsConfig, out: Path) -> list[TrainedModel]:
    """Return every run's network at the end of training, with the test sequences."""
    steps = config.training.steps
    return [TrainedModel.at_last_step(out, job.name, task_of(config, job), SPLIT, steps) for job in jobs(config)]
