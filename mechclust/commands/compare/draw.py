"""Some of many prompts: the same ones in every run, and whatever else is measured."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from probes.engine.state import hashed


def drawn(index: Tensor, most: int) -> Tensor:
    """At most so many of the prompts, ascending, which depend on their index alone."""
    if len(index) > most:
        index = index[torch.sort(hashed(index), stable=True).indices[:most]]
    return torch.sort(index).values


def drawn_of_each(of_task: Mapping[str, Tensor], most: int | None) -> Mapping[str, Tensor]:
    """At most so many prompts of each task; ``None``: all."""
    if most is None or all(len(index) <= most for index in of_task.values()):
        return of_task
    return {task: drawn(index, most) for task, index in of_task.items()}
