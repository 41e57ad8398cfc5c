"""Which worker does which job, and when: by workers that are no processes, and a clock that waits for nobody."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from mechclust.jobs.pool import PoolRules, PoolWorker, PoolWorkerLost, PoolWorkerReply, WorkerPool, run_pool

NEVER = 10**6


class Pool(WorkerPool[PoolWorker]):
    """Workers that are ready at once and do jobs ``(name, seconds)``. One whose name is in ``losses`` loses them."""

    dumps = staticmethod(lambda job: job)

    def __init__(self, n_workers: int, losses: Sequence[str] = ()) -> None:
        self.n_workers, self.losses, self.now = n_workers, [*losses], 0.0
        self.sent: list[str] = []

    def room(self) -> int:
        return self.n_workers

    def start(self) -> PoolWorker:
        return PoolWorker()

    def send(self, worker: PoolWorker, job: Any) -> None:
        self.sent.append(job[0])

    def wait(self, workers: Sequence[PoolWorker], seconds: float | None) -> list[Any]:
        new = [worker for worker in workers if not worker.ready]
        if new:
            return [(worker, PoolWorkerReply(None, None)) for worker in new]
        ends = {worker.since + worker.item.job[1]: worker for worker in workers if worker.item is not None}
        end = min(ends)
        if seconds is not None and end > self.now + seconds:
            self.now += seconds
            return []
        self.now = end
        worker, name = ends[end], ends[end].item.job[0]
        if name not in self.losses:
            return [(worker, PoolWorkerReply(name, None))]
        self.losses.remove(name)
        return [(worker, PoolWorkerLost("killed"))]

    def end(self, workers: Sequence[PoolWorker]) -> None:
        pass


@pytest.fixture
def done(monkeypatch):
    """Run jobs, and return for each the time at which it was done, and its value or the beginning of its error."""

    def run(pool: Pool, jobs: Sequence[tuple[str, float]], **rules: Any) -> list[tuple[float, str]]:
        monkeypatch.setattr("mechclust.jobs.pool.time", SimpleNamespace(monotonic=lambda: pool.now))
        settings = {"retries": 1, "timeout": None, "name": lambda position, job: job[0], **rules}
        outcomes = run_pool(pool, jobs, PoolRules(**settings))
        return [(pool.now, each.value or str(each.error).partition(" (")[0]) for each in outcomes]

    return run


def test_each_job_has_its_whole_time_and_no_more(done):
    jobs = [("a", NEVER), ("b", 4), ("c", 9), ("d", NEVER)]
    stopped = "took longer than 10 s and was stopped; give more time"
    found = done(Pool(2), jobs, timeout=10.0)
    assert found == [(4, "b"), (10, f"job a {stopped}"), (13, "c"), (20, f"job d {stopped}")]


def test_no_job_begins_far_ahead_of_the_first_that_is_not_done(done):
    found = done(Pool(2), [("slow", 100), *((str(i), i) for i in range(1, 6))], lead=2)
    assert found == [(1, "1"), (3, "2"), (6, "3"), (100, "slow"), (104, "4"), (105, "5")]


def test_a_free_worker_does_the_next_job(done):
    found = done(Pool(2), [("slow", 100), ("a", 1), ("b", 1), ("c", 1)])
    assert found == [(1, "a"), (2, "b"), (3, "c"), (100, "slow")]


def test_a_job_that_lost_its_worker_is_done_before_those_that_wait(done):
    pool = Pool(2, ["a"])
    found = done(pool, [("a", 3), ("b", 1), ("c", 9), ("d", 1), ("e", 1)])
    assert pool.sent == ["a", "b", "c", "a", "d", "e"]
    assert sorted(name for _, name in found) == ["a", "b", "c", "d", "e"]


def test_a_job_is_given_up_when_all_its_workers_are_lost(done):
    pool = Pool(1, ["a", "a", "b"])
    found = done(pool, [("a", 1), ("b", 1)])
    assert [name for _, name in found] == ["job a lost its worker 2 times", "b"]
