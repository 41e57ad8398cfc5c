"""What the runs of the study measured: every model's heads, and one number per seed of each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from mechclust.studies.heads_in_models.config import (
    PLANTED,
    PLANTED_P,
    PROMPTS,
    HeadsInModelsConfig,
    addition_of,
    arms,
    clustered_by_attention,
    labels_of,
    results_of,
    subjects_of,
)
from mechclust.studies.heads_in_models.heads import Heads, heads_from, switching_heads
from mechclust.studies.heads_in_models.together import DONORS
from mechclust.studies.kept import check_there
from mechclust.studies.study import Job
from probes import ProbeResult, load_result

Data = Mapping[str, np.ndarray]
CALLS = ("any", "any control", "first layer", "last layer", "called in last layer")  # measures of heads called


Found = Mapping[Job, Mapping[str, Heads]]


def load_results(config: HeadsInModelsConfig, out: Path, job: Job) -> dict[str, Heads]:
    """The heads of every model of a job, by subject.

    Raises:
        InputError: if a result is missing; the text names it.
    """
    check_there(out, results_of(job, out))
    return {subject: _load(config, job, subject, out) for subject in subjects_of(job.arm)}


def _load(config: HeadsInModelsConfig, job: Job, subject: str, out: Path) -> Heads:
    paths = [path for path in results_of(job, out) if path.name.startswith(f"{subject}.")]
    found = {path.name.split(".")[-2]: load_result(path) for path in paths}
    heads = heads_from(found["heads"], labels_of(job.arm))
    uncalled = frozenset(label for label in heads.labels if clustered_by_attention(config, job.arm, label))
    heads = replace(heads, uncalled=uncalled)
    if job.arm == PLANTED:
        from mechclust.studies.heads_in_models.planted import PlantedHeads

        task = addition_of(config, PLANTED_P, job.seed)
        heads = replace(heads, place=PlantedHeads(task, config.n_layers, config.n_heads, job.seed).place)
    if "clusters" in found:
        heads = replace(heads, clusters=found["clusters"]["ari"].numpy())
    if "together" in found:
        carried, changed = (
            dict(zip(DONORS, found["together"][name].tolist(), strict=True)) for name in ("carried", "changed")
        )
        heads = replace(heads, carried=carried, changed=changed, discovery=found["discovery"])
    return heads


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
    if own in heads.uncalled:
        found |= dict.fromkeys(CALLS, math.nan)
    for label in heads.labels:
        found[f"agreement {label}"] = _largest(heads.of("agreement", label))
    if heads.place is not None:
        expected = np.zeros_like(called)
        expected[heads.place] = True
        found["exact"] = float((called == expected).all())
    if heads.clusters is not None:
        found["growth where called"], found["growth elsewhere"] = _growth(heads.clusters[:, 0], called.sum(axis=1))
    if arm == PROMPTS:
        found["heads"] = float(called.size)
        found |= {f"carried, {donors}": share for donors, share in heads.carried.items()}
        found |= {f"changed, {donors}": share for donors, share in heads.changed.items()}
        if heads.discovery is not None:
            found |= discovered(heads.discovery)
    return found


def discovered(found: ProbeResult) -> dict[str, float]:
    """By measure and set of heads: share of answers changed; agreement with each label; how much more compact outputs
    are within discovered classes than a Gaussian cloud; stability. If all prompts are one class, the last three are 0;
    for an empty set, all are NaN."""
    values: dict[str, float] = {}
    for i, name in enumerate(found.coords["set"]):
        for k, label in enumerate(found.coords["equivalence"]):
            values[f"agreement {label}, {name}"] = float(found["agreement"][i, k])
        values[f"changed together, {name}"] = changed = float(found["changed"][i])
        for measure, value in (
            ("compactness", float(found["within_ratio"][i] - found["within_ratio_gaussian"][i])),
            ("stability", float(found["stability"][i])),
        ):
            values[f"{measure}, {name}"] = 0.0 if math.isfinite(changed) and math.isnan(value) else value
    return values


def _growth(ari: np.ndarray, called: np.ndarray) -> tuple[float, float]:
    """Mean rise of the task-ARI over the blocks with most heads called, and over others; 0 if these are all blocks."""
    most = called == called.max()
    if most.all():
        return 0.0, 0.0
    rise = np.diff(ari)
    return float(rise[most].mean()), float(rise[~most].mean())


def _largest(values: np.ndarray) -> float:
    """Over the heads that were tested; 0 if none was, since no answer depends on any."""
    return float(np.nanmax(values)) if np.isfinite(values).any() else 0.0


def by_subject(config: HeadsInModelsConfig, found: Found, arm: str) -> dict[str, list[Heads]]:
    """Every subject of an arm, with its models in the order of the seeds; empty where the arm was not run."""
    if arm not in arms(config):
        return {}
    of = [models for job, models in found.items() if job.arm == arm]
    return {subject: [models[subject] for models in of] for subject in subjects_of(arm)}
