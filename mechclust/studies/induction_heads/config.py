"""Settings, arms and jobs of the induction-head study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

from mechclust.studies.study import Job, check_left_out, check_seeds
from mechclust.training import TrainConfig
from tasks import InputError, RepeatedTokens
from tasks.settings import Positive, Seed, Several, Size, check_settings

TWO = "two layers"
ONE = "one layer"
LAYERS_OF_ARM: Mapping[str, int] = {TWO: 2, ONE: 1}
SPLIT = "test"


@dataclass(frozen=True)
class InductionHeadsConfig:
    """Settings of the induction-head study.

    Args:
        seeds: a network with two layers and one with one layer per seed. The seed draws sequences and initial weights.
        task: the data. Its ``seed`` is set by the run. The test sequences are those on which heads are measured.
        training: the training loop. Heads are measured at its checkpoints.
        d_model: width.
        n_heads: attention heads in each layer.
        init_std: standard deviation of initial weights.
        device: where to train, such as ``cpu`` or ``cuda``.
        test_findings: whether this size can test the findings.
    """

    seeds: tuple[Seed, ...] = tuple(range(100, 108))
    task: RepeatedTokens = RepeatedTokens(n_test=128)
    training: TrainConfig = TrainConfig(steps=500, batch_size=64, schedule="constant", warmup=50, checkpoint_every=10)
    d_model: Size = 64
    n_heads: Several = 4
    init_std: Positive = 0.1
    device: str = "cpu"
    test_findings: bool = True

    def __post_init__(self) -> None:
        check_settings(self)
        check_seeds(self.seeds)
        check_left_out("task", self.task, ("seed",), "each run, from seeds")
        if self.task.n_test < 2:
            raise InputError("task.n_test is 1; expected at least 2, since an ablated output is a mean over sequences")


def jobs(config: InductionHeadsConfig) -> list[Job]:
    """Return every run."""
    return [Job(arm, seed) for seed, arm in product(config.seeds, LAYERS_OF_ARM)]


def task_of(config: InductionHeadsConfig, job: Job) -> RepeatedTokens:
    """Return the data of one run."""
    return replace(config.task, seed=job.seed)
