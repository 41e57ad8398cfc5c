"""Results as figures: curves by layer in their chance band, maps of heads, matrices of sites.

Also what every figure shares; ``mechclust.report.style`` builds on it. matplotlib is imported when something is
drawn.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from torch import Tensor

from probes.engine.sites import split_site
from tasks import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GREY = "#999999"
# Of many: Okabe & Ito's colours, which colour-blind readers tell apart too, and a marker for each.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A8A8A")
MARKERS = "osv^DPX*"

_ALONG = ("site", "layer", "step")  # axes that a curve follows, the first that is there
_MOST_CURVES, _MOST_PANELS = 24, 12
_ENDS = ("_low", "_high")
_STREAM = re.compile(r"hook_embed|hook_resid_post|unembed\.hook_in")


class Drawable(Protocol):
    """What is read of a ``ProbeResult``."""

    @property
    def probe(self) -> str: ...
    @property
    def values(self) -> Mapping[str, Tensor]: ...
    @property
    def axes(self) -> Mapping[str, tuple[str, ...]]: ...
    @property
    def coords(self) -> Mapping[str, list[str]]: ...
    @property
    def layers(self) -> Mapping[str, int]: ...


def chance_band(
    axis: Axes,
    x: Sequence[float] | np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    color: str = "#6f6f6f",
    label: str | None = None,
) -> None:
    """What chance gives: hatched, so that it is seen beside coloured bands and in print."""
    thin = 0.8 if np.nanmax(np.append(high - low, 0.0)) < 0.01 else 0.0  # without width it would not be seen
    axis.fill_between(
        x, low, high, facecolor="none", edgecolor=color, hatch="////", alpha=0.55, lw=thin, zorder=0.5, label=label
    )


def plot(result: Drawable, name: str, at: Mapping[str, str], ax: Axes | None) -> Any:
    """See ``ProbeResult.plot``; ``at`` has names along axes that are there, no layer numbers."""
    left = _left(result, name, at)
    kind, own = _kind(left)
    if kind is None:
        raise InputError(
            f"{name!r} has the axes ({', '.join(result.axes[name])}) and cannot be drawn; expected one by "
            f"{', '.join(_ALONG[:-1])} or {_ALONG[-1]}: choose another measure{_drawable(result, at)}"
        )
    others = [axis for axis in left if axis not in own]
    lines = [] if kind != "curves" else others[:1]
    outer = [axis for axis in others if axis not in lines]
    n_panels, n_lines = (prod(len(result.coords[axis]) for axis in some) for some in (outer, lines))
    for axes, n, most, what in ((outer, n_panels, _MOST_PANELS, "panels"), (lines, n_lines, _MOST_CURVES, "curves")):
        if n > most:
            raise InputError(
                f"{name!r} by {', '.join(axes)} makes {n} {what}; expected at most {most}: fix the axis, as in sel(), "
                f"such as {axes[0]}={result.coords[axes[0]][0]!r}"
            )
    if ax is not None and n_panels != 1:
        raise InputError(
            f"{name!r} by {', '.join(outer)} makes {n_panels} panels, but ax is one; leave ax out, or fix the axis, "
            f"such as {outer[0]}={result.coords[outer[0]][0]!r}"
        )
    panels = _panels(ax, n_panels, kind)
    drawn: Any = None
    norm = None if kind == "curves" else _norm(result, name, at)
    for axis, place in zip(panels, product(*(result.coords[axis] for axis in outer)), strict=True):
        here = {**at, **dict(zip(outer, place, strict=True))}
        if kind == "curves":
            _curves(axis, result, name, own[0], lines, here)
        else:
            drawn = (_heads if kind == "heads" else _matrix)(axis, result, name, here, norm)
        title = ", ".join([*(text for text in place if text), *(text for text in at.values())])
        axis.set_title(title or result.probe, fontsize=10).set_parse_math(False)
    if drawn is not None:
        figure: Any = panels[0].get_figure()
        figure.colorbar(drawn, ax=panels, label=name)
    return panels[0] if n_panels == 1 else np.array(panels, dtype=object)


def _left(result: Drawable, name: str, at: Mapping[str, str]) -> list[str]:
    """Axes of a measure that neither ``at`` fixes nor has a single place, other than those to draw along."""
    keep = (*_ALONG, "head", "other_site")
    return [a for a in result.axes[name] if a not in at and (a in keep or len(result.coords[a]) != 1)]


def _kind(left: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """What a measure with these axes is drawn as, and the axes that one panel shows."""
    if "site" in left and "head" in left:
        return "heads", ("site", "head")
    if "site" in left and "other_site" in left:
        return "matrix", ("site", "other_site")
    along = next((axis for axis in _ALONG if axis in left), None)
    return (None, ()) if along is None else ("curves", (along,))


def _numbers(result: Drawable, at: Mapping[str, str]) -> Iterator[str]:
    """Measures that can be drawn and are not the ends of another."""
    for name in result.values:
        axes = result.axes[name]
        if name.endswith(_ENDS) or name.endswith(("p_value", "null_mean")) or any(a not in axes for a in at):
            continue
        left = _left(result, name, at)
        kind, own = _kind(left)
        rest = [len(result.coords[axis]) for axis in left if axis not in own]
        if kind is not None and prod(rest) <= _MOST_CURVES:
            yield name


def _drawable(result: Drawable, at: Mapping[str, str]) -> str:
    names = list(_numbers(result, at))
    return f", such as {names[0]!r}" if names else ""


def first_to_draw(result: Drawable, at: Mapping[str, str]) -> str:
    """The first measure that has a chance band, else the first that can be drawn."""
    names = list(_numbers(result, at))
    if not names:
        way = f" at {', '.join(f'{k}={v!r}' for k, v in at.items())}" if at else ""
        raise InputError(
            f"this {result.probe} result has nothing by {', '.join(_ALONG[:-1])} or {_ALONG[-1]} to draw{way} (it has "
            f"{', '.join(result.values) or 'no measures'}); get the numbers from to_dataframe()"
        )
    return next((name for name in names if _chance(result, name) is not None), names[0])


def _chance(result: Drawable, name: str) -> tuple[str, str] | None:
    """The measures that hold the ends of its chance band. Those without a name of their own are the first measure's."""
    first = name == next(iter(result.values))
    for low, high in (
        (f"{name}_null_low", f"{name}_null_high"),
        *([("null_low", "null_high"), ("chance", "chance")] if first else []),
        (f"{name}_chance", f"{name}_chance"),
    ):
        if low in result.values and high in result.values:
            return low, high
    return None


def _values(result: Drawable, name: str, at: Mapping[str, str], order: Sequence[str]) -> np.ndarray:
    """A measure at the fixed coordinates, its axes in this order; those it lacks have one place."""
    axes = result.axes[name]
    place = tuple(
        result.coords[axis].index(at[axis]) if axis in at else slice(None) if axis in order else 0 for axis in axes
    )
    kept = [axis for axis in axes if axis not in at and axis in order]
    found = result.values[name][place].double().numpy()
    found = found.transpose([kept.index(axis) for axis in order if axis in kept])
    return found.reshape([len(result.coords[axis]) if axis in kept else 1 for axis in order])


# ---- a panel ----


def _panels(ax: Axes | None, n: int, kind: str) -> list[Axes]:
    if ax is not None:
        return [ax]
    from matplotlib import pyplot

    columns = min(n, 4)
    rows = -(-n // columns)
    size = (4.8 * columns, 3.6 * rows) if kind != "matrix" else (4.2 * columns, 3.8 * rows)
    _, grid = pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained", sharey=kind == "curves")
    for surplus in grid.flat[n:]:
        surplus.remove()
    return list(grid.flat[:n])


def _curves(axis: Axes, result: Drawable, name: str, along: str, lines: Sequence[str], at: Mapping[str, str]) -> None:
    """One curve for each name along ``lines`` and each family of hook points, over its layers or steps."""
    values = _values(result, name, at, (along, *lines)).reshape(len(result.coords[along]), -1)
    names = result.coords[lines[0]] if lines else [""]
    families = _families(result, along)
    ends = _chance(result, name)
    own = (f"{name}_low", f"{name}_high")
    curves = [(family, places, x, k) for family, (places, x) in families.items() for k in range(len(names))]
    for c, (family, places, x, k) in enumerate(curves):
        color, marker = COLORS[c % len(COLORS)], MARKERS[c % len(MARKERS)]
        label = ", ".join(part for part in (family if len(families) > 1 else "", names[k]) if part)
        axis.plot(x, values[places, k], color=color, marker=marker, ms=4, label=label or None)
        if all(end in result.values for end in own):
            low, high = (_band(result, end, at, along, lines, len(names))[places, k] for end in own)
            axis.fill_between(x, low, high, color=color, alpha=0.16, lw=0)
        if ends is not None:
            low, high = (_band(result, end, at, along, lines, len(names))[places, k] for end in ends)
            chance_band(axis, x, low, high, *([color] if len(curves) > 1 else []))
    axis.grid(alpha=0.25)
    axis.set_ylabel(name)
    axis.set_xlabel("training step" if along == "step" else "layer")
    if along == "step":
        axis.set_xscale("symlog", linthresh=1)
    else:
        axis.locator_params(axis="x", integer=True)
    if len(curves) > 1:
        title = " and ".join(lines) if len(families) == 1 else None
        for text in axis.legend(title=title, frameon=False, fontsize=8).get_texts():
            text.set_parse_math(False)


def _band(result: Drawable, end: str, at: Mapping[str, str], along: str, lines: Sequence[str], n: int) -> np.ndarray:
    """``[along line]`` of a measure that may be one number for all of them."""
    found = _values(result, end, {k: v for k, v in at.items() if k in result.axes[end]}, (along, *lines))
    found = found.reshape(found.shape[0], -1)
    return np.broadcast_to(found, (len(result.coords[along]), n))


def _families(result: Drawable, along: str) -> dict[str, tuple[list[int], list[float]]]:
    """Places along an axis that one curve joins, with their x: sites by model and kind of hook point."""
    found: dict[str, list[tuple[float, int]]] = {}
    for place, text in enumerate(result.coords[along]):
        if along == "site":
            model, hook = split_site(text)
            kind = re.sub(r"^blocks\.\d+\.", "", hook)
            family = ", ".join(part for part in (model, "" if _STREAM.fullmatch(kind) else kind) if part)
            found.setdefault(family, []).append((result.layers[text], place))
        else:
            found.setdefault("", []).append((float(text) if re.fullmatch(r"-?\d+", text) else place, place))
    if "" in found and len(found) > 1:
        found = {family or "residual stream": places for family, places in found.items()}
    ordered = {family: sorted(places) for family, places in found.items()}
    return {family: ([i for _, i in places], [x for x, _ in places]) for family, places in ordered.items()}


def _norm(result: Drawable, name: str, at: Mapping[str, str]) -> Any:
    """From the least to the greatest value of all panels, so that they share a scale."""
    from matplotlib.colors import Normalize

    order = [axis for axis in result.axes[name] if axis not in at]
    known = _values(result, name, at, order)
    known = known[np.isfinite(known)]
    return Normalize(known.min(), known.max()) if len(known) else Normalize(0.0, 1.0)


def _image(axis: Axes, values: np.ndarray, norm: Any) -> Any:
    axis.set_facecolor("#e6e6e6")  # where there is no number
    return axis.imshow(values, origin="lower", cmap="viridis", norm=norm, interpolation="nearest")


def _heads(axis: Axes, result: Drawable, name: str, at: Mapping[str, str], norm: Any) -> Any:
    """Blocks from below, heads from the left; a dot where the value lies within the chance band."""
    values = _values(result, name, at, ("site", "head"))
    image = _image(axis, values, norm)
    image.axes.set_aspect("auto")
    _site_ticks(axis.yaxis, result, result.coords["site"])
    step = max(1, -(-len(result.coords["head"]) // 16))
    axis.set_xticks(range(0, len(result.coords["head"]), step), result.coords["head"][::step])
    axis.set(xlabel="head", ylabel="layer and hook")
    if (ends := _chance(result, name)) is not None and all("head" in result.axes[end] for end in ends):
        low, high = (_values(result, end, at, ("site", "head")) for end in ends)
        y, x = np.nonzero((low <= values) & (values <= high))
        axis.plot(x, y, "o", color="#1d2733", mec="white", mew=0.6, ms=4)
    return image


def _matrix(axis: Axes, result: Drawable, name: str, at: Mapping[str, str], norm: Any) -> Any:
    """Every site against every other."""
    image = _image(axis, _values(result, name, at, ("site", "other_site")), norm)
    _site_ticks(axis.yaxis, result, result.coords["site"], short=True)
    _site_ticks(axis.xaxis, result, result.coords["other_site"], short=True)
    axis.set(xlabel="layer (other_site)", ylabel="layer (site)")
    return image


def _site_ticks(ticks: Any, result: Drawable, sites: Sequence[str], *, short: bool = False) -> None:
    """Layer numbers, with hook names where there is room."""
    step = max(1, -(-len(sites) // (13 if short else 16)))
    numbers = [str(result.layers[site]) if site in result.layers else site for site in sites]
    names = numbers if short else [f"{n}  {site}" for n, site in zip(numbers, sites, strict=True)]
    ticks.set_ticks(range(0, len(sites), step), labels=names[::step])
    for text in ticks.get_ticklabels():
        text.set_parse_math(False)
        text.set_fontsize(8)
