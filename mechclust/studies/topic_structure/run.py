"""Trains the networks of the topic-structure study, and measures them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mechclust.models import build_model, load_model, save_model
from mechclust.studies.extra_probes import TrainedModel
from mechclust.studies.study import Job
from mechclust.studies.topic_structure.blocks import topic_blocks
from mechclust.studies.topic_structure.config import (
    TopicStructureConfig,
    TopicTransformerConfig,
    arms,
    documents_of,
    jobs,
)
from mechclust.studies.topic_structure.theory import stage_one_value
from mechclust.training import Callback, ProbeCallback, TrainConfig, WeightNorms, train
from mechclust.training.callbacks import save_losses
from probes import HookedModel, ProbeResult, TopicAttention
from probes.files import versions
from tasks import Batch, TopicDocuments
from tasks.topic_documents import MASK


def run_job(config: TopicStructureConfig, job: Job, out: Path) -> None:
    """Train one network and measure what its experiment asks for; a run that is done is not done again."""
    folder = out / "results" / job.name
    if (folder / "loss.safetensors").exists():
        return
    arm, task = arms(config)[job.arm], documents_of(config, job)
    model_config = TopicTransformerConfig(d_vocab=task.d_vocab, seed=job.seed, **arm.model)
    model: Any = build_model(model_config)
    if model_config.value == "fixed":
        model.blocks[0].attn.W_V.copy_(stage_one_value(task).T / model_config.input_scale)
    training: dict[str, Any] = {"schedule": "constant", "weight_decay": 0.0, "clip": None, **arm.training}
    settings = TrainConfig(batch_size=config.batch_size, **training)
    start = block_result(model, task)
    norms = WeightNorms()
    callbacks: list[Callback] = []
    if arm.experiment == "E3":
        settings = replace(settings, checkpoint_every=1)
        callbacks.append(norms)
    if arm.experiment.startswith("E4"):
        batches, end = {"dev": list(task.text("dev", *config.text))}, [settings.steps]
        at = end if arm.experiment == "E4a theory" else None
        probe = TopicAttention(task.token_topics, n_permutations=0)
        callbacks.append(ProbeCallback(folder, batches, {"attention": probe}, at))
        if job.seed == config.seeds[0] and at is None:
            callbacks.append(ProbeCallback(folder, batches, {"null": TopicAttention(task.token_topics)}, end))
    losses = train(model, task, settings, callbacks=callbacks)
    start.save(folder / "blocks-start.safetensors")
    block_result(model, task).save(folder / "blocks.safetensors")
    if arm.experiment == "E3":
        norms.compute().save(folder / "norms.safetensors")
    if job.seed == config.seeds[0]:
        save_model(model, _model_path(out, job), arm=job.arm)
    save_losses(losses, folder / "loss.safetensors")


def block_result(model: Any, task: TopicDocuments) -> ProbeResult:
    """Mean entries by topic of ``W_V`` and ``W_E^T W_E``, in the paper's orientation, as a ``ProbeResult``.

    ``distance``: of all entries from the minimum-norm ``W_V`` of theory, relative to it (Frobenius).
    """
    embed = model.embed.W_E.detach()
    matrices = {"W_E^T W_E": embed @ embed.T}
    if model.config.width == task.d_vocab:
        matrices["W_V"] = model.paper_value()
    found = [topic_blocks(matrix, task.token_topics) for matrix in matrices.values()]
    measures = ("gap", "separation", "same", "same_off_diagonal", "different")
    values = {m: torch.tensor([getattr(blocks, m) for blocks in found], dtype=torch.float64) for m in measures}
    words, optimum = task.token_topics >= 0, stage_one_value(task)
    seen = optimum.abs().sum(dim=0) > 0  # what tokens that no document shows would add is never learnt
    far = [(matrix.double() - optimum)[words][:, seen].norm() / optimum.norm() for matrix in matrices.values()]
    values["distance"] = torch.stack(far)
    values["mask"] = torch.stack([matrix[words, MASK].double().mean() for matrix in matrices.values()])
    return ProbeResult(
        probe="topic_blocks",
        values=values,
        axes=dict.fromkeys(values, ("matrix",)),
        coords={"matrix": list(matrices)},
        metadata={"versions": versions()},
    )


def load_trained(out: Path, job: Job) -> Any:
    """The network at the end of a run of the first seed, the only one that is kept: a ``TopicTransformer``."""
    return load_model(_model_path(out, job))


def _model_path(out: Path, job: Job) -> Path:
    return out / "models" / f"{job.name}.safetensors"


def trained_models(config: TopicStructureConfig, out: Path) -> list[TrainedModel]:
    """Those whose attention was measured, of the first seed, whose models are kept."""

    def load(job: Job) -> tuple[HookedModel, Iterable[Batch]]:
        return load_trained(out, job), documents_of(config, job).text("dev", *config.text)

    kept = [job for job in jobs(config) if job.arm.startswith("E4") and job.seed == config.seeds[0]]
    return [TrainedModel(job.name, partial(load, job)) for job in kept]
