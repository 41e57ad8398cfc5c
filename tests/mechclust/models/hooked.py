"""What the tests of pretrained models share: what a model computes at its hook points, and its untrained copies."""

from __future__ import annotations

from unittest.mock import patch

import torch

from mechclust.models import load_pretrained
from probes import record
from probes.engine.devices import device_of

NAMES = ["hook_embed"]
NAMES += [f"blocks.{i}.{k}" for i in range(2) for k in ("hook_resid_pre", "attn.hook_pattern", "hook_resid_post")]
TOKENS = torch.tensor([[2, 9, 4, 17, 3], [5, 5, 12, 8, 20]])
MASK = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])


def activations(model, names=NAMES, tokens=TOKENS, mask=None):
    """The output, and what was seen at each hook point, which fires once; tokens go to the model's device."""
    kept = []
    tokens = tokens.to(device_of(model))
    mask = None if mask is None else mask.to(tokens.device)
    with torch.no_grad(), record(model, names, lambda name, value: kept.append((name, value.clone()))):
        output = model(tokens) if mask is None else model(tokens, attention_mask=mask)
    assert len(kept) == len(dict(kept))
    return output, dict(kept)


def check_untrained(path):
    """Random weights are drawn from their seed alone, have the trained ones' shapes, and none of their values."""
    before = torch.get_rng_state()
    with patch("torch.cuda.manual_seed_all") as seeded_on_gpu:
        trained, first, again, other = (
            dict(load_pretrained(path, **options).named_parameters())
            for options in ({}, *({"untrained": True, "seed": seed} for seed in (1, 1, 2)))
        )
    assert torch.equal(before, torch.get_rng_state())
    assert torch.cuda.is_initialized() or not seeded_on_gpu.called
    assert trained.keys() == other.keys()
    assert {k: v.shape for k, v in trained.items()} == {k: v.shape for k, v in first.items()}
    matrices = [k for k, v in trained.items() if v.ndim > 1]
    assert len(matrices) > 8
    assert all(torch.equal(first[k], again[k]) for k in first)
    assert not any(torch.equal(first[k], trained[k]) for k in matrices)
    assert not any(torch.equal(first[k], other[k]) for k in matrices)
