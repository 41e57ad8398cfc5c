"""Jobs over workers that may be lost: the part that local processes and Ray actors share."""

from __future__ import annotations

import pickle
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mechclust.jobs.interrupts import without_interrupts
from mechclust.jobs.outcome import Outcome, error_naming_job
from tasks import InputError


@dataclass(eq=False)
class PoolJob:
    """A job on its way, with its ``pickled`` form."""

    position: int
    job: Any
    pickled: bytes
    losses: int = 0


@dataclass(eq=False)
class PoolWorker:
    """A process that does one job after another: ``item`` is the one that it has."""

    item: PoolJob | None = None
    ready: bool = False
    since: float = 0.0


W = TypeVar("W", bound=PoolWorker)

_LONGEST_WAIT_S = 3600.0  # waiting for pipes takes no more than some weeks


@dataclass(frozen=True)
class PoolWorkerReply:
    """A worker is ready (its first reply), or done with its job."""

    value: Any
    error: Exception | None


@dataclass(frozen=True)
class PoolWorkerLost:
    """A worker's process has ended."""

    why: str
    again: bool = True  # whether a new worker can succeed


class WorkerPool(ABC, Generic[W]):
    """Workers of one kind. ``open`` makes their shared resources, and ``close`` always releases them.

    ``dumps`` pickles a job.
    """

    dumps: Callable[[Any], bytes] = staticmethod(pickle.dumps)

    def open(self) -> None:
        """Connect, or make the resources that workers share. Called once, before all else."""

    @abstractmethod
    def room(self) -> int:
        """Return how many workers there may be at once, now."""

    @abstractmethod
    def start(self) -> W:
        """Begin another worker. Its first reply says that it is ready."""

    @abstractmethod
    def send(self, worker: W, job: bytes) -> None:
        """Give a ready worker another pickled job. If its process has ended, ``wait`` reports it."""

    @abstractmethod
    def wait(self, workers: Sequence[W], seconds: float | None) -> list[tuple[W, PoolWorkerReply | PoolWorkerLost]]:
        """Wait for events, and return at most one per worker, or none when the seconds are over."""

    @abstractmethod
    def end(self, workers: Sequence[W]) -> None:
        """End workers at once, even during a job."""

    def close(self, *, broken: bool) -> None:
        """Release the resources of ``open``, when all jobs are done or the run is ``broken`` off."""


@dataclass
class PoolRules:
    """Settings of a run.

    Args:
        retries: how often a job is run again that lost its worker.
        timeout: seconds that a job may take.
        name: gives a job's name for errors, from its position and the job.
        lead: how many jobs, times the workers, one may be ahead of the first that is not done. ``None``: any number.
    """

    retries: int
    timeout: float | None
    name: Callable[[int, Any], str]
    lead: int | None = None


def run_pool(pool: WorkerPool[W], jobs: Iterable[Any], rules: PoolRules) -> Generator[Outcome, None, None]:
    """Run the jobs, drawn as they are needed, and yield each job's outcome once, as it arrives.

    The returned generator is started and the pool open. Closing or dropping it releases the pool's resources.
    """
    outcomes = _each_outcome(pool, jobs, rules)
    next(outcomes)
    return outcomes


def _each_outcome(pool: WorkerPool[W], jobs: Iterable[Any], rules: PoolRules) -> Generator[Outcome, None, None]:
    run = _Run(pool, jobs, rules)
    broken = True
    try:
        pool.open()
        yield Outcome(-1)  # it is open
        while True:
            run.feed()
            yield from run.finished()
            if run.done:
                break
            run.wait()
        broken = False
    finally:
        with without_interrupts():
            pool.end(run.workers)
            pool.close(broken=broken)


class _Run(Generic[W]):
    """The jobs of a run: those that wait, those that workers have, and the outcomes."""

    def __init__(self, pool: WorkerPool[W], jobs: Iterable[Any], rules: PoolRules) -> None:
        self.pool = pool
        self.rules = rules
        self.jobs = enumerate(jobs)
        self.drawn = 0
        self.waiting: deque[PoolJob] = deque()
        self.workers: list[W] = []
        self.outcomes: list[Outcome] = []
        self.lost_early = 0  # workers in succession that were lost before they were ready
        self.no_more: InputError | None = None  # why no further worker is started

    @property
    def doing(self) -> list[PoolJob]:
        """Return the jobs that workers have."""
        return [worker.item for worker in self.workers if worker.item is not None]

    @property
    def done(self) -> bool:
        """Return whether no job waits and no worker has one."""
        return not self.waiting and not self.doing

    def finished(self) -> list[Outcome]:
        """Return the outcomes since the last call."""
        outcomes = self.outcomes
        self.outcomes = []
        return outcomes

    def feed(self) -> None:
        """Draw jobs, begin workers, and give each ready one something to do."""
        room = self.pool.room()
        self._draw(room)
        if self.no_more is not None and self.waiting and not self.workers:
            raise self.no_more
        while self.no_more is None and len(self.workers) < min(room, len(self.doing) + len(self.waiting)):
            self.workers.append(self.pool.start())
        for worker in self.workers:
            if worker.ready and worker.item is None and self.waiting:
                worker.item = self.waiting.popleft()
                worker.since = time.monotonic()
                self.pool.send(worker, worker.item.pickled)
        self._draw(room)

    def _draw(self, room: int) -> None:
        """Draw as many jobs as may wait, none too far from the first one that is not done.

        A job that cannot be pickled fails.
        """
        while len(self.waiting) < room:
            first = min((item.position for item in (*self.waiting, *self.doing)), default=self.drawn)
            if self.rules.lead is not None and self.drawn - first >= self.rules.lead * room:
                return
            drawn = next(self.jobs, None)
            if drawn is None:
                return
            self.drawn += 1
            position, job = drawn
            try:
                pickled = self.pool.dumps(job)
            except Exception as error:  # whatever the job's own methods raise
                named = error_naming_job(error, self._name(position, job))
                self.outcomes.append(Outcome(position, None, named))
            else:
                self.waiting.append(PoolJob(position, job, pickled))

    def wait(self) -> None:
        """Wait for events, act on them, and stop jobs that take too long."""
        for worker, event in self.pool.wait(self.workers, self._seconds_left()):
            if isinstance(event, PoolWorkerLost):
                self._lost(worker, event)
            elif not worker.ready:
                self._ready(worker, event)
            else:
                self._reply(worker, event)
        for worker in [worker for worker in self.workers if self._overdue(worker)]:
            item = self._remove(worker)
            assert item is not None
            took = f"took longer than {self.rules.timeout:g} s and was stopped"
            self._fail(item, f"{took}; give more time (timeout, --job-timeout), or leave it out")

    def _reply(self, worker: W, event: PoolWorkerReply) -> None:
        item = worker.item
        assert item is not None
        worker.item = None
        error = event.error and error_naming_job(event.error, self._name(item.position, item.job))
        self.outcomes.append(Outcome(item.position, event.value, error))

    def _ready(self, worker: W, event: PoolWorkerReply) -> None:
        if event.error is not None:
            raise event.error
        worker.ready = True
        self.lost_early = 0

    def _lost(self, worker: W, event: PoolWorkerLost) -> None:
        """Count a loss for the worker's job, and run it again.

        If workers are repeatedly lost before they are ready, the ready ones do all remaining jobs.
        """
        item = self._remove(worker)
        if not worker.ready:
            self.lost_early += 1
            if not event.again:
                self.no_more = InputError(event.why)
            elif self.lost_early > self.rules.retries:
                self.no_more = InputError(
                    _lost_text("a worker was lost before its first job", self.lost_early, event.why)
                )
        elif item is not None:
            item.losses += 1
            if item.losses > self.rules.retries:
                self._fail(item, _lost_text("lost its worker", item.losses, event.why))
            else:
                self.waiting.appendleft(item)

    def _remove(self, worker: W) -> PoolJob | None:
        """End a worker, and return the job that it was at."""
        self.pool.end([worker])
        self.workers.remove(worker)
        return worker.item

    def _fail(self, item: PoolJob, text: str) -> None:
        self.outcomes.append(Outcome(item.position, None, InputError(f"{self._name(item.position, item.job)} {text}")))

    def _name(self, position: int, job: Any) -> str:
        return f"job {self.rules.name(position, job)}"

    def _seconds_left(self) -> float | None:
        if self.rules.timeout is None:
            return None
        ends = [worker.since + self.rules.timeout for worker in self.workers if worker.item is not None]
        return min(max(0.0, min(ends) - time.monotonic()), _LONGEST_WAIT_S) if ends else None

    def _overdue(self, worker: W) -> bool:
        limit = self.rules.timeout
        return limit is not None and worker.item is not None and time.monotonic() - worker.since >= limit


def _lost_text(what: str, times: int, why: str) -> str:
    often = f"{times} times" if times > 1 else "once"
    way = "what other workers measured is kept: run the same command again, with fewer workers (--workers)"
    return f"{what} {often} ({why}); {way}"
