"""What a run of the clustering-head study left on disk, read back for claims and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from mechclust.studies.clustering_heads.config import MITIGATIONS, PARTS, SOLVED, ClusteringHeadsConfig
from mechclust.studies.clustering_heads.curves import (
    Spike,
    away_from,
    first_above,
    first_below,
    loss_spikes,
    matched_quiet,
)
from probes import ProbeResult, load_result
from tasks import InputError

CLUSTERED = 0.1  # within-ratio below which the head has formed
CAUSES = {"small norm": "smallest_norm", "cluster near a boundary": "margin"}  # of a spike, by the curve that shows it
QUANTILE = 0.1  # of a run's quiet epochs: below it, a norm or margin is small
FEWEST = 100  # epochs in which spikes are counted
GAP = 10  # epochs between a spike and what counts as quiet


@dataclass(frozen=True)
class NetworkTraining:
    """The training of one network, epoch by epoch."""

    dynamics: ProbeResult

    def curve(self, name: str) -> np.ndarray:
        """``[epoch]`` or ``[epoch group]`` a measure of ``dynamics``."""
        return self.dynamics[name].numpy()

    @property
    def solved_at(self) -> int | None:
        """First epoch at which test accuracy passes the mark."""
        return first_above(self.curve("test_accuracy"), SOLVED)

    @cached_property
    def spikes(self) -> list[Spike]:
        """Loss spikes of the training loss."""
        return loss_spikes(self.curve("train_loss"))

    @cached_property
    def small_spikes(self) -> list[Spike]:
        """Rises that would be loss spikes but for the floor below which no loss counts as one."""
        counted = {epoch for spike in self.spikes for epoch in range(spike.epoch, spike.end)}
        every = loss_spikes(self.curve("train_loss"), floor=0.0)
        return [spike for spike in every if counted.isdisjoint(range(spike.epoch, spike.end))]

    def spike_rate(self, start: int = 0) -> float:
        """Spikes per 100 epochs from ``start`` and from when the task was first solved on; NaN for under 100 epochs."""
        solved, last = self.solved_at, len(self.curve("train_loss")) - 1
        first = last if solved is None else max(solved, start)
        if last - first < FEWEST:
            return float("nan")
        return 100 * sum(spike.epoch > first for spike in self.spikes) / (last - first)


@dataclass(frozen=True)
class TrainedNetwork(NetworkTraining):
    """A network of the base setting: its training, its head at the end, and the causal checks."""

    seed: int
    p: int
    head: ProbeResult
    causal: ProbeResult
    untrained: ProbeResult

    @property
    def accuracy(self) -> float:
        """On the test split, at the end."""
        return float(self.curve("test_accuracy")[-1])

    @property
    def solved(self) -> bool:
        return self.accuracy > SOLVED

    @property
    def integer(self) -> bool:
        """Whether the head is an integer-weight head (a textbook head may be one)."""
        return bool(self.head["integer_head"])

    @property
    def textbook(self) -> bool:
        return int(self.head["verdict"]) == 2

    @property
    def formed_at(self) -> int | None:
        """First epoch at which the within-ratio of the final partition is below the mark."""
        return first_below(self.curve("within_ratio"), CLUSTERED)

    @property
    def lead(self) -> int | None:
        """Epochs from when the head formed to when the task was solved; ``None`` where either never was."""
        formed, solved = self.formed_at, self.solved_at
        return None if formed is None or solved is None else solved - formed

    def peak_and_drop(self, *, without_spikes: bool) -> tuple[int, int] | None:
        """Epochs of the largest gradient, and at the end of the largest fall of the training loss in one epoch.

        From where the loss is first below 1.05 of what guessing costs: before, it falls from the random start.
        Without spikes, their epochs and those before and after them are left out. ``None`` where none are left.
        """
        loss, gradient = self.curve("train_loss"), self.curve("gradient_norm")[:, -1]
        start = first_below(loss, 1.05 * np.log(self.p))
        if start is None or start + 1 >= len(loss):
            return None
        counts = np.arange(len(loss)) > start
        if without_spikes:
            counts &= away_from(self.spikes, len(loss), 2)
        if not counts.any():
            return None
        fall = -np.diff(loss, prepend=loss[0])
        return tuple(int(np.argmax(np.where(counts, x, -np.inf))) for x in (gradient, fall))  # type: ignore[return-value]

    def checked(self, name: str, partition: str = "integer_sum") -> float:
        """A causal check of the head under a partition."""
        return float(self.causal.sel(name, partition=partition))

    def diagnoses(self, *, before: bool = False) -> list[tuple[Spike, list[str], list[str]]]:
        """For each spike after the task was solved: it, its diagnosis, and that of a quiet epoch at the same loss.

        A diagnosis names what was small, at the epoch or the one before (that one alone, if ``before``): the
        least norm of xi, or the margin of a cluster, below a tenth of the run's quiet epochs (solved, and 10
        or more away from every spike).
        """
        start = self.solved_at
        if start is None:
            return []
        loss = self.curve("train_loss").copy()
        loss[:start] = np.nan  # nothing before is quiet
        late = [spike for spike in self.spikes if spike.epoch > start]
        quiet = np.isfinite(loss) & away_from(self.spikes, len(loss), GAP)
        if not quiet.any():
            return []
        curves = {cause: self.curve(name) for cause, name in CAUSES.items()}
        least = {name: np.concatenate([values[:1], values[:-1]]) for name, values in curves.items()}
        if not before:
            least = {name: np.fmin(values, curves[name]) for name, values in least.items()}
        bound = {name: np.nanquantile(values[quiet], QUANTILE) for name, values in least.items()}

        def small(epoch: int) -> list[str]:
            return [name for name, values in least.items() if values[epoch] < bound[name]]

        pairs = zip(late, matched_quiet(np.where(quiet, loss, np.nan), late, gap=GAP), strict=True)
        return [(spike, small(spike.epoch), small(epoch)) for spike, epoch in pairs if epoch is not None]


@dataclass(frozen=True)
class HeadsResults:
    """Everything a run measured.

    Attributes:
        networks: those of the base setting, by seed.
        mitigated: the training of each mitigation's networks, by seed.
        final: arm to seed to ``(train, test)`` accuracy at the end.
        curriculum: by seed.
    """

    networks: dict[int, TrainedNetwork]
    mitigated: dict[str, dict[int, NetworkTraining]]
    final: dict[str, dict[int, tuple[float, float]]]
    curriculum: dict[int, ProbeResult]

    @property
    def solved(self) -> list[TrainedNetwork]:
        """Networks of the base setting that solved their task."""
        return [network for network in self.networks.values() if network.solved]

    def shares(self, arm: str) -> list[float]:
        """1 for each network of an arm that solved its task, else 0."""
        return [float(test > SOLVED) for _, test in self.final.get(arm, {}).values()]


def load_results(config: ClusteringHeadsConfig, out: Path) -> HeadsResults:
    """Read a run's results: all of the base setting, and what there is of the rest.

    Raises:
        InputError: when the base setting is not finished.
    """
    results = out / "results"
    final: dict[str, dict[int, tuple[float, float]]] = {}
    for path in sorted((results / "final").glob("*.safetensors")):
        found = load_result(path)
        for network, (train, test) in zip(found.coords["network"], found["accuracy"].tolist(), strict=True):
            name, _, number = network.rpartition("|")
            final.setdefault(name, {})[int(number)] = (train, test)
    calmed = {arm: _by_seed(config.seeds[: config.mitigations], results / arm, ".dynamics") for arm in MITIGATIONS}
    return HeadsResults(
        {seed: load_network(config, out, seed) for seed in config.seeds},
        {arm: {seed: NetworkTraining(found) for seed, found in of.items()} for arm, of in calmed.items()},
        final,
        _by_seed(config.curriculum.seeds, results / "curriculum"),
    )


def load_network(config: ClusteringHeadsConfig, out: Path, seed: int) -> TrainedNetwork:
    """Read one network of the base setting.

    Raises:
        InputError: when it is not finished.
    """
    base = out / "results" / "base"
    paths = {part: base / f"seed{seed}.{part}.safetensors" for part in PARTS}
    if missing := [part for part, path in paths.items() if not path.exists()]:
        raise InputError(
            f"{str(out)!r} holds a run whose base setting is not finished (seed {seed} has no {missing[0]}); "
            "go on with it: mechclust run clustering-heads with the same settings"
        )
    return TrainedNetwork(seed=seed, p=config.task.p, **{part: load_result(path) for part, path in paths.items()})


def _by_seed(seeds: Sequence[int], folder: Path, part: str = "") -> dict[int, ProbeResult]:
    """What there is of some seeds' saved results."""
    paths = {seed: folder / f"seed{seed}{part}.safetensors" for seed in seeds}
    return {seed: load_result(path) for seed, path in paths.items() if path.exists()}
