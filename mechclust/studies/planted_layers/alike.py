"""How similar a model is to its single-task controls at every layer, as in MOSSA; and what models learnt."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from mechclust.studies.planted_layers.measure import (
    ALL,
    FEW,
    RESIDUAL,
    SAME_INPUT,
    SIMILARITY_MEASURES,
    alike_of,
    states_of,
)
from mechclust.studies.planted_layers.plant import n_layers_of
from mechclust.training.callbacks import accuracy
from probes import ProbeResult, Readout
from probes.engine.hooks import HookedModel
from probes.functional import n_dims
from probes.store.files import versions
from tasks import Batch, InputError, SkillSuite

CONTROL_VIEWS = (RESIDUAL, SAME_INPUT)
_Rows = dict[str, list[Tensor]]  # by view, one [n d] per layer


def measure_alike(
    model: HookedModel,
    controls: Mapping[str, HookedModel],
    base: HookedModel,
    prompts: Callable[[str], Iterable[Batch]],
    readout: Readout,
    *,
    n_few: int | None = None,
) -> ProbeResult:
    """How similar a model is to each task's control at every layer, on the task's own prompts.

    Measures:
        ``similarity`` (prompts, view, measure, task, layer): by each measure of ``alike_of``, for the residual stream
            after the block, and for what the block adds when given the base's residual stream.
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
    layers, sizes = n_layers_of(model), {ALL: None, **({} if n_few is None else {FEW: n_few})}
    shape = (len(sizes), len(CONTROL_VIEWS), len(SIMILARITY_MEASURES), len(controls), layers)
    similarity = torch.full(shape, math.nan, dtype=torch.float64)
    counts, own = torch.zeros(len(sizes), len(controls), dtype=torch.int64), []
    for k, (task, control) in enumerate(controls.items()):
        one, other = (_rows(each, base, prompts(task), readout) for each in (model, control))
        if not one:
            raise InputError(f"there are no prompts of {task!r} to measure; give at least one batch")
        own.append(one[RESIDUAL])
        for s, size in enumerate(sizes.values()):
            counts[s, k] = len(one[RESIDUAL][0][:size])
            for v, view in enumerate(CONTROL_VIEWS):
                for layer in range(layers):
                    values = alike_of(one[view][layer][:size], other[view][layer][:size])
                    similarity[s, v, :, k, layer] = torch.tensor(list(values.values()), dtype=torch.float64)
    dims = [
        [float(n_dims(torch.cat([rows[layer][:size] for rows in own]).double())) for layer in range(layers)]
        for size in sizes.values()
    ]
    missing = bool(similarity.isnan().any())
    return ProbeResult(
        "AlikeControls",
        {"similarity": similarity, "n_dims": torch.tensor(dims, dtype=torch.float64), "n": counts},
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
            "layer": [str(layer + 1) for layer in range(layers)],
        },
        metadata={"readout": repr(readout), "versions": versions()},
        notes=["NaN where all rows of a layer are the same, or there are too few prompts for a measure"] * missing,
    )


def learnt(models: Mapping[str, tuple[HookedModel, Sequence[str]]], suite: SkillSuite) -> ProbeResult:
    """The share of correct answers to each skill's test prompts, for models by name.

    Measures:
        ``accuracy`` (answer): ``MODEL.SKILL``.
        ``chance`` (answer): that without the skill (``SkillSuite.chance``).
    """
    without = suite.chance("test")
    found = {
        f"{name}.{skill}": accuracy(model, suite, "test", tasks=[skill])[0]
        for name, (model, skills) in models.items()
        for skill in skills
    }
    return ProbeResult(
        "Learnt",
        {
            "accuracy": torch.tensor(list(found.values()), dtype=torch.float64),
            "chance": torch.tensor([without[name.partition(".")[2]] for name in found], dtype=torch.float64),
        },
        dict.fromkeys(("accuracy", "chance"), ("answer",)),
        {"answer": list(found)},
        metadata={"n": suite.n_eval, "versions": versions()},
    )


def _rows(model: HookedModel, base: HookedModel, batches: Iterable[Batch], readout: Readout) -> _Rows:
    """The model's rows by view, in the order of the prompts' index; empty without prompts."""
    layers = n_layers_of(model)
    pres, posts = ([f"blocks.{layer}.hook_resid_{end}" for layer in range(layers)] for end in ("pre", "post"))
    kept: dict[tuple[str, int], list[Tensor]] = {(v, layer): [] for v in CONTROL_VIEWS for layer in range(layers)}
    index = []
    for batch in batches:
        given = states_of(base, batch, pres)[1]
        plain = states_of(model, batch, posts)[1]
        same = states_of(model, batch, [*pres, *posts], given)[1]
        for layer in range(layers):
            kept[RESIDUAL, layer].append(readout(plain[posts[layer]], batch).cpu())
            before, after = (readout(x, batch).cpu().double() for x in (given[pres[layer]], same[posts[layer]]))
            kept[SAME_INPUT, layer].append(after - before)
        index.append(batch.index.cpu())
    if not index:
        return {}
    order = torch.cat(index).argsort(stable=True)
    return {view: [torch.cat(kept[view, layer])[order] for layer in range(layers)] for view in CONTROL_VIEWS}
