"""The arms of the topic-structure study: what each trains on which data, its jobs, and what they keep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from mechclust.studies.study import Job
from mechclust.studies.topic_structure.config import EVERYTHING_ROWS, ROWS, TopicStructureConfig
from mechclust.training import TrainConfig
from mechclust.training.results_by_step import result_path
from tasks import TopicDocuments

OBJECTIVES = ("cross-entropy", "squared")
INITS: Mapping[str, Mapping[str, Any]] = {"near-zero": {"init_std": 0.01}, "default": {}}
EVERYTHING = "E1b"
ATTENTION = "E4"
RELEASED = "E3 released"
DECAYED = "E2 weight decay"
FREE = "E2 no decay"
MINIMISER = "E2 minimiser"  # solved for, not trained
DECAY = 6e-5  # well above the variance of a word's share within its topic, well below that of a topic's share
PUBLISHED = "published"
FEWER = "fewer words"
_TOGETHER = "all three"
INDEPENDENT = "independent topics"
CORRELATED = "correlated topics"
_LEAST_DECAY_LENGTH = 400  # words
MAX_DECAY_RATE = 20.0


@dataclass(frozen=True)
class Arm:
    """One way to train, run once per seed.

    Attributes:
        experiment: which it belongs to.
        name: of the arm.
        documents: changes to the settings of the documents.
        model: changes to the defaults of the network.
        training: changes to the defaults of training.
        follows: what is followed during training, by the name of its result.
        attention_at: steps at which ``TopicAttention`` is measured.
    """

    experiment: str
    name: str
    documents: Mapping[str, Any]
    model: Mapping[str, Any]
    training: Mapping[str, Any]
    follows: Sequence[str] = ()
    attention_at: Sequence[int] = ()


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
_EXPERIMENT = {"sampler": "dirichlet", "boundaries": True, "objective": OBJECTIVES[0]}
_ONE_HOT = {"embedding": "one-hot", "decoder": "identity", "bias": False}
_STAGE_ONE = {**_ONE_HOT, "attention": "uniform"}
_RELEASED_NETWORK = {**_ONE_HOT, "input": "normalised", "attention_bias": True}
_ADAM = {"optimizer": "adam", "lr": 0.003}


def stage_cells(config: TopicStructureConfig) -> list[Cell]:
    """Return the cells of E3: initial weights x optimiser x loss x learning rate.

    Adam has no cells with the squared loss: its gradients at the near-zero start are so small, as an average over
    outputs, that Adam's epsilon would decide.
    """
    factorial = []
    for init in INITS:
        for objective in OBJECTIVES:
            factorial += [Cell(init, "SGD", objective, rate) for rate in config.sgd_rates]
        factorial += [Cell(init, "Adam", OBJECTIVES[0], rate) for rate in config.adam_rates]
    return factorial


def attention_arm(row: str) -> str:
    """Return the name of E4's arm for a row of the published table."""
    return f"{ATTENTION} {row}"


def everything_arm(objective: str, row: str) -> str:
    """Return the name of E1b's arm for a loss and a row of the published table."""
    return f"{EVERYTHING} {objective} {row}"


def released_arm(rate: float) -> str:
    """Return the name of E3's arm for the network as released, with SGD at a rate."""
    return f"{RELEASED} {rate:g}"


def theory_arm(n_topics: int, tau: int) -> str:
    """Return the name of the arm of E4a theory for a number of topics, and a number of topics in a document."""
    return f"E4a theory T{n_topics} tau{tau}"


def arms(config: TopicStructureConfig) -> dict[str, Arm]:
    """Return every arm that is trained, by name."""
    trained = _beyond(config) if config.experiment == "beyond" else _published(config)
    return {arm.name: arm for arm in trained}


def _published(config: TopicStructureConfig) -> list[Arm]:
    short = {**_ADAM, "steps": config.steps}
    uniform = {"attention": "uniform", "value": "identity", "init_std": 0.05}
    return [
        Arm("E1", "E1", _THEORY, uniform, short),
        Arm("E2", "E2", _THEORY, _STAGE_ONE, short),
        *_decayed(config),
        *_everything_trained(config),
        *_factorial(config),
        *_released(config),
        *_mixing(config),
    ]


def _everything_trained(config: TopicStructureConfig) -> list[Arm]:
    trained = []
    for objective, row in product(OBJECTIVES, EVERYTHING_ROWS):
        optimizer, lr = ROWS[row]
        documents = {**_EXPERIMENT, "objective": objective}
        training = {"optimizer": optimizer, "lr": lr, "steps": config.everything_steps, "n_checkpoints": 40}
        trained.append(Arm(EVERYTHING, everything_arm(objective, row), documents, {}, training, ["effects"]))
    return trained


def _factorial(config: TopicStructureConfig) -> list[Arm]:
    trained = []
    for cell in stage_cells(config):
        documents = {**_EXPERIMENT, "objective": cell.objective}
        model = {**_ONE_HOT, **INITS[cell.init]}
        lr = cell.rate
        if (cell.optimiser, cell.objective) == ("SGD", "squared"):
            lr = _averaged(config, lr)
        training = {"optimizer": cell.optimiser.lower(), "lr": lr, "steps": config.steps, "checkpoint_every": 1}
        trained.append(Arm("E3", cell.arm, documents, model, training, ["changes"]))
    return trained


def _averaged(config: TopicStructureConfig, rate: float) -> float:
    """Return SGD's rate for the squared loss, given that for its sum over outputs: the task averages over them."""
    return rate * config.documents.d_vocab


def _mixing(config: TopicStructureConfig) -> list[Arm]:
    model = {**_ONE_HOT, "value": "fixed", "init_std": 0.01}
    training = {**_ADAM, "steps": config.steps}
    trained = []
    for n_topics, tau in product(config.topics, config.topics_per_document):
        documents = {**_THEORY, "n_topics": n_topics, "topics_per_document": tau}
        name = theory_arm(n_topics, tau)
        trained.append(Arm("E4a theory", name, documents, model, training, attention_at=[config.steps]))
    return trained


def beyond_documents(config: TopicStructureConfig) -> dict[str, dict[str, Any]]:
    """Return how the documents of E5's arms differ from the published ones, by name, beginning with the published."""
    beyond = config.beyond
    zipf = {"zipf": beyond.zipf}
    independent = {"sampler": "logistic-normal"}
    correlated = {**independent, "topic_correlation": beyond.correlation}
    return {
        PUBLISHED: {},
        **{f"overlap {overlap}": {"overlap": overlap} for overlap in beyond.overlaps},
        FEWER: {"words_per_topic": config.documents.words_per_topic - max(beyond.overlaps)},
        "Zipf": zipf,
        INDEPENDENT: independent,
        CORRELATED: correlated,
        _TOGETHER: {"overlap": beyond.overlaps[0], **zipf, **correlated},
    }


def beyond_arm(optimizer: str, documents: str = PUBLISHED, objective: str = OBJECTIVES[0]) -> str:
    """Return the name of an arm of E5, which leaves out published documents and cross-entropy.

    Example:
        >>> beyond_arm("SGD"), beyond_arm("Adam", "Zipf"), beyond_arm("SGD", objective="squared")
        ('E5 SGD', 'E5 Adam Zipf', 'E5 SGD squared')
    """
    words = ["E5", optimizer]
    if documents != PUBLISHED:
        words.append(documents)
    if objective != OBJECTIVES[0]:
        words.append(objective)
    return " ".join(words)


def _beyond(config: TopicStructureConfig) -> list[Arm]:
    rates = {"SGD": config.beyond.sgd_rate, "Adam": config.beyond.adam_rate}
    model = {**_ONE_HOT, **INITS["near-zero"]}
    steps = beyond_steps(config)
    length = {"steps": config.beyond.steps, "checkpoint_every": math.gcd(*steps)}
    follows = ["dev-loss", "tables"]
    trained = []
    for documents, changes in beyond_documents(config).items():
        objectives = OBJECTIVES if documents == PUBLISHED else OBJECTIVES[:1]
        for objective, (optimizer, lr) in product(objectives, rates.items()):
            if (optimizer, objective) == ("SGD", "squared"):
                lr = _averaged(config, lr)
            data = {**_EXPERIMENT, "objective": objective, **changes}
            name = beyond_arm(optimizer, documents, objective)
            training = {"optimizer": optimizer.lower(), "lr": lr, **length}
            trained.append(Arm("E5", name, data, model, training, follows, attention_at=steps))
    return trained


def beyond_steps(config: TopicStructureConfig) -> list[int]:
    """Return when E5's networks are measured: at the start, during training, and at the end."""
    return sorted({0, *config.beyond.measured, config.beyond.steps})


def _decayed(config: TopicStructureConfig) -> list[Arm]:
    """Return E2 with and without weight decay, on long documents: only there does it decide single entries."""
    lr = _averaged(config, decay_rate(config))
    training = {"optimizer": "sgd", "lr": lr, "schedule": "cosine", "steps": config.decay_steps}
    documents = exact_documents(max(_LEAST_DECAY_LENGTH, config.documents.lengths[1]))
    model = {**_STAGE_ONE, "init_std": 0.05}
    return [
        Arm("E2", DECAYED, documents, model, {**training, "weight_decay": DECAY / config.documents.d_vocab}, ["way"]),
        Arm("E2", FREE, documents, model, training),
    ]


def decay_rate(config: TopicStructureConfig) -> float:
    """Return SGD's rate for E2 with and without weight decay, at most half of the rate at which training diverges.

    That is one over the largest eigenvalue of ``DocumentMoments.inputs``. Its eigenvector is the mean of all documents,
    which show each word equally often, and MASK.
    """
    task = config.documents
    masked = (1 - task.correct_share - task.random_share) * task.selected_share
    largest = masked**2 + (1 - masked) ** 2 / task.n_words
    return min(MAX_DECAY_RATE, 0.5 / largest)


def exact_documents(length: int) -> dict[str, Any]:
    """Return documents of the theory with a fixed length, with exact mask shares in each, drawn once."""
    return {**_THEORY, "exact_shares": True, "masking": "static", "lengths": (length, length)}


def _released(config: TopicStructureConfig) -> list[Arm]:
    """Return the arms that train the network as released: E3 from near zero, and E4."""
    near_zero = {**_RELEASED_NETWORK, **INITS["near-zero"], "type_std": 1.0}
    trained = []
    for lr in config.released_rates:
        training = {"optimizer": "sgd", "lr": lr, "steps": config.steps, "checkpoint_every": 1}
        trained.append(Arm(RELEASED, released_arm(lr), _EXPERIMENT, near_zero, training, ["changes"]))
    for row, (optimizer, lr) in ROWS.items():
        training = {"optimizer": optimizer, "lr": lr, "steps": config.attention_steps}
        training["checkpoint_every"] = config.check_every
        trained.append(Arm(ATTENTION, attention_arm(row), _EXPERIMENT, _RELEASED_NETWORK, training, ["words"]))
    return trained


def seeds_of(config: TopicStructureConfig, arm: str) -> tuple[int, ...]:
    """Return the seeds that an arm is run with."""
    experiment = MINIMISER if arm == MINIMISER else arms(config)[arm].experiment
    others = {RELEASED: config.released_seeds, ATTENTION: config.table_seeds, EVERYTHING: config.everything_seeds}
    return others.get(experiment, config.seeds)


def jobs(config: TopicStructureConfig) -> list[Job]:
    """Return every run, the longest first.

    Raises:
        InputError: if some arm's documents cannot be with these settings.
    """
    steps = {}
    for name, arm in arms(config).items():
        documents_of(config, Job(name, seeds_of(config, name)[0]))
        steps[name] = training_of(config, arm).steps
    order = sorted(steps, key=steps.__getitem__, reverse=True)
    if config.experiment == "published":
        order.append(MINIMISER)
    every = []
    for name in order:
        every += [Job(name, seed) for seed in seeds_of(config, name)]
    return every


def documents_of(config: TopicStructureConfig, job: Job) -> TopicDocuments:
    """Return the data of one run."""
    return replace(config.documents, seed=job.seed, **arms(config)[job.arm].documents)


def training_of(config: TopicStructureConfig, arm: Arm) -> TrainConfig:
    """Return how an arm's networks are trained."""
    plain = {"schedule": "constant", "weight_decay": 0.0, "clip": None}
    return TrainConfig(batch_size=config.batch_size, **{**plain, **arm.training})


def keeps_model(config: TopicStructureConfig, job: Job) -> bool:
    """Return whether its network is kept: those of the first seed are, except in E3."""
    if job.arm == MINIMISER or job.seed != seeds_of(config, job.arm)[0]:
        return False
    return arms(config)[job.arm].experiment not in ("E3", RELEASED)


def model_path(out: Path, job: Job) -> Path:
    """Return the path of its model, for the first seed."""
    return out / "models" / f"{job.name}.safetensors"


def results_of(config: TopicStructureConfig, job: Job, out: Path) -> list[Path]:
    """Return every measurement of one run that findings and figures need."""
    folder = out / "results" / job.name
    if job.arm == MINIMISER:
        return [folder / "minimiser.safetensors"]
    arm = arms(config)[job.arm]
    blocks = [] if arm.experiment == "E5" else ["blocks-start", "blocks"]
    results = [folder / f"{name}.safetensors" for name in [*blocks, *arm.follows]]
    return [*results, *(result_path(folder, step, "dev.attention") for step in arm.attention_at)]
