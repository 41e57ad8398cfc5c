"""Count the words of the docs, and habits of wording in docs and docstrings: ``python docs/words.py [PAGE...]``.

A count is a place to look, not a verdict. With pages, their sentences with a habit are printed.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_PACKAGES = ("tasks", "probes", "mechclust")
_HABITS = {
    "what (noun)": re.compile(r"\bwhat\b(?![^.?!]*\?)", re.IGNORECASE),
    "where (if)": re.compile(r"(?<!from )\bwhere (?:an?|the|there|it|they|one|no|neither|both|all|some|only)\b"),
    "the same": re.compile(r"\bthe same\b", re.IGNORECASE),
    "that of": re.compile(r"\b(?:that|those) of\b", re.IGNORECASE),
    "of its own": re.compile(r"\bof (?:its|their|your|our) own\b"),
    "semicolon": re.compile(r";"),
    "nothing": re.compile(r"\b(?:nothing|nobody|no one)\b", re.IGNORECASE),
}
_FENCE = re.compile(r"(?ms)^ *```.*?^ *```$")
_GENERATED = re.compile(r"(?s)<!-- (?:findings|counts|headlines|checkpoints|roles).*?<!-- end -->")
_COMMENT = re.compile(r"(?s)<!--.*?-->")
_DOCTEST = re.compile(r"(?m)^ *(?:>>>|\.\.\.) .*$")
_SENTENCE_END = re.compile(r"(?<=[.?!:])\s+(?=[A-Z`*\[$])|\n\s*\n|\n\s*(?:[-*|]|\d+\.)\s")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def prose(text: str) -> str:
    """Return a page's text without code, generated tables and comments."""
    for pattern in (_FENCE, _GENERATED, _COMMENT):
        text = pattern.sub("", text)
    return text


def sentences(text: str) -> list[str]:
    """Return the sentences of at least three words; table rows and headings are left out."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(("|", "#", "!["))]
    parts = [" ".join(part.split()) for part in _SENTENCE_END.split("\n".join(lines))]
    return [part for part in parts if len(part.split()) >= 3]


def docstrings() -> list[str]:
    """Return the docstrings of the packages, without their examples."""
    texts = []
    for package in _PACKAGES:
        for path in sorted((_ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, _DOCUMENTED):
                    texts.append(_DOCTEST.sub("", ast.get_docstring(node) or ""))
    return texts


def print_counts(title: str, words: int, texts: list[str]) -> None:
    """Print the number of words, of each habit, and the mean sentence's length."""
    lengths = [len(sentence.split()) for text in texts for sentence in sentences(text)]
    mean = sum(lengths) / max(len(lengths), 1)
    counts = [f"{name} {sum(len(habit.findall(text)) for text in texts)}" for name, habit in _HABITS.items()]
    print(f"{words:7,} {title}: {mean:.1f} words in the mean sentence; {', '.join(counts)}")


def print_places(page: Path) -> None:
    """Print each sentence of a page that has a habit, or more than 30 words."""
    for sentence in sentences(prose(page.read_text(encoding="utf-8"))):
        habits = [name for name, habit in _HABITS.items() if habit.search(sentence)]
        if len(sentence.split()) > 30:
            habits.append("long")
        if habits:
            print(f"{page} ({', '.join(habits)}): {sentence}")


def main() -> None:
    """Print the counts of every page, or the places in some."""
    if sys.argv[1:]:
        for name in sys.argv[1:]:
            print_places(Path(name))
        return
    pages = [*sorted((_ROOT / "docs").rglob("*.md")), _ROOT / "README.md"]
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    for page, text in texts.items():
        print_counts(page.relative_to(_ROOT).as_posix(), len(text.split()), [prose(text)])
    total = sum(len(text.split()) for text in texts.values())
    print_counts("docs and README", total, [prose(text) for text in texts.values()])
    documented = docstrings()
    print_counts("docstrings", sum(len(text.split()) for text in documented), documented)


if __name__ == "__main__":
    main()
