"""Tables that number layers or blocks name the hook beside each number: a check of every table of a report."""

from __future__ import annotations

import csv
import html
import re
from pathlib import Path

import pandas as pd

NUMBERS = ("layer", "block")
STREAM = re.compile(r"blocks\.(\d+)\.(?:hook_)?resid_post")
PART = re.compile(r"blocks\.(\d+)\.attn\.(?:hook_)?(?:attention|pattern|z)")
OTHERS = {"hook_embed": "0", "embed": "0", "unembed.hook_in": "final norm"}


def named(layer: str, hook: str) -> bool:
    """Whether a hook is that of a layer's number: the stream's l is ``blocks.{l - 1}``, a part of a block its own."""
    if found := STREAM.fullmatch(hook):
        return int(found[1]) == int(float(layer)) - 1
    if found := PART.fullmatch(hook):
        return int(found[1]) == int(float(layer))
    return hook in OTHERS and OTHERS[hook] == layer


def faults(columns: list[str], rows: list[list[str]]) -> list[str]:
    """What is wrong with a table: columns of numbers without hooks, and hooks of another layer."""
    found = []
    for place, column in enumerate(columns):
        if column not in NUMBERS:
            continue
        beside = columns[place + 1] if place + 1 < len(columns) else ""
        if beside not in {"site", "hook"}:
            found.append(f"{column} has no hook beside it")
            continue
        pairs = {(row[place], row[place + 1]) for row in rows}
        missing = {"", "–", "nan"}
        found += [f"{column} {a} is not {b}" for a, b in sorted(pairs) if not ({a, b} <= missing or named(a, b))]
    return found


def tables_of(report: Path) -> dict[str, list[list[str]]]:
    """Every table of a report's folder and page by a name, its columns first."""
    found = {}
    for path in sorted(report.parent.glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            found[path.name] = list(csv.reader(file))
    page = report.read_text(encoding="utf-8")
    for i, table in enumerate(re.findall(r"<table\b.*?</table>", page, re.DOTALL)):
        rows = re.findall(r"<tr\b.*?</tr>", table, re.DOTALL)
        found[f"table {i} of the page"] = [
            [html.unescape(cell) for cell in re.findall(r"<t[hd]\b[^>]*>(.*?)</t[hd]>", row, re.DOTALL)] for row in rows
        ]
    return found


def check_report(report: Path, *shown: pd.DataFrame) -> None:
    """Fails where a table of a report, or one that is ``shown`` elsewhere, numbers layers without naming hooks."""
    tables = tables_of(report)
    for i, table in enumerate(shown):
        tables[f"shown table {i}"] = [list(table), *([str(x) for x in row] for row in table.to_numpy().tolist())]
    found = {name: wrong for name, (columns, *rows) in tables.items() if (wrong := faults(columns, rows))}
    assert not found, found
    for kind in ("csv", "page"):
        numbered = [name for name, (columns, *_) in tables.items() if not set(NUMBERS).isdisjoint(columns)]
        assert any(name.endswith(kind) for name in numbered), f"no {kind} numbers layers, so nothing was looked at"
