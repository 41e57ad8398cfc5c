"""The pictures of the documentation: a name, and how each is drawn. Pages hold their captions."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from PIL import Image

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "assets" / "pictures"
MOST = 60_000  # bytes of a file

Draw = Callable[[], Any]  # returns a figure or an image

PICTURES: dict[str, Draw] = {}


def picture(name: str) -> Callable[[Draw], Draw]:
    """Registers a function that draws a picture."""

    def known(draw: Draw) -> Draw:
        PICTURES[name] = draw
        return draw

    return known


def save(name: str, drawn: Any) -> int:
    """Writes the file, with as many colours as fit, and gives its size."""
    path = FOLDER / f"{name}.png"
    FOLDER.mkdir(parents=True, exist_ok=True)
    for dpi, colours in ((110, 256), (110, 128), (90, 256), (90, 128), (90, 64), (90, 32)):
        image = drawn
        if isinstance(drawn, Figure):
            held = io.BytesIO()
            drawn.savefig(held, format="png", dpi=dpi, facecolor="white")
            image = Image.open(held)
        image.convert("RGB").quantize(colours, dither=Image.Dither.NONE).save(path, "png", optimize=True)
        if path.stat().st_size <= MOST:
            break
    return path.stat().st_size
