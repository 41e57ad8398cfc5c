"""Writes the measured numbers of ``docs/`` from ``examples/results``: ``make record``.

They stand between two comments, which a page does not show:

- ``<!-- findings: NAME -->``, ``<!-- end -->``: the table of a study's findings, or of those whose names follow its own;
  below all findings of a study, and below those of an arm, which would still hold if they were tested as one family.
- ``<!-- summary: NAME -->``, ``<!-- end -->``: the table of all measures of a run of planted layers.
- ``<!-- checkpoints -->``, ``<!-- end -->``: the real checkpoints that ``make real`` runs on.
- ``<!-- counts -->``, ``<!-- end -->``: a row for each study, in which is filled in how many findings hold; checks do
  not count. A row that links to a section, ``NAME.md#ARM``, counts the record ``NAME-ARM``; what the intervals of a
  record without seeds are over stands in the row.
- ``<!-- measured -->``, ``<!-- end -->``: a row for each finding of a study's ``paper`` preset, whose value and verdict
  are filled in behind its text. A row begins with the finding's id and, if several studies have one of that name, the
  study: ``| T2 (task-clusters) what it says | ...``.

``mechclust report RUN --record examples/results/NAME-paper`` is what brings the results there; those of real
checkpoints, ``python -m tests.real.run --record``.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

from mechclust.evidence import Findings, load_findings
from mechclust.report.archive import unpack
from mechclust.evidence import markdown_table
from mechclust.evidence.families import family_notes
from mechclust.studies.planted_layers.results import load_results, summary_table
from mechclust.studies.registry import open_run

_ROOT = Path(__file__).parents[1]
_RESULTS = _ROOT / "examples" / "results"
_MARKED = re.compile(
    r"(<!-- (findings|counts|measured|checkpoints|summary)(?:: ([\w -]+?))? -->)((?:(?!<!--).)*)<!-- end -->", re.DOTALL
)


def pages() -> list[Path]:
    """Every page with numbers of its own."""
    return [path for path in sorted(_ROOT.glob("docs/**/*.md")) if _MARKED.search(path.read_text(encoding="utf-8"))]


def written(text: str) -> str:
    """A page's text with the numbers in it made anew."""
    return _MARKED.sub(
        lambda found: f"{found[1]}\n\n{_table(found[2], found[3] or '', found[4])}\n\n<!-- end -->", text
    )


def _table(kind: str, names: str, held: str) -> str:
    if kind == "findings":
        study, *ids = names.split()
        findings = _recorded(study)
        shown_whole = not ids or not (_RESULTS / f"{study}-paper").exists()  # or shown only here
        notes = family_notes(findings) if shown_whole and study != "real-models" else []
        return "\n\n".join([markdown_table([c for c in findings if not ids or c.id in ids]), *notes])
    if kind == "summary":
        return _summary(names)
    if kind == "checkpoints":
        return _checkpoints()
    head, line, *rows = held.strip().splitlines()
    return "\n".join([head, line, *map(_counted if kind == "counts" else _measured, rows)])


def _summary(name: str) -> str:
    """A row for each measure of planted layers, from the record's measurements."""
    _, config = open_run(_folder(name))
    with tempfile.TemporaryDirectory() as place:
        unpack(_folder(name) / "results.tar.xz", Path(place))
        found = [load_results(config, Path(place), seed) for seed in config.seeds]
    table = summary_table(config, found)
    return "\n".join([_row(*table.columns), "|---" * len(table.columns) + "|", *(_row(*row) for row in table.values)])


def _checkpoints() -> str:
    """A row for each checkpoint: where it comes from, what it is, and what ``mechclust check`` said of it."""
    models = json.loads((_RESULTS / "real-models" / "models.json").read_text(encoding="utf-8"))["models"]
    head = ["", "model", "package", "licence", "reported by `check`", "rows ok", "failed", "not tried"]
    counts = ("passed", "failed", "not_tried")
    rows = [
        _row(m["name"], m["what"], f"`{m['package']}`", m["licence"], m["model"], *(str(m[key]) for key in counts))
        for m in models
    ]
    return "\n".join([_row(*head), "|---" * len(head) + "|", *rows])


def _counted(row: str) -> str:
    """``| study | paper | findings tested, how many seeds | hold, how many of them weak | undecided | do not hold |
    link |``"""
    title, paper, tested, *_, link = _cells(row)
    name = re.findall(r"([\w-]+\.md(?:#[\w-]+)?)\)", link)[0].replace(".md#", "-").removesuffix(".md")
    findings = [c for c in _recorded(name) if c.kind == "finding"]
    verdicts = [c.verdict for c in findings if c.verdict != "not tested"]
    of = "" if len(verdicts) == len(findings) else f" of {len(findings)}"
    weak = sum(c.weak for c in findings if c.verdict == "holds")
    holds = f"{verdicts.count('holds')}" + f" ({weak} weak)" * (weak > 0)
    others = (str(verdicts.count(verdict)) for verdict in ("undecided", "does not hold"))
    settings, n = _folder(name) / "config.json", tested.partition(", ")[2]
    if settings.exists():  # of a study, which has seeds; some findings have intervals over pairs of them
        config = json.loads(settings.read_text(encoding="utf-8"))["config"]
        counts = sorted({len(seeds) for key, seeds in config.items() if key == "seeds" or key.endswith("_seeds")})
        n = f"{' or '.join(map(str, counts))} {n.split()[-1]}"
    return _row(title, paper, f"{len(verdicts)}{of}, {n}", holds, *others, link)


def _measured(row: str) -> str:
    """``| ID (study) and what it says | measured (interval) | verdict | severity |``"""
    text = _cells(row)[0]
    id, study = re.findall(r"^(\S+)(?: \(([\w-]+)\) )?", text)[0]
    folders = [_RESULTS / f"{study}-paper"] if study else sorted(_RESULTS.glob("*-paper"))
    (c,) = (c for path in folders for c in load_findings(path) if c.id == id)
    assert c.interval is not None, f"{c.id} has no interval"
    severity = "-" if c.severity is None else f"{c.severity:.2f}" + " (weak)" * c.weak
    return _row(text, f"{c.measured:.3f} ({c.interval[0]:.3f} to {c.interval[1]:.3f})", c.verdict, severity)


def _recorded(study: str) -> Findings:
    return load_findings(_folder(study))


def _folder(study: str) -> Path:
    return next(path for path in (_RESULTS / f"{study}-paper", _RESULTS / study) if path.exists())


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip().strip("|").split(" | ")]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    for page in pages():
        page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
