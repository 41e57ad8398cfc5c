"""Topic structure: embeddings and attention of a one-layer masked LM encode topics, in two stages.

Li, Li & Risteski, "How Do Transformers Learn Topic Structure" (ICML 2023, arXiv 2303.04245).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mechclust.models import build_model, load_model, save_model
from mechclust.report.analysis import Analysis
from mechclust.studies.extra_probes import Subject
from mechclust.studies.study import Study, check_seeds
from mechclust.studies.topic_structure.config import TopicTransformerConfig
from mechclust.studies.topic_structure.theory import stage_one_value
from mechclust.training import Callback, ProbeCallback, TrainConfig, train
from mechclust.training.callbacks import save_losses
from probes import HookedModel, ProbeResult, TopicAttention, WeightNorms
from probes.files import versions
from probes.functional import topic_blocks
from tasks import Batch, InputError, TopicDocuments
from tasks.topic_documents import MASK

ROWS = {
    "Adam .003": ("adam", 0.003),
    "Adam .01": ("adam", 0.01),
    "Adam .03": ("adam", 0.03),
    "SGD .01": ("sgd", 0.01),
    "SGD .03": ("sgd", 0.03),
}


@dataclass(frozen=True)
class TopicStructureConfig:
    """Settings of the topic-structure study.

    Args:
        seeds: one training run per seed and arm; the seed draws documents and initial weights.
        documents: the data; what an experiment asks for (sampler, objective, ...) is set by its arms.
        steps: optimiser steps of E1, E1b, E2, E3 and the runs behind claim P6.
        decay_steps: of E2 with weight decay (claim P2).
        attention_steps: of E4a and E4b.
        batch_size: documents a step.
        topics: numbers of topics for claim P6.
        topics_per_document: and of topics mixed in a document.
        text: documents and tokens of each that attention is measured on.
        test_claims: whether this size can test the claims.
    """

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    documents: TopicDocuments = TopicDocuments()
    steps: int = 2000
    decay_steps: int = 12_000
    attention_steps: int = 10_000
    batch_size: int = 40
    topics: tuple[int, ...] = (10, 20)
    topics_per_document: tuple[int, ...] = (2, 3, 5, 8)
    text: tuple[int, int] = (500, 100)
    test_claims: bool = True

    def __post_init__(self) -> None:
        check_seeds(self.seeds)
        if self.documents.seed != 0:
            raise InputError("documents.seed is set by each run, from seeds; leave it out and set those")
        if max(self.topics_per_document) > min(self.topics):
            raise InputError(
                f"topics_per_document has {max(self.topics_per_document)}, more than the {min(self.topics)} in topics; "
                "expected no document with more topics than there are"
            )


@dataclass(frozen=True)
class Arm:
    """One way to train, run once a seed. ``documents``, ``model`` and ``training`` change the defaults."""

    experiment: str
    name: str
    documents: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)


class Job(NamedTuple):
    """One training run."""

    arm: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.arm.lower().replace(' ', '-')}-seed{self.seed}"


_THEORY = {"sampler": "subset", "objective": "squared", "boundaries": False}
_EXPERIMENT = {"sampler": "dirichlet", "boundaries": True}
_ONE_HOT = {"embedding": "one-hot", "decoder": "identity", "bias": False}
_STAGE_ONE = {**_ONE_HOT, "attention": "uniform"}


def arms(config: TopicStructureConfig) -> dict[str, Arm]:
    """Every arm of the study by name."""
    adam, short = {"optimizer": "adam", "lr": 0.003}, {"steps": config.steps}
    length = config.documents.lengths[1]
    decay = {"optimizer": "sgd", "lr": 20.0, "schedule": "cosine", "steps": config.decay_steps}
    # Long documents with exact shares: only then do the weights stay free for the decay to choose.
    long_documents = {**_THEORY, "exact_shares": True, "lengths": (max(400, length),) * 2}
    found = [
        Arm("E1", "E1", _THEORY, {"attention": "uniform", "value": "identity", "init_std": 0.05}, {**adam, **short}),
        Arm("E2", "E2", _THEORY, _STAGE_ONE, {**adam, **short}),
        Arm("E2", "E2 weight decay", long_documents, {**_STAGE_ONE, "init_std": 0.05}, {**decay, "weight_decay": 2e-5}),
        Arm("E2", "E2 no decay", long_documents, {**_STAGE_ONE, "init_std": 0.05}, decay),
    ]
    for objective in ("cross-entropy", "squared"):
        for row, (optimizer, lr) in ROWS.items():
            training = {"optimizer": optimizer, "lr": lr, **short}
            documents = {**_EXPERIMENT, "objective": objective}
            found.append(Arm("E1b", f"E1b {objective} {row}", documents, {}, training))
    near_zero = {**_ONE_HOT, "init_std": 0.01}
    for name, objective, model, training in (
        ("near-zero SGD squared", "squared", near_zero, {"optimizer": "sgd", "lr": 30.0}),
        ("near-zero SGD cross-entropy", "cross-entropy", near_zero, {"optimizer": "sgd", "lr": 3.0}),
        ("near-zero Adam squared", "squared", near_zero, adam),
        ("default Adam squared", "squared", _ONE_HOT, adam),
        ("default Adam cross-entropy", "cross-entropy", _ONE_HOT, adam),
        ("default SGD squared", "squared", _ONE_HOT, {"optimizer": "sgd", "lr": 30.0}),
    ):
        found.append(Arm("E3", f"E3 {name}", {**_EXPERIMENT, "objective": objective}, model, {**training, **short}))
    long = {"steps": config.attention_steps}
    for row, (optimizer, lr) in ROWS.items():
        for scaled in (False, True) if optimizer == "sgd" else (False,):
            scale = {"input_scale": config.documents.d_vocab**0.5} if scaled else {}
            documents = {**_EXPERIMENT, "objective": "cross-entropy"}
            training = {"optimizer": optimizer, "lr": lr, **long}
            for experiment, value in (("E4a", "fixed"), ("E4b", "trained")):
                name = f"{experiment} {row}{' scaled' if scaled else ''}"
                found.append(Arm(experiment, name, documents, {**_ONE_HOT, **scale, "value": value}, training))
    for n_topics in config.topics:
        for tau in config.topics_per_document:
            documents = {**_THEORY, "n_topics": n_topics, "topics_per_document": tau}
            model = {**_ONE_HOT, "value": "fixed", "init_std": 0.01}
            found.append(Arm("E4a theory", f"E4a theory T{n_topics} tau{tau}", documents, model, {**adam, **short}))
    return {arm.name: arm for arm in found}


def jobs(config: TopicStructureConfig) -> list[Job]:
    """Every run, the long ones first."""
    known = arms(config)
    order = sorted(known, key=lambda name: -known[name].training["steps"])
    return [Job(name, seed) for name in order for seed in config.seeds]


def documents_of(config: TopicStructureConfig, job: Job) -> TopicDocuments:
    """The data of one run."""
    return replace(config.documents, seed=job.seed, **arms(config)[job.arm].documents)


def _run_job(config: TopicStructureConfig, job: Job, out: Path) -> None:
    folder = out / "results" / job.name
    if (folder / "loss.safetensors").exists():
        return
    arm, task = arms(config)[job.arm], documents_of(config, job)
    model_config = TopicTransformerConfig(d_vocab=task.d_vocab, seed=job.seed, **arm.model)
    model = build_model(model_config)
    if model_config.value == "fixed":
        with torch.no_grad():
            dict(model.named_parameters())["blocks.0.attn.W_V"].copy_(
                stage_one_value(task).T / model_config.input_scale
            )
    training: dict[str, Any] = {"schedule": "constant", "weight_decay": 0.0, "clip": None, **arm.training}
    settings = TrainConfig(batch_size=config.batch_size, **training)
    start = block_result(model, task)
    norms = WeightNorms()
    callbacks: list[Callback] = []
    if arm.experiment == "E3":
        settings = replace(settings, checkpoint_every=1)
        callbacks.append(norms)
    if arm.experiment.startswith("E4"):
        n, n_tokens = config.text
        batches, end = {"dev": list(task.text("dev", n, n_tokens))}, [settings.steps]
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
        save_model(model, out / "models" / f"{job.name}.safetensors", arm=job.arm)
    save_losses(losses, folder / "loss.safetensors")


def _subjects(config: TopicStructureConfig, out: Path) -> list[Subject]:
    """Those whose attention was measured, of the first seed, whose models are kept."""
    known = arms(config)
    measured = [job for job in jobs(config) if known[job.arm].experiment.startswith("E4")]
    return [Subject(job.name, partial(_subject, config, out, job)) for job in measured if job.seed == config.seeds[0]]


def _subject(config: TopicStructureConfig, out: Path, job: Job) -> tuple[HookedModel, Iterable[Batch]]:
    return load_model(out / "models" / f"{job.name}.safetensors"), documents_of(config, job).text("dev", *config.text)


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
    masks = [float(matrix[task.token_topics >= 0, MASK].double().mean()) for matrix in matrices.values()]
    values["mask"] = torch.tensor(masks, dtype=torch.float64)
    optimum = stage_one_value(task)
    seen = optimum.abs().sum(dim=0) > 0  # what tokens that no document shows would add is never learnt
    words = task.token_topics >= 0
    far = [(matrix.double() - optimum)[words][:, seen].norm() / optimum.norm() for matrix in matrices.values()]
    values["distance"] = torch.stack(far)
    return ProbeResult(
        probe="topic_blocks",
        values=values,
        axes=dict.fromkeys(values, ("matrix",)),
        coords={"matrix": list(matrices)},
        metadata={"versions": versions()},
    )


def _analyse(config: TopicStructureConfig, out: Path) -> Analysis:
    from mechclust.studies.topic_structure.claims import analyse

    return analyse(config, out)


_PAPER = TopicStructureConfig()

STUDY = Study(
    name="topic-structure",
    title="Topic structure: a one-layer masked LM encodes topics in embeddings and attention",
    source="Li, Li & Risteski, How Do Transformers Learn Topic Structure (ICML 2023, arXiv 2303.04245)",
    presets={
        "smoke": TopicStructureConfig(
            seeds=(0,),
            documents=TopicDocuments(n_topics=3, words_per_topic=3, n_documents=60, lengths=(8, 12)),
            steps=4,
            decay_steps=4,
            attention_steps=6,
            batch_size=10,
            topics=(3, 4),
            topics_per_document=(1, 2),
            text=(20, 8),
            test_claims=False,
        ),
        "quick": replace(
            _PAPER,
            seeds=(0, 1),
            documents=TopicDocuments(n_documents=4000),
            steps=800,
            decay_steps=1000,
            attention_steps=1200,
            text=(200, 100),
            topics=(10,),
            topics_per_document=(2, 5),
        ),
        "paper": _PAPER,
    },
    jobs=jobs,
    run_job=_run_job,
    analyse=_analyse,
    subjects=_subjects,
)
