"""Run the cases and print a table of outcomes: ``python -m tests.bad_inputs --seed 2026 --kinds commands``."""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch

from tests.bad_inputs import arrays, commands, models
from tests.bad_inputs.outcome import Case, Outcome, ran

SECONDS = {"arrays": 10, "models": 60, "commands": 600}  # that a case may take; a command has a limit of its own
MAX_BYTES = 8 * 2**30  # so that an array for 10^12 classes fails at once


def main() -> int:
    """Return 1 if any outcome is not good."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--kinds", nargs="*", choices=SECONDS, default=list(SECONDS))
    parser.add_argument("--only", default="", help="part of a case's kind or name")
    parser.add_argument("--round", choices=("small", "full"), default="full", help="small: every fourth command")
    given = parser.parse_args()
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    counts: dict[str, Counter[str]] = {}
    for kind in given.kinds:
        with tempfile.TemporaryDirectory() as folder:
            for i, case in enumerate(cases_of(kind, Path(folder), np.random.default_rng(given.seed))):
                if given.round == "small" and kind == "commands" and i % 4:
                    continue
                if given.only in f"{case.kind}: {case.name}":
                    result = ran(case, SECONDS[kind])
                    counts.setdefault(kind, Counter())[result.outcome] += 1
                    if result.outcome is not Outcome.OK:
                        told = f"{kind} | {case.kind} | {case.name} | {result.outcome} | {result.detail}"
                        print(told, file=sys.stderr, flush=True)
    print(table(counts))
    return int(any(count.total() > count[Outcome.OK] for count in counts.values()))


def cases_of(kind: str, folder: Path, rng: np.random.Generator) -> Iterator[Case]:
    """Return the cases of a kind; those of models and commands write their inputs in the folder."""
    if kind == "arrays":
        return arrays.cases(rng)
    if kind == "models":
        return models.cases(folder, rng)
    return commands.cases(folder, rng)


def table(counts: Mapping[str, Mapping[str, int]]) -> str:
    """Return a table of Markdown: kinds by outcomes."""
    header = ["kind", *Outcome]
    rows = [[kind, *(str(count.get(outcome, 0)) for outcome in Outcome)] for kind, count in counts.items()]
    total = [str(sum(count.get(outcome, 0) for count in counts.values())) for outcome in Outcome]
    lines = [header, ["---"] * len(header), *rows, ["all", *total]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    raise SystemExit(main())
