"""A model's accuracy on a split of its task."""

from __future__ import annotations

from typing import Any

import torch

from probes.engine.batches import readable_batch
from probes.engine.devices import device_of
from probes.engine.hooked_model import HookedModel, evaluation_mode, forward
from tasks import Task


def accuracy(model: HookedModel, task: Task, split: str, **which: Any) -> tuple[float, int]:
    """Return the share of right answers on a split, and the number of examples. ``which`` goes to ``task.batches``.

    Raises:
        InputError: for tokens outside the model's vocabulary, and more of them than its context.

    Example:
        >>> from mechclust import build_model, model_for
        >>> from tasks import SparseModularAddition
        >>> task = SparseModularAddition()
        >>> share, n = accuracy(build_model(model_for(task)), task, task.splits[1])
        >>> 0 <= share <= 1, n > 0
        (True, True)
    """
    right = 0.0
    n = 0
    with evaluation_mode(model), torch.inference_mode():
        for batch in task.batches(split, **which):
            moved = readable_batch(batch, {"": model}).to(device_of(model))
            right += float(task.accuracy(forward(model, moved), moved).sum())
            n += len(batch)
    return right / n, n
