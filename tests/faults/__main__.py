"""``make faults``: disturb everything that writes files, at random, and count what survives.

Exit code 1 when something failed. With ``--round small`` under four minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TypeVar

os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "MPLBACKEND": "Agg"}

from tests.faults import kinds
from tests.faults.bench import Bench, Trial
from tests.faults.process import Failed

SEED = 16
_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "docs" / "faults.md"
_BEGIN, _END = "<!-- recorded: make faults -->\n", "<!-- end -->"
T = TypeVar("T")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--round", choices=("small", "full"), default="full")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--kinds", nargs="*", default=list(kinds.KINDS), choices=list(kinds.KINDS), metavar="KIND")
    parser.add_argument("--only", default="", help="trials whose name contains this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="trials at a time")
    parser.add_argument(
        "--folder", type=Path, help="kept, and its undisturbed runs used again; a temporary one by default"
    )
    parser.add_argument("--record", action="store_true", help=f"write the table into {_PAGE.relative_to(_ROOT)}")
    parser.add_argument("--list", action="store_true", help="print the names of the trials")
    options = parser.parse_args(argv)
    trials = [
        trial
        for kind in options.kinds
        for trial in kinds.KINDS[kind](options.round, random.Random(f"{options.seed} {kind}"))
        if options.only in f"{trial.kind}: {trial.name}"
    ]
    if options.list:
        print("\n".join(f"{trial.kind}: {trial.name}" for trial in trials))
        return 0
    began, folder = time.monotonic(), options.folder or Path(tempfile.mkdtemp(prefix="mechclust-faults-"))
    print(f"seed {options.seed}, {options.round} round, {len(trials)} trials", flush=True)
    try:
        found = campaign(trials, folder, options.seed, options.round, max(1, options.jobs))
    finally:
        if options.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    outcomes = [(kind, outcome) for kind, outcome, _ in found]
    facts = f"seed {options.seed}, {sum(kills for *_, kills in found)} kills, {time.monotonic() - began:.0f} s"
    print(f"\n{table(outcomes)}\n\n{facts}")
    if options.record:
        before, _, rest = _PAGE.read_text(encoding="utf-8").partition(_BEGIN)
        text = f"{table(outcomes)}\n\nThe {options.round} round: {facts}.\n"
        _PAGE.write_text(f"{before}{_BEGIN}{text}{_END}{rest.partition(_END)[2]}", encoding="utf-8")
    return int(len(found) < len(trials) or any(outcome == "failed" for _, outcome in outcomes))


def campaign(trials: Sequence[Trial], folder: Path, seed: int, size: str, jobs: int) -> list[tuple[str, str, int]]:
    """Kind, outcome and number of kills of every trial. Trials that must be alone come last, one at a time."""
    kinds.preload()
    folder.mkdir(parents=True, exist_ok=True)
    bench, results = Bench(folder), folder / "results.jsonl"
    results.write_text("")
    bench.prepare()
    needs = sorted({name for trial in trials for name in trial.needs})
    for first in (True, False):  # what others begin from comes first
        _shared([name for name in needs if (bench.begins(name) is None) is first], jobs, bench.undisturbed)
    together = [trial for trial in trials if not trial.alone]
    _shared(together, jobs, lambda trial: _one(trial, bench, seed, size, results))
    _shared([trial for trial in trials if trial.alone], 1, lambda trial: _one(trial, bench, seed, size, results))
    return [tuple(json.loads(line)) for line in results.read_text().splitlines()]


def _shared(items: Sequence[T], jobs: int, do: Callable[[T], object]) -> None:
    """Each item in one of so many forked processes, which take one after another."""
    pids = []
    with tempfile.TemporaryFile() as taken:
        for _ in range(min(jobs, len(items))):
            sys.stdout.flush()
            if (pid := os.fork()) == 0:
                while (k := _next(taken)) < len(items):
                    with contextlib.suppress(Failed):
                        do(items[k])
                    sys.stdout.flush()
                os._exit(0)
            pids.append(pid)
        for pid in pids:
            os.waitpid(pid, 0)


def _next(taken: IO[bytes]) -> int:
    """A number that no other process was given."""
    fcntl.lockf(taken, fcntl.LOCK_EX)  # lockf: flock would be shared by the forked
    try:
        return os.fstat(taken.fileno()).st_size
    finally:
        os.write(taken.fileno(), b".")
        fcntl.lockf(taken, fcntl.LOCK_UN)


def _one(trial: Trial, bench: Bench, seed: int, size: str, results: Path) -> None:
    """One trial: its line, and how to repeat it where it failed."""
    name, began, why, kills = f"{trial.kind}: {trial.name}", time.monotonic(), "", bench.kills
    try:
        outcome: str = trial.run(bench, random.Random(f"{seed} {name}"))
    except Failed as failure:
        outcome, why = "failed", str(failure)
    except Exception:
        outcome, why = "failed", f"the campaign itself broke:\n{traceback.format_exc()}"
    lines = [f"{outcome:9} {name} ({time.monotonic() - began:.1f} s)"]
    if why:
        again = f"make faults ROUND={size} SEED={seed} ONLY='{name}'"
        lines += [f"    {line}" for line in [*why.strip().splitlines(), f"again: {again}"]]
    print("\n".join(lines), flush=True)
    with open(results, "a") as file:
        file.write(json.dumps([trial.kind, outcome, bench.kills - kills]) + "\n")


def table(found: Sequence[tuple[str, str]]) -> str:
    """Counts by kind, in Markdown."""
    counts = Counter(found)
    columns = ("same bits", "refused", "failed")
    rows = ["| kind | trials | survived | refused in one sentence | failed |", "|---|---|---|---|---|"]
    names = [kind for kind in kinds.TITLES if any(kind == tried for tried, _ in found)]
    for kind in names:
        numbers = [counts[kind, outcome] for outcome in columns]
        rows.append(f"| {kind} | {sum(numbers)} | {' | '.join(map(str, numbers))} |")
    numbers = [sum(counts[kind, outcome] for kind in names) for outcome in columns]
    rows.append(f"| all | {sum(numbers)} | {' | '.join(map(str, numbers))} |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
