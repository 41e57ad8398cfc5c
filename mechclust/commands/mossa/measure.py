"""Measures the models of a MOSSA run: each task's prompts with every model that they concern, one after the other."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any

import torch

from mechclust.commands.layers import layers_bytes, layers_that_fit
from mechclust.commands.mossa.config import MossaConfig
from mechclust.commands.mossa.inputs import Inputs, cluster_of, questions, test_batches
from mechclust.commands.mossa.margins import Pairs, margins, total
from mechclust.commands.mossa.models import AGAIN, BASE, CONTROL, TUNED, UNSEEN, Model, ResidentBase
from mechclust.commands.mossa.purity import purity_by_task
from mechclust.commands.parts import MeasurementPart, part_path
from mechclust.jobs import progress_bar
from mechclust.jobs.mapping import each_result
from mechclust.jobs.outcome import first_of
from mechclust.models.adapters import plain_model
from mechclust.models.instructions import Answered
from mechclust.models.resolved import absolute_path
from mechclust.report.folder import rows_errors
from mechclust.training.tuning import score_answers
from probes import (
    CKA,
    RBFCKA,
    SVCCA,
    NDims,
    NeighbourPurity,
    ProbeResult,
    Projection,
    RowStore,
    last_token,
    residual,
    run_stores,
    save_rows,
)
from probes.engine.hooks import device_of
from probes.engine.probe import Probe
from probes.engine.sites import Sites
from probes.store.files import file_name, versions
from tasks import Batch
from tasks.text.instructions import MISC, InstructionTask

_PERMUTATIONS = 20
_RBF_PROMPTS = 1000
_NEIGHBOURS = 10
_PICTURED = 5  # layers
POOLED = "+all"  # folder of what is measured on all tasks together: ``file_name`` gives no task this one
READOUT = last_token()


def sites(n_layers: int, layers: Sequence[int] | None = None) -> Sites:
    """The output of these blocks, or of all, and what the final norm makes of the last. The embedding of the last token
    is one vector for all prompts, which has no CKA."""
    chosen = list(range(1, n_layers + 1)) if layers is None else list(layers)
    return residual(chosen, final_norm=chosen[-1] == n_layers)


@dataclass(frozen=True)
class TaskJob:
    """All measurements on one task's prompts.

    Attributes:
        task: its name.
        models: by role: ``base``, ``tuned``, ``control``, and what there is of ``again`` (the control trained once
            more), ``other-1`` and so on (controls of other tasks, which are compared with ``tuned``; all others are
            compared with ``control``) and ``all-tasks`` (for a held-out task: the model that was trained on it too).
        numbers: of the tasks.
    """

    task: str
    models: Mapping[str, Model]
    numbers: Mapping[str, int]

    @property
    def name(self) -> str:
        """In errors."""
        return self.task


@dataclass(frozen=True)
class ModelJob:
    """What is measured on the prompts of all seen tasks together.

    Attributes:
        model: the base or the tuned model.
        numbers: of the tasks.
        clusters: ``[task]`` number of each task's cluster; of one in none, that of the clusters.
        n_clusters: number of the clusters.
    """

    model: Model
    numbers: Mapping[str, int]
    clusters: Sequence[int]
    n_clusters: int

    @property
    def name(self) -> str:
        """In errors."""
        return f"{self.model.name}, all tasks"


def task_jobs(inputs: Inputs, missing: Sequence[Model], nulls: int) -> list[TaskJob]:
    """One per task that can be measured.

    Args:
        inputs: the run's.
        missing: models whose training was given up.
        nulls: other tasks' controls to compare with.
    """
    there = {(model.kind, model.task): model for model in inputs.models if model not in missing}
    numbers = {task.name: i for i, task in enumerate(inputs.collection)}
    able = [task for task in inputs.measured if (CONTROL, task.name) in there]
    jobs = []
    for task in able:
        tuned = there.get((UNSEEN, "")) if task.held_out else there[TUNED, ""]
        if tuned is None:
            continue
        models = {"base": there[BASE, ""], "tuned": tuned, "control": there[CONTROL, task.name]}
        if (again := there.get((AGAIN, task.name))) is not None:
            models["again"] = again
        if task.held_out and there[TUNED, ""] is not tuned:
            models["all-tasks"] = there[TUNED, ""]
        for k, other in enumerate(_others(task, able, nulls), start=1):
            models[f"other-{k}"] = there[CONTROL, other.name]
        jobs.append(TaskJob(task.name, models, numbers))
    return jobs


def _others(task: InstructionTask, tasks: Sequence[InstructionTask], n: int) -> list[InstructionTask]:
    """So many other tasks, of other clusters where there are enough; the tasks of a cluster take others in turn, so
    that each is taken about as often."""
    place = [t.name for t in tasks].index(task.name)
    turned = [*tasks[place + 1 :], *tasks[:place]]
    alike = [t.name for t in tasks if t.cluster is not None and t.cluster == task.cluster]
    others = [t for t in turned if t.name not in alike]
    start = alike.index(task.name) * n % len(others) if alike and others else 0
    return [*others[start:], *others[:start], *(t for t in turned if t.name in alike)][:n]


def model_jobs(inputs: Inputs) -> list[ModelJob]:
    """The base and the tuned model."""
    numbers = {task.name: i for i, task in enumerate(inputs.collection)}
    names = [name for name in inputs.collection.clusters if name != MISC]
    clusters = [len(names) if (name := cluster_of(t)) is None else names.index(name) for t in inputs.collection]
    return [ModelJob(model, numbers, clusters, len(names)) for model in inputs.models if model.kind in (BASE, TUNED)]


def measure_models(
    inputs: Inputs, config: MossaConfig, out: Path, missing: Sequence[Model], *, progress: bool = False
) -> tuple[dict[str, dict[str, ProbeResult]], dict[str, dict[str, ProbeResult]]]:
    """Results by task and name, and by kind of model and name."""
    per_task, per_model = task_jobs(inputs, missing, config.nulls), model_jobs(inputs)
    jobs: list[TaskJob | ModelJob] = [*per_task, *per_model]
    results = each_result(
        _measure,
        jobs,
        setup=partial(ResidentBase, absolute_path(inputs.base), config.portable, out.absolute()),
        workers=config.workers or (1 if config.here else None),
        engine=config.jobs,
        timeout=config.job_timeout,
        folder=out,
        name=lambda job: job.name,
    )
    found: dict[int, dict[str, ProbeResult]] = {}
    errors: list[Exception] = []
    bar = progress_bar(total=len(jobs), desc="measuring tasks", unit="job", disable=not progress)
    with closing(results), closing(bar):
        for outcome in results:
            if outcome.error is not None:
                errors.append(outcome.error)
            else:
                found[outcome.position] = outcome.value or {}
            bar.update()
    if errors:
        raise first_of(errors)
    of_jobs = [found[i] for i in range(len(jobs))]
    tasks = {job.task: result for job, result in zip(per_task, of_jobs, strict=False)}
    models = {job.model.kind: result for job, result in zip(per_model, of_jobs[len(per_task) :], strict=True)}
    return tasks, models


def _measure(resident: ResidentBase, job: TaskJob | ModelJob) -> dict[str, ProbeResult]:
    with rows_errors("--n-prompts"):
        return _measure_task(resident, job) if isinstance(job, TaskJob) else _describe(resident, job)


# ---- one task ----


def _measure_task(resident: ResidentBase, job: TaskJob) -> dict[str, ProbeResult]:
    config, task = resident.config, resident.collection[job.task]
    batches = _batches(resident, [task], config.n_prompts, job.numbers)
    prints = {role: resident.print_of(model) for role, model in job.models.items()}
    folder = resident.out / "measured" / file_name(task.name)
    rows = resident.out / "rows" / file_name(task.name)
    n_layers = _n_layers(resident)
    kept_labels = ["unit"] if config.units else []
    tokens = [t for b in batches for t in (b.index, b.tokens, *(b.labels[name] for name in kept_labels))]
    at = sites(n_layers)
    stores: dict[str, RowStore] = {}
    parts: dict[str, MeasurementPart] = {}

    def path(name: str, *settings: Any) -> Path:
        return part_path(folder, name, settings, tokens)

    for role in job.models:
        if role != "control":
            for measure, probe in _probes(resident, at, role).items():
                name, partner = f"{role}.{measure}", partner_of(role)
                make = partial(_compare, resident, stores, role, measure)
                parts[name] = MeasurementPart(path(name, prints[role], prints[partner], repr(probe)), name, make)
    if config.n_answers and task.test:
        examples, exchanged, pairs = questions(task, config.n_answers, resident.format)
        asked = str([e.tokens for e in [*examples, *exchanged]])
        for role in ("base", "tuned", "control", *(["all-tasks"] if "all-tasks" in job.models else [])):
            name = f"{role}.answers"
            make = partial(_answers, resident, job.models[role], examples, exchanged, pairs)
            parts[name] = MeasurementPart(path(name, prints[role], asked), name, make)
    lacking = [part for part in parts.values() if part.kept() is None]
    if any(not part.name.endswith(".answers") for part in lacking):
        for role, model in job.models.items():
            with resident.as_model(model) as hooked:
                stores[role] = save_rows(hooked, batches, rows / role, at=at, readout=READOUT, labels=kept_labels)
                answers = parts.get(f"{role}.answers")
                if answers in lacking:
                    answers.found()  # while this model is in
    found = {name: part.found() for name, part in parts.items()}
    if not config.keep_rows:
        shutil.rmtree(rows, ignore_errors=True)
    return found


def is_other_control(role: str) -> bool:
    """Whether a role is a control of another task."""
    return role.startswith("other-")


def partner_of(role: str) -> str:
    """Return the role of the model that a role's model is compared with.

    Similarity to the task's own control is what MOSSA measures; its null is the similarity of the tuned model to
    controls of other tasks.

    Example:
        >>> partner_of("base"), partner_of("other-1")
        ('control', 'tuned')
    """
    return "tuned" if is_other_control(role) else "control"


def _probes(resident: ResidentBase, at: Sites, role: str, **options: Any) -> dict[str, Probe]:
    """What is measured of a role's model and its partner."""
    config = resident.config
    shared: dict[str, Any] = {"at": at, "readout": READOUT, **_where(resident), **options}
    draws = _PERMUTATIONS if role == "tuned" else 0
    linear: dict[str, Any] = {**shared, "form": "rows", "units": "unit" if config.units else None}
    found: dict[str, Probe] = {"cka": CKA(**linear, n_permutations=draws, seed=config.seed)}
    if is_other_control(role):
        return found
    if role in ("base", "tuned"):
        found["dims"] = NDims(**shared)
    if config.without_top:
        found["without-top"] = CKA(**linear, remove_top=1)
    if config.rbf:
        found["rbf"] = RBFCKA(**shared)
    if config.svcca:
        found["svcca"] = SVCCA(**shared)
    return found


def _where(resident: ResidentBase) -> dict[str, Any]:
    """Where states are compared, as probes take it: where the model is, since products of many prompts' states take
    hours on the CPU beside a large model."""
    config = resident.config
    device = str(device_of(resident.hooked)) if config.device_map else config.device
    return {} if device == "cpu" else {"device": device}


def _compare(resident: ResidentBase, stores: Mapping[str, RowStore], role: str, measure: str) -> ProbeResult:
    """One measure of a role's model, in groups of layers that fit in memory."""
    config, n_layers = resident.config, _n_layers(resident)
    store, layers = stores[role], list(range(1, n_layers + 1))
    d, n = next(iter(store.take(store.index[:1], [f"rows/{store.sites[-1]}"]).values())).shape[1], len(store)
    svcca = n * config.svcca
    room = config.max_memory * 2**30 / config.at_once - layers_bytes([d], [d], n, svcca)  # that of the final norm
    found = []
    for group in layers_that_fit(layers, d, d, n, room, svcca=svcca):
        probes = _probes(resident, sites(n_layers, group), role, max_memory=config.max_memory)
        found.append(_compared(stores, role, probes[measure]))
    return reduce(ProbeResult.merge, found)


def _compared(stores: Mapping[str, RowStore], role: str, probe: Probe) -> ProbeResult:
    if isinstance(probe, NDims):
        return run_stores(stores[role], probe)
    partner = partner_of(role)
    pair = {role: stores[role], partner: stores[partner]}
    if isinstance(probe, RBFCKA):
        pair = {name: store.select(store.index[:_RBF_PROMPTS]) for name, store in pair.items()}
    return run_stores(pair, probe)


def _answers(
    resident: ResidentBase, model: Model, examples: Sequence[Answered], exchanged: Sequence[Answered], pairs: Pairs
) -> ProbeResult:
    most = resident.config.tokens_per_batch
    with resident.as_model(model) as hooked:
        plain = plain_model(hooked)
        scores = score_answers(plain, examples, most)
        margin = margins(plain, total(scores.loss, examples), exchanged, pairs, most)
    return ProbeResult(
        "Answers",
        {"loss": scores.loss, "exact": scores.exact.double(), "margin": margin},
        {"loss": ("example",), "exact": ("example",), "margin": ("pair",)},
        {"example": [str(i) for i in range(len(examples))], "pair": [f"{i}-{j}" for i, j in pairs]},
        metadata={"n": len(examples), "versions": versions()},
    )


# ---- all tasks together ----


def _describe(resident: ResidentBase, job: ModelJob) -> dict[str, ProbeResult]:
    config = resident.config
    seen = [task for task in resident.collection.seen if not task.too_few]
    batches = _batches(resident, seen, config.n_shown, job.numbers, job.clusters)
    at, n_layers = sites(_n_layers(resident)), _n_layers(resident)
    there = _where(resident)
    pictured = sorted({max(1, round(n_layers * k / _PICTURED)) for k in range(1, _PICTURED + 1)})
    probes: dict[str, Probe] = {
        "dims": NDims(at=at, readout=READOUT, **there),
        "projection": Projection("cluster", at=residual(pictured), readout=READOUT, max_rows=None, seed=config.seed),
    }
    grouped = [task for task in seen if job.clusters[job.numbers[task.name]] < job.n_clusters]
    there_are = len({cluster_of(task) for task in grouped}) > 1
    if there_are and sum(min(config.n_shown, len(task.test)) for task in grouped) > _NEIGHBOURS:
        probes["purity"] = NeighbourPurity(at=at, readout=READOUT, label="cluster", k=_NEIGHBOURS, **there)
    tokens = [t for batch in batches for t in (batch.index, batch.tokens)]
    print_ = resident.print_of(job.model)
    folder = resident.out / "measured" / POOLED
    stores: list[RowStore] = []

    def store() -> RowStore:
        if not stores:
            with resident.as_model(job.model) as hooked:
                rows = resident.out / "rows" / POOLED / job.model.kind
                stores.append(save_rows(hooked, batches, rows, at=at, readout=READOUT, labels=("task", "cluster")))
        return stores[0]

    def in_clusters() -> RowStore:
        """Neighbours that are of no cluster are of another one for none."""
        clusters = store().take(store().index, ["labels/cluster"])["labels/cluster"]
        return store().select(store().index[clusters < job.n_clusters])

    found = {}
    for name, probe in probes.items():
        path = part_path(folder, f"{job.model.kind}.{name}", [print_, repr(probe), str(job.clusters)], tokens)
        of = in_clusters if name == "purity" else store
        found[name] = MeasurementPart(path, name, lambda probe=probe, of=of: run_stores(of(), probe)).found()  # type: ignore[misc]
    if "purity" in probes:
        path = part_path(folder, f"{job.model.kind}.task-purity", [print_, _NEIGHBOURS, str(job.clusters)], tokens)
        names = {number: name for name, number in job.numbers.items()}
        make = partial(_purity_by_task, in_clusters, names)
        found["task-purity"] = MeasurementPart(path, "task-purity", make).found()
    if not config.keep_rows:
        shutil.rmtree(resident.out / "rows" / POOLED / job.model.kind, ignore_errors=True)
    return found


def _purity_by_task(rows: Callable[[], RowStore], names: Mapping[int, str]) -> ProbeResult:
    return purity_by_task(rows(), names, _NEIGHBOURS)


def _batches(
    resident: ResidentBase,
    tasks: Sequence[InstructionTask],
    most: int,
    numbers: Mapping[str, int],
    clusters: Sequence[int] | None = None,
) -> list[Batch]:
    found = test_batches(tasks, most, resident.format, resident.config.tokens_per_batch, numbers)
    if clusters is None:
        return found
    of_task = torch.tensor(clusters)
    return [
        Batch(
            b.tokens,
            attention_mask=b.attention_mask,
            labels={**b.labels, "cluster": of_task[b.labels["task"]]},
            index=b.index,
        )
        for b in found
    ]


def _n_layers(resident: ResidentBase) -> int:
    return int(plain_model(resident.hooked).config.get_text_config().num_hidden_layers)
