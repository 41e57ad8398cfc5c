"""The page on families, ``docs/families.md``, from what was measured under both major versions of TransformerLens.

``python -m tests.mechclust.models.families_page`` measures under the installed one, keeps that in ``families.json`` and
writes the page. Run it with 3.9 and with 4 installed.
"""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

from tests.mechclust.models.families import FAMILIES
from tests.mechclust.models.measured import measure

FOUND = Path(__file__).with_name("families.json")
PAGE = Path(__file__).parents[3] / "docs" / "families.md"
MAJORS = ("3", "4")

_HEAD = """# Families of models

**[`load_pretrained`][mechclust.load_pretrained] reproduces Hugging Face for every family below.** The table says
whether hooks can write, and which padding is safe.

For each row, a tiny model with random weights is loaded with hooks and by plain Hugging Face. *Yes* under residual and
patterns means that the residual stream, the output and the attention patterns differ by less than 0.00001, without
padding and with padding on either side. *Yes* under written means that the outputs also agree after a change of the
residual stream. `python -m tests.mechclust.models.families_page` writes this page.

"""
_TAIL = """
- **With 3.9** and **with 4** are versions of TransformerLens.
- **Bridge** is TransformerLens's model, with all its hook points. Hooks can read and write, and the output is logits.
- **Read-only** is the Hugging Face model, with hook points for the embedding, the residual stream and attention
  patterns. Hooks cannot write. The output is the last hidden state. Models of other families, without eager attention
  or with quantised weights are loaded in this way too, or refused with the reason.
- **Embedding** describes `hook_embed`. If positions are added to the token embedding, or it is normalised, *enters the
  first block* means afterwards, and *before positions* means before (in OPT 350M, also before the projection to the
  width of the residual stream).
- **Padding** is the side on which padding is allowed. RoBERTa, XLM-R and MPNet need their padding token, because they
  count positions by it.
"""


def found() -> dict[str, dict[str, Any]]:
    """What was measured, by major version and family."""
    return json.loads(FOUND.read_text(encoding="utf-8")) if FOUND.exists() else {}


def page(rows: dict[str, dict[str, Any]]) -> str:
    """The page's text."""
    titles = ["family", "such as", "with 3.9", "with 4", "embedding", "residual", "patterns", "written", "padding"]
    lines = [titles, ["---"] * len(titles)]
    for key, family in FAMILIES.items():
        by_major = [rows[major][key] for major in MAJORS]
        newest = by_major[-1]
        yes = [_yes([row[what] for row in by_major]) for what in ("residual", "patterns", "writes")]
        ways = [row["how"] for row in by_major]
        lines.append([family.name, family.examples, *ways, newest["embedding"], *yes, ", ".join(newest["padding"])])
    return _HEAD + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n" + _TAIL


def _yes(so: list[bool]) -> str:
    return {(True, True): "yes", (False, True): "from 4", (True, False): "with 3.9"}.get(tuple(so), "no")


def main() -> None:
    major = version("transformer-lens").split(".")[0]
    rows = {}
    for key, family in FAMILIES.items():
        with TemporaryDirectory() as folder:
            rows[key] = measure(family, family.write(Path(folder))).row()
    everything = {**found(), major: rows}
    FOUND.write_text(json.dumps(everything, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    if missing := [other for other in MAJORS if other not in everything]:
        raise SystemExit(f"{FOUND.name} lacks TransformerLens {missing[0]}; run this with it too")
    PAGE.write_text(page(everything), encoding="utf-8")


if __name__ == "__main__":
    main()
