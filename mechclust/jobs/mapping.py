"""Independent jobs, each with its result or error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from functools import partial
from itertools import chain, islice
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import torch
from tqdm import tqdm

from mechclust.jobs.cores import usable_cores
from mechclust.jobs.local import LocalPool
from mechclust.jobs.outcome import Outcome, error_naming_job, first_error
from mechclust.jobs.pool import PoolRules, run_pool
from mechclust.jobs.progress import progress_bar
from mechclust.jobs.ray_engine import Engine, Ray
from tasks import InputError
from tasks.errors import error_line

_Job = TypeVar("_Job")
_Out = TypeVar("_Out")

LOCAL_RETRIES = 3


def map_jobs(
    fn: Callable[..., _Out],
    jobs: Sequence[_Job],
    workers: int | None = None,
    *,
    engine: Engine = "local",
    setup: Callable[[], Any] | None = None,
    timeout: float | None = None,
    folder: Path | None = None,
    name: Callable[[_Job], str] | None = None,
    progress: str | None = None,
) -> list[_Out]:
    """Return ``[fn(job) for job in jobs]``, computed by processes with one thread each, or by a Ray cluster.

    Each worker computes with one thread, because two threads on a busy core are many times slower than one. A job that
    fails does not stop the others. When they are done, the first error is raised, and says how many other jobs failed.
    A job whose process is killed is run again. On Ctrl-C all workers are ended at once, and jobs keep the files that
    they have written. On machines of one kind, results are equal to the bit for any number of workers and either
    engine, if every job has one thread (on Ray, ``cpus_per_job`` of at most 1).

    Args:
        fn: a function at the top level of a module, which takes a job. With ``setup`` it takes the setup's value and a
            job.
        jobs: its arguments, one for each job.
        workers: number of parallel workers. ``None``: one per core, on Ray as many as the cluster has room for. With
            one, or for one job, everything runs in this process, unless there is a ``timeout`` or a cluster.
        engine: ``"local"``, ``"ray"``, or a ``Ray`` with its settings.
        setup: called once per worker, such as a function that loads a model. Its errors are raised here.
        timeout: seconds that a job may take before its process is killed. ``None``: as long as it takes.
        folder: the folder that the jobs write to. Every node of a cluster must see it, which is checked first.
        name: gives a job's name for errors. By default ``job.name``, or its number.
        progress: label of a progress bar over all jobs, with a line for each job that fails while others go on.
            ``None``: neither.

    Returns:
        The results in the order of the jobs.

    Raises:
        InputError: for an unknown engine, when a job took too long or lost its worker too often, or when the cluster
            cannot be reached. Also when a node does not see the folder or has other versions.
        Exception: the first failing job's error, which names the job.

    Example:
        >>> from mechclust import map_jobs
        >>> map_jobs(abs, [3, -4], workers=1)
        [3, 4]
    """
    outcomes: list[Outcome[_Out]] = []
    results = imap_jobs(fn, jobs, workers, engine=engine, setup=setup, timeout=timeout, folder=folder, name=name)
    bar = progress_bar(total=len(jobs), desc=progress, unit="job", disable=progress is None or not jobs)
    with closing(results), closing(bar):
        for outcome in results:
            outcomes.append(outcome)
            bar.update()
            if outcome.error is not None and progress is not None and len(outcomes) < len(jobs):
                label = _name(name, outcome.position, jobs[outcome.position])
                tqdm.write(f"{_failure(label, outcome.error)}; the other jobs go on", file=sys.stderr)
    outcomes.sort(key=attrgetter("position"))
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    if errors:
        raise first_error(errors)
    return [outcome.value for outcome in outcomes]  # type: ignore[misc] # without an error it is what fn returned


def imap_jobs(
    fn: Callable[..., _Out],
    jobs: Iterable[_Job],
    workers: int | None = None,
    *,
    engine: Engine = "local",
    setup: Callable[[], Any] | None = None,
    timeout: float | None = None,
    folder: Path | None = None,
    name: Callable[[_Job], str] | None = None,
    lead: int | None = None,
) -> Generator[Outcome[_Out], None, None]:
    """Yield results as they are finished, in no fixed order.

    Jobs are drawn as they are needed, at most one per worker ahead. Everything else is as in ``map_jobs``. Close the
    iterator (``contextlib.closing``) to stop early, which ends the workers.

    Args:
        fn: see ``map_jobs``.
        jobs: any iterable. An error that it raises ends everything.
        workers: see ``map_jobs``.
        engine: see ``map_jobs``.
        setup: see ``map_jobs``.
        timeout: see ``map_jobs``. Does not include the time that ``setup`` takes.
        folder: see ``map_jobs``.
        name: see ``map_jobs``.
        lead: limits how many results wait for an earlier one: no job starts that is more than ``lead`` times the number
            of workers behind the first unfinished one. ``None``: no limit.

    Returns:
        One ``Outcome`` per job.

    Raises:
        InputError: see ``map_jobs``.

    Example:
        >>> from mechclust.jobs import imap_jobs
        >>> [outcome.value for outcome in imap_jobs(abs, [3, -4], workers=1)]
        [3, 4]
    """
    check_workers(workers, engine, timeout)
    rules = PoolRules(retries=LOCAL_RETRIES, timeout=timeout, name=partial(_name, name), lead=lead)
    if engine == "ray":
        engine = Ray()
    if isinstance(engine, Ray):
        from mechclust.jobs.ray_pool import RayPool

        drawn = iter(jobs)
        first = list(islice(drawn, 1))
        if not first:  # start no cluster without jobs
            return _in_this_process(fn, None, (), rules)
        jobs = chain(first, drawn)
        rules.retries = engine.retries
        return run_pool(RayPool(engine, fn, setup, workers, folder), jobs, rules)
    drawn = iter(jobs)
    first = list(islice(drawn, workers or usable_cores()))
    jobs = chain(first, drawn)
    if timeout is None and len(first) <= 1:
        return _in_this_process(fn, setup, jobs, rules)
    return run_pool(LocalPool(fn, setup, len(first)), jobs, rules)


def check_workers(workers: int | None, engine: Engine, timeout: float | None) -> None:
    """Refuse settings of ``map_jobs`` that no jobs can run with.

    Raises:
        InputError: naming the setting.
    """
    if workers is not None and workers < 1:
        raise InputError(f"workers is {workers}; expected at least 1")
    if timeout is not None and not timeout > 0:
        raise InputError(f"the timeout of a job is {timeout}; expected more than 0 seconds")
    if engine not in ("local", "ray") and not isinstance(engine, Ray):
        raise InputError(f"no engine {engine!r}; expected 'local', 'ray', or mechclust.Ray(...) with its settings")


def _in_this_process(
    fn: Callable[..., _Out], setup: Callable[[], Any] | None, jobs: Iterable[Any], rules: PoolRules
) -> Generator[Outcome[_Out], None, None]:
    """Run jobs with one thread as in a worker, so that the number of workers changes no bit."""
    if setup is not None:
        fn = partial(fn, _with_one_thread(setup))
    for position, job in enumerate(jobs):
        try:
            yield Outcome(position, _with_one_thread(fn, job))
        except (Exception, SystemExit) as failure:
            error = failure if isinstance(failure, Exception) else RuntimeError(f"SystemExit: {failure}")
            yield Outcome(position, None, error_naming_job(error, f"job {rules.name(position, job)}"))


def _with_one_thread(fn: Callable[..., _Out], *args: Any) -> _Out:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return fn(*args)
    finally:
        torch.set_num_threads(threads)


def _name(given: Callable[[Any], str] | None, position: int, job: Any) -> str:
    name = given(job) if given else getattr(job, "name", None)
    return f"{name!r}" if isinstance(name, str) else str(position + 1)


def _failure(label: str, error: Exception) -> str:
    """Return which job failed, and why."""
    return str(error) if isinstance(error, InputError) else f"job {label}: {error_line(error)}"
