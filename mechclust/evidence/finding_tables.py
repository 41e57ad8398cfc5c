"""Findings as tables for terminals, notebooks and Markdown pages."""

from __future__ import annotations

from collections.abc import Sequence

from mechclust.evidence.finding import Finding

_HEADS = ("", "finding", "measured (95%)", "required", "control (95%)", "verdict")
_CHECK_HEADS = ("", "check", "worst value", "required", "verdict")
_Row = tuple[str, ...]


def findings_in_tables(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings and checks that pages show. All others are in ``findings.csv`` only."""
    return [finding for finding in findings if finding.shown != "table"]


def findings_markdown_table(findings: Sequence[Finding]) -> str:
    """Return a Markdown table with a row for each part of a finding, and a separate table of checks."""
    return "\n\n".join(_markdown(rows) for rows in _tables(findings))


def findings_text_table(findings: Sequence[Finding]) -> str:
    """Return a table for a terminal, and a separate one of checks. Long statements are cut."""
    return "\n\n".join(_text(rows) for rows in _tables(findings))


def findings_notebook_table(findings: Sequence[Finding]) -> str:
    """Return these tables for a notebook, with texts escaped and uncut."""
    import pandas as pd

    tables = [pd.DataFrame(rows[1:], columns=rows[0]) for rows in _tables(findings)]
    return "".join(table.to_html(index=False, border=0) for table in tables)


def _markdown(rows: Sequence[_Row]) -> str:
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [f"| {' | '.join(row)} |" for row in escaped]
    lines.insert(1, f"|{'|'.join('---' for _ in rows[0])}|")
    return "\n".join(lines)


def _text(rows: Sequence[_Row]) -> str:
    cut = [(name, _cut(statement, 62), *map(_cut, others)) for name, statement, *others in rows]
    widths = [max(map(len, column)) for column in zip(*cut, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cut]
    rule = "".ljust(max(map(len, lines)), "-")
    return "\n".join([lines[0], rule, *lines[1:]])


def _cut(text: str, longest: int = 48) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _tables(findings: Sequence[Finding]) -> list[list[_Row]]:
    """Return the rows of the findings, and the rows of the checks if there are any."""
    tables = []
    rows: list[_Row] = []
    for finding in findings:
        if finding.kind == "finding":
            rows += _finding_rows(finding)
    checks = [_check_row(finding) for finding in findings if finding.kind == "check"]
    if rows or not checks:
        tables.append([_HEADS, *rows])
    if checks:
        tables.append([_CHECK_HEADS, *checks])
    return tables


def _finding_rows(finding: Finding) -> list[_Row]:
    """Return a row for each part, the verdict in the first."""
    if not finding.parts:
        return [(finding.id, finding.statement, "-", "-", "-", finding.verdict_text)]
    rows: list[_Row] = []
    for place, part in enumerate(finding.parts):
        about = (finding.id, finding.statement) if place == 0 else ("", "and")
        verdict = finding.verdict_text if place == 0 else ""
        rows.append((*about, part.measured_text, part.required, _control_text(finding, place), verdict))
    return rows


def _control_text(finding: Finding, place: int) -> str:
    """Return the control's value of a part. The first part also has the control's name."""
    if finding.control is None:
        return "not measured" if place == 0 else ""
    value = finding.control.parts[place].measured_text
    return f"{finding.control.name}: {value}" if place == 0 else value


def _check_row(finding: Finding) -> _Row:
    required = "; ".join(part.required for part in finding.parts) or "-"
    worst = "-" if finding.measured is None else f"{finding.measured:z.3g}"
    return (finding.id, finding.statement, worst, required, finding.verdict_text)
