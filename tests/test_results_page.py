"""What the page of results says is what was measured."""

import json
import re
import runpy
from pathlib import Path

import pytest

from mechclust.evidence import lacking_severity, load_findings
from mechclust.evidence.bounds import VERDICTS
from mechclust.studies import list_studies

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
RESULTS = ROOT / "examples" / "results"
RECORDED = [study.name for study in list_studies() if (RESULTS / f"{study.name}-paper").exists()]
RUNS = {name: load_findings(RESULTS / f"{name}-paper") for name in RECORDED}


@pytest.mark.parametrize("name", RUNS)
def test_how_many_findings_hold(name):
    findings = [c for c in RUNS[name] if c.kind == "finding"]
    counts = {verdict: sum(c.verdict == verdict for c in findings) for verdict in VERDICTS}
    tested = len(findings) - counts["not tested"]
    of = "" if tested == len(findings) else f" of {len(findings)}"
    row = next(line for line in PAGE.splitlines() if line.startswith("|") and f"(studies/{name}.md)" in line)
    config = json.loads((RESULTS / f"{name}-paper" / "config.json").read_text(encoding="utf-8"))["config"]
    of_words = f"{len(config['word_seeds'])} or " if "word_seeds" in config else ""
    shown = f"| {tested}{of}, {of_words}{len(config['seeds'])} seeds | "
    weak = sum(c.weak for c in findings if c.verdict == "holds")
    holds = f"{counts['holds']} ({weak} weak)" if weak else f"{counts['holds']}"
    assert f"{shown}{holds} | {counts['undecided']} | {counts['does not hold']} |" in row


def test_a_study_that_was_not_recorded_says_so():
    for study in list_studies():
        page = (ROOT / "docs" / "studies" / f"{study.name}.md").read_text(encoding="utf-8")
        assert ("Not recorded yet" in page) == (study.name not in RUNS)


@pytest.mark.parametrize("record", sorted(RESULTS.iterdir()), ids=lambda path: path.name)
def test_every_recorded_finding_has_a_severity_or_says_why_not(record):
    assert lacking_severity(load_findings(record)) == []


def test_the_measured_numbers():
    measured, severity = r"(\S+) \((\S+) to (\S+)\)", r"([\d.]+(?: \(weak\))?|-)"
    pattern = rf"(?m)^\| ([A-Z]\d+\w?) (?:\(([\w-]+)\) )?.* \| {measured} \| ([\w ]+) \| {severity} \|$"
    rows = re.findall(pattern, PAGE)
    assert len(rows) >= 6
    for name, study, *shown, verdict, severity in rows:
        (c,) = (c for of, findings in RUNS.items() for c in findings if c.id == name and study in ("", of))
        assert shown == [f"{x:.3f}" for x in (c.measured, *c.interval)], name
        assert verdict == c.verdict, name
        assert severity == ("-" if c.severity is None else f"{c.severity:.2f}" + " (weak)" * c.weak), name
    assert {row[-2] for row in rows} == {"holds", "undecided", "does not hold"}


def test_its_numbers_are_what_their_generator_writes():
    written = runpy.run_path(str(ROOT / "docs" / "record.py"))["written"]
    assert written(PAGE) == PAGE, "docs/results.md has other numbers; run: make record"
    wrong = PAGE.replace("| 8, 3 seeds | 3 |", "| 8, 3 seeds | 8 |").replace("0.937 (0.886", "0.973 (0.886")
    assert wrong != PAGE
    assert written(wrong) == PAGE
