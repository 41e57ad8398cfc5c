"""Settings, arms and jobs of the task-cluster study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from mechclust.studies.study import Job, check_left_out, check_seeds
from mechclust.training import TrainConfig
from tasks import InputError, InstructionFollowing
from tasks.settings import Count, Draws, Repeats, Seed, Several, check_choice, check_different_settings, check_settings

_ARMS: Mapping[str, Mapping[str, Any]] = {
    "private": {"outputs": "private", "split_by": "instance"},
    "instruction": {"outputs": "private", "split_by": "instruction"},
    "shared": {"outputs": "shared", "split_by": "instance"},
    "five": {"outputs": "private", "split_by": "instance", "n_outputs": 5},
    "expressions": {"outputs": "private", "split_by": "instance", "n_distributions": 3},
}


@dataclass(frozen=True)
class TaskClustersConfig:
    """Settings of the task-cluster study.

    Args:
        seeds: one training run per seed and arm. The seed draws the tasks and the initial weights.
        arms: in ``private``, the primary arm, each task has separate output tokens. ``instruction`` adds unseen
            validation instructions to that. In ``shared``, all tasks share outputs. By default not trained:
            ``five``, five private outputs for each task, and ``expressions``, three regular expressions for each task,
            as in the full version of the paper.
        task: the data. Its ``seed``, ``outputs``, ``overlap`` and ``split_by`` are set by the run.
        shared_outputs: output tokens in the ``shared`` arm.
        training: the training loop.
        n_layers: transformer blocks.
        d_model: width.
        n_heads: attention heads.
        tied: whether the unembedding is the token embedding. Needs TransformerLens 4.
        n_init: k-means starts.
        n_permutations: relabellings within the classes of the input, behind each null interval.
        tsne: also measure after t-SNE, at the end of training. Without it, hidden states are drawn by PCA.
        device: where to train, such as ``cpu`` or ``cuda``.
        test_findings: whether this size can test the findings.
    """

    seeds: tuple[Seed, ...] = tuple(range(40, 45))
    arms: tuple[str, ...] = ("private", "instruction", "shared")
    task: InstructionFollowing = InstructionFollowing()
    shared_outputs: Several = 10
    training: TrainConfig = TrainConfig()
    n_layers: Several = 6
    d_model: Count = 128
    n_heads: Count = 4
    tied: bool = False
    n_init: Repeats = 10
    n_permutations: Draws = 1000
    tsne: bool = True
    device: str = "cpu"
    test_findings: bool = True

    def __post_init__(self) -> None:
        check_settings(self)
        check_seeds(self.seeds)
        check_left_out("task", self.task, ("seed", "outputs", "overlap", "split_by"), "each run, from seeds and arms")
        check_different_settings(arms=self.arms)
        for arm in self.arms:
            check_choice(arms=(arm, tuple(_ARMS)))
        if "private" not in self.arms:
            raise InputError("arms lacks 'private', the primary arm that the findings are about; add it")


def jobs(config: TaskClustersConfig) -> list[Job]:
    """Return every run."""
    return [Job(arm, seed) for seed, arm in product(config.seeds, config.arms)]


def task_of(config: TaskClustersConfig, job: Job) -> InstructionFollowing:
    """Return the data of one run."""
    task = replace(config.task, seed=job.seed, **_ARMS[job.arm])
    return replace(task, n_outputs=config.shared_outputs) if job.arm == "shared" else task


def pictured_steps(config: TaskClustersConfig) -> list[int]:
    """Return the checkpoints at which hidden states are plotted: the first, the middle one and the last."""
    steps = config.training.checkpoint_steps
    return [0, steps[len(steps) // 2], steps[-1]]
