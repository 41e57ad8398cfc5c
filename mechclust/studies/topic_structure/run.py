"""Trains the networks of the topic-structure study, and measures them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mechclust.models import build_model, load_model, save_model
from mechclust.studies.extra_probes import TrainedModel
from mechclust.studies.kept import once
from mechclust.studies.study import Job
from mechclust.studies.topic_structure.arms import (
    DECAY,
    DECAYED,
    MINIMISER,
    Arm,
    arms,
    attention_steps,
    beyond_steps,
    documents_of,
    exact_documents,
    jobs,
    keeps_model,
    model_path,
    results_of,
    training_of,
)
from mechclust.studies.topic_structure.blocks import topic_blocks
from mechclust.studies.topic_structure.config import TopicStructureConfig, TopicTransformerConfig
from mechclust.studies.topic_structure.follow import (
    AttentionOrDiverged,
    DevLoss,
    Follower,
    WayToMinimiser,
    WeightChanges,
)
from mechclust.studies.topic_structure.optimum import distance, drawn, minimiser, population_moments
from mechclust.studies.topic_structure.tables import TopicTables
from mechclust.studies.topic_structure.theory import stage_one_value
from mechclust.training import Callback, train
from mechclust.training.callbacks import loss_result
from probes import HookedModel, ProbeResult, TopicAttention, load_result
from probes.engine.identity import fingerprint
from probes.store.files import is_whole, versions
from tasks import Batch, TopicDocuments
from tasks.topic_documents import MASK

LOSS = "loss.safetensors"


def run_job(config: TopicStructureConfig, job: Job, out: Path) -> None:
    """Train one network and measure what its experiment needs; existing results are not recomputed."""
    folder = out / "results" / job.name
    loss = folder / LOSS
    if job.arm == MINIMISER:
        once(results_of(config, job, out)[0], lambda: minimiser_result(config, job.seed), "none: solved for")
        return
    models = [model_path(out, job)] if keeps_model(config, job) else []
    if all(map(is_whole, [*results_of(config, job, out), loss, *models])):
        held = load_result(loss).metadata.get("model")
        if all(fingerprint(load_model(path)) == held for path in models):
            return
    arm, task = arms(config)[job.arm], documents_of(config, job)
    model_config = TopicTransformerConfig(d_vocab=task.d_vocab, seed=job.seed, **arm.model)
    model: Any = build_model(model_config)
    if model_config.value == "fixed":
        long = model_config.input_scale if model_config.input == "plain" else task.d_vocab**0.5  # the input's length
        model.blocks[0].attn.W_V.copy_(stage_one_value(task).T / long)
    began = fingerprint(model)
    found: dict[str, Callable[[], ProbeResult]] = {}  # what is computed at the end of training, by file name
    callbacks: list[Callback] = []
    if arm.experiment != "E5":
        start = block_result(model, task)
        once(folder / "blocks-start.safetensors", lambda: start, began)
        found["blocks"] = lambda: block_result(model, task)
    for name, follower in _followers(config, arm, task).items():
        callbacks.append(follower)
        found[name] = follower.compute
    if at := attention_steps(config, arm):
        batches = {"dev": list(task.text("dev", *config.text))}
        probe = TopicAttention(task.token_membership, n_permutations=0)
        callbacks.append(
            AttentionOrDiverged(
                lambda: build_model(model_config), out=folder, batches=batches, probes={"attention": probe}, at=at
            )
        )
    losses = train(model, task, training_of(config, arm), callbacks=callbacks, stop_if_diverged=False)
    own = fingerprint(model)
    for name, measure in found.items():
        once(folder / f"{name}.safetensors", measure, own)
    for path in models:
        if not is_whole(path) or fingerprint(load_model(path)) != own:
            save_model(model, path, arm=job.arm)
    once(loss, lambda: loss_result(losses), own)


def _followers(config: TopicStructureConfig, arm: Arm, task: TopicDocuments) -> dict[str, Follower]:
    """What follows a network during training, by the name of its result."""
    found: dict[str, Follower] = {}
    if arm.experiment == "E3":
        found["changes"] = WeightChanges()
    if arm.experiment == "E4":
        found["dev-loss"] = DevLoss(task, attention_steps(config, arm))
    if arm.experiment == "E5":
        found["dev-loss"] = DevLoss(task, beyond_steps(config))
        found["tables"] = TopicTables(task, beyond_steps(config), config.beyond.n_permutations)
    if arm.name == DECAYED:
        found["way"] = WayToMinimiser(task)
    return found


def minimiser_result(config: TopicStructureConfig, seed: int) -> ProbeResult:
    """Distances of the minimisers of increasing numbers of documents from the closed form and that of all documents.

    ``distance`` and ``own`` with axes (length, documents); ``population``: the distance from the closed form to the
    minimiser of all documents of a length.
    """
    lengths, ladder = config.optimum_lengths, config.optimum_documents
    found = torch.empty(2, len(lengths), len(ladder), dtype=torch.float64)
    limit = torch.empty(len(lengths), dtype=torch.float64)
    for i, length in enumerate(lengths):
        task = replace(config.documents, **exact_documents(length))
        closed, all_documents = stage_one_value(task), minimiser(population_moments(task), DECAY)
        limit[i] = distance(all_documents, closed, task)
        for j, moments in enumerate(drawn(task, ladder, seed)):
            value = minimiser(moments, DECAY)
            found[:, i, j] = torch.tensor([distance(value, closed, task), distance(value, all_documents, task)])
    return ProbeResult(
        probe="minimiser",
        values={"distance": found[0], "own": found[1], "population": limit},
        axes={"distance": ("length", "documents"), "own": ("length", "documents"), "population": ("length",)},
        coords={"length": [str(n) for n in lengths], "documents": [str(n) for n in ladder]},
        metadata={"versions": versions()},
    )


def block_result(model: Any, task: TopicDocuments) -> ProbeResult:
    """Mean entries by topic of ``W_V`` and ``W_E^T W_E``, in the paper's orientation, as a ``ProbeResult``.

    ``distance``: relative Frobenius distance of all entries from the theory's minimum-norm ``W_V``.
    """
    embed = model.embed.W_E.detach()
    matrices = {"W_E^T W_E": embed @ embed.T}
    if model.config.width == task.d_vocab:
        matrices["W_V"] = model.paper_value()
    found = [topic_blocks(matrix, task.token_topics) for matrix in matrices.values()]
    measures = ("gap", "separation", "same", "same_off_diagonal", "different", "spread")
    values = {m: torch.tensor([getattr(blocks, m) for blocks in found], dtype=torch.float64) for m in measures}
    words, optimum = task.token_topics >= 0, stage_one_value(task)
    far = [distance(matrix, optimum, task) for matrix in matrices.values()]
    values["distance"] = torch.tensor(far, dtype=torch.float64)
    values["mask"] = torch.stack([matrix[words, MASK].double().mean() for matrix in matrices.values()])
    return ProbeResult(
        probe="topic_blocks",
        values=values,
        axes=dict.fromkeys(values, ("matrix",)),
        coords={"matrix": list(matrices)},
        metadata={"versions": versions()},
    )


def load_trained(out: Path, job: Job) -> Any:
    """The final network of a run of the first seed, the only seed whose networks are kept."""
    return load_model(model_path(out, job))


def trained_models(config: TopicStructureConfig, out: Path) -> list[TrainedModel]:
    """The networks of the first seed, whose models are kept, with measured attention."""

    def load(job: Job) -> tuple[HookedModel, Iterable[Batch]]:
        return load_trained(out, job), documents_of(config, job).text("dev", *config.text)

    measured = ("E4", "E4a theory", "E5")
    kept = [job for job in jobs(config) if keeps_model(config, job) and arms(config)[job.arm].experiment in measured]
    return [TrainedModel(job.name, partial(load, job)) for job in kept]
