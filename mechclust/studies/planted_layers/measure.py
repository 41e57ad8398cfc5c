"""Measure how far apart two models are at every layer, by several measures and by patching."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from mechclust.models.patching import Logits, can_be_patched, patched_forward, patched_outputs
from mechclust.studies.planted_layers.plant import n_layers_of
from mechclust.studies.planted_layers.rows import (
    CONTRIBUTION,
    RESIDUAL,
    SAME_INPUT,
    VIEWS,
    LayerRows,
    RowsByView,
    join_rows_by_view,
    post_hooks,
    read_rows,
    read_same_input,
    stream_of,
)
from probes import ProbeResult, Readout, last_token
from probes.engine.hooked_model import HookedModel
from probes.functional import linear_cka, n_dims, rbf_cka, svcca
from probes.store.versions import package_versions
from tasks import Batch, InputError

ALL = "all"
FEW = "few"
DEBIASED = "debiased CKA"
WITHOUT_TOP = f"{DEBIASED} without the top component"
UNDEFINED = "NaN where all rows of a layer are the same, or there are too few prompts for a measure"
Loss = Callable[[Logits, Batch], Float[Tensor, ""]]


def _dims_changed(x: LayerRows, y: LayerRows) -> float:
    return abs(n_dims(y) - n_dims(x))


def _distance(x: LayerRows, y: LayerRows) -> float:
    x = x - x.mean(0)
    y = y - y.mean(0)
    size = float(x.norm())
    return float((y - x).norm()) / size if size else math.nan


SIMILARITY_MEASURES: Mapping[str, Callable[..., object]] = {
    "CKA": linear_cka,
    DEBIASED: partial(linear_cka, debiased=True),
    WITHOUT_TOP: partial(linear_cka, debiased=True, remove_top=1),
    "RBF CKA": partial(rbf_cka, debiased=True),
    "SVCCA": svcca,
}
_OTHERS: Mapping[str, Callable[[LayerRows, LayerRows], float]] = {"n99": _dims_changed, "distance": _distance}
MEASURES = (*SIMILARITY_MEASURES, *_OTHERS)


def change_of(x: LayerRows, y: LayerRows) -> dict[str, float]:
    """Return how far apart two models' rows for the same examples are, by each measure. Identical rows give 0.

    ``CKA``, ``debiased CKA``, both without the largest principal component of each side, ``RBF CKA`` (debiased) and
    ``SVCCA`` are 1 minus these. ``n99`` is the change in the number of dimensions that hold 99% of the variance.
    ``distance`` is the norm of the difference over the norm of ``x``, both centred, without any alignment.

    Args:
        x: the base model's rows.
        y: the other model's rows.

    Example:
        >>> x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
        >>> change = change_of(x, 2 * x)
        >>> round(change["debiased CKA"], 9), change["n99"], round(change["distance"], 9)
        (0.0, 0.0, 1.0)
    """
    if _same(x, y):
        return dict.fromkeys(MEASURES, 0.0)
    changes = {name: 1 - similarity for name, similarity in alike_of(x, y).items()}
    return changes | {name: change(x.double(), y.double()) for name, change in _OTHERS.items()}


def alike_of(x: LayerRows, y: LayerRows) -> dict[str, float]:
    """Return the similarity of two models' rows for the same examples, by ``SIMILARITY_MEASURES``.

    Identical rows give 1.
    """
    if _same(x, y):
        return dict.fromkeys(SIMILARITY_MEASURES, 1.0)
    return {name: float(similarity(x.double(), y.double())) for name, similarity in SIMILARITY_MEASURES.items()}  # type: ignore[arg-type]


def _same(x: LayerRows, y: LayerRows) -> bool:
    return torch.equal(x, y) and bool((x != x[0]).any())


def prompt_sizes(n_few: int | None) -> dict[str, int | None]:
    """Return how many prompts of each task are measured, by name, with ``None`` for all."""
    return {ALL: None} if n_few is None else {ALL: None, FEW: n_few}


# ---- change between two models ----


@dataclass(frozen=True)
class _PairRows:
    """Two models' rows of all prompts, in the order of the prompts' index, and each prompt's class."""

    base: RowsByView
    tuned: RowsByView
    classes: Int[Tensor, "row"]


def measure_planted(
    base: HookedModel,
    tuned: HookedModel,
    batches: Iterable[Batch],
    readout: Readout = last_token(),
    *,
    label: str | None = "task",
    n_few: int | None = None,
) -> ProbeResult:
    """Measure how far apart two models are at every layer, on the same prompts.

    Measures, with axes (prompts, view, measure, task, layer):
        ``change``: by each measure of ``change_of``. The view ``residual`` is the residual stream after the block.
            ``contribution`` is the block's addition to it. ``same input`` is the block's addition when both models'
            blocks are given the base's residual stream, so that it differs only if the blocks do. It is NaN for a model
            whose hooks cannot write.
        ``n`` (prompts, task): number of prompts.

    Memory: three times ``prompts x layers x d`` per model, and the residual stream of all layers for one batch.

    Args:
        base: any hooked model.
        tuned: a model of the same shape.
        batches: prompts.
        readout: the position to read, one row per prompt.
        label: one value per class of this label, or ``None`` for all prompts together.
        n_few: also measure on only this many prompts per task.

    Raises:
        InputError: for models of different depth, or no prompts.
    """
    n_layers = n_layers_of(base)
    if n_layers != n_layers_of(tuned):
        raise InputError(f"the models have {n_layers} and {n_layers_of(tuned)} layers; give a model and one made of it")
    rows = _gather(base, tuned, batches, readout, label)
    tasks = sorted(set(rows.classes.tolist()))
    sizes = prompt_sizes(n_few)
    change = torch.empty(len(sizes), len(VIEWS), len(MEASURES), len(tasks), n_layers, dtype=torch.float64)
    counts = torch.zeros(len(sizes), len(tasks), dtype=torch.int64)
    for place, task in enumerate(tasks):
        members = (rows.classes == task).nonzero()[:, 0]
        for i, size in enumerate(sizes.values()):
            counts[i, place] = len(members[:size])
            change[i, :, :, place] = _changes(rows, members[:size], n_layers)
    return ProbeResult(
        "PlantedChange",
        {"change": change, "n": counts},
        {"change": ("prompts", "view", "measure", "task", "layer"), "n": ("prompts", "task")},
        {
            "prompts": list(sizes),
            "view": list(VIEWS),
            "measure": list(MEASURES),
            "task": list(map(str, tasks)),
            "layer": [str(layer + 1) for layer in range(n_layers)],
        },
        metadata={"d": rows.base[RESIDUAL][0].shape[1], "readout": repr(readout), "versions": package_versions()},
        notes=_notes(rows, change),
    )


def _gather(
    base: HookedModel, tuned: HookedModel, batches: Iterable[Batch], readout: Readout, label: str | None
) -> _PairRows:
    base_rows = []
    tuned_rows = []
    classes = []
    index = []
    for batch in batches:
        stream = stream_of(base, batch)
        of_base = read_rows(base, stream, batch, readout)
        of_tuned = read_rows(tuned, stream_of(tuned, batch), batch, readout)
        if can_be_patched(tuned):
            of_base[SAME_INPUT] = of_base[CONTRIBUTION]
            of_tuned[SAME_INPUT] = read_same_input(tuned, stream, batch, readout)
        base_rows.append(of_base)
        tuned_rows.append(of_tuned)
        classes.append(torch.zeros(len(batch), dtype=torch.int64) if label is None else batch.label(label).cpu())
        index.append(batch.index.cpu())
    if not index:
        raise InputError("there are no prompts to measure; give at least one batch")
    order = torch.cat(index).argsort(stable=True)
    return _PairRows(
        join_rows_by_view(base_rows, order), join_rows_by_view(tuned_rows, order), torch.cat(classes)[order]
    )


def _changes(rows: _PairRows, chosen: Int[Tensor, "chosen"], n_layers: int) -> Float[Tensor, "view measure layer"]:
    """Return the change between the chosen rows, or NaN for a view that was not read."""
    change = torch.full((len(VIEWS), len(MEASURES), n_layers), math.nan, dtype=torch.float64)
    for view in rows.tuned:
        for layer in range(n_layers):
            values = change_of(rows.base[view][layer][chosen], rows.tuned[view][layer][chosen])
            change[VIEWS.index(view), :, layer] = torch.tensor(list(values.values()), dtype=torch.float64)
    return change


def _notes(rows: _PairRows, change: Float[Tensor, "prompts view measure task layer"]) -> list[str]:
    notes = [] if SAME_INPUT in rows.tuned else ["'same input' is NaN: the hooks of this model cannot write"]
    read = [VIEWS.index(view) for view in rows.tuned]
    if bool(change[:, read].isnan().any()):
        notes.append(UNDEFINED)
    return notes


# ---- patching ----


def patch_layers(
    base: HookedModel, tuned: HookedModel, batches: Iterable[Batch], loss: Loss | None = None
) -> ProbeResult:
    """Measure the share of the loss difference that patching the tuned model's residual stream into the base restores.

    The base model is run with the output of one block, at all positions, replaced by the tuned model's. The share is 0
    below the first changed layer, and 1 from the last one on.

    Measures:
        ``restored`` (layer): ``(base - patched) / (base - tuned)`` of the mean loss, or NaN if these two are equal.
        ``loss`` (model): of the base and the tuned model.

    Cost: ``2 + layers`` forward passes.

    Args:
        base: any hooked model whose hooks can write.
        tuned: a model of the same shape.
        batches: prompts.
        loss: of logits and batch, a scalar. By default, it is the loss of every next token.

    Raises:
        InputError: for no prompts.
    """
    hooks = post_hooks(base)
    losses = dict.fromkeys(["base", "tuned", *hooks], math.nan)
    n_prompts = 0
    notes = []
    if can_be_patched(base):
        losses, n_prompts = _patched_losses(base, tuned, batches, loss or next_token_loss)
    else:
        notes.append("restored is NaN: the hooks of this model cannot write")
    difference = losses["base"] - losses["tuned"]
    if difference == 0:
        notes.append("restored is NaN: both models have the same loss")
    restored = [(losses["base"] - losses[name]) / difference if difference else math.nan for name in hooks]
    return ProbeResult(
        "PatchedLayers",
        {
            "restored": torch.tensor(restored, dtype=torch.float64),
            "loss": torch.tensor([losses["base"], losses["tuned"]], dtype=torch.float64),
        },
        {"restored": ("layer",), "loss": ("model",)},
        {"layer": [str(i + 1) for i in range(len(hooks))], "model": ["base", "tuned"]},
        metadata={"n": n_prompts, "versions": package_versions()},
        notes=notes,
    )


def _patched_losses(
    base: HookedModel, tuned: HookedModel, batches: Iterable[Batch], loss: Loss
) -> tuple[dict[str, float], int]:
    """Return the mean loss of both models and, by hook point, of the patched base.

    The number of prompts comes last.
    """
    hooks = post_hooks(base)
    totals: dict[str, float] = defaultdict(float)
    n_prompts = 0
    for batch in batches:
        n_prompts += len(batch)
        logits, states = patched_forward(tuned, batch, hooks)
        totals["tuned"] += len(batch) * float(loss(logits, batch))
        for name, logits in patched_outputs(base, batch, states):
            totals[name] += len(batch) * float(loss(logits, batch))
        logits, _ = patched_forward(base, batch, [])
        totals["base"] += len(batch) * float(loss(logits, batch))
    if not n_prompts:
        raise InputError("there are no prompts to patch on; give at least one batch")
    return {name: total / n_prompts for name, total in totals.items()}, n_prompts


def next_token_loss(logits: Logits, batch: Batch) -> Float[Tensor, ""]:
    """Return the mean over prompts of the mean cross-entropy in nats of their tokens except the first."""
    tokens = batch.tokens.to(logits.device)
    losses = F.cross_entropy(rearrange(logits[:, :-1].float(), "n pos v -> n v pos"), tokens[:, 1:], reduction="none")
    mask = batch.token_mask()
    real = (mask[:, 1:] & mask[:, :-1]).to(losses)
    return ((losses * real).sum(dim=1) / real.sum(dim=1).clamp(min=1)).mean()
