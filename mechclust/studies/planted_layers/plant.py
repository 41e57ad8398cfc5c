"""Changes at known layers: noise in the weights of some layers, and weights rounded in all."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mechclust.models.blocks import find_blocks
from probes.engine.hooks import HookedModel, device_of, evaluation_mode
from tasks import InputError


@contextmanager
def plant_in(model: HookedModel, layers: Sequence[int], *, noise: float, seed: int = 0) -> Iterator[None]:
    """A context with noise in all weight matrices of some layers; afterwards the weights are restored.

    Each matrix has Gaussian noise added to it, with a Frobenius norm of ``noise`` times the matrix's own. Biases, norms
    and everything outside these blocks are unchanged.

    Memory: a copy of these layers' matrices.

    Args:
        model: any hooked model, from ``build_model`` or ``load_pretrained``.
        layers: layers to plant in, from 1 as in all results.
        noise: relative norm, above 0.
        seed: seed of the noise; each layer has its own stream.

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
    matrices = [(layer, weight) for layer, found in _matrices(model, layers).items() for weight in found]
    with _restored([weight for _, weight in matrices]), torch.no_grad():
        draws = {layer: torch.Generator().manual_seed(1_000_003 * seed + layer) for layer in layers}
        for layer, weight in matrices:
            drawn = torch.randn(weight.shape, generator=draws[layer])
            scale = noise * float(weight.float().norm()) / float(drawn.norm())
            weight.add_((scale * drawn).to(weight.device, weight.dtype))
        yield


@contextmanager
def rounded_in(model: HookedModel) -> Iterator[None]:
    """A context in which all weights are rounded to bfloat16; afterwards they are restored.

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
def _restored(weights: Sequence[Tensor]) -> Iterator[None]:
    kept = [weight.detach().clone() for weight in weights]
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, before in zip(weights, kept, strict=True):
                weight.copy_(before)


def n_layers_of(model: HookedModel) -> int:
    """The number of blocks of a model."""
    return int(model.cfg.n_layers)


def _matrices(model: HookedModel, layers: Sequence[int]) -> dict[int, list[nn.Parameter]]:
    """The weight matrices of each of these layers."""
    n = n_layers_of(model)
    if not layers:
        raise InputError(f"no layers given; name some of 1 to {n}")
    if wrong := [layer for layer in layers if not 1 <= layer <= n]:
        raise InputError(f"no layer {wrong[0]} in this model (it has layers 1-{n})")
    blocks = _blocks(model)
    owner = {weight: i for i, block in enumerate(blocks, 1) for weight in block.parameters()}
    first = {weight: i for i, block in reversed([*enumerate(blocks, 1)]) for weight in block.parameters()}
    found = {}
    for layer in layers:
        found[layer] = [weight for weight in blocks[layer - 1].parameters() if weight.ndim > 1]
        for weight in blocks[layer - 1].parameters():
            if owner[weight] != first[weight]:
                raise InputError(
                    f"layers {first[weight]} and {owner[weight]} of this {type(model).__name__} share their weights, "
                    "so that no change is in one of them alone; choose another architecture"
                )
    return found


def _blocks(model: Any) -> Sequence[nn.Module]:
    """The modules that hold each block's weights."""
    if any(True for _ in model.blocks[0].parameters()):
        return list(model.blocks)
    body = model.body  # of a read-only model, whose own blocks are only hook points
    tokens = torch.arange(3, device=device_of(model))[None]
    options = {"use_cache": False} if "use_cache" in inspect.signature(body.forward).parameters else {}
    with evaluation_mode(body), torch.no_grad():
        found = find_blocks(
            body, lambda: body(input_ids=tokens, output_hidden_states=True, return_dict=True, **options)
        )
    return [module for module, _ in found.calls]
