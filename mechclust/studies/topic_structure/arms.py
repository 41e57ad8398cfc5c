"""The arms of the topic-structure study: what each trains on which data, its jobs, and what they keep."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from mechclust.studies.study import Job
from mechclust.studies.topic_structure.config import ROWS, TopicStructureConfig
from mechclust.training import TrainConfig
from mechclust.training.callbacks import result_path
from tasks import TopicDocuments

OBJECTIVES = ("cross-entropy", "squared")
INITS: Mapping[str, Mapping[str, Any]] = {"near-zero": {"init_std": 0.01}, "default": {}}
DECAYED, FREE = "E2 weight decay", "E2 no decay"
MINIMISER = "E2 minimiser"  # solved for, not trained
DECAY = 6e-5  # well above the variance of a word's share within its topic, well below that of a topic's share
PUBLISHED, FEWER, TOGETHER = "published", "fewer words", "all three"
INDEPENDENT, CORRELATED = "independent topics", "correlated topics"
_DECAY_LENGTH = 400


@dataclass(frozen=True)
class Arm:
    """One way to train, run once per seed. ``documents``, ``model`` and ``training`` change the defaults."""

    experiment: str
    name: str
    documents: Mapping[str, Any]
    model: Mapping[str, Any]
    training: Mapping[str, Any]


class Cell(NamedTuple):
    """A cell of E3's factorial.

    Example:
        >>> Cell("near-zero", "SGD", "squared", 30.0).arm
        'E3 near-zero SGD squared 30'
    """

    init: str
    optimiser: str
    objective: str
    rate: float

    @property
    def arm(self) -> str:
        """The name of its arm."""
        return f"E3 {self.init} {self.optimiser} {self.objective} {self.rate:g}"


_THEORY = {"sampler": "subset", "objective": "squared", "boundaries": False}
_EXPERIMENT = {"sampler": "dirichlet", "boundaries": True}
_ONE_HOT = {"embedding": "one-hot", "decoder": "identity", "bias": False}
_STAGE_ONE = {**_ONE_HOT, "attention": "uniform"}
_ADAM = {"optimizer": "adam", "lr": 0.003}


def cells(config: TopicStructureConfig) -> list[Cell]:
    """The cells of E3: initial weights x optimiser x loss x learning rate."""
    rates = {"SGD": config.sgd_rates, "Adam": config.adam_rates}
    return [
        Cell(init, name, objective, rate)
        for init in INITS
        for name, of in rates.items()
        for objective in OBJECTIVES
        for rate in of
    ]


def reading_arm(reading: str, row: str) -> str:
    """The name of E4's arm for a reading of the published table and one of its rows."""
    return f"E4 {reading} {row}"


def arms(config: TopicStructureConfig) -> dict[str, Arm]:
    """Every arm that is trained, by name."""
    found = _beyond(config) if config.experiment == "beyond" else _published(config)
    return {arm.name: arm for arm in found}


def _published(config: TopicStructureConfig) -> list[Arm]:
    short = {"steps": config.steps}
    found = [
        Arm("E1", "E1", _THEORY, {"attention": "uniform", "value": "identity", "init_std": 0.05}, {**_ADAM, **short}),
        Arm("E2", "E2", _THEORY, _STAGE_ONE, {**_ADAM, **short}),
        *_decayed(config),
    ]
    for objective in OBJECTIVES:
        for row, (optimizer, lr) in ROWS.items():
            training = {"optimizer": optimizer, "lr": lr, **short}
            documents = {**_EXPERIMENT, "objective": objective}
            found.append(Arm("E1b", f"E1b {objective} {row}", documents, {}, training))
    for cell in cells(config):
        training = {"optimizer": cell.optimiser.lower(), "lr": cell.rate, **short}
        documents = {**_EXPERIMENT, "objective": cell.objective}
        found.append(Arm("E3", cell.arm, documents, {**_ONE_HOT, **INITS[cell.init]}, training))
    for reading in config.readings:
        found += _reading(config, reading)
    for n_topics in config.topics:
        for tau in config.topics_per_document:
            documents = {**_THEORY, "n_topics": n_topics, "topics_per_document": tau}
            model = {**_ONE_HOT, "value": "fixed", "init_std": 0.01}
            found.append(Arm("E4a theory", f"E4a theory T{n_topics} tau{tau}", documents, model, {**_ADAM, **short}))
    return found


def beyond_documents(config: TopicStructureConfig) -> dict[str, dict[str, Any]]:
    """How the documents of E5's arms differ from the published ones, by name; the first are the published ones."""
    beyond = config.beyond
    logistic, few = {"sampler": "logistic-normal"}, {"overlap": beyond.overlaps[0]}
    zipf, correlated = {"zipf": beyond.zipf}, {**logistic, "topic_correlation": beyond.correlation}
    own = config.documents.words_per_topic - max(beyond.overlaps)
    return {
        PUBLISHED: {},
        **{f"overlap {overlap}": {"overlap": overlap} for overlap in beyond.overlaps},
        FEWER: {"words_per_topic": own},
        "Zipf": zipf,
        INDEPENDENT: logistic,
        CORRELATED: correlated,
        TOGETHER: {**few, **zipf, **correlated},
    }


def beyond_arm(optimizer: str, documents: str = PUBLISHED, objective: str = OBJECTIVES[0]) -> str:
    """The name of an arm of E5.

    Example:
        >>> beyond_arm("SGD"), beyond_arm("Adam", "Zipf"), beyond_arm("SGD", objective="squared")
        ('E5 SGD', 'E5 Adam Zipf', 'E5 SGD squared')
    """
    kinds = [documents] * (documents != PUBLISHED) + [objective] * (objective != OBJECTIVES[0])
    return " ".join(["E5", optimizer, *kinds])


def _beyond(config: TopicStructureConfig) -> list[Arm]:
    rates = {"SGD": config.beyond.sgd_rate, "Adam": config.beyond.adam_rate}
    model = {**_ONE_HOT, **INITS["near-zero"]}
    found = []
    for documents, changed in beyond_documents(config).items():
        for objective in OBJECTIVES if documents == PUBLISHED else OBJECTIVES[:1]:
            for name, lr in rates.items():
                data = {**_EXPERIMENT, "objective": objective, **changed}
                arm = beyond_arm(name, documents, objective)
                found.append(Arm("E5", arm, data, model, {"optimizer": name.lower(), "lr": lr}))
    return found


def beyond_steps(config: TopicStructureConfig) -> list[int]:
    """When E5's networks are measured: at the start, during training, and at the end."""
    return sorted({0, *config.beyond.measured, config.beyond.steps})


def _decayed(config: TopicStructureConfig) -> list[Arm]:
    """E2 with and without weight decay, on long documents: only there does weight decay decide single entries."""
    training = {"optimizer": "sgd", "lr": 20.0, "schedule": "cosine", "steps": config.decay_steps}
    length = max(_DECAY_LENGTH, config.documents.lengths[1])
    documents, model = exact_documents(length), {**_STAGE_ONE, "init_std": 0.05}
    return [
        Arm("E2", DECAYED, documents, model, {**training, "weight_decay": DECAY}),
        Arm("E2", FREE, documents, model, training),
    ]


def exact_documents(length: int) -> dict[str, Any]:
    """Documents of the theory with a fixed length, with exact mask shares in each."""
    return {**_THEORY, "exact_shares": True, "lengths": (length, length)}


def _reading(config: TopicStructureConfig, reading: str) -> list[Arm]:
    source, keys, value, objective = reading.split()
    model = {
        **_ONE_HOT,
        "input": "plain" if source == "one-hot" else "normalised",
        "masked_keys": keys,
        "value": "fixed" if value == "frozen" else "trained",
    }
    return [
        Arm(
            "E4",
            reading_arm(reading, row),
            {**_EXPERIMENT, "objective": objective},
            model,
            {"optimizer": optimizer, "lr": lr, "steps": config.attention_steps},
        )
        for row, (optimizer, lr) in ROWS.items()
    ]


def jobs(config: TopicStructureConfig) -> list[Job]:
    """Every run, the longest first; refuses settings with which some arm's documents cannot be."""
    known = arms(config)
    for name in known:
        documents_of(config, Job(name, config.seeds[0]))
    order = sorted(known, key=lambda name: -training_of(config, known[name]).steps)
    others = [MINIMISER] if config.experiment == "published" else []
    return [Job(name, seed) for name in [*order, *others] for seed in config.seeds]


def documents_of(config: TopicStructureConfig, job: Job) -> TopicDocuments:
    """The data of one run."""
    return replace(config.documents, seed=job.seed, **arms(config)[job.arm].documents)


def training_of(config: TopicStructureConfig, arm: Arm) -> TrainConfig:
    """How an arm's networks are trained; in E3 every step is a checkpoint, in E4 and E5 every evaluation."""
    plain: dict[str, Any] = {"schedule": "constant", "weight_decay": 0.0, "clip": None}
    if arm.experiment == "E3":
        plain["checkpoint_every"] = 1
    if arm.experiment == "E4":
        plain["checkpoint_every"] = config.check_every
    if arm.experiment == "E5":
        plain |= {"steps": config.beyond.steps, "checkpoint_every": math.gcd(*beyond_steps(config))}
    return TrainConfig(batch_size=config.batch_size, **{**plain, **arm.training})


def attention_steps(config: TopicStructureConfig, arm: Arm) -> list[int]:
    """When attention is measured: in E4 and E5 at every evaluation, for the networks behind P6 and P8 at the end."""
    if arm.experiment == "E5":
        return beyond_steps(config)
    if arm.experiment == "E4a theory":
        return [config.steps]
    if arm.experiment != "E4":
        return []
    steps = range(config.check_every, config.attention_steps // 2 + 1, config.check_every)
    return [*steps, config.attention_steps]


def keeps_model(config: TopicStructureConfig, job: Job) -> bool:
    """Whether its network is kept: those of the first seed, except in E3."""
    return job.seed == config.seeds[0] and job.arm != MINIMISER and arms(config)[job.arm].experiment != "E3"


def model_path(out: Path, job: Job) -> Path:
    """The path of its model, for the first seed."""
    return out / "models" / f"{job.name}.safetensors"


def results_of(config: TopicStructureConfig, job: Job, out: Path) -> list[Path]:
    """Every measurement of one run that findings and figures need."""
    folder = out / "results" / job.name
    if job.arm == MINIMISER:
        return [folder / "minimiser.safetensors"]
    arm = arms(config)[job.arm]
    names = {
        "blocks-start": arm.experiment != "E5",
        "blocks": arm.experiment != "E5",
        "changes": arm.experiment == "E3",
        "dev-loss": arm.experiment in ("E4", "E5"),
        "tables": arm.experiment == "E5",
        "way": job.arm == DECAYED,
    }
    found = [folder / f"{name}.safetensors" for name, kept in names.items() if kept]
    found += [result_path(folder, step, "dev.attention") for step in attention_steps(config, arm)]
    return found
