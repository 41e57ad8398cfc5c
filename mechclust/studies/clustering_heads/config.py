"""Settings and arms of the clustering-head study, and which of them train together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from jaxtyping import Float
from torch import Tensor

from mechclust.models.config import AnyConfig
from mechclust.studies.clustering_heads.ablations import PADDED, Ablations
from mechclust.studies.study import check_seeds
from mechclust.training import Member, TrainConfig
from tasks import InputError, SparseModularAddition
from tasks.settings import (
    MAX_SIZE,
    Above,
    AtLeast,
    AtMost,
    Count,
    CountOrZero,
    NotNegative,
    Positive,
    Seed,
    Several,
    ShareBelowOne,
    Size,
    WideSeed,
    check_different_settings,
    check_multiple,
    check_settings,
)

SOLVED = 0.98  # test accuracy above which a network has solved the task
BASE_EPS = 1e-5  # eps of both norms in the base setting
MLP = "blocks.0.mlp"
HEAD = "blocks.0.attn.hook_z"
XI = "blocks.0.hook_resid_mid"  # the sequence embedding
MITIGATIONS = ("larger eps", "slower feed-forward", "late smaller rate")
# Measurements of a network of the base setting: the head, its training, and interventions on the training.
PARTS = ("untrained", "head", "dynamics", "stitching", "replay", "donors")
MAX_HESSIAN_WEIGHTS = 5_000  # 200 MB in float64
FULL_BATCH = "full batch"
PLATEAUS = "plateaus"  # full batch too, on the seeds that H3c is judged on
SCRATCH = "scratch"  # p + 1 from random weights
TRANSFER = "transfer"  # p + 1 from the networks that solved p
SECOND_STAGE = "second stage"
IDEAL_POSITIONS = "start ideal positions"
CURRICULUM = "curriculum"
ABLATIONS = ("batch", "lr", "width", "discount", "dropout", "bias")
Ideal = Literal["", "positions", "head"]
HEAD_PARTS = ("embed", "pos_embed", "blocks.0.attn")  # everything that computes the sequence embedding
_BIASES = (f"{MLP}.b_in", f"{MLP}.b_out")
_PLAIN_ADAM: dict[str, Any] = {"optimizer": "adam", "schedule": "constant", "weight_decay": 0.0, "clip": None}


@dataclass(frozen=True)
class Curriculum:
    """The second paper's comparison, full-batch: p = 4 from scratch against p = 2 first.

    Args:
        seeds: seeds of both arms.
        p: the harder modulus, above 2.
        d_model: width of the network.
        d_mlp: width of its feed-forward layer.
        steps: steps from scratch, as many as the curriculum's in total.
        first_steps: steps of the curriculum with p = 2, at least two fewer.
        lr: learning rate on the harder task.
        first_lr: learning rate with p = 2.
        points: points on the straight line between the two solutions, ends included.
        group: number of seeds trained together in one process.
    """

    seeds: tuple[Seed, ...] = tuple(range(300, 340))
    p: Annotated[int, AtLeast(3), AtMost(MAX_SIZE)] = 4
    d_model: Count = 32
    d_mlp: Count = 128
    steps: Count = 10_000
    first_steps: Count = 3_000
    lr: Positive = 1e-2
    first_lr: Positive = 1e-3
    points: Several = 41
    group: Count = 10


@dataclass(frozen=True)
class FullBatch:
    """The base setting, all sequences at once. The source shows such a run without its settings, so we chose them.

    Args:
        seeds: seeds of the networks. Without seeds, this is not run.
        steps: Adam steps.
        lr: Adam's learning rate.
        every: steps between snapshots, at which gradients are measured.
        curvature_seeds: seeds of further networks, for which the Hessian is measured too. H3c is judged on these only,
            because its rule was chosen on seeds 300 to 324.
        curvature: snapshots, besides the last, at which the smallest eigenvalues of the Hessian are computed. Its
            memory is quadratic in weights, which are 5,000 at most.
    """

    seeds: tuple[Seed, ...] = tuple(range(300, 325))
    curvature_seeds: tuple[Seed, ...] = tuple(range(400, 425))
    steps: Count = 10_000
    lr: Positive = 3e-3
    every: Count = 10
    curvature: Count = 16


@dataclass(frozen=True)
class Starts:
    """The base setting from other initial weights.

    Args:
        seeds: seeds that start with the position embeddings of the ideal head. Without seeds, nothing here is run.
        second_stage: also train the feed-forward layer alone, on top of the ideal head, frozen, with every seed of the
            base setting.
        beta: length of the ideal head's query, above 0. The larger it is, the less attention falls off the support.
    """

    seeds: tuple[Seed, ...] = tuple(range(300, 325))
    second_stage: bool = True
    beta: Positive = 8.0


@dataclass(frozen=True)
class ClusteringHeadsConfig:
    """Settings of the clustering-head study.

    Args:
        seeds: one network per seed, in the base setting and from scratch on p + 1. The seed draws weights and data. The
            default seeds are fresh: the detector was fixed on 0 to 39, and an earlier form of the findings was judged
            on 200 to 299.
        task: the data of the base setting.
        d_mlp: width of the feed-forward layer.
        epochs: passes through the training sequences.
        batch_size: sequences per step.
        lr: Adam's learning rate.
        group: number of seeds trained together in one process.
        mitigations: how many seeds, counted from the first, are also trained with a larger eps, with a slower
            feed-forward layer, and with a smaller rate late in training. The findings about mitigations use only these.
        full_batch: the base setting, trained on all sequences at once.
        starts: the base setting from other initial weights.
        transfer: also train on p + 1, from the solved networks and from scratch.
        curriculum: the second paper's comparison.
        ablations: settings varied one at a time.
        eps: eps of the norm before the feed-forward layer, in the mitigation, above the base setting's 1e-5.
        discount: factor on the feed-forward layer's learning rate, in the mitigation, below 1.
        sandbox: number of seeds with a sandbox page.
        device: where to train, such as ``cpu`` or ``cuda``. Networks are measured on the CPU.
        test_findings: whether this size can test the findings.
    """

    seeds: tuple[Seed, ...] = tuple(range(300, 400))
    task: SparseModularAddition = SparseModularAddition()
    d_mlp: Count = 32
    epochs: Count = 1000
    batch_size: Count = 32
    lr: Positive = 3e-3
    group: Count = 50
    mitigations: CountOrZero = 100
    full_batch: FullBatch = FullBatch()
    starts: Starts = Starts()
    transfer: bool = True
    curriculum: Curriculum = Curriculum()
    ablations: Ablations = Ablations()
    eps: Annotated[float, Above(BASE_EPS)] = 0.1
    discount: ShareBelowOne = 0.3
    sandbox: CountOrZero = 2
    device: str = "cpu"
    test_findings: bool = True

    def __post_init__(self) -> None:
        check_settings(self)
        check_seeds(self.seeds)
        for part in ("curriculum", "full_batch", "starts", "ablations"):
            check_different_settings(**{f"{part}.seeds": getattr(self, part).seeds})
        check_different_settings(**{"full_batch.curvature_seeds": self.full_batch.curvature_seeds})
        self._check_task()
        if self.curriculum.seeds:
            self._check_curriculum()
        if self.ablations.seeds and max(self.ablations.batch_sizes, default=0) > self.task.n_train:
            raise InputError(
                f"ablations.batch_sizes has {max(self.ablations.batch_sizes)}; expected at most the "
                f"{self.task.n_train} training sequences"
            )
        for arm in arms(self).values():  # refuses invalid arms before any training starts
            training_of(self, arm)
            member_of(self, arm, arm.seeds[0])
        if self.full_batch.curvature_seeds:
            self._check_hessian()

    def _check_task(self) -> None:
        if self.task.seed != 0:
            raise InputError("task.seed is set by each network, from seeds; leave it out and set those")
        if not self.task.can_number_multisets:
            raise InputError(
                f"task has {len(self.task.positions)} digits below {self.task.p} in its support, too many to number "
                "their multisets; choose a smaller support"
            )
        if self.transfer and self.task.n_embeddings < self.task.p + 1:
            raise InputError(
                f"task.n_embeddings is {self.task.n_embeddings}; expected at least {self.task.p + 1}, "
                "the digits that transfer continues with (or transfer = False)"
            )

    def _check_curriculum(self) -> None:
        c = self.curriculum
        if c.steps - c.first_steps < 2:  # with a snapshot halfway between them
            raise InputError(
                f"curriculum.first_steps is {c.first_steps}; expected at least 2 fewer than its steps ({c.steps})"
            )
        curriculum_members(self, c.p, c.seeds[:1])

    def _check_hessian(self) -> None:
        arm = arms(self)[PLATEAUS]
        model = member_of(self, arm, arm.seeds[0]).model
        assert isinstance(model, PoolingTransformerConfig)
        if model.n_weights > MAX_HESSIAN_WEIGHTS:
            raise InputError(
                f"full_batch.curvature_seeds need the Hessian of {model.n_weights:,} weights; expected at most "
                f"{MAX_HESSIAN_WEIGHTS:,} (a smaller d_mlp, or no such seeds)"
            )


@dataclass(frozen=True)
class Arm:
    """One way to train, run once per seed.

    Attributes:
        measure: how much is measured: ``"all"``, ``"losses"``, ``"gradients"`` or ``"curvature"`` (with gradients) at
            snapshots, or, at the end only, the ``"head"`` or just the accuracy (``"end"``).
        every: steps between snapshots. If ``None``, one epoch, or all steps if only the end is measured.
        scales: factors on the initial weights, by the beginning of a parameter's name.
        ideal: the part initialised from the ideal head: none, its positions, or all of it.
    """

    name: str
    seeds: tuple[int, ...]
    p: int
    model: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    rate: float = 1.0
    rates: Mapping[str, float] = field(default_factory=dict)
    measure: str = "end"
    every: int | None = None
    scales: Mapping[str, float] = field(default_factory=dict)
    ideal: Ideal = ""

    @property
    def kind(self) -> str:
        """The kind of arm: the first word of its name, such as the setting that an ablation varies."""
        return self.name.split(" ")[0]


class EnsembleJob(NamedTuple):
    """Arms of the same shape, trained together on some of their seeds."""

    arms: tuple[str, ...]
    seeds: tuple[int, ...]

    @property
    def name(self) -> str:
        """The name of the job's folder."""
        first = self.arms[0] if len(self.arms) == 1 else f"{self.arms[0]} and {len(self.arms) - 1} more"
        return f"{first}, seeds {self.seeds[0]}-{self.seeds[-1]}".replace(" ", "-").replace(",", "")

    def result(self, out: Path) -> Path:
        """The file that the job writes last. The curriculum has one file per seed instead."""
        return out / "results" / "final" / f"{self.name}.safetensors"


def curriculum_result(out: Path, seed: int) -> Path:
    """Return the path of the measurements of one seed of the curriculum."""
    return out / "results" / CURRICULUM / f"seed{seed}.safetensors"


def arms(config: ClusteringHeadsConfig) -> dict[str, Arm]:
    """Return every arm except the curriculum, by name."""
    arms_by_name: dict[str, Arm] = {}
    for arm in [*_base_arms(config), *_starts(config), *_ablations(config)]:
        if arm.seeds and arms_by_name.setdefault(arm.name, arm) is not arm:
            raise InputError(f"the ablation {arm.name!r} is given twice; expected values that differ in 6 digits")
    return arms_by_name


def _base_arms(config: ClusteringHeadsConfig) -> list[Arm]:
    """Return the base setting, its mitigations, the full-batch run, and p + 1 from random weights."""
    p = config.task.p
    mitigated = config.seeds[: config.mitigations]
    full = config.full_batch
    all_at_once = {"batch_size": config.task.n_train, "lr": full.lr, "steps": full.steps}
    base_arms = [
        Arm("base", config.seeds, p, measure="all"),
        Arm(MITIGATIONS[0], mitigated, p, model={"eps_mlp": config.eps}, measure="losses"),
        Arm(MITIGATIONS[1], mitigated, p, rates={MLP: config.discount}, measure="losses"),
        Arm(MITIGATIONS[2], mitigated, p, training={"schedule": "late-drop"}, measure="losses"),
        Arm(FULL_BATCH, full.seeds, p, training=all_at_once, measure="gradients", every=full.every),
        Arm(PLATEAUS, full.curvature_seeds, p, training=all_at_once, measure="curvature", every=full.every),
    ]
    if config.transfer:
        base_arms.append(Arm(SCRATCH, config.seeds, p + 1))
    return base_arms


def _starts(config: ClusteringHeadsConfig) -> list[Arm]:
    """Return the base setting with the positions of the ideal head, and the second stage alone."""
    p = config.task.p
    seeds = config.starts.seeds
    starts = [Arm(IDEAL_POSITIONS, seeds, p, ideal="positions", measure="head")]
    if seeds and config.starts.second_stage:
        frozen = {"freeze": HEAD_PARTS}
        starts.append(Arm(SECOND_STAGE, config.seeds, p, training=frozen, ideal="head", measure="losses"))
    return starts


def _ablations(config: ClusteringHeadsConfig) -> list[Arm]:
    """Return the base setting with one setting varied."""
    p = config.task.p
    grid = config.ablations
    varied = [Arm(f"lr {lr:g}", grid.seeds, p, rate=lr / config.lr) for lr in grid.lrs]
    varied += [Arm(f"discount {factor:g}", grid.seeds, p, rates={MLP: factor}) for factor in grid.discounts]
    for size in grid.batch_sizes:
        varied.append(Arm(f"batch {size:g}", grid.seeds_for(batch_size=size), p, training={"batch_size": size}))
    for width in grid.widths:
        varied.append(Arm(f"width {width:g}", grid.seeds_for(width=width), p, model={"d_mlp": width}))
    for share in grid.dropouts:
        varied.append(Arm(f"dropout {share:g}", grid.seeds_for(dropout=share), p, model={"dropout": share}))
    if grid.bias:
        no_biases = dict.fromkeys(_BIASES, 0.0)
        varied.append(Arm("bias 0", grid.seeds, p, training={"freeze": _BIASES}, scales=no_biases))
    return varied


def curriculum_training(config: ClusteringHeadsConfig, steps: int, lr: float) -> TrainConfig:
    """Return how a curriculum trains on one task, all sequences at once."""
    size = config.task.n_train
    return TrainConfig(**_PLAIN_ADAM, steps=steps, batch_size=size, lr=lr, save_every=max(1, steps // 10))


def curriculum_members(config: ClusteringHeadsConfig, p: int, seeds: Sequence[int]) -> list[Member]:
    """Return the networks of a curriculum, one per seed, with the data of one modulus."""
    c = config.curriculum
    members = []
    for seed in seeds:
        task = replace(config.task, p=p, n_embeddings=max(c.p, config.task.n_embeddings), seed=seed)
        shape = {"d_vocab": task.d_vocab, "n_ctx": task.n_ctx, "d_model": c.d_model, "d_mlp": c.d_mlp, "seed": seed}
        members.append(Member(PoolingTransformerConfig(**shape), task))
    return members


def training_of(config: ClusteringHeadsConfig, arm: Arm) -> TrainConfig:
    """Return how an arm's networks are trained."""
    settings = {**_PLAIN_ADAM, "batch_size": config.batch_size, "lr": config.lr, **arm.training}
    steps = settings.setdefault("steps", config.epochs * config.task.epoch_steps(settings["batch_size"]))
    return TrainConfig(save_every=max(1, steps // 20), **settings)


def member_of(
    config: ClusteringHeadsConfig,
    arm: Arm,
    seed: int,
    weights: Mapping[str, Float[Tensor, "..."]] | None = None,
) -> Member:
    """Return one network of an arm, and its data."""
    task = replace(config.task, p=arm.p, seed=seed)
    shape = {"d_vocab": task.d_vocab, "n_ctx": task.n_ctx, "d_mlp": config.d_mlp, "seed": seed}
    model = PoolingTransformerConfig(**{**shape, **arm.model})
    return Member(model, task, rate=arm.rate, rates=arm.rates, weights=weights)


def jobs(config: ClusteringHeadsConfig) -> list[EnsembleJob]:
    """Return the jobs: an arm's seeds in groups, and all learning rates and narrow widths at once."""
    together: dict[str, list[Arm]] = {}
    for arm in arms(config).values():
        same_shape = arm.kind in ("lr", "discount") or (arm.kind == "width" and arm.model["d_mlp"] <= PADDED)
        together.setdefault(arm.kind if same_shape else arm.name, []).append(arm)
    ensembles = []
    for group in together.values():
        size = config.ablations.group if group[0].kind in ABLATIONS else config.group
        ensembles += _in_groups(tuple(arm.name for arm in group), group[0].seeds, size)
    ensembles += _in_groups((CURRICULUM,), config.curriculum.seeds, config.curriculum.group)
    return ensembles


def _in_groups(names: tuple[str, ...], seeds: tuple[int, ...], size: int) -> list[EnsembleJob]:
    return [EnsembleJob(names, seeds[start : start + size]) for start in range(0, len(seeds), size)]


@dataclass(frozen=True)
class PoolingTransformerConfig(AnyConfig):
    """The pooling transformer of the clustering-head study, see ``PoolingTransformer``.

    Args:
        d_vocab: rows of the embedding, which are also the answers.
        n_ctx: length of every sequence.
        d_model: width.
        n_heads: attention heads, a divisor of ``d_model``.
        d_mlp: width of the feed-forward layer.
        eps: added to the root mean square in both norms.
        eps_mlp: ``eps`` of the norm before the feed-forward layer, or ``None`` to use ``eps``.
        dropout: probability of dropping a neuron of the feed-forward layer during training.
        seed: seed of the initial weights.

    Example:
        >>> PoolingTransformerConfig().d_head
        2
    """

    kind: ClassVar[str] = "pooling-transformer"

    d_vocab: Size = 3
    n_ctx: Size = 12
    d_model: Size = 2
    n_heads: Count = 1
    d_mlp: Size = 32
    eps: NotNegative = BASE_EPS
    eps_mlp: NotNegative | None = None
    dropout: ShareBelowOne = 0.0
    seed: WideSeed = 0

    def __post_init__(self) -> None:
        check_settings(self)
        check_multiple(d_model=(self.d_model, self.n_heads))

    @property
    def d_head(self) -> int:
        """Width of one head."""
        return self.d_model // self.n_heads

    @property
    def n_weights(self) -> int:
        """Number of weights: embeddings, query and values, feed-forward layer."""
        d = self.d_model
        return d * (self.d_vocab + self.n_ctx + 1 + d) + self.d_mlp * (2 * d + 1) + d
