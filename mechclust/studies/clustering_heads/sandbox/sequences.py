"""The few sequences that a sandbox follows by name."""

from __future__ import annotations

from itertools import product

import numpy as np

from mechclust.sandbox.sequences import FollowedSequences
from tasks import SparseModularAddition

_MAX_SUMS = 12


def probe_sequences(task: SparseModularAddition) -> FollowedSequences:
    """Return supports of every sum, each in two orders, with four ways to fill the other positions.

    The other positions are all 0, all the largest digit, or one of two mixtures. If there are many sums, they are
    thinned out evenly. The choice is deterministic. Clusters are the multisets of the digits in the support.

    Example:
        >>> followed = probe_sequences(SparseModularAddition())
        >>> followed.tokens.shape, followed.tokens[4].tolist(), followed.cluster_names[1]
        ((40, 12), [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], '{0,0,0,0,1}')
    """
    support = list(task.positions)
    others = [t for t in range(task.length) if t not in support]
    sums = np.unique(np.linspace(0, len(support) * (task.p - 1), _MAX_SUMS).round().astype(int)).tolist()
    prefixes: list[list[int]] = []
    for total in sums:
        digits = [min(task.p - 1, max(0, total - i * (task.p - 1))) for i in range(len(support))]
        prefixes += [digits] if digits == digits[::-1] else [digits, digits[::-1]]
    half = [int(i >= len(others) / 2) * (task.p - 1) for i in range(len(others))]
    turns = [i % task.p for i in range(len(others))]
    fillings = [[0] * len(others), [task.p - 1] * len(others), turns, half]
    rows = np.zeros((len(prefixes) * len(fillings), task.length), dtype=np.int64)
    for row, (prefix, filling) in zip(rows, product(prefixes, fillings), strict=True):
        row[support] = prefix
        row[others] = filling
    # With few spurious positions, some fillings coincide.
    rows = rows[np.sort(np.unique(rows, axis=0, return_index=True)[1])]
    inside = np.sort(rows[:, support], axis=1)
    totals = inside.sum(axis=1)
    answers = totals % task.p
    clusters = ["{" + ",".join(map(str, row)) + "}" for row in inside]
    names = list(dict.fromkeys(clusters))
    return FollowedSequences(
        tokens=rows,
        token_names=task.vocab,
        answers=answers,
        clusters=np.array([names.index(cluster) for cluster in clusters]),
        cluster_names=names,
        cluster_answers=[int(answers[clusters.index(name)]) for name in names],
        notes=[f"sum {total}" for total in totals.tolist()],
    )
