"""What the runs of the study measured: every model's heads, and one number per seed of each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Float

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

Data = Mapping[str, np.ndarray]  # [seed ...], by ``key``
CALLS = ("any", "any control", "first layer", "last layer", "called in last layer")  # measures of heads called
Found = Mapping[Job, Mapping[str, Heads]]


def load_results(config: HeadsInModelsConfig, out: Path, job: Job) -> dict[str, Heads]:
    """Return the heads of every model of a job, by subject.

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
    """Return the name of a measure in ``Data``."""
    return f"{arm} {subject} {measure}"


def data_of(config: HeadsInModelsConfig, found: Found) -> Data:
    """Return every measure of every arm and subject by ``key``, as ``[seed ...]``."""
    gathered: dict[str, list[float | np.ndarray]] = {}
    for job, models in found.items():
        measured = {
            key(job.arm, subject, measure): value
            for subject, heads in models.items()
            for measure, value in _summary(config, job.arm, heads).items()
        }
        if job.arm == PROMPTS:
            measured |= _at_both_ends(config, models)
        for name, value in measured.items():
            gathered.setdefault(name, []).append(value)
    return {name: np.array(values) for name, values in gathered.items()}


def _at_both_ends(config: HeadsInModelsConfig, models: Mapping[str, Heads]) -> dict[str, float]:
    """Return how many heads serve both endings of the prompts, for the pretrained model and the random one."""
    found = {}
    for kind in dict.fromkeys(subject.rpartition("-")[0] for subject in models):
        ends = [heads for subject, heads in models.items() if subject.startswith(f"{kind}-")]
        first, second = (heads.strongest(config.n_tested) for heads in ends)
        found[key(PROMPTS, kind, "common")] = len(first & second) / max(1, len(first), len(second))
        found[key(PROMPTS, kind, "switching")] = float(switching_heads(config, ends).sum())
        found[key(PROMPTS, kind, "switching other")] = float(switching_heads(config, ends, "other", "asked").sum())
    return found


def _summary(config: HeadsInModelsConfig, arm: str, heads: Heads) -> dict[str, float | np.ndarray]:
    """Return every measure of one model."""
    label, control = heads.labels[:2]
    called = heads.called(config, label)
    found: dict[str, float | np.ndarray] = {
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
        found |= dict.fromkeys(CALLS, math.nan)
    for name in heads.labels:
        found[f"agreement {name}"] = _largest(heads.of("agreement", name))
    if heads.place is not None:
        expected = np.zeros_like(called)
        expected[heads.place] = True
        found["exact"] = float((called == expected).all())
    if heads.clusters is not None:
        found["task-ARI"] = heads.clusters[:, 0]
        found["heads called"] = called.sum(axis=1)
    if arm == PROMPTS:
        found |= {f"carried, {donors}": share for donors, share in heads.carried.items()}
        found |= {f"changed, {donors}": share for donors, share in heads.changed.items()}
        if heads.discovery is not None:
            found |= discovered(heads.discovery)
    return found


def discovered(found: ProbeResult) -> dict[str, float]:
    """Return measures of each set of heads.

    They are the share of answers changed, the agreement with each label, how much more compact outputs are within
    discovered classes than a Gaussian cloud, and the stability. If all prompts are one class, the last three are 0; for
    an empty set, all are NaN.
    """
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


def rise_where_called(task_ari: Float[np.ndarray, "layer"], called: Float[np.ndarray, "block"]) -> float:
    """Return how much more the task-ARI rises in the blocks with most heads called than in others, in the mean.

    0 if all blocks have as many.
    """
    most = called == called.max()
    if most.all():
        return 0.0
    rise = np.diff(task_ari)
    return float(rise[most].mean() - rise[~most].mean())


def _smallest(values: Float[np.ndarray, "layer head"]) -> float:
    """Return the smallest value over heads; NaN if none is finite."""
    return float(np.nanmin(values)) if np.isfinite(values).any() else math.nan


def _largest(values: Float[np.ndarray, "layer head"]) -> float:
    """Return the largest value over the heads that were tested; 0 if none was, since no answer depends on any."""
    return float(np.nanmax(values)) if np.isfinite(values).any() else 0.0


def by_subject(config: HeadsInModelsConfig, found: Found, arm: str) -> dict[str, list[Heads]]:
    """Return each subject of an arm with its models in the order of the seeds; nothing if the arm was not run."""
    if arm not in arms(config):
        return {}
    of = [models for job, models in found.items() if job.arm == arm]
    return {subject: [models[subject] for models in of] for subject in subjects_of(arm)}
