"""Every kind of file of ours, damaged in the folder of a finished run: the same command heals it or refuses it."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.faults.bench import Bench, Outcome, Trial
from tests.faults.process import Failed, run, sentence
from tests.faults.subjects import SUBJECTS

KIND = "damaged files"
DAMAGES = ("flipped", "truncated", "emptied", "deleted", "a folder")
_SMALL = (
    ("save_rows", ("flipped", "deleted")),
    ("artefacts", ("flipped", "truncated")),
    ("train", ("flipped", "emptied")),
    ("compare", ("flipped", "truncated", "a folder")),
    ("topics", ("deleted",)),
    ("clusters", ("emptied",)),
    ("mossa", ("flipped",)),
)
_FOLLOWED = 12  # ways out, one after another


def trials(size: str, draw: random.Random) -> list[Trial]:
    """Some damages of some subjects' files; or every damage of every kind of file of every subject, twice."""
    if size == "small":
        chosen: list[tuple[str, str, int | None]] = [
            (name, damage, None) for name, damages in _SMALL for damage in damages
        ]
    else:
        names = [name for name in SUBJECTS if "--workers" not in name]
        chosen = [(name, damage, n) for name in names for damage in DAMAGES for n in range(_KINDS_OF_FILE[name])]
    return [
        Trial(
            KIND,
            f"{name}, {damage}{'' if n is None else f', kind of file {n}'}",
            partial(_one, name, damage, n),
            [name],
        )
        for name, damage, n in chosen
    ]


# How many kinds of file a subject writes, at least: a later kind is drawn from those there are.
_KINDS_OF_FILE = {
    **dict.fromkeys(SUBJECTS, 6),
    **{
        "save_rows": 4,
        "artefacts": 3,
        "train": 4,
        "train_ensemble": 2,
        "run_sharded": 2,
        "compare": 10,
        "clusters": 10,
    },
}


def kinds_of_file(out: Path) -> list[list[Path]]:
    """Files by what their paths say without numbers and seeds, the largest kinds not larger than others."""
    found: dict[str, list[Path]] = {}
    for path in sorted(path.relative_to(out) for path in out.rglob("*") if path.is_file()):
        if path.name == ".mechclust.lock":
            continue
        parts = path.parts if len(path.parts) < 3 else (path.parts[0], path.parts[-1])
        found.setdefault(re.sub(r"[0-9a-f]{32}|\d+", "N", "/".join(parts)), []).append(path)
    return list(found.values())


def _one(name: str, damage: str, n: int | None, bench: Bench, draw: random.Random) -> Outcome:
    known = bench.undisturbed(name)
    files = kinds_of_file(known.out)
    with bench.place(draw) as folder:
        shutil.copytree(known.out, folder / "out", symlinks=True)
        path = Path("out") / draw.choice(files[n % len(files)] if n is not None else draw.choice(files))
        told = f"{path} {apply(damage, folder / path, draw)}"
        try:
            return go_on(name, bench, folder, draw, _names(path))
        except Failed as failure:
            raise Failed(f"{told}: {failure}") from None


def go_on(name: str, bench: Bench, folder: Path, draw: random.Random, names: Sequence[str] = ()) -> Outcome:
    """Give the same command, and follow the ways out that it names, until it gives the same bits.

    Args:
        name: of the subject.
        bench: that knows the bits.
        folder: the working folder.
        draw: of another folder, where a sentence asks for one.
        names: one of which the first refusal must say; empty: any.

    Raises:
        Failed: for other bits, a refusal without a way out, and ways out that lead nowhere.
    """
    said = ""
    for _ in range(_FOLLOWED):
        ended = run(bench.call(name), folder)
        if ended.code == 0:
            bench.check_same(name, folder, ended)
            return "refused" if said else "same bits"
        is_first = not said
        said = sentence(ended)
        if is_first and names and not any(part in said for part in names):
            raise Failed(f"the sentence does not name the file: {said}")
        if follow(said, folder) == "elsewhere":
            with bench.place(draw) as other:
                bench.begin(name, other)
                bench.finish(name, other)
            return "refused"
    raise Failed(f"the ways out lead nowhere; the last: {said}")


def _names(path: Path) -> list[str]:
    """How a sentence may name a file: by its name, or that of a folder below ``out``."""
    return [path.name, *(parent.name for parent in path.parents if parent.name and parent.name != "out")]


def apply(damage: str, path: Path, draw: random.Random) -> str:
    """Damage a file; in words."""
    size = path.stat().st_size
    if damage == "flipped" and size:
        place, bit = draw.randrange(size), draw.randrange(8)
        data = bytearray(path.read_bytes())
        data[place] ^= 1 << bit
        path.write_bytes(data)
        return f"with bit {bit} of byte {place} of {size} flipped"
    if damage == "truncated":
        left = draw.randrange(max(size, 1))
        with open(path, "r+b") as file:
            file.truncate(left)
        return f"cut to {left} of {size} bytes"
    if damage == "emptied":
        path.write_bytes(b"")
        return "emptied"
    path.unlink()
    if damage == "a folder":
        path.mkdir()
        (path / "something").write_text("else")
        return "replaced by a folder"
    return "deleted"


def follow(said: str, folder: Path) -> str:
    """Do what a sentence says is the way out, up to giving the same command again.

    Raises:
        Failed: when it names no way out.
    """
    _, _, way = said.rpartition("; ")
    in_quotes = re.findall(r"'([^']+)'", way) or re.findall(r"'([^']+)'", said)
    if re.search(r"\b(delete|remove|move)\b", way):
        paths = [folder / name for name in in_quotes if (folder / name).exists() or (folder / name).is_symlink()]
        if not paths:
            raise Failed(f"nothing to delete is there: {said}")
        for path in paths[:1]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return "deleted"
    if re.search(r"another folder|new folder|--out", way):
        return "elsewhere"
    if re.search(r"same (command|call|arguments)|again", way):
        return "again"
    raise Failed(f"the sentence names no way out that can be followed: {said}")
