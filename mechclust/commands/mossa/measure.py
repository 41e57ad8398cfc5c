"""Measure the models of a MOSSA run: each task's prompts with every model that they concern, one after the other."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any, TypeAlias

from jaxtyping import Shaped
from torch import Tensor

from mechclust.commands.mossa.config import N_PERMUTATIONS, MossaConfig
from mechclust.commands.mossa.inputs import Inputs, prompts_and_pairs, test_batches
from mechclust.commands.mossa.jobs import ModelJob, TaskJob, model_jobs, task_jobs
from mechclust.commands.mossa.learnt import ROLES
from mechclust.commands.mossa.margins import Pairs, answer_margins, total_nats
from mechclust.commands.mossa.models import Model, ResidentBase, run_on_base
from mechclust.commands.mossa.pooled import measure_pooled
from mechclust.commands.mossa.states import READOUT, block_sites, comparison_device
from mechclust.commands.parts import MeasurementPart, part_path
from mechclust.commands.sampling import draw_prompts
from mechclust.commands.saved_rows import rows_errors, save_rows_anew
from mechclust.models.instruction_format import FormattedExample
from mechclust.models.plain_model import plain_model
from mechclust.mossa.task_curves import MODELS
from mechclust.training.tuning import score_answers
from probes import CKA, RBFCKA, SVCCA, NDims, ProbeResult, RowStore, run_stores
from probes.engine.probe import Probe
from probes.engine.sites import Sites
from probes.store.file_names import file_name
from probes.store.versions import package_versions

Array: TypeAlias = Shaped[Tensor, "..."]
_RBF_PROMPTS = 1000


def measure_models(
    inputs: Inputs, config: MossaConfig, out: Path, missing: Sequence[Model], *, progress: bool = False
) -> tuple[dict[str, dict[str, ProbeResult]], dict[str, dict[str, ProbeResult]]]:
    """Measure all models. Return results by task and name, and by kind of model and name."""
    of_tasks = task_jobs(inputs, missing, config.nulls)
    of_models = model_jobs(inputs)
    title = "measuring tasks" if progress else None
    jobs: list[TaskJob | ModelJob] = [*of_tasks, *of_models]
    results = iter(run_on_base(_measure, jobs, inputs.base, config, out, title=title))
    by_task = {job.task: next(results) for job in of_tasks}
    by_model = {job.model.kind: next(results) for job in of_models}
    return by_task, by_model


def _measure(resident: ResidentBase, job: TaskJob | ModelJob) -> dict[str, ProbeResult]:
    with rows_errors("--n-prompts"):
        return measure_task(resident, job) if isinstance(job, TaskJob) else measure_pooled(resident, job)


def measure_task(resident: ResidentBase, job: TaskJob) -> dict[str, ProbeResult]:
    """Measure one task. Return results by ``"ROLE.MEASURE"``. Results that are kept are not measured again."""
    config = resident.config
    task = resident.collection[job.task]
    batches = test_batches([task], config.n_prompts, resident.format, config.tokens_per_batch, job.numbers)
    labels = ["unit"] if config.units else []
    arrays: list[Array] = []
    for batch in batches:
        arrays += [batch.index, batch.tokens, *(batch.labels[name] for name in labels)]
    stores: dict[str, RowStore] = {}
    comparisons = _comparison_parts(resident, job, stores, arrays)
    answers = _answer_parts(resident, job, arrays)
    rows = resident.out / "rows" / file_name(task.name)
    lacking = any(part.kept() is None for part in comparisons)
    if lacking or config.keep_rows:
        at = block_sites(resident.n_layers)
        for role, model in job.models.items():
            with resident.as_model(model) as hooked:
                stores[role] = save_rows_anew(hooked, batches, rows / role, at=at, readout=READOUT, labels=labels)
                if role in answers:
                    answers[role].found()  # while this model is in memory
    results = {part.name: part.found() for part in (*comparisons, *answers.values())}
    if lacking and not config.keep_rows:
        shutil.rmtree(rows, ignore_errors=True)
    return results


def _folder(resident: ResidentBase, job: TaskJob) -> Path:
    return resident.out / "measured" / file_name(job.task)


# ---- hidden states ----


def partner_of(role: str) -> str:
    """Return the role of the model that a role's model is compared with.

    MOSSA measures the similarity to the task's control. Its null is the similarity of the tuned model to controls of
    other tasks.

    Example:
        >>> partner_of("base"), partner_of("other-1")
        ('control', 'tuned')
    """
    return "tuned" if role.startswith("other-") else "control"


def _comparison_parts(
    resident: ResidentBase, job: TaskJob, stores: Mapping[str, RowStore], arrays: Sequence[Array]
) -> list[MeasurementPart]:
    """Return the parts that compare hidden states.

    Args:
        resident: the base.
        job: the task and its models.
        stores: hidden states by role, which are saved before a part is measured.
        arrays: index and tokens of the prompts.
    """
    prints = {role: resident.print_of(model) for role, model in job.models.items()}
    parts = []
    for role in job.models:
        if role == "control":
            continue
        for measure, probe in _probes(resident, block_sites(resident.n_layers), role).items():
            name = f"{role}.{measure}"
            settings = [prints[role], prints[partner_of(role)], repr(probe)]
            path = part_path(_folder(resident, job), name, settings, arrays)
            parts.append(MeasurementPart(path, name, partial(_compare, resident, stores, role, measure)))
    return parts


def _probes(resident: ResidentBase, at: Sites, role: str, **options: Any) -> dict[str, Probe]:
    """Return the probes on a role's model and its partner, by name of the measure."""
    config = resident.config
    shared: dict[str, Any] = {"at": at, "readout": READOUT, **comparison_device(resident), **options}
    draws = N_PERMUTATIONS if role == "tuned" else 0
    linear: dict[str, Any] = {**shared, "form": "rows", "units": "unit" if config.units else None}
    halves = config.n_resamples if role in MODELS else 0  # for the difference of the two
    cka = CKA(**linear, n_resamples=halves, n_permutations=draws, seed=config.seed, keep_halves=True)
    probes: dict[str, Probe] = {"cka": cka}
    if partner_of(role) == "tuned":  # controls of other tasks are compared by CKA only
        return probes
    if role in MODELS:
        probes["dims"] = NDims(**shared)
    if config.without_top:
        probes["without-top"] = CKA(**linear, remove_top=1)
    if config.rbf:
        probes["rbf"] = RBFCKA(**shared)
    if config.svcca:
        probes["svcca"] = SVCCA(**shared)
    return probes


def _compare(resident: ResidentBase, stores: Mapping[str, RowStore], role: str, measure: str) -> ProbeResult:
    """Return one measure of a role's model, layer by layer, so that one layer of two models is in memory."""
    results = []
    for layer in range(1, resident.n_layers + 1):  # with the last, the final norm
        at = block_sites(resident.n_layers, [layer])
        probes = _probes(resident, at, role, max_memory=resident.config.max_memory)
        results.append(_run(stores, role, probes[measure]))
    return reduce(ProbeResult.merge, results)


def _run(stores: Mapping[str, RowStore], role: str, probe: Probe) -> ProbeResult:
    if isinstance(probe, NDims):
        return run_stores(stores[role], probe)
    partner = partner_of(role)
    pair = {role: stores[role], partner: stores[partner]}
    if isinstance(probe, RBFCKA):  # of drawn prompts, since files may be ordered by answers
        pair = {name: store.select(draw_prompts(store.index, _RBF_PROMPTS)) for name, store in pair.items()}
    return run_stores(pair, probe)


# ---- answers ----


def _answer_parts(resident: ResidentBase, job: TaskJob, arrays: Sequence[Array]) -> dict[str, MeasurementPart]:
    """Return by role the parts that score answers."""
    task = resident.collection[job.task]
    if not resident.config.n_answers:
        return {}
    examples, exchanged, pairs = prompts_and_pairs(task, resident.config.n_answers, resident.format)
    tokens = str([example.tokens for example in (*examples, *exchanged)])
    parts = {}
    for role in ROLES:
        if role in job.models:
            model = job.models[role]
            name = f"{role}.answers"
            path = part_path(_folder(resident, job), name, [resident.print_of(model), tokens], arrays)
            parts[role] = MeasurementPart(path, name, partial(_answers, resident, model, examples, exchanged, pairs))
    return parts


def _answers(
    resident: ResidentBase,
    model: Model,
    examples: Sequence[FormattedExample],
    exchanged: Sequence[FormattedExample],
    pairs: Pairs,
) -> ProbeResult:
    tokens_per_batch = resident.config.tokens_per_batch
    with resident.as_model(model) as hooked:
        plain = plain_model(hooked)
        scores = score_answers(plain, examples, tokens_per_batch)
        margin = answer_margins(plain, total_nats(scores.loss, examples), exchanged, pairs, tokens_per_batch)
    return ProbeResult(
        "Answers",
        {"loss": scores.loss, "exact": scores.exact.double(), "margin": margin},
        {"loss": ("example",), "exact": ("example",), "margin": ("pair",)},
        {"example": [str(i) for i in range(len(examples))], "pair": [f"{i}-{j}" for i, j in pairs]},
        metadata={"n": len(examples), "versions": package_versions()},
    )
