"""Findings as tables for terminals and Markdown pages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Shaped

from mechclust.evidence.finding import Finding
from mechclust.evidence.intervals import interval_over_seeds
from mechclust.evidence.parts import Part
from mechclust.evidence.verdict import Verdict

MARKS: dict[Verdict, str] = {
    "holds": "✓",
    "not specific": "≈",
    "does not hold": "✗",
    "undecided": "?",
    "not tested": "–",
}
UNKNOWN = "–"  # in place of a number
_HEADS = ("", "finding", "measured (95%)", "required", "control (95%)", "verdict")
_CHECK_HEADS = ("", "check", "worst value", "required", "verdict")
_Row = tuple[str, ...]


def measured_number(x: float) -> str:
    """Return a number with three decimals, or two digits if three decimals would show a small one as zero.

    Example:
        >>> measured_number(1.2345), measured_number(-0.00047), measured_number(-1e-17)
        ('1.234', '-0.00047', '0.000')
    """
    return f"{x:.2g}" if 1e-9 < abs(x) < 5e-4 else f"{x:z.3f}"


def measured_text(part: Part) -> str:
    """Return a part's value with its 95% interval: ``0.937 (0.886 to 0.989)``. ``-`` without a value."""
    if part.measured is None:
        return "-"
    number = measured_number(part.measured)
    if part.interval is None:
        return number
    low, high = part.interval
    return f"{number} ({measured_number(low)} to {measured_number(high)})"


def mean_text(values: Sequence[float] | Shaped[np.ndarray, "unit"], *, share: bool = False, decimals: int = 2) -> str:
    """Return a mean with its 95% interval, for tables. ``–`` for no values, or if one is not finite.

    Args:
        values: one for each unit, such as a seed.
        share: whether they are shares, whose interval is Wilson's.
        decimals: decimals of each number.

    Example:
        >>> mean_text([0.5, 0.7, 0.9]), mean_text([0.5])
        ('0.70 (0.20 to 1.20)', '0.50')
    """
    numbers = np.asarray(values, dtype=float)
    if not len(numbers) or not np.isfinite(numbers).all():
        return UNKNOWN
    mean = f"{numbers.mean():z.{decimals}f}"
    interval = interval_over_seeds(numbers.tolist(), share=share)
    if interval is None:
        return mean
    low, high = interval
    return f"{mean} ({low:z.{decimals}f} to {high:z.{decimals}f})"


def verdict_text(finding: Finding) -> str:
    """Return the verdict with its mark: ``✓ holds``, ``✓ holds (exploratory)``, ``– not tested: one seed``."""
    text = f"{MARKS[finding.verdict]} {finding.verdict}"
    if finding.verdict == "not tested":
        return f"{text}: {finding.why_not}"
    return f"{text} (exploratory)" if finding.exploratory else text


def shown_on_pages(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings and checks that pages show. All others are in ``findings.csv`` only."""
    return [finding for finding in findings if finding.shown != "table"]


def markdown_table(findings: Sequence[Finding]) -> str:
    """Return a Markdown table with a row for each part of a finding, and a separate table of checks."""
    return "\n\n".join(_markdown(rows) for rows in _tables(findings))


def text_table(findings: Sequence[Finding]) -> str:
    """Return a table for a terminal, and a separate one of checks. Long statements are cut."""
    return "\n\n".join(_text(rows) for rows in _tables(findings))


def notebook_table(findings: Sequence[Finding]) -> str:
    """Return these tables for a notebook, with texts escaped and uncut."""
    import pandas as pd

    with pd.option_context("display.max_colwidth", None):
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
        return [(finding.id, finding.statement, "-", "-", "-", verdict_text(finding))]
    rows: list[_Row] = []
    for place, part in enumerate(finding.parts):
        about = (finding.id, finding.statement) if place == 0 else ("", "and")
        verdict = verdict_text(finding) if place == 0 else ""
        rows.append((*about, measured_text(part), part.required, _control_text(finding, place), verdict))
    return rows


def _control_text(finding: Finding, place: int) -> str:
    """Return the control's value of a part. The first part also has the control's name."""
    if finding.control is None:
        return "not measured" if place == 0 else ""
    value = measured_text(finding.control.parts[place])
    return f"{finding.control.name}: {value}" if place == 0 else value


def _check_row(finding: Finding) -> _Row:
    (first, *others) = finding.parts
    required = "; ".join(part.required for part in (first, *others))
    worst = "-" if first.measured is None else f"{first.measured:z.3g}"
    return (finding.id, finding.statement, worst, required, verdict_text(finding))
