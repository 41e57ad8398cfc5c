"""What a picture is: its name, the page it stands on, the words for those who cannot see it, and how it is drawn.

Page and script agree because the script writes both the file and the lines of the page between
``<!-- picture: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from PIL import Image

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "assets" / "pictures"
MOST = 60_000  # bytes of a file
_MARKED = re.compile(r"<!-- picture: ([\w-]+) -->\n(.*?)<!-- end -->", re.DOTALL)

Drawn = tuple[Any, str]  # a figure or an image, and the caption


class Picture(NamedTuple):
    """One picture, on one page or several."""

    name: str
    pages: tuple[str, ...]
    alt: str
    draw: Callable[[], Drawn]


PICTURES: dict[str, Picture] = {}


def picture(name: str, *pages: str, alt: str) -> Callable[[Callable[[], Drawn]], Callable[[], Drawn]]:
    """Registers a function that draws; pages are relative to the repository."""

    def known(draw: Callable[[], Drawn]) -> Callable[[], Drawn]:
        PICTURES[name] = Picture(name, pages, alt, draw)
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


def lines(found: Picture, page: str, caption: str) -> str:
    """What stands between the marks: the picture and its caption."""
    up = "docs/" if "/" not in page else "../" * (page.count("/") - 1)
    shown = textwrap.fill(f"*{caption[0].upper()}{caption[1:]}*", 120, break_long_words=False, break_on_hyphens=False)
    image = f"![{found.alt}]({up}assets/pictures/{found.name}.png)"
    return f"<!-- picture: {found.name} -->\n\n{image}\n\n{shown}\n\n<!-- end -->"


def write(found: Picture, caption: str) -> None:
    """Puts picture and caption into the pages, where their marks are."""
    for page in found.pages:
        path = ROOT / page
        text = path.read_text(encoding="utf-8")
        marks = [each for each in _MARKED.finditer(text) if each[1] == found.name]
        if len(marks) != 1:
            raise SystemExit(
                f"{page} has {len(marks)} places for {found.name!r}; expected one <!-- picture: {found.name} -->"
            )
        start, end = marks[0].span()
        path.write_text(text[:start] + lines(found, page, caption) + text[end:], encoding="utf-8")


def on_page(text: str) -> dict[str, str]:
    """The pictures of a page by name, with what stands between their marks."""
    return {found[1]: found[2] for found in _MARKED.finditer(text)}
