"""What a run of the clustering-head study left on disk, read back for findings and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from mechclust.studies.clustering_heads.config import (
    CURRICULUM,
    FULL_BATCH,
    MITIGATIONS,
    PARTS,
    SCRATCH,
    SECOND_STAGE,
    SOLVED,
    TRANSFER,
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
from mechclust.studies.clustering_heads.lattices import line_score, on_plane, planar_score
from probes import ProbeResult, load_result
from tasks import InputError

_CAUSES = {"small norm": "smallest_norm", "cluster near a boundary": "margin"}  # of a spike, with their curves
_QUANTILE = 0.1  # of a run's quiet epochs: a norm or margin below this quantile is small
WEAK = 0.75  # test accuracy up to which a network has not found the task's structure
_GAP = 10  # epochs between a spike and what counts as quiet


@dataclass(frozen=True)
class NetworkTraining:
    """The training of one network, epoch by epoch."""

    dynamics: ProbeResult

    def curve(self, name: str) -> np.ndarray:
        """``[epoch]`` or ``[epoch group]`` a measure of ``dynamics``."""
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

    @cached_property
    def spikes(self) -> list[Spike]:
        """Spikes of the training loss."""
        return loss_spikes(self.curve("train_loss"))

    @property
    def solved_or_end(self) -> int:
        """First epoch at which the task is solved; the last epoch if it never is."""
        return len(self.curve("test_accuracy")) - 1 if self.solved_at is None else self.solved_at

    def spikes_after_solving(self, start: int = 0) -> list[Spike]:
        """Loss spikes after ``start`` and after the task was first solved; none if it never was."""
        return spikes_after_solving(self.curve("train_loss"), self.curve("test_accuracy"), SOLVED, start)

    def drops(self, p: int) -> list[Drop]:
        """Phases in which the training loss falls, from where it is first below 1.05 times the loss of guessing.

        Before that point, it falls from the random initialisation.
        """
        return drops_after_guessing(self.curve("train_loss"), p)

    def gradient_in_drops(self, p: int) -> tuple[np.ndarray, np.ndarray] | None:
        """``(gradient [snapshot], falls [snapshot])`` from a loss as high as guessing to the end of the last fall.

        The norm of the training loss's gradient, and whether the loss falls there. ``None`` if it never falls, or
        falls all the time.
        """
        drops = self.drops(p)
        if not drops:
            return None
        first, end = below_guessing(self.curve("train_loss"), p), drops[-1].end + 1
        falls = np.zeros(end, dtype=bool)
        for drop in drops:
            falls[drop.start : drop.end + 1] = True
        falls = falls[first:]
        return None if falls.all() else (self.curve("gradient_norm")[first:end, -1], falls)

    @cached_property
    def small_spikes(self) -> list[Spike]:
        """Rises that would be loss spikes if they were not below the floor."""
        counted = {epoch for spike in self.spikes for epoch in range(spike.epoch, spike.end)}
        every = loss_spikes(self.curve("train_loss"), floor=0.0)
        return [spike for spike in every if counted.isdisjoint(range(spike.epoch, spike.end))]


def spikes_in_both(one: NetworkTraining, other: NetworkTraining, start: int = 0) -> tuple[int, int]:
    """Numbers of loss spikes of two networks after ``start`` and after both have solved the task, so that both are
    counted over the same epochs; 0 where one of them never does."""
    if one.solved_at is None or other.solved_at is None:
        return 0, 0
    start = max(start, one.solved_at, other.solved_at)
    return len(one.spikes_after_solving(start)), len(other.spikes_after_solving(start))


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
    def integer(self) -> bool:
        """Whether the head is an integer-weight head (a textbook head may be one)."""
        return bool(self.head["integer_head"])

    @property
    def textbook(self) -> bool:
        return is_textbook(self.head)

    @property
    def kind(self) -> str:
        """The kind of head, as named by ``head_kind``."""
        return head_kind(self.head)

    @property
    def on_plane(self) -> bool:
        """Whether the head's weights lie on a planar lattice."""
        return on_plane(self.head)

    def score(self, *, plane: bool) -> float:
        """Return the detector's score: the negative deviation from integers on a line, or on a line or a plane."""
        line = line_score(self.head)
        return max(line, planar_score(self.head)) if plane else line

    def ready_at(self, part: str) -> int | None:
        """First epoch whose head (or classifier) solves the task together with the final version of the other part."""
        return first_above(self.stitching[f"{part}_accuracy"].numpy(), SOLVED)

    def diagnoses(self) -> list[tuple[Spike, list[str]]]:
        """Each spike after the task was solved, with its diagnosis.

        A diagnosis names what was small, at the epoch or the one before: the smallest norm of xi, or the margin of a
        cluster, below the lowest tenth of the run's quiet epochs (solved, and 10 or more away from every spike). This
        is descriptive only; ``replay`` intervenes.
        """
        start = self.solved_at
        if start is None:
            return []
        loss = self.curve("train_loss").copy()
        loss[:start] = np.nan  # no earlier epoch is quiet
        quiet = np.isfinite(loss) & away_from(self.spikes, len(loss), _GAP)
        if not quiet.any():
            return []
        curves = {cause: self.curve(name) for cause, name in _CAUSES.items()}
        least = {name: np.fmin(np.concatenate([values[:1], values[:-1]]), values) for name, values in curves.items()}
        bound = {name: np.nanquantile(values[quiet], _QUANTILE) for name, values in least.items()}

        return [
            (spike, [name for name, values in least.items() if values[spike.epoch] < bound[name]])
            for spike in self.spikes_after_solving()
        ]


@dataclass(frozen=True)
class HeadsResults:
    """Everything a run measured.

    Attributes:
        networks: those of the base setting, by seed.
        mitigated: the training of each mitigation's networks, by seed.
        final: arm to seed to final ``(train, test)`` accuracy.
        curriculum: by seed.
        full_batch: the training of each network of the full-batch run, by seed.
        curvature: the Hessian of the same networks at some snapshots, by seed.
        started: arm to seed to the final head, for networks from other initial weights.
        second_stage: the training of the feed-forward layer alone on the ideal head, by seed.
        next_modulus: ``SCRATCH`` and ``TRANSFER`` to seed to the final head, for networks that add modulo p + 1.
    """

    networks: dict[int, TrainedNetwork]
    mitigated: dict[str, dict[int, NetworkTraining]]
    final: dict[str, dict[int, tuple[float, float]]]
    curriculum: dict[int, ProbeResult]
    full_batch: dict[int, NetworkTraining] = field(default_factory=dict)
    curvature: dict[int, ProbeResult] = field(default_factory=dict)
    started: dict[str, dict[int, ProbeResult]] = field(default_factory=dict)
    second_stage: dict[int, NetworkTraining] = field(default_factory=dict)
    next_modulus: dict[str, dict[int, ProbeResult]] = field(default_factory=dict)

    @property
    def solved(self) -> list[TrainedNetwork]:
        """Networks of the base setting that solved their task."""
        return [network for network in self.networks.values() if network.solved]

    @property
    def ends(self) -> list[TrainedNetwork]:
        """Networks that solved the task, and those that did not find its structure; those in between are left out."""
        return [n for n in self.networks.values() if n.solved or n.accuracy <= WEAK]

    def saddle(self, seed: int, p: int) -> tuple[float, float] | None:
        """Negative curvature of a full-batch run: minus the smallest eigenvalue of the Hessian over the largest.

        Args:
            seed: of a run in ``curvature``.
            p: the modulus.

        Returns:
            The median over the measured snapshots on its plateaus, and the value at the end; ``None`` for a run that
            did not solve the task or had no measured plateau. Plateaus are the stretches on which the loss does not
            fall, from where it is that of guessing to the last fall.
        """
        run, measured = self.full_batch.get(seed), self.curvature[seed]
        if run is None or not run.solved or (found := run.gradient_in_drops(p)) is None:
            return None
        first, falls = below_guessing(run.curve("train_loss"), p) or 0, found[1]
        places = np.array([int(place) for place in measured.coords["snapshot"]]) - first
        negative = (-measured["smallest"][:, 0] / measured["largest"]).numpy()
        inside = (places >= 0) & (places < len(falls))
        inside[inside] = ~falls[places[inside]]
        if not inside.any():
            return None
        return float(np.median(negative[inside])), float(negative[-1])

    def curvature_at_start(self, seed: int) -> float:
        """Return minus the smallest eigenvalue of the Hessian over the largest, before training."""
        measured = self.curvature[seed]
        return float(-measured["smallest"][0, 0] / measured["largest"][0])

    def solved_by_seed(self, arm: str) -> dict[int, float]:
        """Return 1 for each network of an arm that solved its task, 0 otherwise, by seed."""
        return {seed: float(test > SOLVED) for seed, (_, test) in self.final.get(arm, {}).items()}

    def shares(self, arm: str) -> list[float]:
        """Return 1 for each network of an arm that solved its task, 0 otherwise."""
        return list(self.solved_by_seed(arm).values())


def is_textbook(head: ProbeResult) -> bool:
    """Whether the head that ``ClusteringHead`` measured is a textbook head."""
    return int(head["verdict"]) == 2


def head_kind(head: ProbeResult) -> str:
    """``"textbook"``, ``"integer-weight"``, ``"planar"`` (lattice) or ``"neither"``; the first that applies."""
    if is_textbook(head):
        return "textbook"
    return "integer-weight" if bool(head["integer_head"]) else "planar" if on_plane(head) else "neither"


def load_results(config: ClusteringHeadsConfig, out: Path) -> HeadsResults:
    """Read a run's results: all of the base setting, and whatever exists of the rest.

    Raises:
        InputError: if the base setting is not finished.
    """
    results = out / "results"
    final: dict[str, dict[int, tuple[float, float]]] = {}
    for path in sorted((results / "final").glob("*.safetensors")):
        found = load_result(path)
        for network, (train, test) in zip(found.coords["network"], found["accuracy"].tolist(), strict=True):
            name, _, number = network.rpartition("|")
            final.setdefault(name, {})[int(number)] = (train, test)
    starts = [arm for arm in arms(config) if arm.startswith("start ")]
    return HeadsResults(
        {seed: load_network(config, out, seed) for seed in config.seeds},
        {arm: _trainings(config.seeds[: config.mitigations], results / arm) for arm in MITIGATIONS},
        final,
        _by_seed(config.curriculum.seeds, results / CURRICULUM),
        _trainings(config.full_batch.seeds, results / FULL_BATCH),
        _by_seed(config.full_batch.seeds, results / FULL_BATCH, ".curvature"),
        {arm: heads for arm in starts if (heads := _by_seed(config.starts.seeds, results / arm, ".head"))},
        _trainings(config.seeds, results / SECOND_STAGE),
        {arm: _by_seed(config.seeds, results / arm, ".head") for arm in (SCRATCH, TRANSFER)},
    )


def load_network(config: ClusteringHeadsConfig, out: Path, seed: int) -> TrainedNetwork:
    """Read one network of the base setting.

    Raises:
        InputError: if it is not finished.
    """
    base = out / "results" / "base"
    paths = {part: base / f"seed{seed}.{part}.safetensors" for part in PARTS}
    if missing := [part for part, path in paths.items() if not path.exists()]:
        raise InputError(
            f"{str(out)!r} holds a run whose base setting is not finished (seed {seed} has no {missing[0]}); "
            "resume it: mechclust run clustering-heads with the same settings"
        )
    return TrainedNetwork(seed=seed, p=config.task.p, **{part: load_result(path) for part, path in paths.items()})


def _trainings(seeds: Sequence[int], folder: Path) -> dict[int, NetworkTraining]:
    """The measured training of those seeds that have it."""
    return {seed: NetworkTraining(found) for seed, found in _by_seed(seeds, folder, ".dynamics").items()}


def _by_seed(seeds: Sequence[int], folder: Path, part: str = "") -> dict[int, ProbeResult]:
    """The saved results of those seeds that have them."""
    paths = {seed: folder / f"seed{seed}{part}.safetensors" for seed in seeds}
    return {seed: load_result(path) for seed, path in paths.items() if path.exists()}
