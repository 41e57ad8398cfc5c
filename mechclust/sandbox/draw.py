"""Draw one panel of the sandbox on matplotlib axes."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from mechclust.report.figure_text import figure_text
from mechclust.sandbox.colors import (
    INK,
    MARK,
    MUTED,
    PALE,
    SPIKE,
    run_colors,
    sandbox_line_color,
    sequence_colors,
    token_colors,
)
from mechclust.sandbox.labels import place_labels
from mechclust.sandbox.panels import SandboxPanel
from mechclust.sandbox.run import SandboxRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDE = 1.35  # panels of points are this many times as wide as high
_HIGH = 120.0  # points from the bottom to the top of a panel, about
_LETTER = (4.2, 7.5)  # width of a letter of a label and height of a line, in points


def draw_panel(axis: Axes, panel: SandboxPanel, run: SandboxRun, frame: int) -> None:
    """Draw ``panel`` at a frame of ``run``. ``axis`` is empty before."""
    axis.set_title(figure_text(panel.title, 60), fontsize=9, fontweight="bold", loc="left", color=INK)
    axis.tick_params(which="both", labelsize=6.5, colors=MUTED, length=0, pad=2)
    for side in axis.spines.values():
        side.set_color("#dfe4ea")
    {"plane": _plane, "heat": _heat, "curves": _curves}[panel.kind](axis, panel, run, frame)


def _plane(axis: Axes, panel: SandboxPanel, run: SandboxRun, frame: int) -> None:
    points = run.values[panel.points][frame]
    answers = run_colors(run)
    half = run.map_half_height if panel.background == "map" else run.half_width(panel.points)
    axis.grid(color="#eef1f4", lw=0.6)
    axis.set_axisbelow(True)
    if panel.background == "circle":
        half = max(half, 1.55)
    _background(axis, panel, run, frame, half, answers)
    if panel.arrow:
        _query(axis, run.values["query"][frame], 0.9 * half)
    _points(axis, panel, run, frame, points, answers)
    if panel.of in ("token", "position"):
        _labels(axis, panel, points, half)
    share = run.variance.get(panel.name)
    if share is not None and np.isfinite(share[frame]):
        text = f"{share[frame]:.0%} of variance"
        axis.text(0.98, 0.02, text, fontsize=6.5, color=MUTED, ha="right", va="bottom", transform=axis.transAxes)
    if panel.background == "triangle":
        _triangle(axis, run.corners)
        return
    _limits(axis, (0, 0), half)
    axis.locator_params(nbins=5)


def _background(axis: Axes, panel: SandboxPanel, run: SandboxRun, frame: int, half: float, answers: list[str]) -> None:
    if panel.background != "triangle":
        axis.axhline(0, color="#cdd4db", lw=0.7, zorder=0.6)
        axis.axvline(0, color="#cdd4db", lw=0.7, zorder=0.6)
    if panel.background == "circle":
        turn = np.linspace(0, 2 * np.pi, 73)
        axis.plot(np.sqrt(2) * np.cos(turn), np.sqrt(2) * np.sin(turn), color="#d5dae0", lw=0.8)
    if panel.background == "cloud":
        cloud = run.values["cloud"][frame]
        right: Any = () if run.cloud_answers is None else run.cloud_answers
        axis.scatter(cloud[:, 0], cloud[:, 1], s=2, alpha=0.5, lw=0, c=[answers[a] for a in right])
    if panel.background == "map":
        rows, columns = run.values["class_map"].shape[1:]
        wide = half * columns / rows
        look: dict[str, Any] = {"origin": "lower", "interpolation": "bilinear", "zorder": 0.5, "aspect": "auto"}
        axis.imshow(_map(run, frame, answers), extent=(-wide, wide, -half, half), **look)
    if panel.background == "lines":
        for answer, level, line in (run.level_lines or [])[frame]:
            axis.plot(*line.T, color=answers[answer], lw=1.2 if level == 0.5 else 0.7)


def _query(axis: Axes, tip: Float[np.ndarray, "2"], longest: float) -> None:
    """Draw the query as an arrow, cut and with its length in words if it is too long for the panel."""
    largest = float(np.abs(tip).max())
    if largest > longest:
        text = f"query: length {float(np.linalg.norm(tip)):.3g}"
        axis.text(0.98, 0.02, text, fontsize=6.5, color=MARK, ha="right", va="bottom", transform=axis.transAxes)
        tip = tip * (longest / largest)
    axis.annotate("", xy=tuple(tip), xytext=(0, 0), arrowprops={"arrowstyle": "->", "color": MARK, "lw": 1.6})


def _points(
    axis: Axes,
    panel: SandboxPanel,
    run: SandboxRun,
    frame: int,
    points: Float[np.ndarray, "point 2"],
    answers: list[str],
) -> None:
    x = points[:, 0]
    y = points[:, 1]
    white: dict[str, Any] = {"edgecolors": "#ffffff", "linewidths": 0.5, "zorder": 3}
    ink: dict[str, Any] = {"edgecolors": INK, "linewidths": 0.6, "zorder": 3}
    if panel.of == "sequence":
        axis.scatter(x, y, c=sequence_colors(run), s=22, **white)
    elif panel.of == "neuron":
        axis.scatter(x, y, c=[answers[vote] for vote in run.values["votes"][frame]], s=12, **white)
    elif panel.of == "token":
        token_shades = (answers if run.n_digits else [PALE] * len(points))[: len(points)]
        axis.scatter(x, y, c=token_shades, s=28 if run.n_digits else 14, **ink)
    else:
        in_support = np.isin(np.arange(len(points)) % run.length, run.support or range(run.length))
        colors = np.where(in_support, INK, PALE)
        if panel.of == "pair":
            colors = np.repeat(token_colors(run.n_digits), run.length)
        for marker, chosen in (("o", in_support), ("s", ~in_support)):
            axis.scatter(x[chosen], y[chosen], c=colors[chosen], s=20, marker=marker, **ink)


def _labels(axis: Axes, panel: SandboxPanel, points: Float[np.ndarray, "point 2"], half: float) -> None:
    """Write the names of the points that have room for them."""
    unit = 2 * half / _HIGH  # of the axes, a typographic point
    near = (np.abs(points) < [half * _WIDE, half]).all(axis=1)
    names = [panel.labels[i] if panel.labels else str(i) for i in np.flatnonzero(near)]
    sizes = [(_LETTER[0] * len(name) * unit, _LETTER[1] * unit) for name in names]
    for name, place in zip(names, place_labels(points[near], sizes, 3.2 * unit), strict=True):
        if place is not None:
            axis.text(*place, figure_text(name), fontsize=6.5, color=MUTED, ha="center", va="center", clip_on=True)


def _triangle(axis: Axes, corners: list[str]) -> None:
    height = np.sqrt(3) / 2
    axis.plot([0, 1, 0.5, 0], [0, 0, height, 0], color="#aab3bc", lw=0.8, zorder=1)
    places = ((-0.06, 0, "right"), (1.06, 0, "left"), (0.5, height + 0.05, "center"))
    for text, (x, y, place) in zip(corners, places, strict=True):
        axis.text(x, y, text, ha=place, va="center" if y == 0 else "bottom", fontsize=8)
    _limits(axis, (0.5, 0.45), 0.57)
    axis.axis("off")


def _limits(axis: Axes, centre: tuple[float, float], half: float) -> None:
    """Set equal units on both axes, so that angles and circles keep their shape."""
    axis.set_box_aspect(1 / _WIDE)
    axis.set(xlim=(centre[0] - half * _WIDE, centre[0] + half * _WIDE), ylim=(centre[1] - half, centre[1] + half))


def _map(run: SandboxRun, frame: int, answers: list[str]) -> Float[np.ndarray, "row column rgb"]:
    from matplotlib.colors import to_rgb

    colors = np.array([to_rgb(color) for color in answers])
    return 1 + (colors[run.values["class_map"][frame]] - 1) * (0.1 + 0.42 * run.sureness[frame])[..., None]


def _heat(axis: Axes, panel: SandboxPanel, run: SandboxRun, frame: int) -> None:
    weights = run.values[panel.points]
    rows, length = weights.shape[1:]
    axis.imshow(weights[frame], aspect="auto", cmap=_shades(), vmin=0, vmax=np.nanmax(weights), interpolation="nearest")
    axis.barh(range(rows), 0.3, left=-0.9, height=1, color=sequence_colors(run), clip_on=False)
    inside = np.isin(np.arange(length), () if panel.columns else run.support)
    for t in np.flatnonzero(inside[1:] != inside[:-1]).tolist():
        axis.axvline(t + 0.5, color=INK, lw=1.6)
    every = max(1, -(-length // 16))
    axis.set(yticks=[], xticks=range(0, length, every), xlim=(-0.5, length - 0.5), ylim=(rows - 0.5, -0.5))
    if panel.columns:
        axis.set_xticklabels([figure_text(name, 9) for name in panel.columns[::every]])
    for t, label in zip(range(0, length, every), axis.get_xticklabels(), strict=True):
        label.set_fontweight("bold" if inside[t] else "normal")


@lru_cache(maxsize=1)
def _shades() -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("attention", ["#ffffff", "#14213d"])


def _curves(axis: Axes, panel: SandboxPanel, run: SandboxRun, frame: int) -> None:
    curves = run.curves.panels.get(panel.name)
    if not curves:
        axis.text(0.5, 0.5, "not measured", ha="center", va="center", color=MUTED, fontsize=9, transform=axis.transAxes)
        axis.set(xticks=[], yticks=[])
        return
    epochs = np.asarray(run.curves.epochs)
    now = run.epochs[frame]
    past = epochs <= now
    for i, (name, series) in enumerate(curves.items()):
        values = np.array(series)
        values[(values <= 0) & panel.log] = np.nan
        axis.plot(epochs, values, color=sandbox_line_color(i), lw=0.8, alpha=0.25)
        axis.plot(epochs[past], values[past], color=sandbox_line_color(i), lw=1, label=figure_text(name))
        if i == 0 and panel.name in ("loss", "spikes"):
            for spikes, fill in ((run.curves.small_spikes, "#ffffff"), (run.curves.spikes, SPIKE)):
                places = np.searchsorted(epochs, [epoch for epoch, _ in spikes])
                axis.plot(epochs[places], values[places], "v", mec=SPIKE, mfc=fill, mew=0.8, ms=4, lw=0)
    axis.axvline(now, color=MARK, lw=1.2)
    axis.grid(color="#eef1f4", lw=0.6)
    if panel.log:
        axis.set_yscale("log")
        low, high = axis.get_ylim()
        if high < 10 * low:  # ticks would be labelled 1.04 x 10^0
            for formatted in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
                formatted("{x:g}")
    elif np.nanmax([*np.concatenate(list(curves.values())), 0]) <= 1:
        axis.set_ylim(-0.04 if panel.name != "accuracy" else None, 1.04)
    axis.set_xlim(run.epochs[0], run.epochs[-1])
    # A fixed place: "best" is slow, and jumps about in a film.
    place: Any = "lower right" if panel.name in ("accuracy", "spikes") else "upper right"
    axis.legend(loc=place, fontsize=6.5, frameon=False, handlelength=1.2)
