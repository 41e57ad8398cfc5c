"""kill -9 at random moments, several times, and the same command until it ends."""

from __future__ import annotations

import random
import shutil
from functools import partial

from tests.faults.bench import Bench, Outcome, Trial
from tests.faults.process import Failed, Process, sentence
from tests.faults.subjects import SUBJECTS

KIND = "kill -9, several times in a row"


def trials(size: str, draw: random.Random) -> list[Trial]:
    """One sequence for each subject, or several."""
    few = ("save_rows", "train", "train_ensemble", "run_sharded", "compare", "clusters", "topics")
    names = few if size == "small" else [name for name in SUBJECTS if name != "artefacts"]
    rounds = 1 if size == "small" else 3
    return [
        Trial(KIND, f"{name}, {k}", partial(_killed, name), [name])
        for name in names
        for k in range(rounds if "--workers" not in name else min(rounds, 2))
    ]


def _killed(name: str, bench: Bench, draw: random.Random) -> Outcome:
    """Up to five kills at moments drawn from the time that the whole takes; the last run is let through."""
    told, seconds = [], bench.undisturbed(name).seconds
    with bench.place(draw) as folder:
        bench.begin(name, folder)
        for _ in range(draw.randint(2, 5)):
            after, group = draw.uniform(0, seconds), draw.random() < 0.3
            process = Process(bench.call(name), folder)
            if process.after(after) and process.kill(group=group).code < 0:
                bench.kills += 1
                told.append(f"{after:.2f} s{' with its workers' if group else ''}")
                continue
            ended = process.wait()
            if ended.code == 2:
                raise Failed(f"killed after {', '.join(told)}, it refuses to go on: {sentence(ended)}")
            if told:
                break
            shutil.rmtree(folder / "out")  # a machine that is faster now than it was: from the beginning, earlier
            bench.begin(name, folder)
            seconds /= 2
        try:
            bench.finish(name, folder)
        except Failed as failure:
            raise Failed(f"killed after {', '.join(told)} of {seconds:.2f} s: {failure}") from None
    return "same bits"
