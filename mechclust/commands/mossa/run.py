"""Run MOSSA on a base model and a folder of tasks: train, measure, and collect the result."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from mechclust.commands.folder import check_outside, own_folder
from mechclust.commands.mossa.config import MossaConfig
from mechclust.commands.mossa.estimate import Plan
from mechclust.commands.mossa.inputs import Inputs, chosen_examples, cluster_of, read_inputs
from mechclust.commands.mossa.measure import measure_models
from mechclust.commands.mossa.models import CONTROL, UNSEEN, Model
from mechclust.commands.mossa.readability import kept_readability
from mechclust.commands.mossa.result import MossaResult
from mechclust.commands.mossa.train import Trained, train_adapters
from mechclust.models.resolved import resolved_model_path
from mechclust.report.folder import check_folder, save_folder_results
from mechclust.report.text import list_text
from probes import ProbeResult
from probes.store.file_names import file_name
from tasks import InputError
from tasks.text.instructions import InstructionTask
from tasks.text.visible import shortened


def run_mossa(base: str | Path, config: MossaConfig, out: str | Path, *, progress: bool = False) -> MossaResult:
    """Train a model on many tasks and a control on each, and compare their hidden states layer by layer.

    Adapters are trained one job each (``out/adapters``). Then each task's prompts are measured with every model that
    they concern: one base is in memory, and adapters are swapped. A second call with the same arguments resumes an
    interrupted one: finished adapters are not trained again, nor finished measurements repeated. With
    ``config.workers`` or a Ray cluster, jobs are spread over several processes.

    Source: Zhao, Ziser & Cohen 2024 (arXiv 2410.20008).

    Args:
        base: hub name or local directory of a causal language model.
        config: tasks, training, measures.
        out: folder of the run.
        progress: show progress bars.

    Raises:
        InputError: before work starts, for settings, files, tasks or models that cannot be used, and an ``out``
            that holds another run. Later, for a model of all tasks whose loss is not finite.

    Example:
        >>> result = run_mossa("google/gemma-3-270m", MossaConfig(tasks=Path("flan")), "runs/mossa")  # doctest: +SKIP
        >>> result.headline, result.groups, result.curves().seen.gap  # doctest: +SKIP
    """
    out = Path(out)
    check_folder(out, "mossa")
    check_outside(out, [config.tasks])
    inputs = read_inputs(str(base), config)
    plan = Plan.from_inputs(inputs, config, out)
    plan.check(config, out)
    if progress:
        print(plan.text(out), file=sys.stderr)
        width = inputs.sizes.d_model or 1
        speed = config.forward_speed(width)
        training_speed = config.forward_speed(width, torch.bfloat16) if config.tuning.bf16 else speed
        fewer = "fewer prompts (--n-prompts), steps (--steps-per-task) or half-samples (--n-resamples)"
        plan.cost(training_speed, speed).check(config, fewer)
    subject = {"base model": str(resolved_model_path(base)), "texts": inputs.digest()}
    with own_folder(out, "mossa", subject):
        trained = train_adapters(inputs, config, out, progress=progress)
        by_task, by_model = measure_models(inputs, config, out, [*trained.failed], progress=progress)
        result = _result(inputs, config, out, trained, by_task, by_model)
        save_folder_results(out, "mossa", result.results, subject)
        return result


def _result(
    inputs: Inputs,
    config: MossaConfig,
    out: Path,
    trained: Trained,
    by_task: Mapping[str, Mapping[str, ProbeResult]],
    by_model: Mapping[str, Mapping[str, ProbeResult]],
) -> MossaResult:
    if not by_task:
        raise InputError("no task has a control that was trained, so nothing can be compared; lower --tuning.lr")
    tasks = sorted((inputs.collection[name] for name in by_task), key=_order)
    unmeasured = [task.name for task in inputs.collection.held_out if task.name not in by_task]
    grades, syllables = _readability(tasks, config, out)
    failures = [_failure_note(model, why, unmeasured) for model, why in trained.failed.items()]
    return MossaResult(
        base=inputs.base,
        config=config,
        tasks=[task.name for task in tasks],
        clusters=[cluster_of(task) for task in tasks],
        held_out=[task.held_out for task in tasks],
        n_train=[
            _examples_seen(task, trained, config.tuning.per_step) if config.trains else math.nan for task in tasks
        ],
        readability=grades,
        of_task=by_task,
        of_model=by_model,
        trained=trained.adapters,
        failed=trained.failed,
        n_layers=len(by_task[tasks[0].name]["base.cka"].coords["site"]) - 1,
        d=int(inputs.sizes.d_model or 0),
        notes=[*inputs.notes, *failures, syllables],
        clusters_there=inputs.clusters,
        unmeasured=unmeasured,
    )


def _order(task: InstructionTask) -> tuple[bool, str, str]:
    """Sort tasks cluster by cluster, held-out ones last."""
    return task.held_out, task.cluster or "~", task.name


def _readability(
    tasks: Sequence[InstructionTask], config: MossaConfig, out: Path
) -> tuple[dict[str, dict[str, float]], str]:
    """Return grades by task and index, with a note. Without the libraries, there are none."""
    grades: dict[str, dict[str, float]] = {}
    note = ""
    try:
        for task in tasks:
            prompts = [example.prompt for example in chosen_examples(task, config.n_prompts)]
            grades[task.name], note = kept_readability(prompts, out / "measured" / file_name(task.name))
    except InputError as error:
        note = f"Readability is not measured: {error}."
    return grades, note


def _examples_seen(task: InstructionTask, trained: Trained, per_step: int) -> int:
    """Return the training examples that a task's control saw, each counted once."""
    tuned = trained.adapters.get(Model(CONTROL, task.name))
    return len(task.train) if tuned is None else min(len(task.train), tuned.steps * per_step)


def _failure_note(model: Model, why: str, unmeasured: Sequence[str]) -> str:
    """Return a note on a model whose training was given up."""
    if model.kind != UNSEEN or not unmeasured:
        return f"{model.name}: {why}"
    are = "are" if len(unmeasured) > 1 else "is"
    return f"{model.name}: {why}; without this model {list_text(map(shortened, unmeasured))} {are} not measured"
