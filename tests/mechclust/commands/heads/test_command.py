"""The command line: what is refused before a model is loaded, what is printed, and the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mechclust.cli import main
from mechclust.commands.heads import HeadsResult, measure_heads
from tasks import InputError
from tests.mechclust.commands.heads.planted import PLANTED_CONFIG, SMALL, planted
from tests.mechclust.commands.hook_columns import faults, tables_of

OPTIONS = [
    "--n-sequences",
    "6",
    "--length",
    "16",
    "--periods",
    "4",
    "6",
    "--max-offset",
    "2",
    "--n-permutations",
    "199",
]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_sequences": 1}, "n_sequences is 1; expected at least 2"),
        ({"periods": (6, 4)}, r"periods is \(6, 4\); expected \(fewest, most\)"),
        ({"periods": (4, 15)}, "periods has 15; expected at most 14 in sequences of 16 tokens"),
        ({"max_offset": 3}, "periods begins at 4, and max_offset is 3; give periods of at least 5"),
        ({"max_offset": 1}, "max_offset is 1; expected at least 2"),
        ({"length": 40, "periods": (4, 20)}, "periods has 20, which do not repeat in the 16 tokens"),
        ({"tokens_per_batch": 15}, "tokens_per_batch is 15, fewer than the 16 tokens of a sequence"),
        (
            {"tokens_per_batch": 16, "max_length": 17, "corpus": (Path("none.txt"),)},
            "tokens_per_batch is 16, fewer than the 17 tokens of a window",
        ),
        ({"n_permutations": -1}, "n_permutations is -1; expected at least 0"),
        ({"untrained": -1}, "untrained is -1; expected at least 0"),
        ({"corpus": (Path("none.txt"),)}, "none.txt"),
    ],
)
def test_what_is_refused(gpt2: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], message: str) -> None:
    monkeypatch.setattr("mechclust.commands.settings.load_pretrained", None)
    with pytest.raises(InputError, match=message):
        measure_heads(str(gpt2), replace(SMALL, **changes))


def test_documents_that_are_not_read_fit_in_any_batch() -> None:
    replace(SMALL, tokens_per_batch=16, max_length=17).check()


def test_one_document_is_refused(gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mechclust.commands.settings.load_pretrained", None)
    (tmp_path / "one.txt").write_text("w1 w2 w3")
    with pytest.raises(InputError, match="has one document, and intervals over documents need 2"):
        measure_heads(str(gpt2), replace(SMALL, corpus=(tmp_path / "one.txt",)))


def test_a_model_in_memory_is_refused_by_workers() -> None:
    with pytest.raises(InputError, match="a model in memory cannot be loaded by other processes"):
        measure_heads(planted(), replace(PLANTED_CONFIG, workers=2))


def test_the_folder_of_another_model_is_refused(gpt2: Path, write_checkpoint: Any, tmp_path: Path) -> None:
    measure_heads(str(gpt2), SMALL, tmp_path / "out")
    other = write_checkpoint(tmp_path / "other", seed=8)
    with pytest.raises(InputError, match="holds what was measured of the model"):
        measure_heads(str(other), SMALL, tmp_path / "out")


def test_brief_prints_the_headline_and_one_table(
    gpt2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["heads", str(gpt2), *OPTIONS, "--out", str(tmp_path / "out"), "--brief"]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0] == "On repeated random tokens, none of 4 heads is shown to play a role. Random weights: 0."
    assert lines[2].split() == ["text", "role", "heads", "strongest", "score", "chance", "random", "weights"]
    assert len(lines) == 3 + 7
    assert said.err.startswith("time: about ")
    assert not (tmp_path / "out" / "report.html").exists()


def test_figures_for_print_come_on_request(gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which files there are: ``test_pictures`` looks into them."""
    monkeypatch.setattr("mechclust.report.pictures._drawn", lambda figure, **options: b"drawn")
    command = ["heads", str(gpt2), *OPTIONS, "--out", str(tmp_path)]
    assert main([*command, "--print-figures"]) == 0
    names = {path.stem for path in (tmp_path / "figures").glob("*.pdf")}
    assert names == {path.stem for path in (tmp_path / "figures").glob("*.png")} != set()
    assert main(command) == 0
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {f"{name}.png" for name in names}


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> tuple[HeadsResult, Path]:
    """What was planted, measured and reported: result, page; read only."""
    out = tmp_path_factory.mktemp("reported")
    result = measure_heads(planted(), PLANTED_CONFIG, out)
    return result, result.write(out)


def test_the_page(reported: tuple[HeadsResult, Path]) -> None:
    result, page = reported
    out = page.parent
    files = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    assert [file for file in files if not file.startswith(("roles/", "."))] == [
        "figures/roles_by_head.png",
        "figures/scores_by_role.png",
        "heads.csv",
        "mechclust.json",
        "report.html",
        "results/trained/attention-repeated-tokens.safetensors",
        "results/trained/roles-repeated-tokens.safetensors",
        "roles.csv",
        "scores.csv",
    ]
    text = page.read_text()
    assert result.headline in text
    assert len(result.headline.split()) <= 25
    assert '"name":"L1H' in text.replace('": "', '":"')
    for name, (columns, *rows) in tables_of(page).items():
        assert faults(columns, rows) == [], name


def test_the_page_in_a_browser(reported: tuple[HeadsResult, Path], browser: Any) -> None:
    """Headline, map and table end above the fold, and attention is drawn."""
    page_path = reported[1]
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    trouble: list[str] = []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.goto(page_path.as_uri())
    page.wait_for_selector("canvas")
    assert page.evaluate("document.querySelector('.opening').getBoundingClientRect().bottom") <= 900
    table = page.evaluate("(({scrollHeight: a, clientHeight: b}) => a - b)(document.querySelector('.opening .table'))")
    assert table <= 1
    assert trouble == []
    page.close()
