"""Two processes with one folder: one of them works, the other is refused, and the result is whole."""

from __future__ import annotations

import random

from tests.faults.bench import Bench, Outcome, Trial, each_subject
from tests.faults.process import Failed, Process, sentence
from tests.faults.subjects import SUBJECTS

KIND = "two owners"


def trials(size: str, draw: random.Random) -> list[Trial]:
    """Each subject that takes a while, or a few."""
    few = ("save_rows", "train", "compare")
    return each_subject(KIND, _two, size, few, never=("artefacts", "report"))


def _two(name: str, bench: Bench, draw: random.Random) -> Outcome:
    """The second starts at once, or some time later."""
    seconds = bench.undisturbed(name).seconds
    with bench.place(draw) as folder:
        bench.begin(name, folder)
        after = draw.choice([0.0, draw.uniform(0, 0.6) * seconds])
        first = Process(bench.call(name), folder)
        first.after(after)
        second = Process(bench.call(name), folder)
        ends = [first.wait(), second.wait()]
        try:
            if 0 not in (codes := [ended.code for ended in ends]):
                raise Failed(f"neither came to its end: {ends[0].told}\n{ends[1].told}")
            for ended in ends:
                if ended.code and "is in use by another process" not in (said := sentence(ended)):
                    raise Failed(f"refused for another reason: {said}")
                if not ended.code:
                    bench.check_same(name, folder, ended)
            overlap = ends[0].seconds > after + 0.3
            if codes == [0, 0] and overlap and not SUBJECTS[name].waits:
                raise Failed("both worked in the folder")
            bench.finish(name, folder)
        except Failed as failure:
            raise Failed(f"started {after:.2f} s after another: {failure}") from None
    return "same bits"
