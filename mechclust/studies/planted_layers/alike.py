"""Measure the similarity of a model and its single-task controls by layer, as in MOSSA, and how much models learnt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from mechclust.studies.planted_layers.measure import SIMILARITY_MEASURES, UNDEFINED, alike_of, prompt_sizes
from mechclust.studies.planted_layers.plant import n_layers_of
from mechclust.studies.planted_layers.rows import (
    RESIDUAL,
    SAME_INPUT,
    RowsByView,
    join_rows_by_view,
    read_rows,
    read_same_input,
    stream_of,
)
from mechclust.training.task_accuracy import accuracy
from probes import ProbeResult, Readout
from probes.engine.hooked_model import HookedModel
from probes.functional import n_dims
from probes.store.versions import package_versions
from tasks import Batch, InputError, SkillSuite

CONTROL_VIEWS = (RESIDUAL, SAME_INPUT)


def measure_alike(
    model: HookedModel,
    controls: Mapping[str, HookedModel],
    base: HookedModel,
    prompts: Callable[[str], Iterable[Batch]],
    readout: Readout,
    *,
    n_few: int | None = None,
) -> ProbeResult:
    """Measure how similar a model is to each task's control at every layer, on the task's prompts.

    Measures:
        ``similarity`` (prompts, view, measure, task, layer): by each measure of ``alike_of``. The views are the
            residual stream after the block, and the block's contribution when given the base's residual stream.
        ``n_dims`` (prompts, layer): dimensions for 99% of the variance of the model's residual stream, over the prompts
            of all tasks.
        ``n`` (prompts, task): number of prompts.

    Memory: ``prompts x layers x d`` for the model on all tasks, and twice for one control.

    Args:
        model: any hooked model whose hooks can write.
        controls: models of the same shape, by task.
        base: the model that all of them are tuned from.
        prompts: task to batches.
        readout: the position to read, one row per prompt.
        n_few: also measure on only this many prompts per task.

    Raises:
        InputError: for a task without prompts.
    """
    n_layers = n_layers_of(model)
    sizes = prompt_sizes(n_few)
    shape = (len(sizes), len(CONTROL_VIEWS), len(SIMILARITY_MEASURES), len(controls), n_layers)
    similarity = torch.empty(shape, dtype=torch.float64)
    counts = torch.zeros(len(sizes), len(controls), dtype=torch.int64)
    residuals = []
    for place, (task, control) in enumerate(controls.items()):
        model_rows, control_rows = _gather(model, control, base, prompts(task), readout, task)
        residuals.append(model_rows[RESIDUAL])
        for i, size in enumerate(sizes.values()):
            counts[i, place] = len(model_rows[RESIDUAL][0][:size])
            similarity[i, :, :, place] = _similarities(model_rows, control_rows, size)
    missing = bool(similarity.isnan().any())
    return ProbeResult(
        "AlikeControls",
        {
            "similarity": similarity,
            "n_dims": torch.tensor([_dims(residuals, size) for size in sizes.values()], dtype=torch.float64),
            "n": counts,
        },
        {
            "similarity": ("prompts", "view", "measure", "task", "layer"),
            "n_dims": ("prompts", "layer"),
            "n": ("prompts", "task"),
        },
        {
            "prompts": list(sizes),
            "view": list(CONTROL_VIEWS),
            "measure": list(SIMILARITY_MEASURES),
            "task": list(controls),
            "layer": [str(layer + 1) for layer in range(n_layers)],
        },
        metadata={"readout": repr(readout), "versions": package_versions()},
        notes=[UNDEFINED] if missing else [],
    )


def _gather(
    model: HookedModel,
    control: HookedModel,
    base: HookedModel,
    batches: Iterable[Batch],
    readout: Readout,
    task: str,
) -> tuple[RowsByView, RowsByView]:
    """Return the rows of the model and of the control by view, in the order of the prompts' index."""
    rows: tuple[list[RowsByView], list[RowsByView]] = ([], [])
    index = []
    for batch in batches:
        inputs = stream_of(base, batch)
        for measured, of_measured in zip((model, control), rows, strict=True):
            residual = read_rows(measured, stream_of(measured, batch), batch, readout)[RESIDUAL]
            same_input = read_same_input(measured, inputs, batch, readout)
            of_measured.append({RESIDUAL: residual, SAME_INPUT: same_input})
        index.append(batch.index.cpu())
    if not index:
        raise InputError(f"there are no prompts of {task!r} to measure; give at least one batch")
    order = torch.cat(index).argsort(stable=True)
    return join_rows_by_view(rows[0], order), join_rows_by_view(rows[1], order)


def _similarities(
    model_rows: RowsByView, control_rows: RowsByView, size: int | None
) -> Float[Tensor, "view measure layer"]:
    """Return the similarity of the first rows, as many as ``size``."""
    by_view = []
    for view in CONTROL_VIEWS:
        pairs = zip(model_rows[view], control_rows[view], strict=True)
        by_view.append([list(alike_of(x[:size], y[:size]).values()) for x, y in pairs])
    return torch.tensor(by_view, dtype=torch.float64).transpose(1, 2)


def _dims(residuals: Sequence[Sequence[Float[Tensor, "_ dim"]]], size: int | None) -> list[float]:
    """Return the dimensions of each layer, over the first rows of every task."""
    layers = zip(*residuals, strict=True)
    return [n_dims(torch.cat([rows[:size] for rows in of_tasks]).double()) for of_tasks in layers]


def share_learnt(models: Mapping[str, tuple[HookedModel, Sequence[str]]], suite: SkillSuite) -> ProbeResult:
    """Measure the share of correct answers to each skill's test prompts, for models by name.

    Measures:
        ``accuracy`` (answer): ``MODEL.SKILL``.
        ``chance`` (answer): accuracy without the skill (``SkillSuite.chance``).
    """
    without_skill = suite.chance("test")
    answers = []
    accuracies = []
    chances = []
    for name, (model, skills) in models.items():
        for skill in skills:
            answers.append(f"{name}.{skill}")
            accuracies.append(accuracy(model, suite, "test", tasks=[skill])[0])
            chances.append(without_skill[skill])
    return ProbeResult(
        "Learnt",
        {
            "accuracy": torch.tensor(accuracies, dtype=torch.float64),
            "chance": torch.tensor(chances, dtype=torch.float64),
        },
        dict.fromkeys(("accuracy", "chance"), ("answer",)),
        {"answer": answers},
        metadata={"n": suite.n_eval, "versions": package_versions()},
    )
