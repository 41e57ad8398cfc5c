"""What the README says is what was measured, and its code runs."""

import re
import runpy
from pathlib import Path

import pytest

from mechclust.report import load_claims
from mechclust.studies import list_studies

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RUNS = {study.name: load_claims(ROOT / "examples" / "results" / f"{study.name}-paper") for study in list_studies()}


@pytest.mark.parametrize("name", RUNS)
def test_how_many_claims_hold(name):
    claims = RUNS[name]
    tested = [c for c in claims if c.holds is not None]
    of = "" if len(tested) == len(claims) else f" of {len(claims)}"
    hold, seeds = sum(bool(c.holds) for c in tested), max(c.seeds for c in claims)
    row = next(line for line in README.splitlines() if f"(docs/studies/{name}.md)" in line)
    assert f"| {len(tested)}{of}, {seeds} seeds | {hold} |" in row


def test_the_measured_numbers():
    known = {c.id: c for claims in RUNS.values() for c in claims}
    rows = re.findall(r"(?m)^\| ([A-Z]\d+\w?) .* \| (\S+) \((\S+) to (\S+)\) \| ([\w ]+) \|$", README)
    assert len(rows) >= 6
    for name, *shown, verdict in rows:
        c = known[name]
        assert shown == [f"{x:.3f}" for x in (c.measured, *c.interval)], name
        assert verdict == c.verdict, name
    assert {"holds", "does not hold"} == {row[-1] for row in rows}


def test_its_numbers_are_what_their_generator_writes():
    written = runpy.run_path(str(ROOT / "docs" / "record.py"))["written"]
    assert written(README) == README, "README.md has other numbers; run: make record"
    wrong = README.replace("| 10, 3 seeds | 10 |", "| 10, 3 seeds | 9 |").replace("0.965 (0.842", "0.956 (0.842")
    assert wrong != README
    assert written(wrong) == README


def test_its_pictures_and_files_are_there():
    names = re.findall(r"\]\(((?:examples|docs)/[^)#]+)", README) + re.findall(r"`(examples/[^`*]+)`", README)
    assert len(names) >= 10
    assert all((ROOT / name).exists() for name in names)


def test_its_probe_keeps_the_contract(model, batch):
    from probes.testing import check_probe

    code = next(block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "class MeanNorm" in block)
    names: dict = {}
    exec(code, names)  # the README's own text
    check_probe(names["MeanNorm"](), model, batch)


def test_its_script_is_the_example():
    code = next(
        block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "InstructionFollowing" in block
    )
    example = (ROOT / "examples" / "task_clusters.py").read_text()
    for line in code.splitlines():
        if line.startswith(("from", "task =", "model =")):
            assert line in example
