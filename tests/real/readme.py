"""README's examples of a trained model: its code runs, and prints what README says."""

from __future__ import annotations

import contextlib
import re
from itertools import chain
from pathlib import Path
from typing import Any

import matplotlib

from probes import ProbeResult, load_result
from tests.real.data import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
TOLERANCE = 0.05  # k-means and folds differ between processors
_NUMBER = re.compile(r"-?\d+\.\d+|\d+")


def check_command(printed: str) -> None:
    """Compare README's output of ``mechclust clusters`` with what was printed."""
    shown = re.findall(rf"```sh\nmechclust clusters {MODEL}[^`]*```\n\n```text\n(.*?)```", README, re.DOTALL)[0]
    for part in shown.split("[...]"):
        _check_alike(part, printed.replace("\n- ", "\n"))


def run_python(folder: Path) -> ProbeResult:
    """Run README's Python on a local copy of its model, and compare what it plots with README's picture."""
    code = next(block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if MODEL in block)
    names: dict[str, Any] = {}
    matplotlib.use("Agg")
    with contextlib.chdir(ROOT):
        exec(code.replace(MODEL, str(folder)), names)
    result: ProbeResult = names["result"]
    drawn = load_result(ROOT / "examples" / "results" / "real-models" / "smollm2" / "decodability.safetensors")
    far = float((result["accuracy"] - drawn["accuracy"]).abs().max())
    if far > TOLERANCE:
        raise SystemExit(f"README's plot is not what its code draws: an accuracy differs by {far:.2f}; record it anew")
    return result


def _check_alike(shown: str, printed: str) -> None:
    """Compare words exactly and decimals within ``TOLERANCE``, wherever lines are broken.

    Integers, such as layers, are not compared.
    """
    words, decimals = _parts(shown)
    printed_words, printed_decimals = _parts(printed)
    n = len(words)
    start = next((i for i in range(len(printed_words)) if printed_words[i : i + n] == words), None)
    if start is None:
        raise SystemExit(f"README shows {shown!r}; printed was {printed!r}")
    pairs = zip(chain(*decimals), chain(*printed_decimals[start : start + n]), strict=True)
    far = [(a, b) for a, b in pairs if abs(a - b) > TOLERANCE]
    if far:
        raise SystemExit(f"README's numbers are not those printed: {far}")


def _parts(text: str) -> tuple[list[str], list[list[float]]]:
    """Return the words, with ``#`` for each number, and the decimals of each word."""
    words = text.split()
    decimals = [[float(number) for number in _NUMBER.findall(word) if "." in number] for word in words]
    return [_NUMBER.sub("#", word) for word in words], decimals
