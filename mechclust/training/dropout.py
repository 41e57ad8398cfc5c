"""Dropout that depends on the seed and the step alone, so that resumed training drops identical units."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from mechclust.models.random_state import seeded_generators
from probes.engine.hooked_model import all_modules


def has_dropout(model: Any) -> bool:
    """Return whether a model has dropout in training."""
    return any(isinstance(module, nn.Dropout) and module.p > 0 for _, module in all_modules(model))


def dropout_of(model: Any, *seeds: int) -> Callable[[int], AbstractContextManager[Any]]:
    """Return a function of the step that gives a context in which dropout depends on the seeds and that step only.

    Args:
        model: in which ``nn.Dropout`` is looked for.
        seeds: of the weights of all networks that are trained together.

    Example:
        >>> import torch
        >>> drop = nn.Dropout(0.5)
        >>> at = dropout_of(drop, 0)
        >>> def dropped(step):
        ...     with at(step):
        ...         return drop(torch.ones(8)).tolist()
        >>> dropped(3) == dropped(3), dropped(3) == dropped(4)
        (True, False)
    """
    return partial(_seeded, seeds) if has_dropout(model) else nullcontext


@contextmanager
def _seeded(seeds: Sequence[int], step: int) -> Iterator[None]:
    """Seed the global generators for one step, and give them back as they were."""
    seed = int(np.random.SeedSequence([*seeds, step]).generate_state(1, np.uint64)[0] >> 1)
    with seeded_generators(seed):
        yield
