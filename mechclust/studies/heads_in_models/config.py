"""Settings, arms and files of the study of heads in models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated

from mechclust.studies.heads_in_models.prompts import NOUNS, ORDERS, PERSON_NAMES, WordPrompts
from mechclust.studies.study import Job, check_left_out, check_seeds
from mechclust.training import TrainConfig
from tasks import InputError, InstructionFollowing, SparseModularAddition, Task
from tasks.settings import MAX_COUNT, AtLeast, AtMost, Count, Seed, Several, ShareBelowOne, ShareBetween, check_settings

PLANTED = "planted"
INSTRUCTIONS = "instructions"
PROMPTS = "prompts"
TRAINED = "trained"
UNTRAINED = "untrained"
READ = "read"
UNREAD = "unread"
PRETRAINED = "pretrained"
RANDOM = "random"
PLANTED_P = 3
OFF = "off support"  # the sum of equally many digits off the support


@dataclass(frozen=True)
class HeadsInModelsConfig:
    """Settings of the study of clustering heads in models of several layers and heads.

    Args:
        seeds: one network per seed and task. The seed draws data and weights.
        word_seeds: for the pretrained model, one draw of words and of its copy's random weights per seed.
        model: a Hugging Face checkpoint, by name or folder, for the prompts. ``None`` leaves that part out.
        moduli: one addition task per modulus.
        addition: data of the additions. Its ``p``, ``n_embeddings`` and ``seed`` are set by the run.
        instructions: the data of the task-cluster network, split by instruction. Its ``seed`` is set by the run.
        n_layers: blocks of the trained networks.
        d_model: width of the trained networks.
        n_heads: attention heads per block of the trained networks.
        training: training of the networks that add.
        following: training of the networks that follow instructions.
        n_measured: examples whose head outputs are measured and interchanged.
        recipients: examples that receive every output.
        tolerance: share of the recipients in which two examples of one discovered class may differ.
        n_words: words of each kind in the prompts. The prompts are all pairs.
        n_tested: heads of the pretrained model that are interchanged, chosen by the largest effect. In small networks,
            all are.
        word_recipients: recipients among the prompts.
        together: how many heads of the pretrained model, chosen by the largest effect, are interchanged together to
            discover an equivalence.
        together_recipients: recipients of these among the prompts. With up to 7, ``tolerance`` 0.125 allows no
            difference.
        names: names to draw from.
        nouns: things to draw from.
        share: a head is called a clustering head of a label under three conditions. The label's within-ratio is at most
            this share of the chance value. Interchanges within a class change at most this share of the answers that
            interchanges between classes do. The answers follow the label (permutation p with Holm's correction at most
            ``level``). Heads of the pretrained model that are not interchanged need only meet the first, with the
            p-value of the output: they are called alike.
        level: significance level of that p-value.
        solved: minimum accuracy of a network that counts as having learnt its task.
        device: where to train and measure, such as ``cpu`` or ``cuda``.
        test_findings: whether this size can test the findings.
    """

    seeds: tuple[Seed, ...] = tuple(range(200, 230))
    word_seeds: tuple[Seed, ...] = tuple(range(100, 110))
    model: str | None = None
    moduli: tuple[Several, ...] = (2, 3, 4)
    addition: SparseModularAddition = SparseModularAddition(length=10, n_support=3, n_train=4096, n_test=512)
    instructions: InstructionFollowing = InstructionFollowing(
        n_tasks=8,
        n_outputs=2,
        n_inputs=6,
        n_mappings=6,
        variants=60,
        split_by="instruction",
        validation_share=0.2,
        n_eval=384,
    )
    n_layers: Several = 2
    d_model: Count = 32
    n_heads: Several = 4
    training: TrainConfig = TrainConfig(steps=600, batch_size=128, lr=3e-3, warmup=20, weight_decay=0.1)
    following: TrainConfig = TrainConfig(steps=800, batch_size=64, lr=3e-3, warmup=20, weight_decay=0.1)
    n_measured: Annotated[int, AtLeast(8), AtMost(MAX_COUNT)] = 384
    recipients: Several = 12
    tolerance: ShareBelowOne = 0.125
    n_words: Several = 5
    n_tested: Count = 4
    word_recipients: Several = 3
    together: tuple[Count, ...] = (4, 16, 64)
    together_recipients: Several = 6
    names: tuple[str, ...] = PERSON_NAMES
    nouns: tuple[str, ...] = NOUNS
    share: ShareBetween = 0.5
    level: ShareBetween = 0.05
    solved: ShareBetween = 0.95
    device: str = "cpu"
    test_findings: bool = True

    def __post_init__(self) -> None:
        check_settings(self)
        check_seeds(self.seeds)
        check_seeds(self.word_seeds, "word_seeds")
        if len(set(self.moduli)) < max(1, len(self.moduli)):
            raise InputError(f"moduli is {self.moduli}; expected at least one modulus, each once, such as 2 3 4")
        _check_data(self)
        _check_numbers(self)
        prompts_of(self, 0)
        for arm in arms(self):
            if arm not in (PLANTED, PROMPTS):
                task_of(self, Job(arm, self.seeds[0]))


def _check_data(config: HeadsInModelsConfig) -> None:
    """Refuse settings of the data that are set by each run, or that leave too few digits for a control."""
    check_left_out("addition", config.addition, ("p", "n_embeddings", "seed"), "each run, from moduli and seeds")
    check_left_out("instructions", config.instructions, ("seed",), "each run, from seeds")
    if config.instructions.split_by != "instruction":
        raise InputError(
            f"instructions.split_by is {config.instructions.split_by!r}; expected 'instruction', since findings are "
            "about instructions that were not seen"
        )
    n_digits = len(config.addition.positions)
    if 2 * n_digits > config.addition.length:
        raise InputError(
            f"addition has {n_digits} of {config.addition.length} digits in its support; expected at most half, since "
            "equally many digits off it serve as a control"
        )


def _check_numbers(config: HeadsInModelsConfig) -> None:
    """Refuse numbers of heads that do not grow, and more recipients than there are prompts."""
    if sorted(set(config.together)) != list(config.together) or not config.together:
        raise InputError(f"together is {config.together}; expected numbers of heads that grow, such as 4 16 64")
    n_prompts = config.n_words**2
    for name in ("word_recipients", "together_recipients"):
        n = getattr(config, name)
        if n > n_prompts:
            raise InputError(f"{name} is {n}, more than the {n_prompts} prompts; give fewer, or more n_words")


def addition_arm(p: int) -> str:
    """Return the arm of a modulus."""
    return f"addition-{p}"


def arms(config: HeadsInModelsConfig) -> list[str]:
    """Return the arms that are run for each seed."""
    trained = [PLANTED, *map(addition_arm, config.moduli), INSTRUCTIONS]
    return trained if config.model is None else [*trained, PROMPTS]


def jobs(config: HeadsInModelsConfig) -> list[Job]:
    """Return every run, seed by seed, with the draws of words last."""
    trained = [Job(arm, seed) for seed, arm in product(config.seeds, arms(config)) if arm != PROMPTS]
    return trained if config.model is None else [*trained, *(Job(PROMPTS, seed) for seed in config.word_seeds)]


def subjects_of(arm: str) -> list[str]:
    """Return the models that are measured in an arm, by the names of their files."""
    if arm == PLANTED:
        return [READ, UNREAD]
    if arm == PROMPTS:
        return [prompt_subject(kind, order) for kind, order in product((PRETRAINED, RANDOM), ORDERS)]
    return [TRAINED, UNTRAINED]


def prompt_subject(kind: str, order: str) -> str:
    """Return the name of a model with the prompts of one order."""
    return f"{kind}-{order}"


def labels_of(arm: str) -> tuple[str, ...]:
    """Return the equivalences that are measured in an arm: first the task's, second a control."""
    if arm == INSTRUCTIONS:
        return ("task", "input", "output")
    return ("asked", "other") if arm == PROMPTS else ("sum", OFF, "multiset", "answer")


def clustered_by_attention(config: HeadsInModelsConfig, arm: str, label: str) -> bool:
    """Return whether attention alone suffices to cluster by a label, so that the rule calls no head for it.

    Each class of such a label is one multiset of digits. A head that attends alike to their positions and no others
    maps each class to one point, whatever its weights. The sum is such a label if p is 2 or one digit counts. For
    larger p, different multisets have one sum, and only certain values of the digits map them to one point.
    """
    if arm in (PLANTED, INSTRUCTIONS, PROMPTS):
        return False
    one_multiset_per_sum = arm == addition_arm(2) or len(config.addition.positions) == 1
    return label == "multiset" or (label in ("sum", OFF) and one_multiset_per_sum)


def addition_of(config: HeadsInModelsConfig, p: int, seed: int) -> SparseModularAddition:
    """Return the addition modulo p of a seed."""
    return replace(config.addition, p=p, n_embeddings=p, seed=seed)


def task_of(config: HeadsInModelsConfig, job: Job) -> Task:
    """Return the data that a network is trained on."""
    if job.arm == INSTRUCTIONS:
        return replace(config.instructions, seed=job.seed)
    return addition_of(config, int(job.arm.rpartition("-")[2]), job.seed)


def prompts_of(config: HeadsInModelsConfig, seed: int) -> WordPrompts:
    """Return the prompts of a seed."""
    return WordPrompts(config.n_words, seed, config.names, config.nouns)


def training_of(config: HeadsInModelsConfig, arm: str) -> TrainConfig:
    """Return how an arm's networks are trained."""
    return config.following if arm == INSTRUCTIONS else config.training


def result_path(out: Path, job: Job, name: str) -> Path:
    """Return the path of a measurement."""
    return out / "results" / job.name / f"{name}.safetensors"
