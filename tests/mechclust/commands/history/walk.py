"""Weights on a random walk, and a watch over the models that are loaded."""

from __future__ import annotations

import weakref
from contextlib import contextmanager

import pytest
import torch

from mechclust import HistoryConfig

STEPS = (10, 20, 30, 40, 50)
UNUSED = 4  # positions from here on are beyond the prompts' three tokens


def walked_weights(start, n, *, seed=0):
    """The weights at each of ``n`` steps. Those that no prompt reads move most."""
    draw, weights, found = torch.Generator().manual_seed(seed), dict(start), []
    for _ in range(n):
        for name, weight in weights.items():
            noise = 0.03 * torch.randn(weight.shape, generator=draw)
            if name.endswith("wpe.weight"):
                noise[UNUSED:] *= 60
            weights[name] = weight + noise
        found.append(dict(weights))
    return found


@contextmanager
def loads(at_load=lambda source, model: None):
    """A list that grows by each model that is loaded: its source, and how many earlier ones are still in memory."""
    found, held, load = [], [], HistoryConfig.load

    def watched(self, source, *args, **options):
        alive = sum(reference() is not None for reference in held)
        model = load(self, source, *args, **options)
        held.extend([weakref.ref(model), *map(weakref.ref, model.parameters())])
        found.append((str(source).rpartition("/")[2], alive))
        at_load(str(source), model)
        return model

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HistoryConfig, "load", watched)
        yield found
