"""Figures of the method's origin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechclust.report.axes import layer_axis
from mechclust.report.seed_plots import plot_seeds
from mechclust.report.style import BLUE, GREEN, GREY, ORANGE
from mechclust.report.subplots import subplots
from mechclust.studies.mossa.origin.results import OriginResults, Sweep

_STYLES: Mapping[str, Mapping[str, Any]] = {
    "own": {"color": BLUE, "label": "E with the domain's control", "marker": "."},
    "others": {"color": ORANGE, "label": "E with other domains' controls", "marker": "."},
    "ceiling": {"color": "#555555", "label": "two controls of the domain (ceiling)", "ls": ":"},
    "chance": {"color": GREY, "label": "randomly paired rows", "ls": "--"},
}
_SWEEPS: Mapping[Sweep, str] = {"widths": "width", "sizes": "training data, times the reference's"}

Runs = Sequence[OriginResults]


def sweeps_figure(runs: Runs) -> Figure:
    """Draw SVCCA, mean over domains, by width and by data size, at the first and the last layer."""
    n_layers = runs[0].chance.shape[2]
    figure, axes = subplots(4, 2, size=(5.0, 3.3), sharey=True)
    for axis, (layer, sweep) in zip(axes, product((1, n_layers), _SWEEPS), strict=True):
        x = _sweep_axis(axis, runs, sweep)
        cells = list(runs[0].along(sweep))
        for name in _STYLES:
            values = [_over_domains(run, name)[cells, layer - 1] for run in runs]
            _draw(axis, x, values, _STYLES[name])
        axis.set_title(f"layer {layer}")
    for axis in axes[::2]:
        axis.set_ylabel("SVCCA")
    axes[0].set_ylim(0, 1.02)
    figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, ncols=2, loc="outside lower center", fontsize=9)
    return figure


def layers_figure(runs: Runs) -> Figure:
    """Draw SVCCA by layer at the reference and, for the domain's control, at every width."""
    figure, (reference, widths) = subplots(2, size=(5.0, 3.6))
    x = np.arange(1.0, runs[0].chance.shape[2] + 1)
    for name in _STYLES:
        _draw(reference, x, [_over_domains(run, name)[run.at_reference] for run in runs], _STYLES[name])
    cells = runs[0].along("widths")
    for place, (cell, width) in enumerate(cells.items()):
        above = [(run.own - run.others)[cell].mean(axis=0) for run in runs]
        shade = 0.3 + 0.7 * place / max(1, len(cells) - 1)
        _draw(widths, x, above, {"color": BLUE, "alpha": shade, "marker": ".", "label": f"width {width}"})
    reference.set(title=f"at width {runs[0].reference.width}", ylabel="SVCCA", ylim=(0, 1.02))
    widths.set(title="own control - other controls", ylabel="difference")
    widths.axhline(0, color=GREY, lw=0.8)
    for axis in (reference, widths):
        layer_axis(axis)
        axis.legend(frameon=False, fontsize=8)
    return figure


def accuracy_figure(runs: Runs) -> Figure:
    """Draw test accuracy of the model of all domains and of the controls, by width and by data size."""
    figure, axes = subplots(2, size=(5.0, 3.2), sharey=True)
    for axis, sweep in zip(axes, _SWEEPS, strict=True):
        x = _sweep_axis(axis, runs, sweep)
        cells = list(runs[0].along(sweep))
        for model, (label, color) in enumerate((("E", BLUE), ("controls", GREEN))):
            accuracies = [_over_domains(run, "accuracy")[cells, model] for run in runs]
            _draw(axis, x, accuracies, {"color": color, "marker": ".", "label": label})
    axes[0].set(ylabel="accuracy, mean over domains", ylim=(-0.03, 1.05))
    axes[0].legend(frameon=False)
    return figure


def _over_domains(run: OriginResults, name: str) -> Float[np.ndarray, "cell column"]:
    """Return the mean of a measure over domains, by cell and layer or model."""
    values: Float[np.ndarray, "cell domain column"] = getattr(run, name)
    return values.mean(axis=1)


def _draw(
    axis: Axes, x: Float[np.ndarray, "n"], by_seed: Sequence[Float[np.ndarray, "n"]], style: Mapping[str, Any]
) -> None:
    values = np.stack(by_seed)
    if np.isfinite(values).any():
        plot_seeds(axis, x, values, **style)


def _sweep_axis(axis: Axes, runs: Runs, sweep: Sweep) -> Float[np.ndarray, "cell"]:
    """Label the x axis of a sweep, which is logarithmic, and return the widths or data sizes along it."""
    x = np.array(list(runs[0].along(sweep).values()), dtype=float)
    axis.set_xscale("log", base=2)
    axis.set_xticks(x, [f"{value:g}" for value in x], minor=False)
    axis.set_xlabel(_SWEEPS[sweep])
    return x
