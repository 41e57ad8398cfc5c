"""Changes at known layers: noise in the weights of some layers, and weights rounded in all."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import nn

from mechclust.models.hugging_face_blocks import find_blocks
from probes.engine.devices import device_of
from probes.engine.hooked_model import HookedModel, evaluation_mode
from tasks import InputError


@contextmanager
def plant_in(model: HookedModel, layers: Sequence[int], *, noise: float, seed: int = 0) -> Iterator[None]:
    """Add noise to all weight matrices of some layers inside a context, and restore the weights afterwards.

    Each matrix has Gaussian noise added to it, with a Frobenius norm of ``noise`` times the matrix's norm. Biases,
    norms and everything outside these blocks are unchanged.

    Memory: a copy of these layers' matrices.

    Args:
        model: any hooked model, from ``build_model`` or ``load_pretrained``.
        layers: layers to plant in, from 1 as in all results.
        noise: relative norm, above 0.
        seed: seed of the noise. Each layer has a separate stream.

    Raises:
        InputError: for a layer that does not exist or shares its weights with another, no layers, or noise that is
            not above 0.

    Example:
        >>> from mechclust import ModelConfig, build_model
        >>> model = build_model(ModelConfig(d_vocab=9, n_ctx=4, n_layers=3, d_model=8, n_heads=2))
        >>> before = [p.clone() for p in model.parameters()]
        >>> with plant_in(model, [2], noise=0.1):
        ...     changed = sum(not torch.equal(p, q) for p, q in zip(model.parameters(), before))
        >>> changed, all(torch.equal(p, q) for p, q in zip(model.parameters(), before))
        (6, True)
    """
    if not noise > 0:
        raise InputError(f"noise is {noise}; expected a relative norm above 0, such as 0.1")
    matrices = _matrices(model, layers)
    with _restored(list(chain.from_iterable(matrices.values()))), torch.no_grad():
        for layer, weights in matrices.items():
            draws = torch.Generator().manual_seed(1_000_003 * seed + layer)
            for weight in weights:
                drawn = torch.randn(weight.shape, generator=draws)
                scale = noise * float(weight.float().norm()) / float(drawn.norm())
                weight.add_((scale * drawn).to(weight.device, weight.dtype))
        yield


@contextmanager
def rounded_in(model: HookedModel) -> Iterator[None]:
    """Round all weights to bfloat16 inside a context, and restore them afterwards.

    Example:
        >>> from mechclust import ModelConfig, build_model
        >>> model = build_model(ModelConfig(d_vocab=9, n_ctx=4, n_layers=1, d_model=8, n_heads=2))
        >>> with rounded_in(model):
        ...     all(torch.equal(p, p.bfloat16().float()) for p in model.parameters())
        True
    """
    weights = list(model.parameters())
    with _restored(weights), torch.no_grad():
        for weight in weights:
            weight.copy_(weight.to(torch.bfloat16))
        yield


@contextmanager
def _restored(weights: Sequence[nn.Parameter]) -> Iterator[None]:
    copies = [weight.detach().clone() for weight in weights]
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, before in zip(weights, copies, strict=True):
                weight.copy_(before)


def n_layers_of(model: HookedModel) -> int:
    """Return the number of blocks of a model."""
    return int(model.cfg.n_layers)


def _matrices(model: HookedModel, layers: Sequence[int]) -> dict[int, list[nn.Parameter]]:
    """Return the weight matrices of each of these layers, after refusing layers that do not exist or share weights."""
    n_layers = n_layers_of(model)
    if not layers:
        raise InputError(f"no layers given; name some of 1 to {n_layers}")
    for layer in layers:
        if not 1 <= layer <= n_layers:
            raise InputError(f"no layer {layer} in this model (it has layers 1-{n_layers})")
    blocks = _blocks(model)
    first_owner: dict[nn.Parameter, int] = {}
    last_owner: dict[nn.Parameter, int] = {}
    for layer, block in enumerate(blocks, start=1):
        for weight in block.parameters():
            first_owner.setdefault(weight, layer)
            last_owner[weight] = layer
    matrices = {}
    for layer in layers:
        weights = dict(blocks[layer - 1].named_parameters())
        for weight in weights.values():
            if first_owner[weight] != last_owner[weight]:
                raise InputError(
                    f"layers {first_owner[weight]} and {last_owner[weight]} of this {type(model).__name__} share their "
                    "weights, so that no change is in one of them alone; choose another architecture"
                )
        matrices[layer] = [
            weight
            for name, weight in weights.items()
            if weight.ndim > 1 and not name.rpartition(".")[2].startswith("b_")  # biases of heads have two axes
        ]
    return matrices


def _blocks(model: Any) -> Sequence[nn.Module]:
    """Return the modules that hold each block's weights."""
    if any(True for _ in model.blocks[0].parameters()):
        return list(model.blocks)
    body = model.body  # of a read-only model, whose own blocks are only hook points
    tokens = torch.arange(3, device=device_of(model))[None]
    options: dict[str, Any] = {"input_ids": tokens, "output_hidden_states": True, "return_dict": True}
    if "use_cache" in inspect.signature(body.forward).parameters:
        options["use_cache"] = False
    with evaluation_mode(body), torch.no_grad():
        calls = find_blocks(body, partial(body, **options)).calls
    return [module for module, _ in calls]
