"""Texts and prompts on which the real checkpoints are measured: what a checkout, a package or Python itself carries, or
what is made here."""

from __future__ import annotations

import ast
import json
import os
import platform
import random
import re
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from tests.real.fresh_prompts import fresh_rows
from tests.real.models import ANTIBERTY, RXNFP
from tests.real.packages import CACHE, whole

ROOT = Path(__file__).parents[2]
INSTRUCTIONS = ROOT / "examples" / "prompts" / "instructions.jsonl"


@dataclass(frozen=True)
class Prompts:
    """A file of prompts as the commands read it.

    Attributes:
        path: JSONL with ``prompt`` and ``task``.
        source: where they come from, for tables.
        real: whether bounds written for the labelled reactions apply.
    """

    path: Path
    source: str
    real: bool = True

    @property
    def texts(self) -> list[str]:
        """The prompts."""
        return [row["prompt"] for row in self.rows]

    @property
    def rows(self) -> list[dict[str, str]]:
        """Its lines."""
        return [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]

    def every(self, n: int) -> Prompts:
        """One line in ``n``."""
        path = _jsonl(f"{self.path.stem}-{n}", self.rows[::n])
        return replace(self, path=path, source=f"one in {n} of {self.source}")


def fresh_instructions() -> Prompts:
    """Prompts like ``INSTRUCTIONS`` that were written before any model had read them."""
    return Prompts(_jsonl("instructions-fresh", fresh_rows()), "tests/real/fresh_prompts.py, 10 tasks x 30")


def reactions() -> Prompts:
    """Reactions with their class: ``MECHCLUST_REACTIONS``, those beside the checkout, or else made from templates."""
    given = os.environ.get("MECHCLUST_REACTIONS")
    path = Path(given) if given else ROOT.parent / "shared" / "data" / "reactions.jsonl"
    if path.exists():
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        rows.sort(key=lambda row: len(row["prompt"]))  # batches of like length have little padding
        return Prompts(_jsonl("reactions", rows), f"{len(rows)} labelled reactions (Schneider et al.)")
    if given:
        raise SystemExit(f"MECHCLUST_REACTIONS is {given!r}, which is not there; give a JSONL file of prompt, task")
    rows = [
        {"prompt": template.format(r=r, s=s), "task": name}
        for name, template in _TEMPLATES.items()
        for r, s in product(_RESTS, _RESTS[::-1])
    ]
    path = _jsonl("reactions-made", rows)
    return Prompts(path, f"{len(rows)} reactions made from {len(_TEMPLATES)} templates", real=False)


_RESTS = ("CC", "CCC", "CC(C)C", "c1ccccc1", "c1ccc(Cl)cc1", "c1ccc(OC)cc1", "C1CCCCC1", "Cc1ccccc1")  # open at the end
_TEMPLATES = {
    "amide": "{r}C(=O)O.{s}N>>{r}C(=O)N{s}",
    "ester": "{r}C(=O)Cl.{s}O>>{r}C(=O)O{s}",
    "alkylation": "{r}CBr.{s}N>>{r}CN{s}",
    "reduction": "{r}C(=O){s}.[BH4-].[Na+]>>{r}C(O){s}",
    "oxidation": "{r}C(O){s}.O=[Mn]=O>>{r}C(=O){s}",
    "deprotection": "{r}N{s}C(=O)OC(C)(C)C.Cl>>{r}N{s}",
}


def fingerprint() -> tuple[str, list[float]]:
    """The reaction in rxnfp's own documentation, and the first numbers of its fingerprint there."""
    text = _readme(RXNFP.unpacked())
    reaction = re.search(r'example_rxn = "([^"]+)"', text)
    numbers = re.search(r"256\s+\[(-?\d[^\]]+)\]", text)
    assert reaction is not None
    assert numbers is not None
    return reaction[1], [float(x) for x in numbers[1].split(",")]


def antibodies() -> list[str]:
    """The sequences in AntiBERTy's own documentation: a heavy and a light chain."""
    return list(dict.fromkeys(re.findall(r'"([A-Z]{100,})"', _readme(ANTIBERTY.unpacked()))))[:2]


def natural_or_shuffled(length: int = 60, step: int = 2) -> Prompts:
    """Windows of these sequences, each once as it is and once with its residues in random order: the same letters."""
    draw = random.Random(0)
    windows = [s[i : i + length] for s in antibodies() for i in range(0, len(s) - length + 1, step)]
    rows = [{"prompt": w, "task": "natural"} for w in windows]
    rows += [{"prompt": "".join(draw.sample(w, len(w))), "task": "shuffled"} for w in windows]
    path = _jsonl("antibodies", rows)
    return Prompts(path, f"{len(windows)} windows of {length} residues of two antibody chains, and each shuffled")


def python_reference() -> tuple[Path, str]:
    """A folder of English texts that every Python carries: its language reference, as ``help()`` shows it."""
    from pydoc_data.topics import topics

    folder = CACHE / "texts" / f"python-{platform.python_version()}"
    if not folder.exists():
        with whole(folder) as out:
            for name, text in topics.items():
                (out / f"{name}.txt").write_text(text, encoding="utf-8")
    return folder, f"the language reference of Python {platform.python_version()}, {len(topics)} pages"


def standard_library(least: int = 50) -> tuple[Path, str]:
    """A folder of English texts that every Python carries: the docstrings of its standard library, a file per module
    with ``least`` words of them."""
    folder = CACHE / "texts" / f"docstrings-{platform.python_version()}"
    if not folder.exists():
        root = Path(sysconfig.get_path("stdlib"))
        with whole(folder) as out:
            for path in sorted(root.rglob("*.py")):
                module = path.relative_to(root).with_suffix("").parts
                if _OTHERS.intersection(module):
                    continue
                text = "\n\n".join(_docstrings(path))
                if len(text.split()) >= least:
                    (out / f"{'.'.join(module)}.txt").write_text(text, encoding="utf-8")
    n = len(list(folder.iterdir()))
    return folder, f"the docstrings of the standard library of Python {platform.python_version()}, {n} modules"


_OTHERS = {"test", "tests", "idlelib", "idle_test", "lib2to3", "turtledemo", "site-packages", "dist-packages"}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _docstrings(path: Path) -> list[str]:
    tree = ast.parse(path.read_bytes())
    found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, _DOCUMENTED))
    return [text for text in found if text]


def own_pages(least: int = 150) -> Mapping[str, str]:
    """Plain paragraphs of this project's documentation, by page, where there are ``least`` words of them."""
    pages = {}
    for path in sorted((ROOT / "docs").rglob("*.md")):
        paragraphs = re.split(r"\n\s*\n", path.read_text(encoding="utf-8"))
        plain = [p for p in paragraphs if re.match(r"[A-Z]", p) and "|" not in p and len(p.split()) >= 15]
        if len(text := "\n\n".join(plain).replace("**", "").replace("`", "")) and len(text.split()) >= least:
            pages[path.stem] = text
    return pages


CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Japan": "Tokyo", "Germany": "Berlin", "Spain": "Madrid", "Russia": "Moscow",
    "Egypt": "Cairo", "Greece": "Athens", "China": "Beijing", "England": "London",
}  # fmt: skip

PARAPHRASES = (
    ("The cat sleeps on the sofa.", "A kitten is napping on the couch."),
    ("He lost his keys yesterday.", "Yesterday he could not find his keys any more."),
    ("It will rain tomorrow afternoon.", "Showers are expected for the next day after lunch."),
    ("The train was two hours late.", "We arrived long after the timetable said, because of the railway."),
    ("She teaches mathematics at a school.", "She is a teacher of algebra and geometry."),
    ("The restaurant is closed on Mondays.", "You cannot eat there at the beginning of the week."),
    ("The price of oil has gone up.", "Petroleum became more expensive."),
    ("My computer does not start.", "The laptop cannot be switched on."),
    ("The doctor told him to stop smoking.", "A physician advised him to give up cigarettes."),
    ("They won the final with two goals.", "The team became champions after scoring twice."),
    ("The bridge was built in 1890.", "Its construction over the river dates from the nineteenth century."),
    ("Children like to play in the snow.", "Kids enjoy winter weather outdoors."),
)


def _readme(unpacked: Path) -> str:
    (file,) = unpacked.glob("*.dist-info/METADATA")
    return file.read_text(encoding="utf-8")


def _jsonl(name: str, rows: Sequence[Mapping[str, str]]) -> Path:
    path = CACHE / "prompts" / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
