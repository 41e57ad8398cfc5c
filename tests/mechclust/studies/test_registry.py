"""Studies by name, with those that other packages register by a real entry point."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mechclust.cli import main
from mechclust.evidence import load_findings
from mechclust.studies import get_study, list_studies, open_run, registered_studies
from tasks import InputError

OURS = [
    *("cluster-factors", "clustering-heads", "heads-in-models", "induction-heads", "mossa", "planted-layers"),
    *("task-clusters", "topic-structure"),
]


def test_ours_are_registered_like_any_other() -> None:
    found = registered_studies()
    assert [each.name for each in found] == OURS
    assert all(each.package.startswith("mechclust ") and not each.error for each in found)
    assert [study.name for study in list_studies()] == OURS


def test_one_of_another_package_is_found_run_and_opened_again(
    install: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(toy="other_studies:STUDY")
    found = registered_studies()[-1]
    assert (found.name, found.package, found.error) == ("toy", "other-studies 1.2", "")
    out = tmp_path / "run"
    assert main(["run", "toy", "--preset", "smoke", "--training.lr", "0.3", "--out", str(out), "--workers", "1"]) == 0
    assert "values are small" in capsys.readouterr().out
    (out / "report.html").unlink()
    assert main(["report", str(out)]) == 0
    assert "<h1>A toy</h1>" in (out / "report.html").read_text()
    study, config = open_run(out)
    assert (study.name, config.training.lr, config.seeds) == ("toy", 0.3, (0,))
    assert [finding.verdict for finding in load_findings(out)] == ["not tested"]  # one seed
    assert json.loads((out / "config.json").read_text())["study"] == "toy"


def test_figures_for_print_come_on_request(
    install: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which files there are: ``test_pictures`` looks into them."""
    monkeypatch.setattr("mechclust.report.pictures._drawn", lambda figure, **options: b"drawn")
    install(toy="other_studies:STUDY")
    figures = tmp_path / "out" / "figures"
    run = ["run", "toy", "--preset", "smoke", "--out", str(tmp_path / "out"), "--workers", "1"]
    report = ["report", str(tmp_path / "out")]
    record = [*report, "--record", str(tmp_path / "record")]
    for command in (run, report, record):
        assert main([*command, "--print-figures"]) == 0
        assert {path.name for path in figures.iterdir()} == {"again.pdf", "again.png", "values.pdf", "values.png"}
        assert main(command) == 0
        assert {path.name for path in figures.iterdir()} == {"again.png", "values.png"}


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_package", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("raise RuntimeError('two\\nlines')", "RuntimeError: two lines"),
        ("import sys; sys.exit('go away')", "SystemExit: go away"),
        ("def broken(:", "SyntaxError: "),
        ("STUDI = 1", "AttributeError: "),
    ],
)
def test_a_broken_one_is_listed_with_its_reason_and_leaves_the_others(
    install: Callable[..., None], source: str, reason: str
) -> None:
    install(source, package="broken-studies", broken="broken_studies:STUDY")
    install(toy="other_studies:STUDY")
    found = {each.name: each for each in registered_studies()}
    assert found["broken"].study is None
    assert found["broken"].error.startswith(f"broken_studies:STUDY: {reason}")
    assert [study.name for study in list_studies()] == [*OURS, "toy"]
    assert get_study("toy").title == "A toy"
    with pytest.raises(InputError) as refused:
        get_study("broken")
    assert str(refused.value) == f"study 'broken' of broken-studies 1.2 is broken: {found['broken'].error}"


def test_what_is_not_a_study_is_broken(install: Callable[..., None]) -> None:
    install(number="other_studies:NUMBER", function="other_studies:report")
    found = {each.name: each.error for each in registered_studies()}
    assert found["number"] == "other_studies:NUMBER is 3; expected a mechclust.studies.Study"
    assert found["function"].startswith("other_studies:report is <function report")
    with pytest.raises(InputError, match=r"^study 'number' of other-studies 1\.2 is broken: other_studies:NUMBER is 3"):
        get_study("number")


def test_two_of_one_name_are_both_broken_and_ours_are_not_taken(install: Callable[..., None]) -> None:
    install(toy="other_studies:STUDY", mossa="other_studies:STUDY")
    install(package="more-studies", toy="more_studies:STUDY")
    found = [(each.name, each.package.split()[0], each.error) for each in registered_studies()]
    assert found[len(OURS) :] == [
        ("mossa", "other-studies", "another study is called 'mossa'; rename one"),
        ("toy", "more-studies", "another study is called 'toy'; rename one"),
        ("toy", "other-studies", "another study is called 'toy'; rename one"),
    ]
    assert [study.name for study in list_studies()] == OURS
    assert get_study("mossa").source.startswith("Zhao")
    with pytest.raises(InputError, match=r"^study 'toy' of more-studies 1\.2 is broken: another study is called 'toy'"):
        get_study("toy")


def test_they_are_in_the_list(install: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    install("import no_such_package", package="broken-studies", broken="broken_studies:STUDY")
    install(toy="other_studies:STUDY")
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("toy" in line and "A toy" in line for line in lines)
    (row,) = [line for line in lines if "broken-studies 1.2" in line]
    assert "No module named 'no_such_package'" in row


def test_one_registered_under_another_name_is_broken(install: Callable[..., None]) -> None:
    install(mine="other_studies:STUDY")
    with pytest.raises(InputError, match=r"is called 'toy'; register it under that name$"):
        get_study("mine")
