"""Draws the pictures of the documentation: ``make pictures``, or ``python -m docs.pictures NAME...`` for some.

Captions stand on the pages. Numbers that they quote and the picture does not show are printed.
"""

from __future__ import annotations

import sys

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

from docs.pictures.all_pictures import MODULES as MODULES
from docs.pictures.registry import PICTURES, save


def main(names: list[str]) -> None:
    """Draws and writes the named pictures, or all."""
    if unknown := set(names) - set(PICTURES):
        raise SystemExit(f"no picture {sorted(unknown)}; expected some of {sorted(PICTURES)}")
    for name in names or PICTURES:
        size = save(name, PICTURES[name]())
        pyplot.close("all")
        print(f"{name:24} {size / 1000:5.1f} kB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
