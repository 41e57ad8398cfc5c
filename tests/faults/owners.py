"""Two processes with one folder: one of them works, the other is refused, and the result is whole."""

from __future__ import annotations

import random
from pathlib import Path

from filelock import FileLock, Timeout

from probes.store.temporary_files import LOCK
from tests.faults.bench import Bench, Outcome, Trial, each_subject
from tests.faults.process import Failed, Process, sentence
from tests.faults.subjects import SUBJECTS

KIND = "two owners"


def trials(size: str, draw: random.Random) -> list[Trial]:
    """Each subject that takes a while, or a few."""
    few = ("save_rows", "train", "compare")
    return each_subject(KIND, _two, size, few, never=("artefacts", "report"))


def _two(name: str, bench: Bench, draw: random.Random) -> Outcome:
    """The second starts at once, or some time later, while the first stands still if it holds the folder."""
    seconds = bench.undisturbed(name).seconds
    with bench.place(draw) as folder:
        bench.begin(name, folder)
        after = draw.choice([0.0, draw.uniform(0, 0.6) * seconds])
        before = _files(folder)
        first = Process(bench.call(name), folder)
        stands = first.after(after) and not SUBJECTS[name].waits and first.stop()
        held = stands and _is_held(folder)
        begun = stands and _files(folder) > before
        second = Process(bench.call(name), folder)
        try:
            if held:
                second.wait()
        finally:
            first.go_on()
        ends = [first.wait(), second.wait()]
        try:
            if all(ended.code for ended in ends):
                raise Failed(f"neither came to its end: {ends[0].told}\n{ends[1].told}")
            for ended in ends:
                if ended.code and "is in use by another process" not in (said := sentence(ended)):
                    raise Failed(f"refused for another reason: {said}")
                if not ended.code:
                    bench.check_same(name, folder, ended)
            if held and not ends[1].code:
                raise Failed("worked in a folder that the first one held")
            if begun and not held:
                raise Failed("the first one worked in a folder that it did not hold")
            bench.finish(name, folder)
        except Failed as failure:
            raise Failed(f"started {after:.2f} s after another: {failure}") from None
    return "same bits"


def _files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file() and path.name != LOCK}


def _is_held(folder: Path) -> bool:
    """Whether a process has locked a folder here."""
    for path in folder.rglob(LOCK):
        lock = FileLock(path)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return True
        lock.release()
    return False
