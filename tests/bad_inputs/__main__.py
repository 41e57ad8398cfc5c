"""Run the cases and print a table of outcomes: ``python -m tests.bad_inputs --seed 2026 --kinds commands``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import numpy as np

from tests.bad_inputs.outcome import Outcome

KINDS = ("arrays", "models", "commands")


def main() -> int:
    """Return 1 if any outcome is not good."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=[name for name in KINDS if _is_there(name)])
    parser.add_argument("--only", default="", help="part of a case's kind or name")
    given = parser.parse_args()
    counts: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in given.kinds:
            cases = import_module(f"tests.bad_inputs.{kind}").cases
            for case in cases(Path(folder), np.random.default_rng(given.seed)):
                if given.only not in f"{case.kind}: {case.name}":
                    continue
                result = case.run()
                counts.setdefault(case.kind, Counter())[result.outcome] += 1
                if result.outcome is not Outcome.OK:
                    print(
                        f"{case.kind} | {case.name} | {result.outcome} | {result.detail}", file=sys.stderr, flush=True
                    )
    print(table(counts))
    return int(any(count.total() > count[Outcome.OK] for count in counts.values()))


def _is_there(kind: str) -> bool:
    return Path(__file__).with_name(f"{kind}.py").exists()


def table(counts: Mapping[str, Mapping[str, int]]) -> str:
    """Return a table of Markdown: kinds by outcomes."""
    header = ["kind", *Outcome]
    rows = [[kind, *(str(count.get(outcome, 0)) for outcome in Outcome)] for kind, count in counts.items()]
    total = [str(sum(count.get(outcome, 0) for count in counts.values())) for outcome in Outcome]
    lines = [header, ["---"] * len(header), *rows, ["all", *total]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    raise SystemExit(main())
