"""Fused queries, keys and values, of which TransformerLens's bridges keep copies that are split."""

from __future__ import annotations

from typing import Any

import torch

from probes.engine.fingerprint import fingerprint_multipliers, weight_fingerprint


def split_again(model: Any) -> None:
    """Write a bridge's copies of all fused weights again."""
    for module in _splitting_modules(model):
        _split(module)


def split_when_changed(model: Any) -> None:
    """Let a bridge's modules compare their fused weights before they run, and split them again if they changed.

    The bytes are hashed, because a fused optimiser and writes through ``weight.data`` change no version counter. On a
    CPU this takes as long as a forward pass of some 20 tokens.
    """
    for module in _splitting_modules(model):
        module.register_forward_pre_hook(_SplitWhenChanged(module))


class _SplitWhenChanged:
    """A hook that splits a module's fused weights again before it runs, if they changed.

    Args:
        module: whose weights are split now.
    """

    def __init__(self, module: Any) -> None:
        self._digests = _digests(module)

    def __call__(self, module: Any, inputs: Any) -> None:
        digests = _digests(module)
        if digests != self._digests:
            _split(module)
            self._digests = digests


def _splitting_modules(model: Any) -> list[Any]:
    """Return the modules of a bridge that have split fused weights."""
    attributes = ("split_qkv_matrix", "original_component")
    return [module for module in model.modules() if all(getattr(module, name, None) is not None for name in attributes)]


def _digests(module: Any) -> list[int]:
    weights = module.original_component.parameters()
    return [int(weight_fingerprint(weight.detach(), fingerprint_multipliers(weight.device))) for weight in weights]


def _split(module: Any) -> None:
    gpus = sorted({weight.device.index for weight in module.original_component.parameters() if weight.is_cuda})
    with torch.no_grad(), torch.random.fork_rng(devices=gpus):  # TransformerLens makes layers, which draw weights
        split = module.split_qkv_matrix(module.original_component)
        for part, split_weights in zip((module.q, module.k, module.v), split, strict=True):
            part.original_component.weight.copy_(split_weights.weight)
            if split_weights.bias is not None:
                part.original_component.bias.copy_(split_weights.bias)
