"""Two things timed next to each other, as a ratio."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median


def alternate(first: Callable[[], object], second: Callable[[], object], rounds: int = 9) -> float:
    """Median over rounds of time(first) / time(second), the two measured next to each other."""
    ratios = []
    for i in range(rounds + 1):
        times = []
        for f in (first, second):
            start = time.perf_counter()
            f()
            times.append(time.perf_counter() - start)
        if i:  # the first round warms up
            ratios.append(times[0] / times[1])
    return median(ratios)
