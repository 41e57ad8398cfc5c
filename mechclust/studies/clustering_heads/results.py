"""What a run of the clustering-head study left on disk, read back for claims and figures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from mechclust.studies.clustering_heads.config import SOLVED, ClusteringHeadsConfig
from mechclust.studies.clustering_heads.curves import Spike, first_above, first_below, loss_spikes, matched_quiet
from probes import ProbeResult, load_result
from tasks import InputError

CLUSTERED = 0.1  # within-ratio below which the head has formed
QUANTILE = 0.1  # of a run's quiet epochs: below it, a norm or margin is small
MITIGATIONS = ("larger eps", "slower feed-forward", "late smaller rate")
FEWEST = 100  # epochs in which spikes are counted
GAP = 10  # epochs between a spike and what counts as quiet


@dataclass(frozen=True)
class Trained:
    """Epoch by epoch, one network."""

    result: ProbeResult

    def curve(self, name: str) -> np.ndarray:
        """``[epoch]`` or ``[epoch group]`` a measure of ``dynamics``."""
        return self.result[name].numpy()

    @property
    def solved_at(self) -> int | None:
        """First epoch at which test accuracy passes the mark."""
        return first_above(self.curve("test_accuracy"), SOLVED)

    @cached_property
    def spikes(self) -> list[Spike]:
        """Loss spikes of the training loss."""
        return loss_spikes(self.curve("train_loss"))

    def spike_rate(self, start: int = 0) -> float:
        """Spikes per 100 epochs from ``start`` and from when the task was first solved on; NaN for under 100 epochs."""
        solved, last = self.solved_at, len(self.curve("train_loss")) - 1
        first = last if solved is None else max(solved, start)
        if last - first < FEWEST:
            return float("nan")
        return 100 * sum(spike.epoch > first for spike in self.spikes) / (last - first)


@dataclass(frozen=True)
class Head(Trained):
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
            for spike in self.spikes:
                counts[max(0, spike.epoch - 1) : spike.end + 2] = False
        if not counts.any():
            return None
        fall = np.concatenate([[0.0], loss[:-1] - loss[1:]])
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
        quiet = np.isfinite(loss)
        for spike in self.spikes:
            quiet[max(0, spike.epoch - GAP + 1) : spike.end + GAP] = False
        if not quiet.any():
            return []
        curves = {"small norm": self.curve("smallest_norm"), "cluster near a boundary": self.curve("margin")}
        least = {name: np.concatenate([values[:1], values[:-1]]) for name, values in curves.items()}
        if not before:
            least = {name: np.fmin(values, curves[name]) for name, values in least.items()}
        bound = {name: np.nanquantile(values[quiet], QUANTILE) for name, values in least.items()}

        def small(epoch: int) -> list[str]:
            return [name for name, values in least.items() if values[epoch] < bound[name]]

        pairs = zip(late, matched_quiet(np.where(quiet, loss, np.nan), late, gap=GAP), strict=True)
        return [(spike, small(spike.epoch), small(epoch)) for spike, epoch in pairs if epoch is not None]


@dataclass(frozen=True)
class Runs:
    """Everything a run measured.

    Attributes:
        heads: networks of the base setting, by seed.
        mitigated: networks of each mitigation, by seed.
        final: arm to seed to ``(train, test)`` accuracy at the end.
        curriculum: by seed.
    """

    heads: dict[int, Head]
    mitigated: dict[str, dict[int, Trained]]
    final: dict[str, dict[int, tuple[float, float]]]
    curriculum: dict[int, ProbeResult]

    @property
    def solved(self) -> list[Head]:
        """Networks of the base setting that solved their task."""
        return [head for head in self.heads.values() if head.solved]

    def shares(self, arm: str) -> list[float]:
        """1 for each network of an arm that solved its task, else 0."""
        return [float(test > SOLVED) for _, test in self.final.get(arm, {}).values()]


def load_runs(config: ClusteringHeadsConfig, out: Path) -> Runs:
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
    heads = {seed: load_head(config, out, seed) for seed in config.seeds}
    mitigated: dict[str, dict[int, Trained]] = {}
    for arm in MITIGATIONS:
        dynamics = ((s, _if_there(results / arm / f"seed{s}.dynamics")) for s in config.seeds[: config.mitigations])
        mitigated[arm] = {seed: Trained(result) for seed, result in dynamics if result is not None}
    curricula = ((s, _if_there(results / "curriculum" / f"seed{s}")) for s in config.curriculum.seeds)
    return Runs(heads, mitigated, final, {seed: result for seed, result in curricula if result is not None})


def load_head(config: ClusteringHeadsConfig, out: Path, seed: int) -> Head:
    """Read one network of the base setting.

    Raises:
        InputError: when it is not finished.
    """
    parts = {name: _if_there(out / "results" / "base" / f"seed{seed}.{name}") for name in _PARTS}
    if missing := [name for name, part in parts.items() if part is None]:
        raise InputError(
            f"{str(out)!r} holds a run whose base setting is not finished (seed {seed} has no {missing[0]}); "
            "go on with it: mechclust run clustering-heads with the same settings"
        )
    dynamics, head, causal, untrained = (part for part in parts.values() if part is not None)
    return Head(dynamics, seed, config.task.p, head, causal, untrained)


_PARTS = ("dynamics", "head", "causal", "untrained")


def _if_there(path: Path) -> ProbeResult | None:
    """A saved result, or ``None`` where its job is not finished."""
    file = path.with_name(f"{path.name}.safetensors")
    return load_result(file) if file.exists() else None
