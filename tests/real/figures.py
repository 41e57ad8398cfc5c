"""The figure of the results page: reaction classes by layer, and how far fine-tuning changed each layer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mechclust.report.axes import direct_labels, layer_axis
from mechclust.report.pictures import print_pictures
from mechclust.report.seed_plots import plot_seeds
from mechclust.report.style import BLUE, GREY, RED, SOFT, styled
from mechclust.report.subplots import subplots
from probes.store.files import write_atomic

_CURVES = {
    "untrained": (GREY, "random weights"),
    "rxnfp-pretrained": (BLUE, "pretrained"),
    "rxnfp-tuned": (RED, "fine-tuned"),
}


@styled()
def by_layer(reactions: Mapping[str, Any], path: Path) -> None:
    """Draw what ``run.py`` found for rxnfp's models as PNG and PDF; not layer 0, where every [CLS] is the same."""
    figure, (left, right) = subplots(2, size=(4.6, 3.6))
    labels: dict[str, list[tuple[float, str, str]]] = {"left": [], "right": []}
    for name, (colour, label) in _CURVES.items():
        rows = np.array(reactions["ari"][name])[:, 1:]
        plot_seeds(left, range(1, rows.shape[1] + 1), rows, color=colour, marker="o", ms=4)
        labels["left"].append((float(rows[:, -1].mean()), label, colour))
    left.axhline(reactions["chance"], color=SOFT, lw=1, ls=":")
    labels["left"].append((reactions["chance"], "chance, 97.5%", SOFT))
    left.set(title="clusters and reaction classes", ylabel="adjusted Rand index at [CLS]")
    for key, colour, label in (("cka", BLUE, "pretrained"), ("cka_untrained", GREY, "random weights")):
        rows = np.array(reactions[key])[:, 1:]
        plot_seeds(right, range(1, rows.shape[1] + 1), rows, color=colour, marker="o", ms=4)
        labels["right"].append((float(rows[:, -1].mean()), label, colour))
    right.set(title="likeness to the fine-tuned model", ylabel="debiased CKA at [CLS]", ylim=(-0.05, 1.02))
    for axis, own in zip((left, right), labels.values(), strict=True):
        layer_axis(axis)
        direct_labels(axis, own)
    for suffix, picture in print_pictures(figure).items():
        write_atomic(path.with_suffix(suffix), picture)
