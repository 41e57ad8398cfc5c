"""What studies and commands conclude from results made by hand: numbers, tables and figures change on purpose only.

``python -m tests.frozen`` records them anew, of every ``test_frozen.py``, in ``tests/data/frozen/``. Numbers have six
digits, so that every machine gives the same; figures depend on matplotlib's version as well.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from mechclust.commands.result import MeasuredResult
from mechclust.evidence import Finding
from mechclust.evidence.parts import Part
from mechclust.report.reading import Reading
from mechclust.report.style import styled
from probes import ProbeResult
from tests.drawn import drawn
from tests.looks import looks

TESTS = Path(__file__).parent
MAX_ROWS = 40  # of a table that is recorded row by row
Case = Callable[[], Mapping[str, Any]]
Lines = dict[str, list[str]]


def lines_of(what: Any) -> Iterator[str]:
    """What is frozen of a figure, a finding, a table, a reading or a value. Of texts, it is the numbers in them."""
    if isinstance(what, Figure):
        yield from map(_digest, [*drawn(what), *looks(what)])
    elif isinstance(what, pd.DataFrame):
        yield from _of_table(what)
    elif isinstance(what, Finding):
        yield from _of_finding(what)
    elif isinstance(what, Reading):
        yield f"{what.what} | {what.where} | {what.value} | {what.chance} | {what.random_weights} | {what.verdict}"
    elif isinstance(what, str):
        yield _numbers_in(what)
    elif isinstance(what, list | tuple):
        for each in what:
            yield from lines_of(each)
    else:
        yield _cell(what)


def _of_table(table: pd.DataFrame) -> Iterator[str]:
    """Each row; of a long table, a digest of each column."""
    if len(table) > MAX_ROWS:
        for name in table.columns:
            yield f"{name} | {len(table)} rows | {_digest(' '.join(map(_cell, table[name])))}"
        return
    yield " | ".join(map(str, table.columns))
    for row in table.itertuples(index=True):
        yield " | ".join(map(_cell, row))


def _of_finding(finding: Finding) -> Iterator[str]:
    yield f"{finding.verdict}, {finding.kind}, {finding.paper}"
    yield _numbers_in(f"{finding.statement} {finding.note}")
    yield from map(_part, finding.parts)
    if finding.control is not None:
        yield _numbers_in(finding.control.name)
        yield from map(_part, finding.control.parts)


def _part(part: Part) -> str:
    ends = [] if part.interval is None else [*part.interval]
    return f"{part.verdict} {part.bound} {part.method} {_numbers_in(part.name)} {[*map(_cell, [*part.values, *ends])]}"


def _numbers_in(text: str) -> str:
    return " ".join(re.findall(r"-?\d+(?:[.,]\d+)*(?:e[-+]?\d+)?", text)) if text else "nothing"


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _digest(line: str) -> str:
    return hashlib.sha256(line.encode()).hexdigest()[:10]


def said_by(result: MeasuredResult) -> dict[str, Any]:
    """What a command's result concludes: words of the headline and readings, tables, numbers of notes, and figures."""
    page = result._analysis()
    return {
        "headline": Reading("headline", page.headline),
        "readings": list(page.readings),
        "notes": list(page.notes),
        "shown": result.shown_table,
        "table": result.to_dataframe(),
        **{f"table {name}": table for name, table in getattr(result, "tables", {}).items()},
        "folded": pd.DataFrame([{"title": title, "table": _digest(table)} for title, table in page.folded.items()]),
        "views": pd.DataFrame({"title": list(page.views)}),
        "files": pd.DataFrame({"file": list(result.results)}),
        "captions": [panel.caption for panel in page.panels],
        **{f"figure {panel.name}": panel.figure for panel in page.panels},
    }


def made_probe(
    probe: str,
    coords: Mapping[str, Sequence[str]],
    draw: np.random.Generator,
    axes: Mapping[str, Sequence[str]],
    layers: Mapping[str, int] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> ProbeResult:
    """A probe's result whose measures, by their axes, are random numbers between 0 and 1, all different."""
    shapes = {name: tuple(len(coords[axis]) for axis in of) for name, of in axes.items()}
    values = {name: torch.from_numpy(np.asarray(draw.random(shape))) for name, shape in shapes.items()}
    given = {name: tuple(of) for name, of in axes.items()}
    used = {axis: list(names) for axis, names in coords.items() if any(axis in of for of in given.values())}
    return ProbeResult(probe, values, given, used, dict(layers or {}), dict(metadata or {}))


def concluded(case: Case) -> dict[str, Any]:
    """All that a case gives, drawn in the reports' style."""
    with styled():
        return dict(case())


def frozen(given: Mapping[str, Any]) -> Lines:
    """The lines of everything in a case."""
    return {name: [*lines_of(what)] for name, what in given.items()}


def check_frozen(name: str, case: Case) -> None:
    """Compare what a case gives now with what is recorded; figures only with the same matplotlib."""
    record = json.loads(path_of(name).read_text())
    given = concluded(case)
    found = frozen(given)
    assert list(found) == list(record["lines"])
    for what, lines in found.items():
        if isinstance(given[what], Figure):
            if matplotlib.__version__ == record["matplotlib"]:
                _check_figure(what, given[what], record["lines"][what])
        else:
            assert lines == record["lines"][what], f"{what}; if it is meant: python -m tests.frozen {name!r}"


def _check_figure(name: str, figure: Figure, recorded: list[str]) -> None:
    lines = [*drawn(figure), *looks(figure)]
    found = Counter(map(_digest, lines))
    new = found - Counter(recorded)
    changed = [line[:300] for line in lines if _digest(line) in new]
    assert found == Counter(recorded), f"{name} draws {changed or 'less'}"


def path_of(name: str) -> Path:
    """The file of a case."""
    return TESTS / "data" / "frozen" / f"{name.replace(' ', '-')}.json"


def main() -> None:
    """Record every case, or those of the given names."""
    for path in sorted(TESTS.rglob("test_frozen.py")):
        module = importlib.import_module(".".join(path.relative_to(TESTS.parent).with_suffix("").parts))
        for name, case in module.CASES.items():
            if len(sys.argv) == 1 or name in sys.argv[1:]:
                record = {"matplotlib": matplotlib.__version__, "lines": frozen(concluded(case))}
                path_of(name).parent.mkdir(exist_ok=True)
                path_of(name).write_text(json.dumps(record, indent=0) + "\n")


if __name__ == "__main__":
    main()
