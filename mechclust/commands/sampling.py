"""Samples of prompts that do not vary between runs, whatever else is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from probes.store.splitmix64 import splitmix64
from tasks import LabelledPrompts


def draw_prompts(
    index: Int[Tensor, "prompts"], most: int, unit: Int[np.ndarray, "prompts"] | None = None
) -> Int[Tensor, "drawn"]:
    """Draw at most ``most`` prompts, and sort them.

    They are drawn by a hash of their index alone. With units, one prompt of each unit is drawn first, then a second of
    each, and so on.

    Args:
        index: index of each prompt.
        most: number of prompts to draw.
        unit: unit of each prompt.

    Example:
        >>> unit = np.arange(40) // 20
        >>> draw_prompts(torch.arange(40), 4, unit).div(20, rounding_mode="floor")
        tensor([0, 0, 1, 1])
    """
    if len(index) > most:
        order = torch.sort(splitmix64(index), stable=True).indices
        if unit is not None:
            import pandas as pd

            in_order = pd.Series(unit[order.numpy()])
            place_in_unit = torch.from_numpy(in_order.groupby(in_order).cumcount().to_numpy(copy=True))
            order = order[torch.sort(place_in_unit, stable=True).indices]
        index = index[order[:most]]
    return torch.sort(index).values


def prompts_at(prompts: LabelledPrompts, places: Sequence[int]) -> LabelledPrompts:
    """Return the prompts at these places of a file, with their labels."""
    drawn = "" if len(places) == len(prompts) else f", {len(places)} prompts drawn"
    return LabelledPrompts(
        [prompts.prompts[i] for i in places],
        {name: [values[i] for i in places] for name, values in prompts.labels.items()},
        f"{prompts.source}{drawn}",
    )


def drawn_of_each(
    of_task: Mapping[str, Int[Tensor, "_"]], most: int | None, unit: Int[np.ndarray, "n"] | None = None
) -> Mapping[str, Int[Tensor, "_"]]:
    """Draw at most ``most`` prompts of each task, or all if ``None``.

    Args:
        of_task: indices of each task's prompts.
        most: number of prompts to draw of each.
        unit: unit of every prompt, by index, see ``draw_prompts``.
    """
    if most is None or all(len(index) <= most for index in of_task.values()):
        return of_task
    return {
        task: draw_prompts(index, most, None if unit is None else unit[index.numpy()])
        for task, index in of_task.items()
    }
