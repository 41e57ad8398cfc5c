"""Hidden states of all checkpoints in one fixed plane per layer, so that points can be followed through training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from probes import RowStore, residual, resolve
from probes.engine.state import hashed
from probes.functional.representations import centred
from tasks import LabelledPrompts

if TYPE_CHECKING:
    from mechclust.commands.history.config import HistoryConfig

_MOST_LAYERS = 5


@dataclass(frozen=True, eq=False)
class FixedPlanes:
    """The positions of the prompts at every checkpoint.

    Attributes:
        xy: ``[checkpoint layer prompt 2]``; NaN if a checkpoint lacks the layer.
        variance: ``[checkpoint layer]`` share of the states' variance in the plane.
        layers: numbers of the layers shown.
        sites: their hook names.
        places: numbers of the prompts in the file.
        texts: the prompts.
        labels: the prompts' labels by name, the task first.
    """

    xy: Float[np.ndarray, "checkpoint layer prompt 2"]
    variance: Float[np.ndarray, "checkpoint layer"]
    layers: Sequence[int]
    sites: Sequence[str]
    places: Sequence[int]
    texts: Sequence[str]
    labels: dict[str, list[str]]


def fixed_planes(stores: Sequence[RowStore], prompts: LabelledPrompts, config: HistoryConfig) -> FixedPlanes:
    """Project all checkpoints onto the two leading principal directions of each layer at the last checkpoint.

    Each checkpoint's states are first centred and scaled to a mean square distance of 1, so that growing norms do not
    hide movement. Memory: one layer's rows of two checkpoints.
    """
    sites = resolve(stores[-1], residual())
    known = [site.layer for site in sites]
    chosen = config.map_layers or [known[i] for i in spread(len(known), _MOST_LAYERS)]
    shown = [site for site in sites if site.layer in chosen]
    index = stores[-1].index
    if len(index) > config.map_prompts:
        index = torch.sort(index[torch.sort(hashed(index), stable=True).indices[: config.map_prompts]]).values
    xy = np.full((len(stores), len(shown), len(index), 2), np.nan)
    variance = np.full((len(stores), len(shown)), np.nan)
    for column, site in enumerate(shown):
        directions = _leading(_rows(stores[-1], index, site.name))
        for i, store in enumerate(stores):
            if site.name in store.sites:
                rows = _rows(store, index, site.name)
                if rows.shape[1] == len(directions):
                    found = rows @ directions
                    xy[i, column], variance[i, column] = found.numpy(), float(found.square().sum(dim=1).mean())
    places = index.tolist()
    names = sorted(prompts.labels, key=lambda name: name != "task")
    return FixedPlanes(
        xy=xy,
        variance=variance,
        layers=[site.layer for site in shown],
        sites=[site.name for site in shown],
        places=places,
        texts=[prompts.prompts[i] for i in places],
        labels={name: [prompts.labels[name][i] for i in places] for name in names},
    )


def _rows(store: RowStore, index: Tensor, site: str) -> Tensor:
    """Centred, with a mean square distance of 1; zeros where all are the same."""
    x = centred(store.take(index, [f"rows/{site}"])[f"rows/{site}"].double())
    size = x.square().sum(dim=1).mean().sqrt()
    return x / size if float(size) > 0 else x


def _leading(x: Tensor) -> Tensor:
    """``[d 2]`` principal directions, each with its largest entry positive."""
    _, _, directions = torch.linalg.svd(x, full_matrices=False)
    found = torch.zeros(x.shape[1], 2, dtype=torch.float64)
    found[:, : min(2, len(directions))] = directions[:2].T
    largest = found.gather(0, found.abs().argmax(0)[None])
    return torch.where(largest < 0, -found, found)


def spread(n: int, most: int) -> list[int]:
    """At most ``most`` of ``n`` places, evenly spaced, the ends included."""
    return sorted({round(i) for i in np.linspace(0, n - 1, min(n, most))}) if n else []
