"""Read a model's residual stream by layer, and each block's addition to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechclust.models.patching import ActivationsByHook, patched_forward
from mechclust.studies.planted_layers.plant import n_layers_of
from probes import Readout
from probes.engine.hooked_model import HookedModel
from tasks import Batch

RESIDUAL = "residual"
CONTRIBUTION = "contribution"
SAME_INPUT = "same input"
VIEWS = (RESIDUAL, CONTRIBUTION, SAME_INPUT)

LayerRows = Float[Tensor, "row dim"]
RowsByView = dict[str, list[LayerRows]]  # by view, one of each layer


def _pre_hooks(model: HookedModel) -> list[str]:
    """Return the hook points of the residual stream before each block."""
    return [f"blocks.{layer}.hook_resid_pre" for layer in range(n_layers_of(model))]


def post_hooks(model: HookedModel) -> list[str]:
    """Return the hook points of the residual stream after each block."""
    return [f"blocks.{layer}.hook_resid_post" for layer in range(n_layers_of(model))]


def stream_of(model: HookedModel, batch: Batch, inputs: ActivationsByHook | None = None) -> ActivationsByHook:
    """Return a model's residual stream before and after each block.

    Args:
        model: any hooked model.
        batch: of examples.
        inputs: another model's stream, which each block is given in place of its input.
    """
    pres = _pre_hooks(model)
    written = None if inputs is None else {name: inputs[name] for name in pres}
    return patched_forward(model, batch, [*pres, *post_hooks(model)], written)[1]


def read_rows(model: HookedModel, stream: ActivationsByHook, batch: Batch, readout: Readout) -> RowsByView:
    """Return a batch's rows of the residual stream after each block, and in float64 those of the block's addition."""
    before = [readout(stream[name], batch).cpu() for name in _pre_hooks(model)]
    after = [readout(stream[name], batch).cpu() for name in post_hooks(model)]
    added = [post.double() - pre.double() for pre, post in zip(before, after, strict=True)]
    return {RESIDUAL: after, CONTRIBUTION: added}


def read_same_input(model: HookedModel, inputs: ActivationsByHook, batch: Batch, readout: Readout) -> list[LayerRows]:
    """Return a batch's rows of each block's addition if it is given another model's stream."""
    return read_rows(model, stream_of(model, batch, inputs), batch, readout)[CONTRIBUTION]


def join_rows_by_view(
    batches: Sequence[Mapping[str, list[Float[Tensor, "_ dim"]]]], order: Int[Tensor, "row"]
) -> RowsByView:
    """Return the rows of all batches in an order."""
    joined = {}
    for view in batches[0]:
        by_layer = zip(*[rows[view] for rows in batches], strict=True)
        joined[view] = [torch.cat(parts)[order] for parts in by_layer]
    return joined
