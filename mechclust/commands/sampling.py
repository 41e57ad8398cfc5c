"""Samples of prompts that do not vary between runs, whatever else is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from probes.store.splitmix64 import splitmix64
from tasks import LabelledPrompts


def draw_prompts(index: Int[Tensor, "prompts"], most: int) -> Int[Tensor, "drawn"]:
    """Draw at most ``most`` prompts, by a hash of their index alone, and sort them."""
    if len(index) > most:
        index = index[torch.sort(splitmix64(index), stable=True).indices[:most]]
    return torch.sort(index).values


def prompts_at(prompts: LabelledPrompts, places: Sequence[int]) -> LabelledPrompts:
    """Return the prompts at these places of a file, with their labels."""
    drawn = "" if len(places) == len(prompts) else f", {len(places)} prompts drawn"
    return LabelledPrompts(
        [prompts.prompts[i] for i in places],
        {name: [values[i] for i in places] for name, values in prompts.labels.items()},
        f"{prompts.source}{drawn}",
    )


def drawn_of_each(of_task: Mapping[str, Int[Tensor, "_"]], most: int | None) -> Mapping[str, Int[Tensor, "_"]]:
    """Draw at most ``most`` prompts of each task, or all if ``None``."""
    if most is None or all(len(index) <= most for index in of_task.values()):
        return of_task
    return {task: draw_prompts(index, most) for task, index in of_task.items()}
