"""Hidden states of all checkpoints in one fixed plane per layer, so that points can be followed through training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechclust.commands.sampling import draw_prompts, prompts_at
from probes import RowStore, residual, resolve
from probes.functional.preprocess import centred_matrix
from tasks import LabelledPrompts

if TYPE_CHECKING:
    from mechclust.commands.history.config import HistoryConfig

_DEFAULT_LAYERS = 5
_Rows = Float[Tensor, "prompt dim"]


@dataclass(frozen=True, eq=False)
class FixedPlanes:
    """The positions of the prompts at every checkpoint.

    Attributes:
        xy: coordinates, or NaN if a checkpoint lacks the layer.
        variance: share of the states' variance in the plane.
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
    labels: Mapping[str, Sequence[str]]


def fixed_planes(stores: Sequence[RowStore], prompts: LabelledPrompts, config: HistoryConfig) -> FixedPlanes:
    """Project all checkpoints onto the two leading principal directions of each layer at the last checkpoint.

    Each checkpoint's states are first centred and scaled to a mean square distance of 1, so that growing norms do not
    hide movement. Memory: one layer's rows of two checkpoints.
    """
    last = stores[-1]
    sites = resolve(last, residual())
    layers = config.map_layers or [sites[i].layer for i in evenly_spaced(len(sites), _DEFAULT_LAYERS)]
    shown = [site for site in sites if site.layer in layers]
    index = draw_prompts(last.index, config.map_prompts)
    xy = np.full((len(stores), len(shown), len(index), 2), np.nan)
    variance = np.full((len(stores), len(shown)), np.nan)
    for column, site in enumerate(shown):
        directions = _leading(_scaled_rows(last, index, site.name))
        for i, store in enumerate(stores):
            if site.name not in store.sites:
                continue
            rows = _scaled_rows(store, index, site.name)
            if rows.shape[1] == len(directions):
                placed = rows @ directions
                xy[i, column] = placed.numpy()
                variance[i, column] = float(placed.square().sum(dim=1).mean())
    places = index.tolist()
    drawn = prompts_at(prompts, places)
    return FixedPlanes(
        xy=xy,
        variance=variance,
        layers=[site.layer for site in shown],
        sites=[site.name for site in shown],
        places=places,
        texts=drawn.prompts,
        labels={"task": drawn.labels["task"], **drawn.labels},
    )


def _scaled_rows(store: RowStore, index: Int[Tensor, "prompt"], site: str) -> _Rows:
    """Return rows that are centred, with a mean square distance of 1, or zeros if all are equal."""
    rows = centred_matrix(store.take(index, [f"rows/{site}"])[f"rows/{site}"].double())
    size = rows.square().sum(dim=1).mean().sqrt()
    return rows / size if float(size) > 0 else rows


def _leading(rows: _Rows) -> Float[Tensor, "dim 2"]:
    """Return two principal directions, each with its largest entry positive."""
    _, _, principal = torch.linalg.svd(rows, full_matrices=False)
    directions = torch.zeros(rows.shape[1], 2, dtype=torch.float64)
    directions[:, : min(2, len(principal))] = principal[:2].T
    largest = directions.gather(0, directions.abs().argmax(0)[None])
    return torch.where(largest < 0, -directions, directions)


def evenly_spaced(n: int, most: int) -> list[int]:
    """Return at most ``most`` of ``n`` places, evenly spaced, the ends included.

    Example:
        >>> evenly_spaced(10, 4)
        [0, 3, 6, 9]
    """
    return sorted({round(i) for i in np.linspace(0, n - 1, min(n, most))}) if n else []
