"""Folders removed in the middle of a run: it refuses or ends, and the same command, or its way out, makes all anew."""

from __future__ import annotations

import random
import shutil

from tests.faults.bench import Bench, Outcome, Trial, each_subject
from tests.faults.damage import go_on
from tests.faults.process import Failed, Process, sentence

KIND = "removed folders"


def trials(size: str, draw: random.Random) -> list[Trial]:
    """Each subject, or a few."""
    few = ("save_rows", "train", "topics")
    return each_subject(KIND, _removed, size, few, never=("artefacts", "report"))


def _removed(name: str, bench: Bench, draw: random.Random) -> Outcome:
    seconds = bench.undisturbed(name).seconds
    with bench.place(draw) as folder:
        bench.begin(name, folder)
        after = draw.uniform(0.05, 0.95) * seconds
        process = Process(bench.call(name), folder)
        process.after(after)
        there = sorted(path for path in (folder / "out", *(folder / "out").rglob("*")) if path.is_dir())
        gone = draw.choice(there) if there else folder / "out"
        shutil.rmtree(gone, ignore_errors=True)
        ended = process.wait()
        told = f"{gone.relative_to(folder)} removed after {after:.2f} s of {seconds:.2f} s"
        try:
            refused = bool(ended.code) and bool(sentence(ended))
            outcome = go_on(name, bench, folder, draw)
        except Failed as failure:
            raise Failed(f"{told}: {failure}") from None
    return "refused" if refused else outcome
