"""What the documentation says is so: its code runs and prints what it shows, its tables are the measured ones, its list
of public names is complete, and no page is missing or lost."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import runpy
import subprocess
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import probes
from mechclust.evidence import load_findings
from mechclust.evidence.finding_tables import findings_in_tables, findings_markdown_table

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md"))}
FENCE = re.compile(r'^( *)```(\w+)(?: +title="([^"]*)")?[^\n]*\n(.*?)^\1```$', re.DOTALL | re.MULTILINE)
PRINTS = "prints"  # the title of a block that shows what the code before it prints
NUMBER = re.compile(r"-?\d+\.\d*(?:e-?\d+)?")
NOTEBOOKS = {f"examples/{path.stem}.md" for path in (ROOT / "examples").glob("*.ipynb")}
GENERATED = {"contributing.md", "changelog.md", *NOTEBOOKS}  # made by docs/hooks.py


def blocks(text: str) -> list[tuple[str, str, str]]:
    """Language, title and code of each fenced block."""
    found = []
    for indent, language, title, code in FENCE.findall(text):
        found.append((language, title, re.sub(rf"(?m)^{indent}", "", code) if indent else code))
    return found


# ---- code ----


@pytest.mark.parametrize("page", [name for name, text in PAGES.items() if "```python" in text])
def test_code_runs_and_prints_what_the_page_shows(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python blocks of a page run one after another, in an empty folder; a block with a file's name as its title
    is written there, and run as a script."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    before = set(sys.modules)
    printed = ""
    with torch.random.fork_rng(devices=[]):
        for language, title, code in blocks(PAGES[page]):
            if language == "text" and title == PRINTS:
                assert alike(code, printed), f"{page} shows\n{code}\nand its code prints\n{printed}"
            if language != "python":
                continue
            with contextlib.redirect_stdout(io.StringIO()) as out:
                if title:
                    (tmp_path / title).parent.mkdir(exist_ok=True)
                    (tmp_path / title).write_text(code, encoding="utf-8")
                    runpy.run_path(str(tmp_path / title), run_name="__main__")  # workers import it, too
                else:
                    exec(compile(code, f"{page}: {code.strip().splitlines()[0]}", "exec"), vars(module))
            printed = out.getvalue()
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(tmp_path):
            del sys.modules[name]


def test_the_study_of_the_page_is_one_folder_and_one_line(tmp_path: Path) -> None:
    """Its files, and an entry point as an installation would write it down: the command line runs it."""
    page = blocks(PAGES["extend/study.md"])
    for language, title, code in page:
        if language == "python" and title:
            (tmp_path / title).parent.mkdir(exist_ok=True)
            (tmp_path / title).write_text(code, encoding="utf-8")
    (settings,) = [tomllib.loads(code) for language, _, code in page if language == "toml"]
    (group,) = settings["project"]["entry-points"]
    ((name, value),) = settings["project"]["entry-points"][group].items()
    info = tmp_path / "small_study-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: small-study\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")

    def mechclust(*arguments: str) -> str:
        command = [sys.executable, "-m", "mechclust", *arguments]
        return subprocess.check_output(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)}, text=True)

    assert "  small (small-study 0.1.0): Task clusters appear in training\n" in mechclust("list")
    assert "not tested" in mechclust("run", name, "--preset", "smoke", "--workers", "1", "--out", "run")
    assert (tmp_path / "run" / "report.html").exists()


def alike(shown: str, printed: str) -> bool:
    """Word for word; decimals up to the rounding of another machine."""
    if (shown := shown.strip()) == (printed := printed.strip()):
        return True
    if re.sub(r"\s+", "", NUMBER.sub("#", shown)) != re.sub(r"\s+", "", NUMBER.sub("#", printed)):
        return False
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True)
    return all(abs(float(a) - float(b)) <= 0.002 + 0.01 * abs(float(b)) for a, b in pairs)


def test_most_code_is_run() -> None:
    """Blocks that only look like Python are few: what is no ``python`` block is a shell line, a file or an output."""
    languages = {language for text in PAGES.values() for language, _, _ in blocks(text)}
    assert languages <= {"python", "text", "sh", "toml", "json"}
    assert sum(len(blocks(text)) for text in PAGES.values()) == sum(
        len(re.findall(r"(?m)^ *```\w+", text)) for text in PAGES.values()
    )


def options() -> list[tuple[str, str]]:
    """Every ``--option`` of a ``mechclust`` line in the pages, with the words before it."""
    found = set()
    for text in PAGES.values():
        for language, _, code in blocks(text):
            for line in code.replace("\\\n", " ").splitlines() if language == "sh" else ():
                if match := re.match(r"(?:\w+=\S+ +)*mechclust ((?:run )?[a-z][\w-]*)", line):
                    found |= {(match[1], option) for option in re.findall(r" (--[\w.-]+)", line)}
    return sorted(found)


@pytest.mark.parametrize(("command", "option"), options())
def test_command_lines_have_options_that_exist(
    command: str, option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mechclust.cli import main

    monkeypatch.setenv("COLUMNS", "200")
    with contextlib.suppress(SystemExit):
        main([*command.split(), "--help"])
    printed = capsys.readouterr()
    assert option in re.findall(r"--[\w.-]+", printed.out + printed.err)


# ---- what was measured ----


@pytest.mark.parametrize("run", sorted((ROOT / "examples" / "results").iterdir()), ids=lambda path: path.name)
def test_the_findings_are_the_measured_ones(run: Path) -> None:
    name = run.name.removesuffix("-paper")
    if all(finding.verdict == "not tested" for finding in load_findings(run / "findings.json")):
        assert f"results/{run.name}/figures/" in "".join(PAGES.values())
        return
    mark = re.compile(rf"<!-- findings: {name}((?: \w+)*) -->")
    marked = [(found[1].split(), text) for text in PAGES.values() if (found := mark.search(text))]
    if not marked:  # an arm whose findings stand in its findings.csv alone
        assert f"`{run.name}`" in "".join(PAGES.values())
        return
    ids, page = marked[0]
    findings = load_findings(run / "findings.json")
    assert (
        findings_markdown_table([f for f in findings if f.id in ids] if ids else findings_in_tables(findings)) in page
    )


def test_the_numbers_are_what_their_generator_writes() -> None:
    generator = runpy.run_path(str(DOCS / "record.py"))
    marked = {path.relative_to(DOCS).as_posix() for path in generator["pages"]() if path.is_relative_to(DOCS)}
    recorded = [name for name, text in PAGES.items() if name.startswith("studies/") and "Not recorded yet." not in text]
    assert marked == {
        "findings.md",
        "real-models.md",
        "commands/mossa.md",
        "commands/topics.md",
        "probes/head-roles.md",
        "results.md",
        *recorded,
    }
    for name in marked - {"results.md"}:  # tests/test_results_page.py
        assert generator["written"](PAGES[name]) == PAGES[name], f"docs/{name} has other numbers; run: make record"
        wrong = generator["_MARKED"].sub(
            lambda marked: re.sub(r"\| -?\d\.\d{3} \(", "| 9.999 (", marked[0]), PAGES[name]
        )
        assert wrong != PAGES[name]
        assert generator["written"](wrong) == PAGES[name]


def test_every_figure_is_there() -> None:
    places = [
        (name, DOCS / Path(name).parent / place)
        for name, text in PAGES.items()
        for place in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    ]
    assert len(places) >= 8
    for name, place in places:
        results = place.resolve().is_relative_to(DOCS / "results")
        file = ROOT / "examples" / place.resolve().relative_to(DOCS) if results else place
        assert file.exists(), f"{name}: no figure {file}"


# ---- nothing is missing ----


def test_the_list_of_public_names_is_that_of_the_packages() -> None:
    spec = importlib.util.spec_from_file_location("public_api", DOCS / "public_api.py")
    assert spec is not None
    assert spec.loader is not None
    generator: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    page = PAGES["public-api.md"]
    listed = set(re.findall(r"(?m)^\[`[^`]+`\]\[([\w.]+)\]", page))
    public = {f"{door}.{name}" for door, names in generator.public_names().items() for name in names}
    way = "run: python docs/public_api.py"
    assert sorted(public - listed) == [], f"public names that docs/public-api.md lacks; {way}"
    assert sorted(listed - public) == [], f"names in docs/public-api.md that are not public; {way}"
    assert page == generator.page(), f"docs/public-api.md is not what its generator writes; {way}"


def test_every_door_has_an_api_page() -> None:
    documented = {name for text in PAGES.values() for name in re.findall(r"(?m)^::: ([\w.]+)$", text)}
    doors = set(re.findall(r"(?m)^## `([\w.]+)`", PAGES["public-api.md"]))
    assert doors <= documented


def test_every_probe_has_a_page() -> None:
    measures = [getattr(probes, name) for name in probes.__all__]
    names = [p.__name__ for p in measures if isinstance(p, type) and issubclass(p, probes.Probe)]
    names = [name for name in names if name != "Probe"]
    titles = " ".join(
        line for page, text in PAGES.items() if page.startswith("probes/") for line in text.splitlines()[:1]
    )
    assert len(names) >= 11
    for name in [*names, "WeightNorms", "causal_checks"]:
        assert re.search(rf"\b{name}\b", titles), f"no page of docs/probes has {name} in its title"


def test_the_table_of_clauses_is_that_of_check_probe() -> None:
    from probes.checks import check_probe as contract

    rows = re.findall(r"(?m)^\| ([\w ]+) \| .* \| \"(.+)\" \|$", PAGES["extend/probe.md"])
    assert [clause for clause, _ in rows] == list(contract._CLAUSES)
    source = Path(str(contract.__file__)).read_text(encoding="utf-8")
    for clause, message in rows:
        assert message in source, f"check_probe does not say {message!r} (clause {clause!r})"


def test_the_files_that_the_page_on_the_layout_names_are_there() -> None:
    page = PAGES["house.md"]
    files = re.findall(r"`((?:tasks|probes|mechclust)/[\w/]+\.py)`", page)
    assert len(files) > 30
    assert [name for name in files if not (ROOT / name).exists()] == []
    tree = next(code for _, _, code in blocks(page))
    rooms = re.findall(r"[\w/]+(?:\.py|/)(?=[ \n])", tree)
    known = {path.name for root in ("tasks", "probes", "mechclust") for path in (ROOT / root).rglob("*")}
    assert {Path(name).name for name in rooms} - known <= {
        "tasks",
        "probes",
        "mechclust",
        "tests",
        "examples",
        "docs",
        "benchmarks",
        "real",
        "faults",
    }


def pages_of(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for item in (nav.values() if isinstance(nav, dict) else nav) for page in pages_of(item)]


def test_every_page_is_in_the_navigation() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    listed = pages_of(settings["nav"])
    assert sorted(listed) == sorted({*PAGES, *GENERATED})
