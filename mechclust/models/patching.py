"""Write one model's residual stream into another, and read the other's output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from probes.engine.devices import device_memory_error, device_of
from probes.engine.hooked_model import HookedModel, evaluation_mode, forward, n_hooked_blocks
from probes.engine.record import record
from tasks import Batch

Logits = Float[Tensor, "batch pos d_vocab"]
Activations = Float[Tensor, "batch pos dim"]
ActivationsByHook = Mapping[str, Activations]


def patching_points(model: HookedModel) -> list[str]:
    """Return the hook points of the residual stream before the first block and after each block."""
    layers = range(n_hooked_blocks(model.hook_dict))
    return ["blocks.0.hook_resid_pre", *(f"blocks.{layer}.hook_resid_post" for layer in layers)]


def patched_forward(
    model: HookedModel, batch: Batch, names: Sequence[str], written: ActivationsByHook | None = None
) -> tuple[Logits, dict[str, Activations]]:
    """Return a model's output, and its activations at some hook points, after replacing those in ``written``.

    Args:
        model: any hooked model. Its hooks must be able to write if ``written`` is not empty.
        batch: of examples.
        names: hook points.
        written: activations to write, by hook point, each one of ``names``.

    Raises:
        InputError: if the device runs out of memory.
    """
    states: dict[str, Activations] = {}
    receive = partial(_receive, states, written or {})
    moved = batch.to(device_of(model))
    try:
        with torch.inference_mode(), evaluation_mode(model), record(model, names, receive):
            return forward(model, moved), states
    except torch.OutOfMemoryError as error:
        raise device_memory_error("a patched forward pass", moved) from error.with_traceback(None)


def _receive(
    states: dict[str, Activations], written: ActivationsByHook, name: str, activation: Activations
) -> Activations | None:
    """Keep an activation, or the one that replaces it."""
    if name not in written:
        states[name] = activation
        return None
    states[name] = written[name].to(activation)
    return states[name]


def patched_outputs(model: HookedModel, batch: Batch, states: ActivationsByHook) -> Iterator[tuple[str, Logits]]:
    """Yield a model's output with the activations of one hook point replaced at all positions, then of the next.

    Cost: a forward pass for each hook point.

    Args:
        model: any hooked model whose hooks can write, see ``can_be_patched``.
        batch: of examples.
        states: another model's activations by hook point, on this batch or on another of equal shape.

    Yields:
        The hook point and the output.
    """
    for name, written in states.items():
        logits, _ = patched_forward(model, batch, [name], {name: written})
        yield name, logits


def can_be_patched(model: HookedModel) -> bool:
    """Return whether a hook's return value replaces the activation."""
    return type(model).__name__ != "ReadOnlyModel"
