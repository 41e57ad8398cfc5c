"""Settings, arms and jobs of the study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mechclust.studies.study import Job, check_left_out, check_seeds
from mechclust.training import TrainConfig
from tasks import InputError, InstructionFollowing
from tasks.settings import (
    Count,
    Draws,
    Repeats,
    Seed,
    Several,
    ShareBetween,
    check_choice,
    check_different_settings,
    check_settings,
)

OVERLAPS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True)
class Arm:
    """A setting of the study in which one thing differs.

    Attributes:
        task: fields of the data.
        training: fields of the training loop.
        width: factor of the width.
    """

    task: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    width: int = 1


def overlap_arm(overlap: float) -> str:
    """Return the name of the arm whose tasks have this share of their outputs in common."""
    return f"overlap-{overlap:g}"


OVERLAP_ARMS = tuple(overlap_arm(overlap) for overlap in OVERLAPS)
PRIVATE = overlap_arm(0)
SHARED = overlap_arm(1)
_ONE = "outputs-1"
TWO = "outputs-2"
CONSTANT = "outputs-2-constant-rate"
_UNSEEN = "outputs-2-unseen"
PRIVATE_Y = "overlap-0-output-loss"
SHARED_Y = "overlap-1-output-loss"
PRIVATE_WIDE = "overlap-0-wide"
SHARED_WIDE = "overlap-1-wide"
ARMS: Mapping[str, Arm] = {
    **{overlap_arm(overlap): Arm({"overlap": overlap}) for overlap in OVERLAPS},
    _ONE: Arm({"n_outputs": 1}),
    TWO: Arm({"n_outputs": 2}),
    CONSTANT: Arm({"n_outputs": 2}, {"schedule": "constant"}),
    _UNSEEN: Arm({"n_outputs": 2, "split_by": "instruction"}),
    PRIVATE_Y: Arm({"overlap": 0.0, "loss_on": "output"}),
    SHARED_Y: Arm({"overlap": 1.0, "loss_on": "output"}),
    PRIVATE_WIDE: Arm({"overlap": 0.0}, width=2),
    SHARED_WIDE: Arm({"overlap": 1.0}, width=2),
}
# Arms whose data can be measured if those of all can: others differ in what the settings do not decide.
TRIED = (PRIVATE, SHARED, _UNSEEN)


@dataclass(frozen=True)
class ClusterFactorsConfig:
    """Settings of the cluster-factor study.

    Args:
        seeds: one training run per seed and arm. The seed draws the tasks and the initial weights. The functions of a
            seed's tasks do not depend on the overlap of their outputs, so arms can be compared within seeds.
        arms: names of the arms to run, from ``ARMS``.
        task: the data. Its ``seed``, ``overlap``, ``split_by`` and ``loss_on`` are set by the run.
        training: the training loop, with the schedule ``"cosine"``.
        first_measured: checkpoints before this step are not measured, except step 0.
        early_step: the migration is measured from this checkpoint to the end.
        n_layers: transformer blocks.
        d_model: width, doubled in the wide arms.
        n_heads: attention heads, doubled in the wide arms.
        n_init: k-means starts.
        n_permutations: random relabellings behind each null interval that no formula gives.
        n_shuffles: label shuffles behind the null interval of linear decodability.
        clear: states cluster by a label if the index is at least this.
        device: where to train, such as ``cpu`` or ``cuda``.
        test_findings: whether this size can test the findings.
    """

    seeds: tuple[Seed, ...] = tuple(range(200, 210))
    arms: tuple[str, ...] = tuple(ARMS)
    task: InstructionFollowing = InstructionFollowing(n_tasks=20, n_outputs=5, n_eval_tasks=10, n_eval=400)
    training: TrainConfig = TrainConfig(steps=1000, batch_size=64, lr=2e-3, n_checkpoints=10)
    first_measured: int = 40
    early_step: int = 100
    n_layers: Several = 6
    d_model: Count = 64
    n_heads: Count = 4
    n_init: Repeats = 10
    n_permutations: Draws = 200
    n_shuffles: Draws = 20
    clear: ShareBetween = 0.5
    device: str = "cpu"
    test_findings: bool = True

    def __post_init__(self) -> None:
        check_settings(self)
        check_seeds(self.seeds)
        of_arms = ("seed", "outputs", "overlap", "split_by", "loss_on")
        check_left_out("task", self.task, of_arms, "each run, from seeds and arms")
        check_different_settings(arms=self.arms)
        for arm in self.arms:
            check_choice(arms=(arm, tuple(ARMS)))
        for arm in (PRIVATE, SHARED):
            if arm not in self.arms:
                raise InputError(f"arms lacks {arm!r}, the arm that all others are compared with; add it")
        schedule = self.training.schedule
        if schedule != "cosine":
            raise InputError(
                f"training.schedule is {schedule!r}; expected 'cosine', with which {CONSTANT!r} is compared"
            )
        between = measured_steps(self)[1:-1]
        if not between:
            raise InputError(
                f"first_measured is {self.first_measured}; expected less, or more training.n_checkpoints, so that a "
                "checkpoint before the end is measured"
            )
        if self.early_step not in between:
            raise InputError(
                f"early_step is {self.early_step}; expected one of the measured checkpoints "
                f"{', '.join(map(str, between))}"
            )
        for arm in self.arms:
            task_of(self, Job(arm, self.seeds[0]))


def jobs(config: ClusterFactorsConfig) -> list[Job]:
    """Return every run, seed by seed."""
    return [Job(arm, seed) for seed in config.seeds for arm in config.arms]


def task_of(config: ClusterFactorsConfig, job: Job) -> InstructionFollowing:
    """Return the data of one run."""
    return replace(config.task, seed=job.seed, **ARMS[job.arm].task)


def training_of(config: ClusterFactorsConfig, arm: str) -> TrainConfig:
    """Return the training of an arm.

    A constant learning rate is half the other arms' initial rate, which is their mean.
    """
    settings = replace(config.training, **ARMS[arm].training)
    return replace(settings, lr=settings.lr / 2) if settings.schedule == "constant" else settings


def network_shape(config: ClusterFactorsConfig, arm: str) -> dict[str, int]:
    """Return the size of an arm's networks."""
    width = ARMS[arm].width
    return {"n_layers": config.n_layers, "d_model": width * config.d_model, "n_heads": width * config.n_heads}


def measured_steps(config: ClusterFactorsConfig) -> list[int]:
    """Return the checkpoints that are measured: step 0, then from the first measured one to the end."""
    return [step for step in config.training.checkpoint_steps if step == 0 or step >= config.first_measured]
