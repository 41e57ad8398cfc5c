"""What the runs of the study measured: every model's heads, and one number per seed of each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mechclust.studies.heads_in_models.config import (
    PLANTED,
    PROMPTS,
    HeadsInModelsConfig,
    addition_of,
    arms,
    labels_of,
    results_of,
    subjects_of,
)
from mechclust.studies.heads_in_models.config import PLANTED_P as P
from mechclust.studies.kept import check_there
from mechclust.studies.study import Job
from probes import load_result

Data = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Heads:
    """The heads of one model.

    Attributes:
        labels: the equivalences; the first is that of the task, the second a control.
        values: measures ``[layer head]``, ``[layer head label]`` or, of ``discovered``, ``[layer head example]``.
        chance: ``[label]`` within-ratio of random labels.
        accuracy: of the model.
        clusters: of the residual stream by layer, task-ARI and output-ARI ``[layer 2]``; ``None`` where not measured.
        place: layer and head of a planted head.
    """

    labels: tuple[str, ...]
    values: Mapping[str, np.ndarray]
    chance: np.ndarray
    accuracy: float
    clusters: np.ndarray | None = None
    place: tuple[int, int] | None = None

    def of(self, measure: str, label: str) -> np.ndarray:
        """``[layer head]`` a measure that exists for every label."""
        return np.asarray(self.values[measure][..., self.labels.index(label)])

    def ratio(self, label: str) -> np.ndarray:
        """``[layer head]`` within-ratio as a share of what random labels give."""
        return self.of("within_ratio", label) / self.chance[self.labels.index(label)]

    def selectivity(self, label: str) -> np.ndarray:
        """``[layer head]`` how many more answers change between the label's classes than within; NaN where untested."""
        return self.of("changed_between", label) - self.of("changed_within", label)

    def called(self, config: HeadsInModelsConfig, label: str) -> np.ndarray:
        """``[layer head]`` whether the rule calls a head a clustering head of the label; see ``config.share``."""
        follows = self.of("causal_p_holm", label) <= config.level  # NaN, a head that was not tested, is not
        within, between = (self.of(f"changed_{which}", label) for which in ("within", "between"))
        return follows & (within <= config.share * between) & (self.ratio(label) <= config.share)

    def alike(self, config: HeadsInModelsConfig, label: str) -> np.ndarray:
        """``[layer head]`` whether a head's output is alike within the label's classes, whatever reads it."""
        return (self.of("output_p_holm", label) <= config.level) & (self.ratio(label) <= config.share)

    def strongest(self, n: int) -> set[int]:
        """The heads with the largest effect, numbered through all layers."""
        effect = self.values["effect"].ravel()
        return {int(i) for i in np.argsort(-effect, kind="stable")[:n] if effect[i] > 0}


Found = Mapping[Job, Mapping[str, Heads]]


def load_results(config: HeadsInModelsConfig, out: Path, job: Job) -> dict[str, Heads]:
    """The heads of every model of a job, by subject.

    Raises:
        InputError: naming a result that is not there.
    """
    check_there(out, results_of(job, out))
    return {subject: _load(config, job, subject, out) for subject in subjects_of(job.arm)}


def _load(config: HeadsInModelsConfig, job: Job, subject: str, out: Path) -> Heads:
    paths = [path for path in results_of(job, out) if path.name.startswith(f"{subject}.")]
    found = {path.name.split(".")[-2]: load_result(path) for path in paths}
    heads = found["heads"]
    values = {name: heads[name].numpy() for name in heads if heads[name].ndim >= 2}
    place = None
    if job.arm == PLANTED:
        from mechclust.studies.heads_in_models.planted import PlantedHeads

        task = addition_of(config, P, job.seed)
        place = PlantedHeads(task, config.n_layers, config.n_heads, job.seed).place
    clusters = found["clusters"]["ari"].numpy() if "clusters" in found else None
    chance = heads["within_ratio_chance"].numpy()
    return Heads(labels_of(job.arm), values, chance, float(heads["accuracy"]), clusters, place)


def key(arm: str, subject: str, measure: str) -> str:
    """The name of a measure in ``Data``."""
    return f"{arm} {subject} {measure}"


def data_of(config: HeadsInModelsConfig, found: Found) -> Data:
    """``[seed]`` every measure of every arm and subject, by ``key``."""
    gathered: dict[str, list[float]] = {}
    for job, models in found.items():
        for subject, heads in models.items():
            for measure, value in _summary(config, job.arm, heads).items():
                gathered.setdefault(key(job.arm, subject, measure), []).append(value)
        if job.arm == PROMPTS:
            for kind in dict.fromkeys(subject.rpartition("-")[0] for subject in models):
                first, second = (h.strongest(config.n_tested) for s, h in models.items() if s.startswith(f"{kind}-"))
                common = len(first & second) / max(1, len(first), len(second))
                gathered.setdefault(key(job.arm, kind, "common"), []).append(common)
                switching = switching_heads(config, {s: h for s, h in models.items() if s.startswith(f"{kind}-")})
                gathered.setdefault(key(job.arm, kind, "switching"), []).append(float(switching.sum()))
    return {name: np.array(values) for name, values in gathered.items()}


def switching_heads(config: HeadsInModelsConfig, ends: Mapping[str, Heads]) -> np.ndarray:
    """``[layer head]`` whether a head's output is alike for what is asked, and not for the other, at every end."""
    asked = [h.alike(config, "asked") & (h.ratio("other") > config.share) for h in ends.values()]
    return np.asarray(np.logical_and.reduce(asked))


def _summary(config: HeadsInModelsConfig, arm: str, heads: Heads) -> dict[str, float]:
    own, control = heads.labels[:2]
    called, controls = heads.called(config, own), heads.called(config, control)
    found = {
        "accuracy": heads.accuracy,
        "any": float(called.any()),
        "any control": float(controls.any()),
        "first layer": float(called[0].any()),
        "last layer": float(called[-1].any()),
        "called in last layer": float(called[-1].sum()),
        "best ratio": float(np.nanmin(heads.ratio(own))) if np.isfinite(heads.ratio(own)).any() else math.nan,
    }
    for label in heads.labels:
        found[f"selectivity {label}"] = _mean(heads.selectivity(label))
        found[f"agreement {label}"] = _largest(heads.of("agreement", label))
    if heads.place is not None:
        expected = np.zeros_like(called)
        expected[heads.place] = True
        found["exact"] = float((called == expected).all())
    if heads.clusters is not None:
        found["task-ARI at the top"] = float(heads.clusters[-1, 0])
        found["task-ARI - output-ARI at the top"] = float(heads.clusters[-1, 0] - heads.clusters[-1, 1])
    if arm == PROMPTS:
        found["heads"] = float(called.size)
    return found


def _mean(values: np.ndarray) -> float:
    """Over the heads that were tested; 0 where none was, since nothing hangs on any."""
    return float(np.nanmean(values)) if np.isfinite(values).any() else 0.0


def _largest(values: np.ndarray) -> float:
    return float(np.nanmax(values)) if np.isfinite(values).any() else 0.0


def by_subject(config: HeadsInModelsConfig, found: Found, arm: str) -> dict[str, list[Heads]]:
    """Every subject of an arm, with its models in the order of the seeds; empty where the arm was not run."""
    if arm not in arms(config):
        return {}
    of = [models for job, models in found.items() if job.arm == arm]
    return {subject: [models[subject] for models in of] for subject in subjects_of(arm)}
