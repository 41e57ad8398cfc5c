"""Measurements of the study's runs: every model's heads, and one number per seed of each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Shaped

from mechclust.studies.heads_in_models.config import (
    INSTRUCTIONS,
    PLANTED,
    PLANTED_P,
    PROMPTS,
    HeadsInModelsConfig,
    addition_of,
    arms,
    clustered_by_attention,
    jobs,
    labels_of,
    result_path,
    subjects_of,
)
from mechclust.studies.heads_in_models.heads import Heads, heads_from, switching_heads
from mechclust.studies.heads_in_models.together import DONORS
from mechclust.studies.kept import load_required
from mechclust.studies.study import Job
from probes import ProbeResult

if TYPE_CHECKING:
    import pandas as pd

Data = Mapping[str, Shaped[np.ndarray, "_ ..."]]  # values over seeds, by ``measure_key``
HeadsBySubject = Mapping[str, Heads]
Results = Mapping[Job, HeadsBySubject]
CALLS = ("any", "any control", "first layer", "last layer", "called in last layer")  # measures of heads called


def load(config: HeadsInModelsConfig, out: Path) -> dict[Job, HeadsBySubject]:
    """Return the heads of every model of every job.

    Raises:
        InputError: naming the result that is missing.
    """
    return {job: load_job(config, out, job) for job in jobs(config)}


def load_job(config: HeadsInModelsConfig, out: Path, job: Job) -> dict[str, Heads]:
    """Return the heads of every model of a job, by subject.

    Raises:
        InputError: naming the result that is missing.
    """
    return {subject: _load_subject(config, job, subject, out) for subject in subjects_of(job.arm)}


def _load_subject(config: HeadsInModelsConfig, job: Job, subject: str, out: Path) -> Heads:
    def load(kind: str) -> ProbeResult:
        return load_required(out, result_path(out, job, f"{subject}.{kind}"))

    heads = heads_from(load("heads"), labels_of(job.arm))
    uncalled = frozenset(label for label in heads.labels if clustered_by_attention(config, job.arm, label))
    heads = replace(heads, uncalled=uncalled)
    if job.arm == PLANTED:
        from mechclust.studies.heads_in_models.planted import PlantedHeads

        task = addition_of(config, PLANTED_P, job.seed)
        heads = replace(heads, place=PlantedHeads(task, config.n_layers, config.n_heads, job.seed).place)
    if job.arm == INSTRUCTIONS:
        heads = replace(heads, clusters=load("clusters")["ari"].numpy())
    if job.arm == PROMPTS:
        together = load("together")
        carried = _by_donors(together, "carried")
        changed = _by_donors(together, "changed")
        heads = replace(heads, carried=carried, changed=changed, discovery=load("discovery"))
    return heads


def _by_donors(together: ProbeResult, measure: str) -> dict[str, float]:
    return dict(zip(DONORS, together[measure].tolist(), strict=True))


def measure_key(arm: str, subject: str, measure: str) -> str:
    """Return the name of a measure in ``Data``."""
    return f"{arm} {subject} {measure}"


def data_of(config: HeadsInModelsConfig, results: Results) -> Data:
    """Return every measure of every arm and subject by ``measure_key``, over seeds."""
    gathered: dict[str, list[float | Shaped[np.ndarray, "_"]]] = {}
    for job, models in results.items():
        for subject, heads in models.items():
            for measure, value in _measures(config, job.arm, heads).items():
                gathered.setdefault(measure_key(job.arm, subject, measure), []).append(value)
        if job.arm == PROMPTS:
            for name, value in _at_both_ends(config, models).items():
                gathered.setdefault(name, []).append(value)
    return {name: np.array(values) for name, values in gathered.items()}


def _at_both_ends(config: HeadsInModelsConfig, models: HeadsBySubject) -> dict[str, float]:
    """Return how many heads serve both endings of the prompts, for the pretrained model and the random one."""
    numbers = {}
    for kind in dict.fromkeys(subject.rpartition("-")[0] for subject in models):
        ends = [heads for subject, heads in models.items() if subject.startswith(f"{kind}-")]
        first, second = (heads.strongest(config.n_tested) for heads in ends)
        numbers[measure_key(PROMPTS, kind, "common")] = len(first & second) / max(1, len(first), len(second))
        numbers[measure_key(PROMPTS, kind, "switching")] = float(switching_heads(config, ends).sum())
        numbers[measure_key(PROMPTS, kind, "switching other")] = float(
            switching_heads(config, ends, "other", "asked").sum()
        )
    return numbers


def _measures(config: HeadsInModelsConfig, arm: str, heads: Heads) -> dict[str, float | Shaped[np.ndarray, "_"]]:
    """Return every measure of one model."""
    label, control = heads.labels[:2]
    called = heads.called(config, label)
    measures: dict[str, float | Shaped[np.ndarray, "_"]] = {
        "accuracy": heads.accuracy,
        "any": float(called.any()),
        "any control": float(heads.called(config, control).any()),
        "first layer": float(called[0].any()),
        "last layer": float(called[-1].any()),
        "called in last layer": float(called[-1].sum()),
        "best ratio": _smallest(heads.ratio(label)),
        "best ratio control": _smallest(heads.ratio(control)),
    }
    if label in heads.uncalled:
        measures |= dict.fromkeys(CALLS, math.nan)
    for name in heads.labels:
        measures[f"agreement {name}"] = _largest(heads.labelled("agreement", name))
    if heads.place is not None:
        expected = np.zeros_like(called)
        expected[heads.place] = True
        measures["exact"] = float((called == expected).all())
    if heads.clusters is not None:
        measures["task-ARI"] = heads.clusters[:, 0]
        measures["heads called"] = called.sum(axis=1)
    if arm == PROMPTS:
        measures |= {f"carried, {donors}": share for donors, share in heads.carried.items()}
        measures |= {f"changed, {donors}": share for donors, share in heads.changed.items()}
        if heads.discovery is not None:
            measures |= discovered_agreement(heads.discovery)
    return measures


def discovered_agreement(discovery: ProbeResult) -> dict[str, float]:
    """Return the agreement with each label of each set of heads, and how compact outputs are within discovered classes.

    Compactness is the within-ratio of the outputs minus the ratio of a Gaussian cloud in their place. If all prompts
    are one class, it is 0. For an empty set, all is NaN.
    """
    measures: dict[str, float] = {}
    for i, name in enumerate(discovery.coords["set"]):
        agreements = discovery["agreement"][i].tolist()
        for label, agreement in zip(discovery.coords["equivalence"], agreements, strict=True):
            measures[f"agreement {label}, {name}"] = agreement
        compactness = float(discovery["within_ratio"][i] - discovery["within_ratio_gaussian"][i])
        one_class = math.isnan(compactness) and math.isfinite(discovery["changed"][i])
        measures[f"compactness, {name}"] = 0.0 if one_class else compactness
    return measures


def rise_where_called(task_ari: Float[np.ndarray, "layer"], called: Shaped[np.ndarray, "block"]) -> float:
    """Return how much more the task-ARI rises in the blocks with most heads called than in others, in the mean.

    0 if all blocks have equally many.
    """
    most = called == called.max()
    if most.all():
        return 0.0
    rise = np.diff(task_ari)
    return float(rise[most].mean() - rise[~most].mean())


def _smallest(values: Float[np.ndarray, "layer head"]) -> float:
    """Return the smallest value over heads, or NaN if none is finite."""
    return float(np.nanmin(values)) if np.isfinite(values).any() else math.nan


def _largest(values: Float[np.ndarray, "layer head"]) -> float:
    """Return the largest value over tested heads, or 0 if none was tested, since no answer depends on any."""
    return float(np.nanmax(values)) if np.isfinite(values).any() else 0.0


def by_subject(config: HeadsInModelsConfig, results: Results, arm: str) -> dict[str, list[Heads]]:
    """Return each subject of an arm with its models in the order of the seeds. It is empty if the arm was not run."""
    if arm not in arms(config):
        return {}
    of_jobs = [models for job, models in results.items() if job.arm == arm]
    return {subject: [models[subject] for models in of_jobs] for subject in subjects_of(arm)}


def called_table(config: HeadsInModelsConfig, results: Results) -> pd.DataFrame:
    """Return heads called per network, mean over seeds, by arm, model, label and block."""
    import pandas as pd

    rows = []
    for arm in arms(config):
        for subject, models in by_subject(config, results, arm).items():
            for label in labels_of(arm):
                called = _mean_called(config, models, label)
                blocks = {} if arm == PROMPTS else {f"block {i}": n for i, n in enumerate(called)}
                rows.append({"part": arm, "model": subject, "label": label, "all blocks": called.sum(), **blocks})
    return pd.DataFrame(rows)


def _mean_called(config: HeadsInModelsConfig, models: Sequence[Heads], label: str) -> Float[np.ndarray, "block"]:
    """Return the mean number of called heads per block over models, or NaN if the rule calls none for the label."""
    called = np.mean([heads.called(config, label).sum(axis=1) for heads in models], axis=0)
    return np.full_like(called, np.nan) if label in models[0].uncalled else called
