"""Colours and names that figures, films and pages share. Answers own the hues; everything else is grey."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

from mechclust.sandbox.curves import Curves
from mechclust.sandbox.run import SandboxRun

INK, SOFT, MARK, SPIKE = "#1d2733", "#6b7682", "#c2007b", "#b3382c"
UNUSED, PALE = "#8a8f96", "#d5dae0"
# Okabe & Ito's palette, which people with any colour vision can tell apart.
_HUES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a6a00", "#444444")
_LINES = ("#1d2733", "#e07b00", "#009e73", "#a3479a", "#3a86c8", "#8a7500", "#999999", "#b3382c")
_NAMES = {
    "train_loss": "train",
    "test_loss": "test",
    "train_accuracy": "train",
    "test_accuracy": "test",
    "within_ratio": "within / total",
    "followed_loss": "sequences followed",
    "followed_accuracy": "sequences followed",
    "smallest_norm": "min |ξ|",
    "margin": "margin",
}


def _hues(n: int) -> list[str]:
    """``n`` colours: the palette while it lasts, otherwise hues at equal steps, two lightnesses in turn."""
    if n <= len(_HUES):
        return list(_HUES[:n])
    wheel = (colorsys.hls_to_rgb(i / n, (0.36, 0.58)[i % 2], 0.75) for i in range(n))
    return ["#" + "".join(f"{round(255 * x):02x}" for x in color) for color in wheel]


def run_colors(run: SandboxRun) -> list[str]:
    """A colour for each answer of a run; grey for those that are never right."""
    return [*_palettes(run)[0], *[UNUSED] * (len(run.answers) - run.n_right)]


def _palettes(run: SandboxRun) -> tuple[list[str], list[str]]:
    """Colours of the answers that are ever right, and of clusters that have no answer of their own.

    Where a map shows both, no colour stands for two things, and those of the clusters lie far apart.
    """
    own = len(run.sequences.cluster_names) if run.sequences.cluster_answers is None else 0
    if "class_map" not in run.values:
        return _hues(run.n_right), _hues(own)
    colors = _hues(run.n_right + own)
    chosen = [i * len(colors) // own for i in range(own)]
    return [color for i, color in enumerate(colors) if i not in chosen], [colors[i] for i in chosen]


def cluster_colors(run: SandboxRun) -> list[str]:
    """A shade of its answer's colour for each cluster, from pale to dark; hues where clusters have no answer."""
    answers, (colors, own_colors) = run.sequences.cluster_answers, _palettes(run)
    if answers is None:
        return own_colors
    found = []
    for i, answer in enumerate(answers):
        own = [j for j, other in enumerate(answers) if other == answer]
        place = own.index(i) / max(1, len(own) - 1) if len(own) > 1 else 0.5
        found.append(_mix(colors[answer], "#ffffff" if place < 0.5 else "#000000", abs(place - 0.5) * 1.05))
    return found


def sequence_colors(run: SandboxRun) -> list[str]:
    """The shade of its cluster for each sequence followed."""
    shades = cluster_colors(run)
    return [shades[cluster] for cluster in run.sequences.clusters]


def token_colors(n: int) -> list[str]:
    """White to ink: a shade of grey for each of ``n`` digits."""
    return [_mix(INK, "#ffffff", 1 - i / max(1, n - 1)) for i in range(n)]


def line_color(i: int) -> str:
    """Colour of the ``i``-th curve of a panel."""
    return _LINES[i % len(_LINES)]


def curves_of(curves: Curves, names: Sequence[str]) -> dict[str, list[float]]:
    """The measured curves of a panel by the name people read; empty when none was measured."""
    found: dict[str, list[float]] = {}
    for name in names:
        values = getattr(curves, name)
        if name == "gradient_norms":
            found.update({group: series.tolist() for group, series in values.items()})
        elif values is not None:
            found[_NAMES[name]] = values.tolist()
    return found


def _mix(color: str, other: str, share: float) -> str:
    """``color`` with a share of ``other`` in it."""
    a, b = ([int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in (color, other))
    return "#" + "".join(f"{round(x + (y - x) * share):02x}" for x, y in zip(a, b, strict=True))
