"""Draw results as figures: curves by layer in their chance band, maps of heads, matrices of sites.

Also has the drawing functions that every figure shares, on which ``mechclust.report.style`` builds. matplotlib is
imported when something is drawn.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Shaped

from probes.engine.result_fields import ResultFields, result_size
from probes.engine.sites import split_site
from tasks import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GREY = "#999999"
# Okabe & Ito's colours, which colour-blind readers can distinguish, with two more, and a marker for each.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A8A8A")
MARKERS = "osv^DPX*"

_CURVE_AXES = ("site", "layer", "step")  # a curve follows the first of these that a measure has
_BAR = 0.04  # half the width of a single place's interval, in layers
_MAX_CURVES = 24
_MAX_PANELS = 12
_INTERVAL_ENDS = ("_low", "_high")
_CATEGORY_COLORS = ("#f0f0f0", *COLORS[:6], COLORS[7], COLORS[6])  # the first category means none, the last are rest
_NOT_FIRST_CHOICE = (*_INTERVAL_ENDS, "p_value", "null_mean")
_RESIDUAL_STREAM = re.compile(r"hook_embed|hook_resid_post|unembed\.hook_in")


@dataclass(frozen=True)
class _Layout:
    """Assignment of a measure's axes to the parts of a figure.

    Attributes:
        kind: kind of drawing.
        within: axes that one curve, map or matrix shows.
        lines: axis with a curve for each of its names (none or one).
        panels: axes with a panel for each combination of their names.
    """

    kind: Literal["curves", "heads", "matrix"]
    within: tuple[str, ...]
    lines: tuple[str, ...]
    panels: tuple[str, ...]


class _Curve(NamedTuple):
    """A curve over layers or steps.

    Attributes:
        label: for the legend.
        line: place along the layout's axis of lines.
        places: places along the curve's axis.
        x: layer or step of each place.
    """

    label: str
    line: int
    places: list[int]
    x: list[float]


def plot_chance_band(
    axis: Axes,
    x: Sequence[float] | Shaped[np.ndarray, "x"],
    low: Shaped[np.ndarray, "x"],
    high: Shaped[np.ndarray, "x"],
    color: str = "#6f6f6f",
    label: str | None = None,
) -> None:
    """Draw a chance band, hatched so that it differs from coloured bands, also in print."""
    widest = np.nanmax(np.append(high - low, 0.0))
    line_width = 0.8 if widest < 0.01 else 0.0  # a band without width is only visible as a line
    plot_band(
        axis,
        x,
        low,
        high,
        facecolor="none",
        edgecolor=color,
        hatch="////",
        alpha=0.55,
        lw=line_width,
        zorder=0.5,
        label=label,
    )


def plot_band(
    axis: Axes,
    x: Sequence[float] | Shaped[np.ndarray, "x"],
    low: Shaped[np.ndarray, "x"],
    high: Shaped[np.ndarray, "x"],
    **style: Any,
) -> None:
    """Fill between two curves, and draw a narrow bar where they have a single place, which is no area.

    That is so for a single layer, and for a layer between layers of NaN.

    Args:
        axis: where to draw.
        x: of each place, ascending.
        low: lower curve.
        high: upper curve.
        style: for ``fill_between``.
    """
    axis.fill_between(x, low, high, **style)
    known = np.isfinite(np.asarray(low, dtype=float)) & np.isfinite(np.asarray(high, dtype=float))
    beside = np.append(known[1:], False) | np.append(False, known[:-1])
    for place in np.flatnonzero(known & ~beside):
        at, bottom, top = (float(np.asarray(curve)[place]) for curve in (x, low, high))
        bar = {**style, "label": None, "lw": max(0.8, style.get("lw", 0.0))}
        axis.fill_between([at - _BAR, at + _BAR], bottom, top, **bar)


def plot(result: ResultFields, name: str, at: Mapping[str, str], ax: Axes | None) -> Any:
    """Draw a measure, see ``ProbeResult.plot``.

    Args:
        result: the result with the measure.
        name: name of the measure.
        at: names along axes of the measure, without layer numbers.
        ax: where to draw a single panel, or ``None`` for a new figure.
    """
    layout = _layout(result, name, at)
    if layout is None:
        raise InputError(
            f"{name!r} has the axes ({', '.join(result.axes[name])}) and cannot be drawn; expected one by "
            f"{_curve_axes_text()}: choose another measure{_example(result, at)}"
        )
    _check_count(result, name, layout.panels, _MAX_PANELS, "panels")
    _check_count(result, name, layout.lines, _MAX_CURVES, "curves")
    n_panels = result_size(result, layout.panels)
    if ax is not None and n_panels != 1:
        first = layout.panels[0]
        raise InputError(
            f"{name!r} by {', '.join(layout.panels)} makes {n_panels} panels, but ax is one; leave ax out, or fix the "
            f"axis, such as {first}={result.coords[first][0]!r}"
        )
    panels = _panels(ax, n_panels, layout.kind)
    image = _draw_panels(panels, result, name, layout, at)
    if image is not None:
        figure: Any = panels[0].get_figure()
        figure.colorbar(image, ax=panels, label=name)
    return panels[0] if n_panels == 1 else np.array(panels, dtype=object)


def _draw_panels(
    panels: Sequence[Axes], result: ResultFields, name: str, layout: _Layout, at: Mapping[str, str]
) -> Any:
    """Draw every panel, and return the last image for a colour bar, or ``None`` for curves and categories."""
    image = None
    categories = _categories(result, name)
    norm = None if layout.kind == "curves" or categories else _shared_norm(result, name, at)
    places = product(*(result.coords[axis] for axis in layout.panels))
    for axis, place in zip(panels, places, strict=True):
        at_panel = {**at, **dict(zip(layout.panels, place, strict=True))}
        if layout.kind == "curves":
            _draw_curves(axis, result, name, layout, at_panel)
        elif layout.kind == "heads" and categories:
            _draw_categories(axis, result, name, at_panel, categories)
        elif layout.kind == "heads":
            image = _draw_heads(axis, result, name, at_panel, norm)
        else:
            image = _draw_matrix(axis, result, name, at_panel, norm)
        title = ", ".join([*filter(None, place), *at.values()])
        axis.set_title(title or result.probe, fontsize=10).set_parse_math(False)
    return image


def first_measure_to_plot(result: ResultFields, at: Mapping[str, str]) -> str:
    """Return the first measure of categories, or else that has a chance band, or else that can be drawn.

    Raises:
        InputError: if none can be drawn.
    """
    names = list(_drawable_measures(result, at))
    if not names:
        where = f" at {', '.join(f'{axis}={text!r}' for axis, text in at.items())}" if at else ""
        raise InputError(
            f"this {result.probe} result has nothing by {_curve_axes_text()} to draw{where} (it has "
            f"{', '.join(result.values) or 'no measures'}); get the numbers from to_dataframe()"
        )
    for name in names:
        if _categories(result, name):
            return name
    return next((name for name in names if _chance_ends(result, name) is not None), names[0])


def _curve_axes_text() -> str:
    return f"{', '.join(_CURVE_AXES[:-1])} or {_CURVE_AXES[-1]}"


def _check_count(result: ResultFields, name: str, axes: Sequence[str], most: int, what: str) -> None:
    n = result_size(result, axes)
    if n > most:
        raise InputError(
            f"{name!r} by {', '.join(axes)} makes {n} {what}; expected at most {most}: fix the axis, as in sel(), "
            f"such as {axes[0]}={result.coords[axes[0]][0]!r}"
        )


def _layout(result: ResultFields, name: str, at: Mapping[str, str]) -> _Layout | None:
    """Return how to show a measure at the fixed coordinates, or ``None`` if it lacks an axis to draw along."""
    always_shown = (*_CURVE_AXES, "head", "other_site")
    free = [axis for axis in result.axes[name] if axis not in at]
    free = [axis for axis in free if axis in always_shown or len(result.coords[axis]) != 1]
    if "site" in free and "head" in free:
        return _Layout("heads", ("site", "head"), (), _without(free, ("site", "head")))
    if "site" in free and "other_site" in free:
        return _Layout("matrix", ("site", "other_site"), (), _without(free, ("site", "other_site")))
    along = next((axis for axis in _CURVE_AXES if axis in free), None)
    if along is None:
        return None
    others = _without(free, (along,))
    return _Layout("curves", (along,), others[:1], others[1:])


def _without(axes: Sequence[str], left_out: Sequence[str]) -> tuple[str, ...]:
    return tuple(axis for axis in axes if axis not in left_out)


def _drawable_measures(result: ResultFields, at: Mapping[str, str]) -> Iterator[str]:
    """Yield the measures that can be drawn and are not the ends of another."""
    for name in result.values:
        axes = result.axes[name]
        if name.endswith(_NOT_FIRST_CHOICE) or any(axis not in axes for axis in at):
            continue
        layout = _layout(result, name, at)
        if layout is not None and result_size(result, (*layout.lines, *layout.panels)) <= _MAX_CURVES:
            yield name


def _example(result: ResultFields, at: Mapping[str, str]) -> str:
    first = next(_drawable_measures(result, at), None)
    return "" if first is None else f", such as {first!r}"


def _chance_ends(result: ResultFields, name: str) -> tuple[str, str] | None:
    """Return the measures with the ends of its chance band. Ends named after no measure are the first measure's."""
    candidates = [(f"{name}_null_low", f"{name}_null_high"), (f"{name}_chance", f"{name}_chance")]
    if name == next(iter(result.values)):
        candidates[1:1] = [("null_low", "null_high"), ("chance", "chance")]
    for low, high in candidates:
        if low in result.values and high in result.values:
            return low, high
    return None


def _values(
    result: ResultFields, name: str, at: Mapping[str, str], order: Sequence[str]
) -> Float[np.ndarray, "*axes_in_order"]:
    """Return a measure at the fixed coordinates with its axes in this order. An axis that it lacks has length 1."""
    axes = result.axes[name]
    place: list[int | slice] = []
    for axis in axes:
        if axis in at:
            place.append(result.coords[axis].index(at[axis]))
        else:
            place.append(slice(None) if axis in order else 0)
    kept = [axis for axis in axes if axis not in at and axis in order]
    values = result.values[name][tuple(place)].double().numpy()
    values = values.transpose([kept.index(axis) for axis in order if axis in kept])
    return values.reshape([len(result.coords[axis]) if axis in kept else 1 for axis in order])


# ---- a panel ----


def _panels(ax: Axes | None, n: int, kind: str) -> list[Axes]:
    if ax is not None:
        return [ax]
    from matplotlib import pyplot

    columns = min(n, 4)
    rows = -(-n // columns)
    width, height = (4.2, 3.8) if kind == "matrix" else (4.8, 3.6)  # inches
    _, grid = pyplot.subplots(
        rows,
        columns,
        figsize=(width * columns, height * rows),
        squeeze=False,
        layout="constrained",
        sharey=kind == "curves",
    )
    for surplus in grid.flat[n:]:
        surplus.remove()
    return list(grid.flat[:n])


def _draw_curves(axis: Axes, result: ResultFields, name: str, layout: _Layout, at: Mapping[str, str]) -> None:
    """Draw a curve for each name along ``layout.lines`` and each family of hook points, over its layers or steps."""
    along = layout.within[0]
    values = _values_of_lines(result, name, layout, at)
    chance = _chance_ends(result, name)
    curves = _curves(result, layout)
    for number, curve in enumerate(curves):
        color = COLORS[number % len(COLORS)]
        marker = MARKERS[number % len(MARKERS)]
        y = values[curve.places, curve.line]
        axis.plot(curve.x, y, color=color, marker=marker, ms=4, label=curve.label or None)
        if all(f"{name}{end}" in result.values for end in _INTERVAL_ENDS):
            low, high = (
                _values_of_lines(result, f"{name}{end}", layout, at)[curve.places, curve.line] for end in _INTERVAL_ENDS
            )
            plot_band(axis, curve.x, low, high, color=color, alpha=0.16, lw=0)
        if chance is not None:
            low, high = (_values_of_lines(result, end, layout, at)[curve.places, curve.line] for end in chance)
            plot_chance_band(axis, curve.x, low, high, *([color] if len(curves) > 1 else []))
    axis.grid(alpha=0.25)
    axis.set_ylabel(name)
    axis.set_xlabel("training step" if along == "step" else "layer")
    if along == "step":
        axis.set_xscale("symlog", linthresh=1)
    else:
        axis.locator_params(axis="x", integer=True, min_n_ticks=1)
    if len(curves) > 1:
        title = " and ".join(layout.lines) if len(_families(result, along)) == 1 else None
        for text in axis.legend(title=title, frameon=False, fontsize=8).get_texts():
            text.set_parse_math(False)


def _curves(result: ResultFields, layout: _Layout) -> list[_Curve]:
    """Return a curve for each family of hook points and each name along ``layout.lines``."""
    families = _families(result, layout.within[0])
    names = result.coords[layout.lines[0]] if layout.lines else [""]
    curves = []
    for family, points in families.items():
        for line, name in enumerate(names):
            parts = [family if len(families) > 1 else "", name]
            label = ", ".join(filter(None, parts))
            curves.append(_Curve(label, line, [place for _, place in points], [x for x, _ in points]))
    return curves


def _values_of_lines(
    result: ResultFields, name: str, layout: _Layout, at: Mapping[str, str]
) -> Float[np.ndarray, "along line"]:
    """Return a measure along a curve and by line, constant along an axis that it lacks."""
    order = (*layout.within, *layout.lines)
    at_axes = {axis: text for axis, text in at.items() if axis in result.axes[name]}
    values = _values(result, name, at_axes, order)
    shape = (len(result.coords[order[0]]), result_size(result, layout.lines))
    return np.broadcast_to(values.reshape(len(values), -1), shape)


def _families(result: ResultFields, along: str) -> dict[str, list[tuple[float, int]]]:
    """Return the points that one curve joins, as x and place: sites by model and kind of hook point."""
    families: dict[str, list[tuple[float, int]]] = {}
    for place, text in enumerate(result.coords[along]):
        if along == "site":
            families.setdefault(_family_of(text), []).append((result.layers[text], place))
        else:
            x = float(text) if re.fullmatch(r"-?\d+", text) else place
            families.setdefault("", []).append((x, place))
    if "" in families and len(families) > 1:
        families = {family or "residual stream": points for family, points in families.items()}
    return {family: sorted(points) for family, points in families.items()}


def _family_of(site: str) -> str:
    """Return a site's model and kind of hook point, without the residual stream's kind."""
    model, hook = split_site(site)
    kind = re.sub(r"^blocks\.\d+\.", "", hook)
    if kind == hook:  # perhaps a block of a model of one's own
        kind = re.sub(r"\.\d+\.", ".", hook, count=1)
    if _RESIDUAL_STREAM.fullmatch(kind):
        kind = ""
    return ", ".join(filter(None, [model, kind]))


def _shared_norm(result: ResultFields, name: str, at: Mapping[str, str]) -> Any:
    """Return the scale from the least to the greatest value of all panels."""
    from matplotlib.colors import Normalize

    order = [axis for axis in result.axes[name] if axis not in at]
    values = _values(result, name, at, order)
    values = values[np.isfinite(values)]
    return Normalize(values.min(), values.max()) if len(values) else Normalize(0.0, 1.0)


def _draw_image(axis: Axes, values: Float[np.ndarray, "y x"], norm: Any) -> Any:
    axis.set_facecolor("#e6e6e6")  # NaN is drawn transparent
    return axis.imshow(values, origin="lower", cmap="viridis", norm=norm, interpolation="nearest")


def _draw_heads(axis: Axes, result: ResultFields, name: str, at: Mapping[str, str], norm: Any) -> Any:
    """Draw blocks from below and heads from the left, with a dot if the value lies within the chance band."""
    values = _values(result, name, at, ("site", "head"))
    image = _draw_image(axis, values, norm)
    image.axes.set_aspect("auto")
    _label_heads(axis, result)
    chance = _chance_ends(result, name)
    if chance is not None:
        low, high = (_values(result, end, at, ("site", "head")) for end in chance)
        y, x = np.nonzero((low <= values) & (values <= high))
        axis.plot(x, y, "o", color="#1d2733", mec="white", mew=0.6, ms=4)
    return image


def _label_heads(axis: Axes, result: ResultFields, *, short: bool = False) -> None:
    _set_site_ticks(axis.yaxis, result, result.coords["site"], short=short)
    heads = result.coords["head"]
    step = max(1, -(-len(heads) // 16))
    axis.set_xticks(range(0, len(heads), step), heads[::step])
    axis.set(xlabel="head", ylabel="layer" if short else "layer and hook")


def _categories(result: ResultFields, name: str) -> list[str]:
    """Return the names of a measure's values, if these are places in a list that the metadata has."""
    by_measure: Mapping[str, list[str]] = result.metadata.get("categories", {})
    return by_measure.get(name, [])


def _draw_categories(
    axis: Axes, result: ResultFields, name: str, at: Mapping[str, str], categories: Sequence[str]
) -> None:
    """Draw blocks from below and heads from the left in the colour of their category. The first category is grey."""
    from matplotlib.colors import ListedColormap, Normalize
    from matplotlib.patches import Patch

    values = _values(result, name, at, ("site", "head"))
    colors = _CATEGORY_COLORS[: len(categories)]
    norm = Normalize(-0.5, len(categories) - 0.5)
    axis.imshow(values, origin="lower", cmap=ListedColormap(colors), norm=norm, interpolation="nearest", aspect="auto")
    _label_heads(axis, result, short=True)
    for boundary in range(1, values.shape[0]):
        axis.axhline(boundary - 0.5, color="white", lw=1)
    for boundary in range(1, values.shape[1]):
        axis.axvline(boundary - 0.5, color="white", lw=1)
    patches = []
    for place, category in enumerate(categories):
        n = int((values == place).sum())
        if n:
            patches.append(Patch(color=colors[place], label=f"{category} ({n})"))
    axis.legend(handles=patches, title=name, loc="upper left", bbox_to_anchor=(1.01, 1.02), frameon=False, fontsize=8)


def _draw_matrix(axis: Axes, result: ResultFields, name: str, at: Mapping[str, str], norm: Any) -> Any:
    """Draw every site against every other."""
    image = _draw_image(axis, _values(result, name, at, ("site", "other_site")), norm)
    _set_site_ticks(axis.yaxis, result, result.coords["site"], short=True)
    others = replace(result, layers={**result.layers, **result.metadata.get("other_layers", {})})
    _set_site_ticks(axis.xaxis, others, result.coords["other_site"], short=True)
    axis.set(xlabel="layer (other_site)", ylabel="layer (site)")
    return image


def _set_site_ticks(ticks: Any, result: ResultFields, sites: Sequence[str], *, short: bool = False) -> None:
    """Label sites by their layer, and by their hook unless ``short``."""
    step = max(1, -(-len(sites) // (13 if short else 16)))
    labels = [str(result.layers.get(site, site)) for site in sites]
    if not short:
        labels = [f"{number}  {site}" for number, site in zip(labels, sites, strict=True)]
    ticks.set_ticks(range(0, len(sites), step), labels=labels[::step])
    for text in ticks.get_ticklabels():
        text.set_parse_math(False)
        text.set_fontsize(8)
