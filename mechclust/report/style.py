"""Settings shared by all figures: colours, markers, and matplotlib's parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
import matplotlib.style
import numpy as np
from cycler import cycler
from jaxtyping import Float
from matplotlib.font_manager import get_font_names

from probes.engine.plots import COLORS as COLORS
from probes.engine.plots import GREY as GREY
from probes.engine.plots import MARKERS as MARKERS

MATHTEXT = "mathtext"  # ``gid`` of a text of ours that is a formula: ``axis.set_title("$W_V$", gid=MATHTEXT)``
BLUE, RED, GREEN, PURPLE, ORANGE = COLORS[:5]
TEXT = "#1d2733"  # of text, and of a curve that is first among others
SOFT = "#5b6875"  # of ticks and of words beside curves
CHANCE = "chance (95%)"  # label of a band of chance
# For letters that matplotlib's own font lacks: the usual fonts of Linux, macOS and Windows for East and South Asia.
_OTHER_SCRIPTS = (
    *("Noto Sans CJK JP", "WenQuanYi Micro Hei", "Hiragino Sans", "PingFang SC", "Yu Gothic", "Microsoft YaHei"),
    *("Apple SD Gothic Neo", "Malgun Gothic", "Noto Sans Devanagari", "Kohinoor Devanagari", "Nirmala UI"),
)
_STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "axes.prop_cycle": cycler(color=COLORS),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": SOFT,
    "axes.axisbelow": True,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": "black",
    "ytick.labelcolor": "black",
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "hatch.linewidth": 0.7,
    "pdf.fonttype": 42,  # whole outlines, as journals ask
}


@contextmanager
def styled() -> Iterator[None]:
    """Return matplotlib's defaults with ``_STYLE`` over them, whatever the user's are. Also a decorator.

    Letters that matplotlib's own font lacks are drawn in fonts of ``_OTHER_SCRIPTS`` that are installed.

    Example:
        >>> with styled():
        ...     matplotlib.rcParams["pdf.fonttype"]
        42
    """
    with matplotlib.style.context(["default", _STYLE, {"font.family": _fonts()}]):
        yield


def _fonts() -> list[str]:
    installed = get_font_names()
    return ["DejaVu Sans", *(name for name in _OTHER_SCRIPTS if name in installed)]


def category_style(code: int) -> tuple[str, str]:
    """Return the colour and marker of one class of many. No two of the first 64 share both.

    Example:
        >>> category_style(0), category_style(8)
        (('#0072B2', 'o'), ('#0072B2', 's'))
    """
    return COLORS[code % len(COLORS)], MARKERS[(code + code // len(COLORS)) % len(MARKERS)]


def layer_shades(n: int) -> Float[np.ndarray, "n 4"]:
    """Return colours from dark to light, for ordered curves such as layers."""
    return matplotlib.colormaps["viridis"](np.linspace(0.0, 0.86, n))
