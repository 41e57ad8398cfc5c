"""How many workers one driver can serve: a simulation from measured times."""

from __future__ import annotations

import heapq
import random


def busy(
    workers: int,
    shard_seconds: float,
    merge_seconds: float,
    *,
    shards: int = 4000,
    ahead: int = 2,
    spread: float = 0.1,
    seed: int = 0,
) -> tuple[float, float]:
    """Shares of the time in which the driver and the workers are busy.

    A worker measures one shard after another, of which ``ahead`` are assigned to it at a time. The driver takes states
    as they come, one at a time; merging one frees a place for a new shard.

    Args:
        workers: how many.
        shard_seconds: a worker needs for a shard, on average.
        merge_seconds: the driver needs to fetch and merge its state.
        shards: how many in all.
        ahead: shards that are assigned to a worker at a time.
        spread: standard deviation of the logarithm of a shard's time.
        seed: of these times.
    """
    draw = random.Random(seed)
    free, worked = [0.0] * workers, 0.0
    states: list[tuple[float, int]] = []

    def begin(worker: int, now: float) -> None:
        nonlocal worked
        took = shard_seconds * draw.lognormvariate(-(spread**2) / 2, spread)
        free[worker] = max(now, free[worker]) + took
        worked += took
        heapq.heappush(states, (free[worker], worker))

    for _ in range(ahead):
        for worker in range(workers):
            begin(worker, 0.0)
    clock = 0.0
    for _ in range(shards):
        arrived, worker = heapq.heappop(states)
        clock = max(clock, arrived) + merge_seconds
        begin(worker, clock)
    worked -= sum(max(0.0, end - clock) for end in free)  # what is not done yet
    return shards * merge_seconds / clock, worked / (workers * clock)


def most_workers(shard_seconds: float, merge_seconds: float, share: float = 0.5, limit: int = 1000) -> int:
    """The most workers, up to ``limit``, with which the driver is busy for less than ``share`` of the time."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if busy(middle, shard_seconds, merge_seconds, shards=max(2000, 40 * middle))[0] < share:
            low = middle
        else:
            high = middle - 1
    return low
