"""Trains the networks of the topic-structure study, and measures them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mechclust.models import build_model, load_model, save_model
from mechclust.studies.extra_probes import TrainedModel
from mechclust.studies.kept import once
from mechclust.studies.study import Job
from mechclust.studies.topic_structure.blocks import topic_blocks
from mechclust.studies.topic_structure.config import (
    TopicStructureConfig,
    TopicTransformerConfig,
    arms,
    attention_steps,
    documents_of,
    has_null,
    jobs,
    model_path,
    results_of,
    training_of,
)
from mechclust.studies.topic_structure.theory import stage_one_value
from mechclust.training import Callback, ProbeCallback, WeightNorms, train
from mechclust.training.callbacks import loss_result
from probes import HookedModel, ProbeResult, TopicAttention, load_result
from probes.files import is_whole, versions
from probes.identity import fingerprint
from tasks import Batch, TopicDocuments
from tasks.topic_documents import MASK


def run_job(config: TopicStructureConfig, job: Job, out: Path) -> None:
    """Train one network and measure what its experiment asks for; what is there is not made again."""
    folder, first = out / "results" / job.name, job.seed == config.seeds[0]
    models = [model_path(out, job)] if first else []
    if all(map(is_whole, [*results_of(config, job, out), *models])):
        held = load_result(folder / "blocks.safetensors").metadata.get("model")
        if all(fingerprint(load_model(path)) == held for path in models):
            return
    arm, task = arms(config)[job.arm], documents_of(config, job)
    model_config = TopicTransformerConfig(d_vocab=task.d_vocab, seed=job.seed, **arm.model)
    model: Any = build_model(model_config)
    if model_config.value == "fixed":
        model.blocks[0].attn.W_V.copy_(stage_one_value(task).T / model_config.input_scale)
    settings, norms = training_of(config, arm), WeightNorms()
    start, began = block_result(model, task), fingerprint(model)
    callbacks: list[Callback] = []
    if arm.experiment == "E3":
        callbacks.append(norms)
    if at := attention_steps(config, arm):
        batches = {"dev": list(task.text("dev", *config.text))}
        probe = TopicAttention(task.token_topics, n_permutations=0)
        callbacks.append(ProbeCallback(folder, batches, {"attention": probe}, at))
        if has_null(config, job):
            callbacks.append(ProbeCallback(folder, batches, {"null": TopicAttention(task.token_topics)}, at[-1:]))
    losses = train(model, task, settings, callbacks=callbacks)
    own = fingerprint(model)
    once(folder / "blocks-start.safetensors", lambda: start, began)
    once(folder / "blocks.safetensors", lambda: block_result(model, task), own)
    if arm.experiment == "E3":
        once(folder / "norms.safetensors", norms.compute, own)
    for path in models:
        if not is_whole(path) or fingerprint(load_model(path)) != own:
            save_model(model, path, arm=job.arm)
    once(folder / "loss.safetensors", lambda: loss_result(losses), own)


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
    return load_model(model_path(out, job))


def trained_models(config: TopicStructureConfig, out: Path) -> list[TrainedModel]:
    """Those whose attention was measured, of the first seed, whose models are kept."""

    def load(job: Job) -> tuple[HookedModel, Iterable[Batch]]:
        return load_trained(out, job), documents_of(config, job).text("dev", *config.text)

    kept = [job for job in jobs(config) if job.arm.startswith("E4") and job.seed == config.seeds[0]]
    return [TrainedModel(job.name, partial(load, job)) for job in kept]
