"""Hostile texts as names of tasks, labels, prompts, documents, folders and controls, through every command.

Each run comes to its end or is refused in one sentence. Then its pages run no script of the text in a real browser,
its tables hold no formula, and the terminal gets no control character.
"""

from __future__ import annotations

import csv
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults.bench import Bench, Outcome, Trial
from tests.faults.hostile import HOSTILE
from tests.faults.process import Call, Failed, command, run, sentence
from tests.faults.subjects import CLUSTERS, COMPARE, TOPICS, corpus, write_corpus, write_prompts
from tests.mechclust.browser import find_browser

if TYPE_CHECKING:
    from playwright.sync_api import Request

KIND = "hostile texts"
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_FORMULA = tuple("=+-@\t\r")
Made = Callable[[Bench, Path, str], Call]


def trials(size: str, draw: random.Random) -> list[Trial]:
    """Some texts, each in one place of one command; or each text in two places."""
    if size == "small":
        places = sorted(PLACES)
        texts = draw.sample(sorted(HOSTILE), len(places))
        chosen = list(zip(places, texts, strict=True))
    else:
        chosen = [(place, text) for text in HOSTILE for place in draw.sample(sorted(PLACES), 2)]
    return [Trial(KIND, f"{text} as {place}", partial(_one, place, text)) for place, text in chosen]


def _one(place: str, name: str, bench: Bench, draw: random.Random) -> Outcome:
    with bench.place(draw) as folder:
        try:
            call = PLACES[place](bench, folder, HOSTILE[name])
        except (OSError, ValueError, UnicodeError):
            return "refused"  # by the file system or the operating system, before us
        ended = run(call, folder)
        for stream in (ended.out, ended.err.replace(b"\r", b"")):  # the progress bar's own
            shown = stream.decode(errors="surrogateescape")
            if found := _CONTROL.search(shown.replace("\n", "")):
                raise Failed(
                    f"the terminal gets {found[0]!r}: {shown[max(0, found.start() - 80) : found.end() + 40]!r}"
                )
        if ended.code:
            sentence(ended)
            return "refused"
        for table in (folder / "out").rglob("*.csv"):
            check_cells(table)
        check_pages(sorted((folder / "out").rglob("*.html")))
        for stray in ("/tmp/mechclust-escaped", folder.parent / "mechclust-escaped"):
            if os.path.lexists(stray):
                raise Failed(f"{stray} was written")
    return "same bits"


def check_cells(table: Path) -> None:
    """Refuse a cell that a spreadsheet takes for a formula."""
    with open(table, newline="", encoding="utf-8", errors="surrogateescape") as file:
        for row in csv.reader(file):
            for cell in row:
                if cell.startswith(_FORMULA) and not _is_number(cell):
                    raise Failed(f"{table.name} has the cell {cell[:60]!r}, a formula to a spreadsheet")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


# ---- where a text stands ----


def _prompts(folder: Path, change: Callable[[dict[str, object]], dict[str, object]]) -> str:
    from tests.mechclust.commands.compare.cases import records

    write_prompts(folder / "prompts.jsonl", [change(row) for row in records(n=20)])
    return str(folder / "prompts.jsonl")


def _task(bench: Bench, folder: Path, text: str) -> str:
    return _prompts(folder, lambda row: row | {"task": text} if row["task"] == "b" else row)


def _compare(bench: Bench, prompts: str, *further: str) -> Call:
    models = (str(bench.inputs / "base"), str(bench.inputs / "tuned"))
    return command("compare", *models, "--prompts", prompts, *COMPARE, *further, "--out", "out")


def _clusters(bench: Bench, prompts: str, *further: str) -> Call:
    return command("clusters", str(bench.inputs / "base"), "--prompts", prompts, *CLUSTERS, *further, "--out", "out")


def _label(bench: Bench, folder: Path, text: str) -> Call:
    count = iter(range(10**6))
    return _clusters(
        bench, _prompts(folder, lambda row: row | {"topic": text if next(count) % 2 else "a"}), "--also", "topic"
    )


def _label_name(bench: Bench, folder: Path, text: str) -> Call:
    count = iter(range(10**6))
    given = _argument(text)
    return _clusters(bench, _prompts(folder, lambda row: row | {text: f"v{next(count) % 2}"}), f"--also={given}")


def _prompt(bench: Bench, folder: Path, text: str) -> Call:
    rows = _prompts(folder, lambda row: row | {"prompt": f"w1 {text} {row['prompt']}"[-3000:]})
    return _compare(bench, rows, "--too-long", "truncate")


def _document(bench: Bench, folder: Path, text: str) -> Call:
    write_corpus(folder / "corpus.txt", [f"{text} w1 {document} {text}" for document in corpus()])
    return command("topics", str(bench.inputs / "base"), "--corpus", "corpus.txt", *TOPICS, "--out", "out")


def _folder(bench: Bench, folder: Path, text: str) -> Call:
    """The model's folder. A text with a slash cannot be its name."""
    _argument(text)
    if "/" in text or text in ("", ".", ".."):
        raise ValueError(text)
    os.symlink(bench.inputs / "tuned", folder / text)
    prompts = str(bench.inputs / "prompts.jsonl")
    return command("compare", str(bench.inputs / "base"), f"./{text}", "--prompts", prompts, *COMPARE, "--out", "out")


def _argument(text: str) -> str:
    """A text that an operating system passes on.

    Raises:
        ValueError: for any other.
    """
    if "\0" in text:
        raise ValueError(text)
    return os.fsdecode(os.fsencode(text))


PLACES: dict[str, Made] = {
    "a task, compared": lambda bench, folder, text: _compare(bench, _task(bench, folder, text)),
    "a task, in clusters": lambda bench, folder, text: _clusters(bench, _task(bench, folder, text)),
    "a label": _label,
    "the name of a label": _label_name,
    "part of a prompt": _prompt,
    "a word of the corpus": _document,
    "the folder of a model": _folder,
}


# ---- in a real browser ----

_HIT = """() => [window.hacked, window.__hit].some((x) => x !== undefined)
  || [...document.querySelectorAll("*")].some((node) => [...node.attributes].some((a) =>
    (a.name.startsWith("on") && a.value.includes("hacked")) ||
    (!/^(alt|title|aria-label)$/.test(a.name) && a.value.trim().toLowerCase().startsWith("javascript:"))))"""
_browser: subprocess.Popen[str] | None = None


def check_pages(pages: list[Path]) -> None:
    """Open pages in headless Chromium: no script but their own runs, and nothing is asked of a network."""
    global _browser
    if pages and find_browser() is None:
        raise Failed("no chromium or no playwright to open pages in: apt-get install chromium, pip install playwright")
    if _browser is None and pages:
        _browser = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.texts"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
        )  # fmt: skip
    for page in pages:
        assert _browser is not None
        assert _browser.stdin is not None
        assert _browser.stdout is not None
        _browser.stdin.write(json.dumps(str(page)) + "\n")
        _browser.stdin.flush()
        answer = _browser.stdout.readline()
        if not answer or (trouble := json.loads(answer)):
            raise Failed(f"{page.name} in the browser: {'; '.join(trouble) if answer else 'the browser broke'}")


def _note_request(asked: list[str], request: Request) -> None:
    asked.append(request.url[:200])


def _open_pages() -> None:
    """A process of its own: reads paths, answers what is wrong with each page."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox", "--disable-gpu"])
        for line in sys.stdin:
            trouble: list[str] = []
            context = chromium.new_context(offline=True)
            page = context.new_page()
            asked: list[str] = []
            page.on("request", partial(_note_request, asked))
            page.goto(Path(json.loads(line)).as_uri())
            page.wait_for_timeout(150)
            if page.evaluate(_HIT):
                trouble.append("a script of the text runs, or would on an event")
            trouble += [f"asks for {url}" for url in asked[1:] if not url.startswith(("data:", "blob:"))]
            context.close()
            print(json.dumps(trouble), flush=True)


if __name__ == "__main__":
    _open_pages()
