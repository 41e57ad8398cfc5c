"""Jobs in processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

import torch
from tqdm import tqdm

from mechclust.jobs.outcome import WorkerFunction, unpickled_outcome
from mechclust.jobs.pool import PoolWorker, PoolWorkerLost, PoolWorkerReply, WorkerPool
from mechclust.jobs.progress import BarLock, place_progress_bars
from probes.store.locks import wait_for_locks
from tasks import InputError
from tasks.errors import error_line

_CONTEXT = multiprocessing.get_context("spawn")


@dataclass(kw_only=True, eq=False)
class _LocalWorker(PoolWorker):
    """A process, the pipe to it, and the terminal's line for its bar.

    One process a worker, so that one that is killed costs no other's job.
    """

    process: SpawnProcess
    pipe: Connection
    line: int


# Not joblib or an executor. When this process is killed, joblib's workers go on with their jobs. When one worker of a
# ProcessPoolExecutor is killed, the jobs of all are lost, and no reason is given.
class LocalPool(WorkerPool[_LocalWorker]):
    """Up to ``workers`` processes, with one torch thread each."""

    def __init__(self, fn: Callable[..., Any], setup: Callable[[], Any] | None, workers: int) -> None:
        self.work = _pickled(fn, setup)
        self.workers = workers
        self.lock = BarLock(_CONTEXT.RLock())
        self.lines: set[int] = set()

    def open(self) -> None:
        """Share the lock of progress bars with the workers."""
        self.lock_before = tqdm.get_lock()
        tqdm.set_lock(self.lock)

    def close(self, *, broken: bool) -> None:
        """Give progress bars the lock that they had."""
        tqdm.set_lock(self.lock_before)

    def room(self) -> int:
        """Return the number of workers."""
        return self.workers

    def start(self) -> _LocalWorker:
        """Begin another process, with a free line of the terminal for its bar."""
        line = min(set(range(1, self.workers + 1)) - self.lines)
        self.lines.add(line)
        driver_end, worker_end = _CONTEXT.Pipe()
        process = _CONTEXT.Process(target=_serve, args=(worker_end, self.work, self.lock, line))
        with _interrupts_blocked():
            process.start()
        worker_end.close()
        return _LocalWorker(process=process, pipe=driver_end, line=line)

    def send(self, worker: _LocalWorker, job: bytes) -> None:
        """Give a ready worker another job."""
        with suppress(OSError):  # its process has ended, which ``wait`` reports
            worker.pipe.send_bytes(job)

    def wait(
        self, workers: Sequence[_LocalWorker], seconds: float | None
    ) -> list[tuple[_LocalWorker, PoolWorkerReply | PoolWorkerLost]]:
        """Wait for events, and return at most one per worker."""
        readable = connection.wait([worker.pipe for worker in workers], seconds)
        return [(worker, _receive_from(worker)) for worker in workers if worker.pipe in readable]

    def end(self, workers: Sequence[_LocalWorker]) -> None:
        """Kill workers, even during a job."""
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.join()
            worker.pipe.close()
            self.lines.discard(worker.line)


def _pickled(fn: Callable[..., Any], setup: Callable[[], Any] | None) -> bytes:
    for function in (fn, setup):
        try:
            pickle.dumps(function)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            name = repr(getattr(function, "__qualname__", None) or str(function)[:80])
            raise InputError(
                f"{name} cannot be sent to another process ({error_line(error)}); give a function at the top "
                "level of a module, or a functools.partial of one"
            ) from None
    return pickle.dumps((fn, setup))


def _receive_from(worker: _LocalWorker) -> PoolWorkerReply | PoolWorkerLost:
    with suppress(EOFError, OSError):
        return PoolWorkerReply(*unpickled_outcome(worker.pipe.recv_bytes()))
    worker.process.join()
    code = worker.process.exitcode or 0
    if code == -signal.SIGKILL:
        return PoolWorkerLost(f"killed by signal {-code}, often for too little memory")
    if code < 0:
        return PoolWorkerLost(f"killed by signal {-code}")
    if worker.ready:
        return PoolWorkerLost(f"its process ended with exit code {code}")
    guard = "a script that runs jobs in processes needs `if __name__ == '__main__':` before what it does"
    return PoolWorkerLost(
        f"a worker's process ended at its start with exit code {code} (error above); {guard}", again=False
    )


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C for a process begun in this block: at the terminal it goes to all, and only the parent is to act."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection, work: bytes, lock: BarLock, line: int) -> None:
    """Do one job after another, in a worker's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # should something lift the block of the start: the parent ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    wait_for_locks()
    tqdm.set_lock(lock)
    place_progress_bars(position=line, leave=False)
    function = WorkerFunction()
    try:
        pipe.send_bytes(function.begin(work))
        while True:
            pipe.send_bytes(function.run(pipe.recv_bytes()))
    except (EOFError, OSError):  # the parent has ended
        os._exit(1)


def _end_with_parent() -> None:
    """End this process with its parent: workers that live on would write to a second run's files."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
