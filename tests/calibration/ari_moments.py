"""How often ``TaskClusterARI``'s p-value without relabellings calls clusters that have nothing to do with the label."""

from __future__ import annotations

import math
from itertools import combinations_with_replacement

import numpy as np

from probes.functional.adjusted_rand import adjusted_rand_moments, adjusted_rand_score

ALPHA = 0.05
_SIZES = {
    30: ((15, 15), (3, 27), (7, 23), (10, 10, 10), (3,) * 10, (24, 3, 3)),
    100: ((50, 50), (10, 90), (25, 75), (33, 33, 34), (10,) * 10, (80, 10, 10)),
    300: ((150, 150), (30, 270), (75, 225), (100, 100, 100), (30,) * 10, (240, 30, 30)),
}
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    f"n {n}, " + ", ".join(" + ".join(map(str, x)) if len(x) < 10 else f"{len(x)} of {x[0]}" for x in pair): pair
    for n, sizes in _SIZES.items()
    for pair in [*combinations_with_replacement(sizes, 2), *((b, a) for a, b in [(sizes[0], sizes[1])])]
}


def false_positive_rate(draws: int, seed: int, case: str) -> tuple[int, int]:
    """Shuffle one labeling, and count the p-values of at most 5%, and those that are not NaN."""
    a, b = (np.repeat(np.arange(len(sizes)), sizes) for sizes in CASES[case])
    draw = np.random.default_rng([seed, *case.encode()])
    moments = adjusted_rand_moments(a, b)
    called = tested = 0
    for _ in range(draws):
        p = moments.null(adjusted_rand_score(a, draw.permutation(b)))[2]
        called += p <= ALPHA
        tested += not math.isnan(p)
    return called, tested
