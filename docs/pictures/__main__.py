"""Draws the pictures of the documentation: ``make pictures``, or ``python -m docs.pictures NAME...`` for some."""

from __future__ import annotations

import sys

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

from docs.pictures.all_pictures import MODULES as MODULES
from docs.pictures.registry import PICTURES, save, write


def main(names: list[str]) -> None:
    """Draws and writes the named pictures, or all."""
    if unknown := set(names) - set(PICTURES):
        raise SystemExit(f"no picture {sorted(unknown)}; expected some of {sorted(PICTURES)}")
    for found in [PICTURES[name] for name in names or PICTURES]:
        drawn, caption = found.draw()
        size = save(found.name, drawn)
        pyplot.close("all")
        write(found, caption)
        print(f"{found.name:24} {size / 1000:5.1f} kB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
