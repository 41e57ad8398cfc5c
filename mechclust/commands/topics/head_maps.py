"""Maps of attention ratios by block and head."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from mechclust.report.style import SOFT
from mechclust.report.subplots import subplots

if TYPE_CHECKING:
    import pandas as pd

MAP_TITLES = {"ratio": "all pairs", "matched": "at equal distance"}  # by measure

_HeadMap = Float[np.ndarray, "layer head"]
_UNDEFINED = "#c8c8c8"
_LEAST = 1e-9  # in place of a ratio of 0, which has no logarithm
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10)
_FINE_TICKS = (0.67, 0.8, 0.9, 1, 1.1, 1.25, 1.5)  # if no ratio is above 2


def draw_head_maps(heads: pd.DataFrame) -> Figure:
    """Draw the ratios of a model's heads, over all pairs and at equal distance, as maps with one colour scale.

    Half and double are as far from 1. Grey: undefined.

    Args:
        heads: rows of one variant, as from ``tables.head_table``.
    """
    maps = {title: _as_map(heads, measure) for measure, title in MAP_TITLES.items()}
    top = _top(maps.values())
    first_layer = heads["layer"].min() - 0.5
    first_head = heads["head"].min() - 0.5
    n_layers, n_heads = maps["all pairs"].shape
    extent = (first_head, first_head + n_heads, first_layer, first_layer + n_layers)
    size = (max(2.4, 0.26 * n_heads) + 0.8, max(1.7, 0.25 * n_layers) + 0.8)
    figure, axes = subplots(len(maps), size=size, grid=None)
    colors = colormaps["RdBu_r"].with_extremes(bad=_UNDEFINED)
    image: Any = None
    for axis, (title, ratios) in zip(axes, maps.items(), strict=True):
        axis.set_title(title, fontsize=10)
        axis.set(xlim=extent[:2], ylim=extent[2:], xlabel="head")
        axis.locator_params(integer=True)
        if np.isnan(ratios).all():
            axis.text(0.5, 0.5, "no pairs", ha="center", va="center", transform=axis.transAxes, color=SOFT)
            continue
        norm = LogNorm(1 / top, top)
        above_zero = np.maximum(ratios, _LEAST)
        image = axis.imshow(above_zero, cmap=colors, norm=norm, origin="lower", extent=extent, aspect="auto")
    axes[0].set_ylabel("block")
    if image is not None:
        bar = figure.colorbar(image, ax=axes, label="same topic / different topic", extend="both", shrink=0.8)
        ticks = [tick for tick in (_FINE_TICKS if top < 2 else _TICKS) if 1 / top <= tick <= top]
        bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
        bar.minorticks_off()
    return figure


def _as_map(heads: pd.DataFrame, measure: str) -> _HeadMap:
    """Return a measure by layer and head."""
    return heads.pivot(index="layer", columns="head", values=measure).to_numpy(float)


def _top(maps: Iterable[_HeadMap]) -> float:
    """Return the end of the colour scale, which leaves out the most extreme 2%."""
    ratios = np.stack(list(maps))
    known = ratios[np.isfinite(ratios) & (ratios > 0)]
    if not len(known):
        return 2.0
    return max(float(np.exp(np.quantile(np.abs(np.log(known)), 0.98))), 1.1)
