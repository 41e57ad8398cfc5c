"""Colours that figures, films and pages share. Answers have hues, and everything else is grey."""

from __future__ import annotations

import colorsys

from mechclust.sandbox.run import SandboxRun

INK = "#1d2733"
MUTED = "#6b7682"
MARK = "#c2007b"
SPIKE = "#b3382c"
UNUSED = "#8a8f96"
PALE = "#d5dae0"
# Okabe & Ito's palette, distinguishable with any colour vision.
_HUES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a6a00", "#444444")
_LINES = ("#1d2733", "#e07b00", "#009e73", "#a3479a", "#3a86c8", "#8a7500", "#999999", "#b3382c")


def _hues(n: int) -> list[str]:
    """Return ``n`` colours: the palette if it suffices, otherwise hues at equal steps, in two lightnesses in turn."""
    if n <= len(_HUES):
        return list(_HUES[:n])
    wheel = (colorsys.hls_to_rgb(i / n, (0.36, 0.58)[i % 2], 0.75) for i in range(n))
    return ["#" + "".join(f"{round(255 * x):02x}" for x in color) for color in wheel]


def run_colors(run: SandboxRun) -> list[str]:
    """Return a colour for each answer of a run, which is grey if the answer is never right."""
    return [*_hues(run.n_right), *[UNUSED] * (len(run.answers) - run.n_right)]


def cluster_colors(run: SandboxRun) -> list[str]:
    """Return a shade of its answer's colour for each cluster, from pale to dark, or hues without answers."""
    answers = run.sequences.cluster_answers
    if answers is None:
        return _hues(len(run.sequences.cluster_names))
    answer_colors = _hues(run.n_right)
    shades = []
    for i, answer in enumerate(answers):
        siblings = [j for j, other in enumerate(answers) if other == answer]
        darkness = siblings.index(i) / (len(siblings) - 1) if len(siblings) > 1 else 0.5
        end = "#ffffff" if darkness < 0.5 else "#000000"
        shades.append(_mix(answer_colors[answer], end, abs(darkness - 0.5) * 1.05))
    return shades


def sequence_colors(run: SandboxRun) -> list[str]:
    """Return the shade of its cluster for each sequence."""
    shades = cluster_colors(run)
    return [shades[cluster] for cluster in run.sequences.clusters]


def token_colors(n: int) -> list[str]:
    """Return a shade from white to ink for each of ``n`` digits."""
    return [_mix(INK, "#ffffff", 1 - i / max(1, n - 1)) for i in range(n)]


def sandbox_line_color(i: int) -> str:
    """Return the colour of the ``i``-th curve of a panel."""
    return _LINES[i % len(_LINES)]


def _mix(color: str, other: str, share: float) -> str:
    """Return ``color`` with a share of ``other`` in it."""
    channels = zip(bytes.fromhex(color[1:]), bytes.fromhex(other[1:]), strict=True)
    return "#" + "".join(f"{round(x + (y - x) * share):02x}" for x, y in channels)
