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
from mechclust.studies.kept import measure_once
from mechclust.studies.study import Job
from mechclust.studies.topic_structure.arms import (
    ATTENTION,
    DECAY,
    MINIMISER,
    RELEASED,
    Arm,
    arms,
    beyond_steps,
    documents_of,
    exact_documents,
    jobs,
    keeps_model,
    model_path,
    results_of,
    seeds_of,
    training_of,
)
from mechclust.studies.topic_structure.blocks import topic_blocks
from mechclust.studies.topic_structure.config import TopicStructureConfig, TopicTransformerConfig
from mechclust.studies.topic_structure.follow import (
    DevLoss,
    Follower,
    TopicEffects,
    WayToMinimiser,
    WeightChanges,
    WordAttention,
)
from mechclust.studies.topic_structure.optimum import drawn_moments, minimiser, population_moments, value_distance
from mechclust.studies.topic_structure.tables import TopicTables
from mechclust.studies.topic_structure.theory import stage_one_value
from mechclust.studies.trainings import Training
from mechclust.training import Callback, ProbeCallback, train
from mechclust.training.diverged import DivergedError
from mechclust.training.results_by_step import loss_result_by_step
from probes import ProbeResult, TopicAttention
from probes.store.safetensors_files import is_whole_file
from probes.store.versions import package_versions
from tasks import Batch, TopicDocuments

LOSS = "loss.safetensors"
_RELEASED_WEIGHTS = tuple(f"blocks.0.attn.W_{part}" for part in "KQV")


def trainings(config: TopicStructureConfig) -> list[Training]:
    """Return what is trained, by arm."""
    trained = []
    for arm in arms(config).values():
        seeds = seeds_of(config, arm.name)
        task = documents_of(config, Job(arm.name, seeds[0]))
        network = TopicTransformerConfig(d_vocab=task.d_vocab, **arm.model)
        trained.append(Training(network, task, training_of(config, arm), len(seeds)))
    return trained


def run_job(config: TopicStructureConfig, job: Job, out: Path) -> None:
    """Train one network and measure what its experiment needs; existing results are not recomputed."""
    if job.arm == MINIMISER:
        (path,) = results_of(config, job, out)
        measure_once(path, partial(_minimiser_result, config, job.seed))
    elif not _is_complete(config, job, out):
        _train(config, job, out)


def _is_complete(config: TopicStructureConfig, job: Job, out: Path) -> bool:
    """Return whether all results are there, and the model if it is kept."""
    loss = out / "results" / job.name / LOSS
    models = [model_path(out, job)] if keeps_model(config, job) else []
    return all(map(is_whole_file, [*results_of(config, job, out), loss, *models]))


def _train(config: TopicStructureConfig, job: Job, out: Path) -> None:
    arm = arms(config)[job.arm]
    task = documents_of(config, job)
    folder = out / "results" / job.name
    model_config = TopicTransformerConfig(d_vocab=task.d_vocab, seed=job.seed, **arm.model)
    model = _initial_model(model_config, task)
    if arm.experiment != "E5":
        block_result(model, task).save(folder / "blocks-start.safetensors")
    followers = {name: _follower(config, arm, name, task) for name in arm.follows}
    callbacks: list[Callback] = [*followers.values()]
    if arm.attention_at:
        batches = {"dev": list(task.text("dev", *config.text))}
        probes = {"attention": TopicAttention(task.token_membership, n_permutations=0)}
        callbacks.append(ProbeCallback(out=folder, batches=batches, probes=probes, at=arm.attention_at))
    measured = bool(arm.attention_at)  # a diverged network has no attention to measure
    try:
        losses = train(model, task, training_of(config, arm), callbacks=callbacks, stop_if_diverged=measured)
    except DivergedError as error:
        why = str(error).rpartition("; ")[0]  # without a way out by settings that the study does not have
        raise DivergedError(f"{arm.name}: {why}; {_way_out(arm)}, in another folder with --out") from None
    if arm.experiment != "E5":
        block_result(model, task).save(folder / "blocks.safetensors")
    for name, follower in followers.items():
        follower.compute().save(folder / f"{name}.safetensors")
    if keeps_model(config, job):
        save_model(model, model_path(out, job), arm=arm.name)
    loss_result_by_step(losses).save(folder / LOSS)


def _way_out(arm: Arm) -> str:
    if arm.experiment == "E5":
        return f"give a smaller beyond.{arm.training['optimizer']}_rate"
    return "choose documents nearer to the published ones"


def _initial_model(config: TopicTransformerConfig, task: TopicDocuments) -> Any:
    """Return the network before training; a fixed ``W_V`` has the theory's values."""
    model: Any = build_model(config)
    if config.value == "fixed":
        model.blocks[0].attn.W_V.copy_(stage_one_value(task).T)
    return model


def _follower(config: TopicStructureConfig, arm: Arm, name: str, task: TopicDocuments) -> Follower:
    """Return what follows a network during training, by the name of its result."""
    if name == "changes":
        return WeightChanges(_RELEASED_WEIGHTS, norms=True) if arm.experiment == RELEASED else WeightChanges()
    if name == "effects":
        return TopicEffects(task)
    if name == "words":
        n_documents, n_tokens = config.text
        return WordAttention(task, n_documents, (n_tokens, task.n_ctx))
    if name == "dev-loss":
        return DevLoss(task, beyond_steps(config))
    if name == "tables":
        return TopicTables(task, beyond_steps(config), config.beyond.n_permutations)
    return WayToMinimiser(task)


def _minimiser_result(config: TopicStructureConfig, seed: int) -> ProbeResult:
    """Measure how far the minimisers of increasing numbers of documents are from the limits.

    ``distance``: from the closed form, with axes (length, documents). ``population``: the distance from the closed form
    to the minimiser of all documents of a length.
    """
    from_closed_form = []
    limits = []
    for length in config.optimum_lengths:
        task = replace(config.documents, **exact_documents(length))
        closed_form = stage_one_value(task)
        population = minimiser(population_moments(task), DECAY)
        drawn = drawn_moments(task, config.optimum_documents, seed)
        from_closed_form.append([value_distance(minimiser(moments, DECAY), closed_form, task) for moments in drawn])
        limits.append(value_distance(population, closed_form, task))
    return ProbeResult(
        probe="minimiser",
        values={
            "distance": torch.tensor(from_closed_form).double(),  # in single precision, as in the records
            "population": torch.tensor(limits, dtype=torch.float64),
        },
        axes={"distance": ("length", "documents"), "population": ("length",)},
        coords={
            "length": [str(length) for length in config.optimum_lengths],
            "documents": [str(n) for n in config.optimum_documents],
        },
        metadata={"versions": package_versions()},
    )


def block_result(model: Any, task: TopicDocuments) -> ProbeResult:
    """Measure mean entries by topic of ``W_V`` and ``W_E^T W_E``, in the paper's orientation.

    ``distance``: relative Frobenius distance of all entries from the theory's minimum-norm ``W_V``.
    """
    embed = model.embed.W_E.detach()
    matrices = {"W_E^T W_E": embed @ embed.T}
    if model.config.width == task.d_vocab:
        matrices["W_V"] = model.paper_value()
    optimum = stage_one_value(task)
    rows = []
    for matrix in matrices.values():
        blocks = topic_blocks(matrix, task.token_topics)
        distance = value_distance(matrix, optimum, task)
        rows.append({"gap": blocks.gap, "separation": blocks.separation, "distance": distance})
    values = {name: torch.tensor([row[name] for row in rows], dtype=torch.float64) for name in rows[0]}
    return ProbeResult(
        probe="topic_blocks",
        values=values,
        axes=dict.fromkeys(values, ("matrix",)),
        coords={"matrix": list(matrices)},
        metadata={"versions": package_versions()},
    )


def load_trained(out: Path, job: Job) -> Any:
    """Return the final network of a run of the first seed, the only seed whose networks are kept."""
    return load_model(model_path(out, job))


def trained_models(config: TopicStructureConfig, out: Path) -> list[TrainedModel]:
    """Return the networks of the first seed, whose models are kept, with measured attention."""
    measured = (ATTENTION, "E4a theory", "E5")
    kept = [job for job in jobs(config) if keeps_model(config, job) and arms(config)[job.arm].experiment in measured]
    return [
        TrainedModel.from_parts(job.name, partial(load_trained, out, job), partial(_examples, config, job))
        for job in kept
    ]


def _examples(config: TopicStructureConfig, job: Job) -> Iterable[Batch]:
    return documents_of(config, job).text("dev", *config.text)
