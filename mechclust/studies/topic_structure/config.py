"""What the topic-structure study runs: its model's configuration, settings, arms, jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from mechclust.models.config import AnyConfig
from mechclust.studies.study import Job, check_seeds
from mechclust.training import TrainConfig
from mechclust.training.callbacks import result_path
from tasks import InputError, TopicDocuments
from tasks.errors import check_at_least
from tasks.settings import check_choices

ROWS = {
    "Adam .003": ("adam", 0.003),
    "Adam .01": ("adam", 0.01),
    "Adam .03": ("adam", 0.03),
    "SGD .01": ("sgd", 0.01),
    "SGD .03": ("sgd", 0.03),
}


@dataclass(frozen=True)
class TopicTransformerConfig(AnyConfig):
    """The one-layer transformer of the topic-structure study, see ``TopicTransformer``.

    Args:
        d_vocab: number of token ids.
        d_model: width; ``None``: ``d_vocab``, which a one-hot embedding needs.
        embedding: ``"trained"``, or ``"one-hot"`` and frozen.
        attention: ``"trained"``, or ``"uniform"``: W_K = W_Q = 0 and frozen.
        value: W_V ``"trained"``, ``"identity"`` and frozen, or ``"fixed"``: frozen as it is set.
        input_scale: a one-hot embedding's length. A LayerNorm would give its input about
            ``sqrt(d_vocab)``, which plain SGD feels: it multiplies the effective learning rate by its square.
        decoder: ``"tied"`` to the embedding, ``"free"``, or the ``"identity"``.
        bias: train the decoder's bias; it is 0 otherwise.
        init_std: initial weights are normal with this standard deviation; ``None``: uniform within
            ``1 / sqrt(width)``, PyTorch's default for linear layers.
        seed: of the initial weights.

    Example:
        >>> TopicTransformerConfig(d_vocab=104, embedding="one-hot", attention="uniform").width
        104
    """

    kind: ClassVar[str] = "topic-transformer"

    d_vocab: int
    d_model: int | None = None
    embedding: Literal["trained", "one-hot"] = "trained"
    attention: Literal["trained", "uniform"] = "trained"
    value: Literal["trained", "identity", "fixed"] = "trained"
    input_scale: float = 1.0
    decoder: Literal["tied", "free", "identity"] = "tied"
    bias: bool = True
    init_std: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_at_least(d_vocab=(self.d_vocab, 1), d_model=(self.width, 1), seed=(self.seed, 0))
        check_at_least(init_std=(self.init_std or 0.0, 0))
        check_choices(self)
        if self.embedding == "one-hot" and self.width != self.d_vocab:
            raise InputError(
                f"a one-hot embedding of {self.d_vocab} tokens has that many dimensions; d_model is {self.d_model}"
            )
        if self.decoder == "identity" and self.width != self.d_vocab:
            raise InputError(f"an identity decoder needs d_model = d_vocab ({self.d_vocab}); d_model is {self.d_model}")
        if not self.input_scale > 0:
            raise InputError(f"input_scale is {self.input_scale}; expected a positive number")
        if self.embedding != "one-hot" and self.input_scale != 1:
            raise InputError(f"input_scale is {self.input_scale}, but the embedding is trained; leave it at 1")

    @property
    def width(self) -> int:
        """``d_model``, or the size of the vocabulary."""
        return self.d_vocab if self.d_model is None else self.d_model


@dataclass(frozen=True)
class TopicStructureConfig:
    """Settings of the topic-structure study.

    Args:
        seeds: one training run per seed and arm; the seed draws documents and initial weights.
        documents: the data; what an experiment asks for (sampler, objective, ...) is set by its arms.
        steps: optimiser steps of E1, E1b, E2, E3 and the runs behind claim P6.
        decay_steps: of E2 with weight decay (claim P2).
        attention_steps: of E4a and E4b.
        batch_size: documents per step.
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
    """One way to train, run once per seed. ``documents``, ``model`` and ``training`` change the defaults."""

    experiment: str
    name: str
    documents: Mapping[str, Any]
    model: Mapping[str, Any]
    training: Mapping[str, Any]


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


def training_of(config: TopicStructureConfig, arm: Arm) -> TrainConfig:
    """How an arm's networks are trained; of E3 every step is a checkpoint."""
    plain: dict[str, Any] = {"schedule": "constant", "weight_decay": 0.0, "clip": None}
    if arm.experiment == "E3":
        plain["checkpoint_every"] = 1
    return TrainConfig(batch_size=config.batch_size, **{**plain, **arm.training})


def attention_steps(config: TopicStructureConfig, arm: Arm) -> list[int]:
    """When attention is measured: never but in E4, and of the networks behind P6 at the end."""
    if not arm.experiment.startswith("E4"):
        return []
    training = training_of(config, arm)
    return [training.steps] if arm.experiment == "E4a theory" else training.checkpoint_steps


def has_null(config: TopicStructureConfig, job: Job) -> bool:
    """Whether its last attention is also measured with a permutation interval."""
    return job.seed == config.seeds[0] and len(attention_steps(config, arms(config)[job.arm])) > 1


def model_path(out: Path, job: Job) -> Path:
    """Where its model stands, of the first seed."""
    return out / "models" / f"{job.name}.safetensors"


def results_of(config: TopicStructureConfig, job: Job, out: Path) -> list[Path]:
    """Everything that is measured of one run."""
    folder, arm = out / "results" / job.name, arms(config)[job.arm]
    found = [folder / f"{name}.safetensors" for name in ("blocks-start", "blocks", "loss")]
    if arm.experiment == "E3":
        found.append(folder / "norms.safetensors")
    found += [result_path(folder, step, "dev.attention") for step in attention_steps(config, arm)]
    if has_null(config, job):
        found.append(result_path(folder, training_of(config, arm).steps, "dev.null"))
    return found
