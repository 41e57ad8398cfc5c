"""Run the cases, and show those whose outcome is not good: ``python -m tests.bad_inputs --only linear_cka``."""

from __future__ import annotations

import argparse
import collections
import resource
import sys

import numpy as np
import torch

from tests.bad_inputs import arrays
from tests.bad_inputs.outcome import Outcome, ran

MAX_BYTES = 8 * 2**30  # so that an array for 10^12 classes fails at once


def main() -> int:
    """Return 1 if any outcome is not good."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="part of the name of what the inputs are given to")
    args = parser.parse_args()
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    counts: collections.Counter[str] = collections.Counter()
    for case in arrays.cases(np.random.default_rng(args.seed)):
        if args.only in case.name:
            result = ran(case)
            counts[result.outcome] += 1
            if result.outcome is not Outcome.OK:
                print(f"{case.name} | {case.kind} | {result.outcome} | {result.detail}")
    print(f"{sum(counts.values())} cases: {dict(counts)}", file=sys.stderr)
    return int(counts.total() > counts[Outcome.OK])


if __name__ == "__main__":
    raise SystemExit(main())
