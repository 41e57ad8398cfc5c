"""README is short and right: its words, files, commands, code and numbers."""

import re
from pathlib import Path

import pytest

from mechclust.cli import main
from mechclust.evidence import load_findings
from mechclust.evidence.finding_tables import findings_in_tables
from probes.extend import check_probe

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)


def test_it_is_short():
    assert len(README.split()) <= 850


def test_its_sentences_are_short():
    prose = re.sub(r"```.*?```|<!--.*?-->|!\[.*?\]\(.*?\)|^[|#].*?$", " ", README, flags=re.DOTALL | re.MULTILINE)
    sentences = [sentence.split() for sentence in re.split(r"[.?:]\s|\n\n", prose) if len(sentence.split()) > 2]
    assert sum(map(len, sentences)) / len(sentences) <= 17


def test_its_pictures_and_files_are_there():
    places = [place.partition("#")[0] for place in re.findall(r"\]\(([^)]+)\)", README)]
    places += re.findall(r"examples/[\w/.]+\w", README)
    assert len(places) >= 15
    assert [place for place in places if not (ROOT / place).exists()] == []


def test_every_make_target_is_there():
    targets = re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_text())
    named = re.findall(r"make (\w+)", README)
    assert {"demo", "test"} <= set(named) <= set(targets)


COMMANDS = [line.split() for line in re.findall(r"(?m)(?:^|`)mechclust ([a-z]+ [^`\n]+)", README)]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_every_command_and_option_is_there(words, capsys):
    with pytest.raises(SystemExit) as end:
        main([words[0], "--help"])
    assert end.value.code == 0
    printed = capsys.readouterr().out
    assert [word for word in words if word.startswith("--") and word not in printed] == []


def test_its_probe_keeps_the_contract(model, batch):
    (code,) = (block for language, block in BLOCKS if language == "python" and "class MeanNorm" in block)
    names: dict = {}
    exec(code, names)  # README's own text
    check_probe(names["MeanNorm"](), model, batch)


def test_its_findings_are_those_of_the_records():
    rows = re.findall(r"\| (\d+)/(\d+) \| \[[\w ]+\]\(docs/studies/([\w-]+)\.md\) \|", README)
    assert len(rows) == 5
    for hold, tested, study in rows:
        findings = findings_in_tables(load_findings(ROOT / "examples" / "results" / f"{study}-paper"))
        verdicts = [f.verdict for f in findings if f.kind == "finding" and f.verdict != "not tested"]
        assert (int(hold), int(tested)) == (verdicts.count("holds"), len(verdicts)), study
