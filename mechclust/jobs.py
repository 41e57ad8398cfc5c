"""Independent jobs over local processes, with progress."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from typing import Any, TypeVar

import torch
from tqdm import tqdm

Job = TypeVar("Job")
Out = TypeVar("Out")


def progress_bar(items: Iterable[Any], **options: Any) -> Any:
    """A tqdm bar on standard error; in a worker process its bar stands on the worker's own line."""
    place = multiprocessing.current_process()._identity  # type: ignore[attr-defined]
    interval = 0.2 if sys.stderr.isatty() else 10.0
    return tqdm(items, position=(place[0] - 1) if place else 0, leave=not place, mininterval=interval, **options)


def close_bars() -> None:
    """Take away the bars that an error left standing, so that what is told of it begins on a line of its own."""
    for bar in list(getattr(tqdm, "_instances", ())):
        bar.leave = False
        bar.close()


def map_jobs(fn: Callable[[Job], Out], jobs: Sequence[Job], workers: int | None = None) -> list[Out]:
    """``[fn(job) for job in jobs]`` over processes, with one thread in each.

    Two threads on a busy core are many times slower than one, so each worker computes with one. A
    job that fails does not stop the others; the first one's exception is raised when they are done. On Ctrl-C
    the workers are ended at once: jobs keep what they have written.

    Args:
        fn: a function at the top level of a module.
        jobs: its arguments, one for each job.
        workers: processes; ``None``: one per core. With one, everything runs in this process.

    Returns:
        The results in the order of the jobs.
    """
    workers = min(workers or os.cpu_count() or 1, len(jobs))
    futures = _in_processes(fn, jobs, workers) if workers > 1 else _in_turn(fn, jobs)
    return [future.result() for future in futures]


# Not joblib: when this process is killed by SIGKILL, joblib's workers go on with their jobs; ours end at once.
def _in_processes(fn: Callable[[Job], Out], jobs: Sequence[Job], workers: int) -> list[Future[Out]]:
    context = multiprocessing.get_context("spawn")
    tqdm.set_lock(context.RLock())
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(tqdm.get_lock(),))
    try:
        futures = [pool.submit(fn, job) for job in jobs]
        wait(futures)
    except KeyboardInterrupt:
        for process in list((pool._processes or {}).values()):
            process.kill()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
    return futures


def _in_turn(fn: Callable[[Job], Out], jobs: Sequence[Job]) -> list[Future[Out]]:
    """In this process, with one thread as in a worker, so that the number of workers changes no bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    futures: list[Future[Out]] = []
    try:
        for job in jobs:
            futures.append(Future())
            try:
                futures[-1].set_result(fn(job))
            except Exception as failure:
                futures[-1].set_exception(failure)
    finally:
        torch.set_num_threads(threads)
    return futures


def _start_worker(lock: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    tqdm.set_lock(lock)


def _end_with_parent() -> None:
    """A killed parent cannot end its workers, and a second run beside them would write to the same files."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
