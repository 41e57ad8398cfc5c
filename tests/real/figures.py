"""The figure of the results page: reaction classes by layer, and how far fine-tuning changed each layer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mechclust.report.style import BLUE, GREY, RED, layer_axis, seed_curve, subplots

_CURVES = {
    "untrained": (GREY, "random weights"),
    "rxnfp-pretrained": (BLUE, "pretrained"),
    "rxnfp-tuned": (RED, "fine-tuned"),
}


def by_layer(reactions: Mapping[str, Any], path: Path) -> None:
    """Draw what ``run.py`` found for rxnfp's models; layer 0 is left out, where every [CLS] is the same."""
    figure, (left, right) = subplots(2, size=(4.6, 3.6))
    for name, (colour, label) in _CURVES.items():
        rows = np.array(reactions["ari"][name])[:, 1:]
        seed_curve(left, range(1, rows.shape[1] + 1), rows, color=colour, label=label, marker="o", ms=4)
    left.axhline(reactions["chance"], color="#bbbbbb", lw=1, ls=":", label="chance, 97.5%")
    left.set(title="clusters and reaction classes", ylabel="adjusted Rand index at [CLS]")
    for key, colour, label in (("cka", BLUE, "pretrained"), ("cka_untrained", GREY, "random weights")):
        rows = np.array(reactions[key])[:, 1:]
        seed_curve(right, range(1, rows.shape[1] + 1), rows, color=colour, label=label, marker="o", ms=4)
    right.set(title="likeness to the fine-tuned model", ylabel="debiased CKA at [CLS]", ylim=(-0.05, 1.02))
    for axis in (left, right):
        layer_axis(axis)
        axis.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)
