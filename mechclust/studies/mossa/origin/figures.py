"""Figures of the method's origin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechclust.report.style import BLUE, GREEN, GREY, ORANGE, layer_axis, seed_curve, subplots
from mechclust.studies.mossa.origin.results import OriginResults

_CURVES = {
    "own": {"color": BLUE, "label": "E with the domain's control", "marker": "."},
    "others": {"color": ORANGE, "label": "E with other domains' controls", "marker": "."},
    "ceiling": {"color": "#555555", "label": "two controls of the domain (ceiling)", "ls": ":"},
    "chance": {"color": GREY, "label": "randomly paired rows", "ls": "--"},
}
_SWEEPS: Mapping[str, str] = {"widths": "width", "sizes": "training data, times the reference's"}


def sweeps(found: Sequence[OriginResults]) -> Figure:
    """SVCCA by width and by data size, at the first and the last layer; means over domains."""
    last = found[0].chance.shape[2]
    figure, axes = subplots(4, 2, size=(5.0, 3.3), sharey=True)
    for axis, (layer, along) in zip(axes, product((1, last), _SWEEPS), strict=True):
        _curves(axis, _along(axis, found, along), found, along, layer - 1)
        axis.set_title(f"layer {layer}")
    for axis in axes[::2]:
        axis.set_ylabel("SVCCA")
    axes[0].set_ylim(0, 1.02)
    figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, ncols=2, loc="outside lower center", fontsize=9)
    return figure


def layers(found: Sequence[OriginResults]) -> Figure:
    """SVCCA by layer at the reference and, for the domain's own control, at every width."""
    figure, (reference, widths) = subplots(2, size=(5.0, 3.6))
    x = np.arange(1, found[0].chance.shape[2] + 1)
    for name, style in _CURVES.items():
        values = np.stack([getattr(m, name)[m.at_reference].mean(axis=0) for m in found])
        if np.isfinite(values).any():
            seed_curve(reference, x, values, **style)
    for place, i in enumerate(found[0].widths):
        above = np.stack([(m.own - m.others)[i].mean(axis=0) for m in found])
        shade = 0.3 + 0.7 * place / max(1, len(found[0].widths) - 1)
        seed_curve(widths, x, above, color=BLUE, alpha=shade, marker=".", label=f"width {found[0].cells[i].width}")
    reference.set(title=f"at width {found[0].reference.width}", ylabel="SVCCA", ylim=(0, 1.02))
    widths.set(title="own control - other controls", ylabel="difference")
    widths.axhline(0, color=GREY, lw=0.8)
    for axis in (reference, widths):
        layer_axis(axis)
        axis.legend(frameon=False, fontsize=8)
    return figure


def accuracy_figure(found: Sequence[OriginResults]) -> Figure:
    """Test accuracy of the model of all domains and of the controls, by width and by data size."""
    figure, axes = subplots(2, size=(5.0, 3.2), sharey=True)
    for axis, along in zip(axes, _SWEEPS, strict=True):
        x = _along(axis, found, along)
        for model, (label, color) in enumerate((("E", BLUE), ("controls", GREEN))):
            values = np.stack([m.accuracy[getattr(m, along)].mean(axis=1)[:, model] for m in found])
            seed_curve(axis, x, values, color=color, marker=".", label=label)
    axes[0].set(ylabel="accuracy, mean over domains", ylim=(-0.03, 1.05))
    axes[0].legend(frameon=False)
    return figure


def _along(axis: Axes, found: Sequence[OriginResults], along: str) -> np.ndarray:
    """The values along x of a sweep, on a logarithmic scale."""
    cells = [found[0].cells[i] for i in getattr(found[0], along)]
    x = np.array([cell.width if along == "widths" else cell.size for cell in cells], dtype=float)
    axis.set_xscale("log", base=2)
    axis.set_xticks(x, [f"{value:g}" for value in x], minor=False)
    axis.set_xlabel(_SWEEPS[along])
    return x


def _curves(axis: Axes, x: np.ndarray, found: Sequence[OriginResults], along: str, layer: int) -> None:
    for name, style in _CURVES.items():
        values = np.stack([getattr(m, name)[getattr(m, along), :, layer].mean(axis=1) for m in found])
        if np.isfinite(values).any():
            seed_curve(axis, x, values, **style)
