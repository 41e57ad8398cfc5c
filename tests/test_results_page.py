"""What the page of results says is what was measured."""

import json
import re
import runpy
from pathlib import Path

import pytest

from mechclust.evidence import load_findings
from mechclust.evidence.verdict import VERDICTS
from mechclust.studies import list_studies

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
RESULTS = ROOT / "examples" / "results"
RECORDED = [study.name for study in list_studies() if (RESULTS / f"{study.name}-paper").exists()]
RUNS = {name: load_findings(RESULTS / f"{name}-paper") for name in RECORDED}


@pytest.mark.parametrize("name", RUNS)
def test_how_many_findings_hold(name):
    findings = [f for f in RUNS[name] if f.kind == "finding" and f.shown != "table"]
    counts = {verdict: sum(f.verdict == verdict for f in findings) for verdict in VERDICTS}
    tested = len(findings) - counts["not tested"]
    of = "" if tested == len(findings) else f" of {len(findings)}"
    row = next(line for line in PAGE.splitlines() if line.startswith("|") and f"[results](studies/{name}.md)" in line)
    config = json.loads((RESULTS / f"{name}-paper" / "config.json").read_text(encoding="utf-8"))["config"]
    n_seeds = sorted({len(seeds) for setting, seeds in config.items() if re.fullmatch(r"(\w+_)?seeds", setting)})
    seeds = f"{' or '.join(map(str, n_seeds))} seeds"
    numbers = " | ".join(str(counts[word]) for word in ("holds", "not specific", "undecided", "does not hold"))
    assert f"| {tested}{of}, {seeds} | {numbers} |" in row


def test_a_study_that_was_not_recorded_says_so():
    for study in list_studies():
        page = (ROOT / "docs" / "studies" / f"{study.name}.md").read_text(encoding="utf-8")
        assert ("Not recorded yet" in page) == (study.name not in RUNS)


def test_the_headlines():
    rows = re.findall(r"(?m)^\| \[([\w-]+)\]\(studies/[\w-]+\.md\) \| (\w+): .* \| . ([\w ]+) \|$", PAGE)
    assert rows == [(name, f.id, f.verdict) for name in sorted(RUNS) for f in RUNS[name] if f.shown == "headline"]
    assert all(sum(f.shown == "headline" for f in findings) <= 3 for findings in RUNS.values())


def test_its_numbers_are_what_their_generator_writes():
    written = runpy.run_path(str(ROOT / "docs" / "record.py"))["written"]
    assert written(PAGE) == PAGE, "docs/results.md has other numbers; run: make record"
    wrong = PAGE.replace("0.930 (0.889", "0.903 (0.889")
    assert wrong != PAGE
    assert written(wrong) == PAGE
