"""Settings and jobs of the MOSSA study, and the paths of their artefacts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from mechclust.mossa.task_curves import MODELS
from mechclust.studies.study import check_left_out, check_past_warmup, check_seeds
from mechclust.training import TrainConfig
from tasks import InputError, SkillSuite
from tasks.settings import (
    MAX_COUNT,
    AtLeast,
    AtMost,
    Count,
    CountOrZero,
    Positive,
    Seed,
    check_settings,
)
from tasks.skills import OPERATIONS

FROZEN = ("embed", "pos_embed", "unembed")
# One argument of each operation, chosen by the seed, is never tuned on. Its words are, but never together.
_HELD_OUT_TASKS = ("copy-3", "swap-0", "translate-1", "type-2", "classify-3", "sentiment-0")
_TASKS = [f"{operation}-{argument}" for operation, argument in product(OPERATIONS, range(4))]
SEEN_TASKS = tuple(task for task in _TASKS if task not in _HELD_OUT_TASKS)


@dataclass(frozen=True)
class MossaConfig:
    """Settings of the MOSSA study.

    Args:
        seeds: one base model, one tuned on all seen skills, and one control for each skill, per seed.
        suite: the skills. Its ``seed``, ``stream`` and ``skills`` are set by the run.
        turn: shift the held-out arguments by one from seed to seed, so that over seeds no skill is held out more often
            than another.
        n_layers: transformer blocks.
        d_model: width.
        n_heads: attention heads.
        pretraining: pre-training of the base model, on the generic stream.
        tuning: tuning of the model of all seen skills, from the base.
        rank: tune changes of this rank to the query and value matrices (LoRA, alpha twice the rank), with all else
            frozen. 0 tunes all weights that ``tuning`` does not freeze.
        control_steps: steps of the controls, otherwise tuned like that model. With 1 / 18 of its steps (18 skills are
            seen), a control sees its skill as often as that model does.
        controls: which skills have a control: all, or only seen ones. In the second case, held-out skills are not
            tested.
        init_std: standard deviation of initial weights, or None for 1 / sqrt(d_model). GPT-2's .02 is for a larger
            width.
        ceiling: also tune the controls of seen skills with another order of the data, to measure how similar two are.
        n_neighbours: number of nearest neighbours for cluster purity.
        n_purity: prompts per seen skill among which neighbours are searched.
        n_projected: examples in the projection figure.
        device: where to train, such as ``cpu`` or ``cuda``.
        test_findings: whether this size can test the findings.
    """

    seeds: tuple[Seed, ...] = tuple(range(100, 112))
    suite: SkillSuite = SkillSuite(seen=SEEN_TASKS)
    turn: bool = True
    n_layers: Count = 8
    d_model: Count = 64
    n_heads: Count = 4
    init_std: Positive | None = None
    pretraining: TrainConfig = TrainConfig(steps=1500, batch_size=64, lr=2e-3, warmup=50)
    tuning: TrainConfig = TrainConfig(steps=18 * 120, batch_size=32, lr=5e-4, warmup=20, freeze=FROZEN)
    rank: CountOrZero = 0
    control_steps: Count = 120
    controls: Literal["all", "seen"] = "all"
    ceiling: bool = True
    n_neighbours: Count = 10
    n_purity: Count = 250
    n_projected: Annotated[int, AtLeast(4), AtMost(MAX_COUNT)] = 600
    device: str = "cpu"
    test_findings: bool = True

    def __post_init__(self) -> None:
        check_settings(self)
        check_seeds(self.seeds)
        check_left_out("suite", self.suite, ("seed", "stream", "skills", "stream_seed"), "each run")
        if self.suite.n_eval < 4:
            raise InputError(f"suite.n_eval is {self.suite.n_eval}; CKA needs at least 4 prompts per skill")
        if self.rank and self.tuning.layer_decay != 1:
            raise InputError(f"tuning.layer_decay is {self.tuning.layer_decay:g} and rank {self.rank}; use only one")
        check_past_warmup("pretraining", self.pretraining.warmup, **{"pretraining.steps": self.pretraining.steps})
        tuning_steps = {"tuning.steps": self.tuning.steps, "control_steps": self.control_steps}
        check_past_warmup("tuning", self.tuning.warmup, **tuning_steps)
        n_prompts = min(self.n_purity, self.suite.n_eval) * len(self.suite.seen)
        if self.n_neighbours >= n_prompts:
            raise InputError(
                f"n_neighbours is {self.n_neighbours}, of {n_prompts} prompts (n_purity of each seen skill); lower it"
            )


class ModelJob(NamedTuple):
    """One model to train, or one measurement."""

    kind: str  # base, tuned, control, measure, describe
    seed: int
    skill: str = ""
    again: bool = False

    @property
    def name(self) -> str:
        """Its name in progress bars and reports."""
        return f"{self._file}-seed{self.seed}"

    @property
    def stage(self) -> int:
        """The number of the job's stage: tuning waits for the base models, measuring for all models."""
        return {"base": 0, "tuned": 1, "control": 1, "measure": 2, "describe": 2}[self.kind]

    def model_path(self, out: Path) -> Path:
        """Return the path of its model."""
        return out / "models" / f"seed{self.seed}" / f"{self._file}.safetensors"

    @property
    def _file(self) -> str:
        parts = (self.kind, self.skill, "again" if self.again else "")
        return "-".join(part for part in parts if part)


def jobs(config: MossaConfig) -> list[ModelJob]:
    """Return every model and measurement, with the longest of a stage first."""
    plan = [ModelJob(kind, seed) for kind in (*MODELS, "measure", "describe") for seed in config.seeds]
    for seed in config.seeds:
        suite = suite_of(config, seed)
        for skill in controlled_skills(config, suite):
            plan.append(ModelJob("control", seed, skill))
            if has_ceiling(config, suite, skill):
                plan.append(ModelJob("control", seed, skill, again=True))
    return plan


def controlled_skills(config: MossaConfig, suite: SkillSuite) -> list[str]:
    """Return the skills of a seed that have a control, in the suite's order."""
    return [name for name in suite.task_names if config.controls == "all" or name in suite.seen]


def has_ceiling(config: MossaConfig, suite: SkillSuite, skill: str) -> bool:
    """Return whether the skill's control is tuned twice."""
    return config.ceiling and skill in suite.seen


def suite_of(config: MossaConfig, seed: int) -> SkillSuite:
    """Return the skills of one seed.

    Example:
        >>> every = set(SkillSuite().task_names)
        >>> [sorted(every - set(suite_of(MossaConfig(), seed).seen))[1] for seed in (100, 101, 102)]
        ['copy-3', 'copy-0', 'copy-1']
    """
    suite = replace(config.suite, seed=seed)
    if not config.turn:
        return suite
    seen = []
    for name in suite.seen:
        operation, argument = name.split("-")
        seen.append(f"{operation}-{(int(argument) + seed) % suite.n_arguments}")
    return replace(suite, seen=tuple(seen))


def result_path(out: Path, seed: int, name: str) -> Path:
    """Return the path of a measurement."""
    return out / "results" / f"seed{seed}" / f"{name}.safetensors"
