"""How far apart two models are at every layer, by several measures and by patching."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mechclust.models.same_input import can_write
from mechclust.studies.planted_layers.plant import n_layers_of
from probes import ProbeResult, Readout, last_token
from probes.engine.hooks import HookedModel, device_of, evaluation_mode, forward, record
from probes.functional import linear_cka, n_dims, rbf_cka, svcca
from probes.store.files import versions
from tasks import Batch, InputError

RESIDUAL, CONTRIBUTION, SAME_INPUT = "residual", "contribution", "same input"
VIEWS = (RESIDUAL, CONTRIBUTION, SAME_INPUT)
ALL, FEW = "all", "few"
Loss = Callable[[Tensor, Batch], Tensor]
RowsByView = dict[str, list[Tensor]]  # by view, one [n d] per layer


def _distance(x: Tensor, y: Tensor) -> float:
    x, y = x - x.mean(0), y - y.mean(0)
    size = float(x.norm())
    return float((y - x).norm()) / size if size else math.nan


WITHOUT_TOP = "debiased CKA without the top component"
SIMILARITY_MEASURES: dict[str, Callable[[Tensor, Tensor], float]] = {
    "CKA": lambda x, y: float(linear_cka(x, y)),
    "debiased CKA": lambda x, y: float(linear_cka(x, y, debiased=True)),
    WITHOUT_TOP: lambda x, y: float(linear_cka(x, y, debiased=True, remove_top=1)),
    "RBF CKA": lambda x, y: float(rbf_cka(x, y, debiased=True)),
    "SVCCA": lambda x, y: float(svcca(x, y)),
}
_OTHERS: dict[str, Callable[[Tensor, Tensor], float]] = {
    "n99": lambda x, y: abs(n_dims(y) - n_dims(x)),
    "distance": _distance,
}
MEASURES = (*SIMILARITY_MEASURES, *_OTHERS)


def change_of(x: Tensor, y: Tensor) -> dict[str, float]:
    """How far apart two models' rows for the same examples are, by each measure: 0 if they are the same.

    ``CKA``, ``debiased CKA``, the same without the largest principal component of each side, ``RBF CKA`` (debiased) and
    ``SVCCA`` are 1 minus these; ``n99`` is the change in the number of dimensions that hold 99% of the variance;
    ``distance`` is the norm of the difference over that of ``x``, both centred, without any alignment.

    Args:
        x: ``[n d]``, the base model's rows.
        y: ``[n d]``, the other model's rows.

    Example:
        >>> x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
        >>> found = change_of(x, 2 * x)
        >>> round(found["debiased CKA"], 9), found["n99"], round(found["distance"], 9)
        (0.0, 0.0, 1.0)
    """
    if _same(x, y):
        return dict.fromkeys(MEASURES, 0.0)
    x, y = x.double(), y.double()
    found = {name: 1 - similarity(x, y) for name, similarity in SIMILARITY_MEASURES.items()}
    return found | {name: change(x, y) for name, change in _OTHERS.items()}


def alike_of(x: Tensor, y: Tensor) -> dict[str, float]:
    """How similar two models' rows of the same examples are, by each of ``SIMILARITY_MEASURES``: 1 if they are alike.

    Args:
        x: ``[n d]``, one model's rows.
        y: ``[n d]``, the other's.
    """
    if _same(x, y):
        return dict.fromkeys(SIMILARITY_MEASURES, 1.0)
    x, y = x.double(), y.double()
    return {name: similarity(x, y) for name, similarity in SIMILARITY_MEASURES.items()}


def _same(x: Tensor, y: Tensor) -> bool:
    return torch.equal(x, y) and bool((x != x[0]).any())


def measure_planted(
    base: HookedModel,
    tuned: HookedModel,
    batches: Iterable[Batch],
    readout: Readout = last_token(),
    *,
    label: str | None = "task",
    n_few: int | None = None,
) -> ProbeResult:
    """How far apart two models are at every layer, on the same prompts.

    Measures, with axes (prompts, view, measure, task, layer):
        ``change``: by each measure of ``change_of``. The view ``residual`` is the residual stream after the block.
            ``contribution`` is what the block adds to it. ``same input`` is what the block adds when both models'
            blocks are given the base's residual stream, so that it differs only if the blocks themselves do; NaN for
            a model whose hooks cannot write.
        ``n`` (prompts, task): number of prompts.

    Memory: three times ``prompts x layers x d`` per model, and the residual stream of all layers for one batch.

    Args:
        base: any hooked model.
        tuned: one of the same shape.
        batches: prompts.
        readout: the position to read, one row per prompt.
        label: one value per class of this label; ``None``: all prompts together.
        n_few: also measure on only this many prompts per task.

    Raises:
        InputError: for models of different depth, or no prompts.
    """
    if n_layers_of(base) != n_layers_of(tuned):
        raise InputError(
            f"the models have {n_layers_of(base)} and {n_layers_of(tuned)} layers; give a model and one made of it"
        )
    rows, classes = _gather(base, tuned, batches, readout, label)
    if classes is None:
        raise InputError("there are no prompts to measure; give at least one batch")
    layers = range(n_layers_of(base))
    tasks = sorted(set(classes.tolist()))
    sizes = {ALL: len(classes), **({} if n_few is None else {FEW: n_few})}
    change = torch.full((len(sizes), len(VIEWS), len(MEASURES), len(tasks), len(layers)), math.nan, dtype=torch.float64)
    counts = torch.zeros(len(sizes), len(tasks), dtype=torch.int64)
    for k, task in enumerate(tasks):
        own = (classes == task).nonzero()[:, 0]
        for s, size in enumerate(sizes.values()):
            chosen = own[:size]
            counts[s, k] = len(chosen)
            for v, view in enumerate(VIEWS):
                for layer in layers if view in rows[0] else ():
                    x, y = (side[view][layer][chosen] for side in rows)
                    change[s, v, :, k, layer] = torch.tensor(list(change_of(x, y).values()), dtype=torch.float64)
    notes = [] if SAME_INPUT in rows[0] else ["'same input' is NaN: the hooks of this model cannot write"]
    if bool(change[:, [v for v, view in enumerate(VIEWS) if view in rows[0]]].isnan().any()):
        notes.append("NaN where all rows of a layer are the same, or there are too few prompts for a measure")
    return ProbeResult(
        "PlantedChange",
        {"change": change, "n": counts},
        {"change": ("prompts", "view", "measure", "task", "layer"), "n": ("prompts", "task")},
        {
            "prompts": list(sizes),
            "view": list(VIEWS),
            "measure": list(MEASURES),
            "task": list(map(str, tasks)),
            "layer": [str(layer + 1) for layer in layers],
        },
        metadata={"d": rows[0][RESIDUAL][0].shape[1], "readout": repr(readout), "versions": versions()},
        notes=notes,
    )


def patch_layers(
    base: HookedModel, tuned: HookedModel, batches: Iterable[Batch], loss: Loss | None = None
) -> ProbeResult:
    """The share of the loss difference that is restored by patching the tuned model's residual stream into the base.

    The base model is run with the output of one block, at all positions, replaced by the tuned model's: nothing is
    restored below the first changed layer, and everything from the last one on.

    Measures:
        ``restored`` (layer): ``(base - patched) / (base - tuned)`` of the mean loss; NaN if these two are equal.
        ``loss`` (model): of the base and the tuned model.

    Cost: ``2 + layers`` forward passes.

    Args:
        base: any hooked model whose hooks can write.
        tuned: one of the same shape.
        batches: prompts.
        loss: of logits and batch, a scalar; by default that of every next token.

    Raises:
        InputError: for no prompts.
    """
    layers, loss = n_layers_of(base), loss or next_token_loss
    posts = [f"blocks.{layer}.hook_resid_post" for layer in range(layers)]
    found: dict[str, float] = defaultdict(float)
    notes, weight = [], 0
    if not can_write(base):
        notes.append("restored is NaN: the hooks of this model cannot write")
    else:
        for batch in batches:
            weight += len(batch)
            logits, states = states_of(tuned, batch, posts)
            found["tuned"] += len(batch) * float(loss(logits, batch))
            for name in posts:
                logits, _ = states_of(base, batch, [name], {name: states[name]})
                found[name] += len(batch) * float(loss(logits, batch))
            found["base"] += len(batch) * float(loss(states_of(base, batch, [])[0], batch))
        if not weight:
            raise InputError("there are no prompts to patch on; give at least one batch")
    mean = {name: total / weight for name, total in found.items()} or dict.fromkeys(["base", "tuned"], math.nan)
    whole = mean["base"] - mean["tuned"]
    if whole == 0:
        notes.append("restored is NaN: both models have the same loss")
    restored = [(mean["base"] - mean.get(name, math.nan)) / whole if whole else math.nan for name in posts]
    return ProbeResult(
        "PatchedLayers",
        {
            "restored": torch.tensor(restored, dtype=torch.float64),
            "loss": torch.tensor([mean["base"], mean["tuned"]], dtype=torch.float64),
        },
        {"restored": ("layer",), "loss": ("model",)},
        {"layer": [str(i + 1) for i in range(layers)], "model": ["base", "tuned"]},
        metadata={"n": weight, "versions": versions()},
        notes=notes,
    )


def next_token_loss(logits: Tensor, batch: Batch) -> Tensor:
    """Mean cross-entropy in nats of every token except the first, without padding."""
    tokens = batch.tokens.to(logits.device)
    losses = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="none")
    if batch.attention_mask is None:
        return losses.mean()
    real = (batch.attention_mask[:, 1:] & batch.attention_mask[:, :-1]).flatten().to(losses)
    return (losses * real).sum() / real.sum()


def _gather(
    base: HookedModel, tuned: HookedModel, batches: Iterable[Batch], readout: Readout, label: str | None
) -> tuple[tuple[RowsByView, RowsByView], Tensor | None]:
    """Both models' rows of all prompts in the order of their index, and each prompt's class."""
    n = n_layers_of(base)
    kept: tuple[dict[tuple[str, int], list[Tensor]], ...] = (defaultdict(list), defaultdict(list))
    classes, index = [], []
    writes = can_write(tuned)
    pres, posts = ([f"blocks.{layer}.hook_resid_{end}" for layer in range(n)] for end in ("pre", "post"))
    for batch in batches:
        first, second = (states_of(model, batch, [*pres, *posts])[1] for model in (base, tuned))
        same = states_of(tuned, batch, [*pres, *posts], {name: first[name] for name in pres})[1] if writes else {}
        for side, states in zip(kept, (first, second), strict=True):
            for layer in range(n):
                pre, post = (readout(states[names[layer]], batch).cpu() for names in (pres, posts))
                side[RESIDUAL, layer].append(post)
                side[CONTRIBUTION, layer].append(post.double() - pre.double())
        for layer in range(n) if writes else ():
            given, post = (readout(found, batch).cpu() for found in (first[pres[layer]], same[posts[layer]]))
            kept[1][SAME_INPUT, layer].append(post.double() - given.double())
            kept[0][SAME_INPUT, layer].append(kept[0][CONTRIBUTION, layer][-1])
        classes.append(batch.label(label).cpu() if label is not None else torch.zeros(len(batch), dtype=torch.int64))
        index.append(batch.index.cpu())
    if not index:
        return ({}, {}), None
    order = torch.cat(index).argsort(stable=True)
    views = [view for view in VIEWS if (view, 0) in kept[1]]
    rows = [{view: [torch.cat(side[view, layer])[order] for layer in range(n)] for view in views} for side in kept]
    return (rows[0], rows[1]), torch.cat(classes)[order]


def states_of(
    model: HookedModel, batch: Batch, names: Sequence[str], written: Mapping[str, Tensor] | None = None
) -> tuple[Any, dict[str, Tensor]]:
    """A model's output, and its activations at these hook points, some of which are overwritten."""
    states: dict[str, Tensor] = {}
    written = written or {}

    def receive(name: str, activation: Tensor) -> Tensor | None:
        states[name] = written.get(name, activation)
        return written.get(name)

    with torch.inference_mode(), evaluation_mode(model), record(model, names, receive):
        return forward(model, batch.to(device_of(model))), states
