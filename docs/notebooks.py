"""Runs the notebooks in ``examples/`` and stores their outputs in them: ``make notebooks``.

What is stored differs between two runs only in what a run draws at random, such as the ids of views: no timings, no
paths, and pictures in 128 colours. ``python docs/notebooks.py NAME...`` runs some of them.
"""

from __future__ import annotations

import base64
import io
import os
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbclient
import nbformat
from PIL import Image

EXAMPLES = Path(__file__).parents[1] / "examples"
_PNG = re.compile(r'(?<=src="data:image/png;base64,)[^"]+(?=")')


def small(png: str) -> str:
    """A picture in base64 with 128 colours, where that is smaller; rare colours, as on a diagonal, are kept."""
    image, out = Image.open(io.BytesIO(base64.b64decode(png))), io.BytesIO()
    image.convert("RGB").quantize(128, Image.Quantize.MAXCOVERAGE).save(out, "png", optimize=True)
    found = base64.b64encode(out.getvalue()).decode()
    return min(found, png, key=len)


def execute(path: Path) -> None:
    """Run a notebook in an empty folder, with the recorded results beside it, and store its outputs."""
    notebook: Any = nbformat.read(path, as_version=4)
    kept = {"kernelspec": notebook.metadata.kernelspec, "language_info": {"name": "python"}}
    with TemporaryDirectory() as folder:
        (Path(folder) / "results").symlink_to(EXAMPLES / "results")
        place = {"metadata": {"path": folder}}
        client = nbclient.NotebookClient(
            notebook, timeout=600, kernel_name="python3", resources=place, record_timing=False
        )
        client.execute()
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        data = output.get("data", {})
        if "image/png" in data:
            data["image/png"] = small(data["image/png"])
        if "text/html" in data:
            data["text/html"] = _PNG.sub(lambda found: small(found[0]), data["text/html"])
    notebook.metadata = kept
    nbformat.write(notebook, path)


if __name__ == "__main__":
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    os.environ.pop("MPLBACKEND", None)  # the kernel's own draws inline
    for each in sorted(EXAMPLES.glob("*.ipynb")):
        if not sys.argv[1:] or each.stem in sys.argv[1:]:
            execute(each)
            print(each.name, f"{each.stat().st_size / 1000:.0f} kB", flush=True)
