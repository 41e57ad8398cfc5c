"""Results of a run of the clustering-head study, read from disk for findings and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float

from mechclust.studies.clustering_heads.config import (
    CURRICULUM,
    FULL_BATCH,
    IDEAL_POSITIONS,
    MITIGATIONS,
    PARTS,
    PLATEAUS,
    SECOND_STAGE,
    SOLVED,
    ClusteringHeadsConfig,
    arms,
)
from mechclust.studies.clustering_heads.curves import (
    Drop,
    Spike,
    away_from,
    below_guessing,
    drops_after_guessing,
    first_above,
    loss_spikes,
    spikes_after_solving,
)
from mechclust.studies.clustering_heads.detector import head_kind, is_textbook, line_score, planar_score
from mechclust.studies.kept import load_required
from probes import ProbeResult, load_result
from tasks import InputError

WEAK = 0.75  # test accuracy up to which a network has not found the task's structure
_CAUSES = {"small norm": "smallest_norm", "cluster near a boundary": "margin"}  # of a spike, with their curves
_SMALL_QUANTILE = 0.1  # of a run's quiet epochs: a norm or margin below this quantile is small
_EPOCHS_FROM_SPIKES = 10  # at which epochs count as quiet


@dataclass(frozen=True)
class NetworkTraining:
    """The training of one network, epoch by epoch."""

    dynamics: ProbeResult

    def curve(self, name: str) -> Float[np.ndarray, "epoch *group"]:
        """Return a measure of ``dynamics``."""
        return self.dynamics[name].numpy()

    @property
    def accuracy(self) -> float:
        """Accuracy on the test split at the end."""
        return float(self.curve("test_accuracy")[-1])

    @property
    def solved(self) -> bool:
        """Whether the network solves its task at the end."""
        return self.accuracy > SOLVED

    @property
    def solved_at(self) -> int | None:
        """First epoch at which test accuracy passes the threshold."""
        return first_above(self.curve("test_accuracy"), SOLVED)

    @property
    def solved_or_end(self) -> int:
        """First epoch at which the task is solved, or the last epoch if it never is."""
        return len(self.curve("test_accuracy")) - 1 if self.solved_at is None else self.solved_at

    @cached_property
    def spikes(self) -> list[Spike]:
        """Spikes of the training loss."""
        return loss_spikes(self.curve("train_loss"))

    @cached_property
    def small_spikes(self) -> list[Spike]:
        """Rises that would be loss spikes if they were not below the floor."""
        rises = loss_spikes(self.curve("train_loss"), floor=0.0)
        return [
            rise for rise in rises if all(rise.end <= spike.epoch or spike.end <= rise.epoch for spike in self.spikes)
        ]

    def spikes_after_solving(self) -> list[Spike]:
        """Return loss spikes after the task was first solved. There are none if it never was."""
        return spikes_after_solving(self.curve("train_loss"), self.curve("test_accuracy"), SOLVED)

    def drops(self, p: int) -> list[Drop]:
        """Return the phases in which the training loss falls, once it is first near the loss of guessing.

        Before that point, it falls from the random initialisation.
        """
        return drops_after_guessing(self.curve("train_loss"), p)

    @property
    def gradient(self) -> Float[np.ndarray, "epoch"]:
        """Norm of the gradient by all weights."""
        return self.curve("gradient_norm")[:, -1]

    def falls_and_plateaus(self, p: int) -> tuple[Bool[np.ndarray, "epoch"], Bool[np.ndarray, "epoch"]]:
        """Return at which epochs the loss falls, and at which it is on a plateau.

        Plateaus lie between a loss as high as guessing and the last fall, where the loss does not fall.
        """
        loss = self.curve("train_loss")
        drops = self.drops(p)
        falls = np.zeros(len(loss), dtype=bool)
        plateaus = np.zeros(len(loss), dtype=bool)
        for drop in drops:
            falls[drop.start : drop.end + 1] = True
        if drops:
            plateaus[below_guessing(loss, p) : drops[-1].end + 1] = True
        return falls, plateaus & ~falls


@dataclass(frozen=True)
class TrainedNetwork(NetworkTraining):
    """A network of the base setting: its training, its final head, and interventions on both."""

    seed: int
    p: int
    head: ProbeResult
    untrained: ProbeResult
    stitching: ProbeResult
    replay: ProbeResult
    donors: ProbeResult

    @property
    def textbook(self) -> bool:
        """Whether the head is a textbook head."""
        return is_textbook(self.head)

    @property
    def kind(self) -> str:
        """The kind of head, as named by ``head_kind``."""
        return head_kind(self.head)

    @property
    def score(self) -> float:
        """The detector's score: the negative deviation from integers on a line or a plane."""
        return max(line_score(self.head), planar_score(self.head))

    def diagnoses(self) -> list[tuple[Spike, list[str]]]:
        """Return each spike after the task was solved, with its diagnosis.

        A diagnosis names a quantity that was small, at the epoch or the one before: the smallest norm of xi, or a
        cluster's margin. Small means below the lowest tenth of the run's quiet epochs (solved, and 10 or more away from
        every spike). This is descriptive only, whereas ``replay`` intervenes.
        """
        diagnoses: list[tuple[Spike, list[str]]] = [(spike, []) for spike in self.spikes_after_solving()]
        loss = self.curve("train_loss")
        quiet = np.isfinite(loss) & away_from(self.spikes, len(loss), _EPOCHS_FROM_SPIKES)
        quiet[: self.solved_at] = False
        if not quiet.any():
            return []
        for cause, name in _CAUSES.items():
            curve = self.curve(name)
            of_both_epochs = np.fmin(np.concatenate([curve[:1], curve[:-1]]), curve)
            bound = np.nanquantile(of_both_epochs[quiet], _SMALL_QUANTILE)
            for spike, causes in diagnoses:
                if of_both_epochs[spike.epoch] < bound:
                    causes.append(cause)
        return diagnoses


@dataclass(frozen=True)
class CurvedRun:
    """The Hessian and the gradient of one run at some snapshots, the first and the last of its training included.

    Attributes:
        smallest: smallest eigenvalues.
        largest: largest eigenvalues.
        gradient: gradient norms.
        on_plateaus: whether a snapshot lies between the level of guessing and the last fall, where the loss does not
            fall.
        gradient_in_falls: median gradient norm where the loss falls.
    """

    smallest: Float[np.ndarray, "snapshot"]
    largest: Float[np.ndarray, "snapshot"]
    gradient: Float[np.ndarray, "snapshot"]
    on_plateaus: Bool[np.ndarray, "snapshot"]
    gradient_in_falls: float


@dataclass(frozen=True)
class HeadsResults:
    """Everything a run measured.

    Attributes:
        networks: networks of the base setting, by seed.
        mitigated: the training of each mitigation's networks, by seed.
        final: arm to seed to final ``(train, test)`` accuracy.
        curriculum: by seed.
        full_batch: the training of each network of the full-batch run, by seed.
        curved: the training of each full-batch network whose Hessian was measured, by seed.
        curvature: the Hessian of these networks at some snapshots, by seed.
        ideal_positions: the final head of each network that started with ideal positions, by seed.
        second_stage: the training of the feed-forward layer alone on the ideal head, by seed.
        folder: folder of the run, whose trained networks figures draw.
    """

    networks: dict[int, TrainedNetwork]
    mitigated: dict[str, dict[int, NetworkTraining]]
    final: dict[str, dict[int, tuple[float, float]]]
    curriculum: dict[int, ProbeResult]
    full_batch: dict[int, NetworkTraining] = field(default_factory=dict)
    curved: dict[int, NetworkTraining] = field(default_factory=dict)
    curvature: dict[int, ProbeResult] = field(default_factory=dict)
    ideal_positions: dict[int, ProbeResult] = field(default_factory=dict)
    second_stage: dict[int, NetworkTraining] = field(default_factory=dict)
    folder: Path = Path()

    @property
    def solved(self) -> list[TrainedNetwork]:
        """Networks of the base setting that solved their task."""
        return [network for network in self.networks.values() if network.solved]

    @property
    def weak(self) -> list[TrainedNetwork]:
        """Networks of the base setting that did not find the task's structure."""
        return [network for network in self.networks.values() if network.accuracy <= WEAK]

    @property
    def in_between(self) -> list[TrainedNetwork]:
        """Networks of the base setting that are neither solved nor weak."""
        return [network for network in self.networks.values() if WEAK < network.accuracy <= SOLVED]

    def curved_runs(self, p: int) -> list[CurvedRun]:
        """Return the runs with a measured Hessian that solve the task after a measured plateau.

        Args:
            p: the modulus.
        """
        runs = []
        for seed, run in self.curved.items():
            if not run.solved or seed not in self.curvature:
                continue
            measured = self.curvature[seed]
            places = [int(place) for place in measured.coords["snapshot"]]
            falls, plateaus = run.falls_and_plateaus(p)
            if plateaus[places].any():
                smallest = measured["smallest"][:, 0].numpy()
                largest = measured["largest"].numpy()
                in_falls = float(np.median(run.gradient[falls]))
                runs.append(CurvedRun(smallest, largest, run.gradient[places], plateaus[places], in_falls))
        return runs

    def solved_by_seed(self, arm: str) -> dict[int, float]:
        """Return 1 for each network of an arm that solved its task, 0 otherwise, by seed."""
        return {seed: float(test > SOLVED) for seed, (_, test) in self.final.get(arm, {}).items()}


def load_results(config: ClusteringHeadsConfig, out: Path) -> HeadsResults:
    """Read a run's results.

    Raises:
        InputError: naming what is missing.
    """
    second_stage = config.seeds if SECOND_STAGE in arms(config) else ()
    return HeadsResults(
        networks={seed: load_network(config, out, seed) for seed in config.seeds},
        mitigated={arm: _trainings(out, config.seeds[: config.mitigations], arm) for arm in MITIGATIONS},
        final=_final_accuracies(config, out),
        curriculum=_by_seed(out, config.curriculum.seeds, CURRICULUM),
        full_batch=_trainings(out, config.full_batch.seeds, FULL_BATCH),
        curved=_trainings(out, config.full_batch.curvature_seeds, PLATEAUS),
        curvature=_by_seed(out, config.full_batch.curvature_seeds, PLATEAUS, ".curvature"),
        ideal_positions=_by_seed(out, config.starts.seeds, IDEAL_POSITIONS, ".head"),
        second_stage=_trainings(out, second_stage, SECOND_STAGE),
        folder=out,
    )


def load_network(config: ClusteringHeadsConfig, out: Path, seed: int) -> TrainedNetwork:
    """Read one network of the base setting.

    Raises:
        InputError: naming a file that is missing.
    """
    base = out / "results" / "base"
    parts = {part: load_required(out, base / f"seed{seed}.{part}.safetensors") for part in PARTS}
    return TrainedNetwork(seed=seed, p=config.task.p, **parts)


def _final_accuracies(config: ClusteringHeadsConfig, out: Path) -> dict[str, dict[int, tuple[float, float]]]:
    """Return the final accuracies of an arm's seeds. Those of transfer are the base setting's."""
    seeds_by_arm = {name: arm.seeds for name, arm in arms(config).items()}
    final: dict[str, dict[int, tuple[float, float]]] = {name: {} for name in seeds_by_arm}
    for path in sorted((out / "results" / "final").glob("*.safetensors")):
        result = load_result(path)
        for network, (train, test) in zip(result.coords["network"], result["accuracy"].tolist(), strict=True):
            arm, _, seed = network.rpartition("|")
            if int(seed) in seeds_by_arm.get(arm, config.seeds):
                final.setdefault(arm, {})[int(seed)] = (train, test)
    for name, seeds in seeds_by_arm.items():
        missing = sorted(set(seeds) - set(final[name]))
        if missing:
            raise InputError(
                f"{str(out)!r} lacks the accuracies of {name!r}, seed {missing[0]}; start the study again with the "
                "same --out"
            )
    return final


def _trainings(out: Path, seeds: Sequence[int], arm: str) -> dict[int, NetworkTraining]:
    """Return the measured training of each seed of an arm."""
    return {seed: NetworkTraining(result) for seed, result in _by_seed(out, seeds, arm, ".dynamics").items()}


def _by_seed(out: Path, seeds: Sequence[int], arm: str, part: str = "") -> dict[int, ProbeResult]:
    """Return a saved result of each seed of an arm."""
    folder = out / "results" / arm
    return {seed: load_required(out, folder / f"seed{seed}{part}.safetensors") for seed in seeds}
