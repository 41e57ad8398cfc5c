"""Jobs on a Ray cluster. Only this, the connection and the worker import Ray."""

from __future__ import annotations

import math
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mechclust.jobs.outcome import WorkerFunction, unpickled_outcome
from mechclust.jobs.pool import PoolWorker, PoolWorkerLost, PoolWorkerReply, WorkerPool
from mechclust.jobs.progress import place_progress_bars
from mechclust.jobs.ray_connection import connect_to_ray, leave_ray
from mechclust.jobs.ray_engine import Ray, ray_engine_address
from probes.store.locks import wait_for_locks
from probes.store.temporary_files import temporary_file_of
from tasks import InputError

# Read when ray is imported. We report lost workers and nodes, in one sentence and on standard error.
_NOISE = r"A worker died or was killed|Raylet is terminated|marked dead because|is dead because its worker"
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", _NOISE)
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster that we start sends no usage reports

try:
    import ray
    from ray import cloudpickle
    from ray.exceptions import RayError, RayTaskError
    from ray.experimental import tqdm_ray

    from mechclust.jobs import ray_worker
except ImportError as lacking:
    if lacking.name != "ray":
        raise
    raise InputError("jobs on Ray need the package ray: pip install 'mechclust[ray]'") from None

_PACKAGES = ("python", "mechclust", "torch", "transformer-lens")
_ENVIRONMENT_OF_WORKERS = ("MECHCLUST_", "HF_", "TRANSFORMERS_", "TOKENIZERS_", "OMP_NUM_THREADS", "PYTHONHASHSEED")
_SECONDS_BETWEEN_LOOKS = 1.0  # at the cluster's resources
_PATIENCE_S = 30.0  # without a worker on any node, before a message
_FLUSH_TERMINAL_S = 0.5  # between two lines of a worker's bar
_FLUSH_FILE_S = 10.0

cloudpickle.register_pickle_by_value(ray_worker)


@dataclass(kw_only=True, eq=False)
class _RayWorker(PoolWorker):
    """An actor, the answers that it still has to send, and its node."""

    actor: Any
    pending: list[Any]
    where: str = "a process that had not started"
    placed: bool = False  # on a node


# Actors for plain jobs too: an actor that is lost says which process on which node it was, its job is known (for the
# count and for time limits), and it looks at versions and folder once, not once a job.
class RayPool(WorkerPool[_RayWorker]):
    """Up to ``workers`` actors, or as many as the cluster has room for."""

    dumps = staticmethod(cloudpickle.dumps)

    def __init__(
        self,
        engine: Ray,
        fn: Callable[..., Any],
        setup: Callable[[], Any] | None,
        workers: int | None,
        folder: Path | None,
    ) -> None:
        self.engine = engine
        self.fn = fn
        self.setup = setup
        self.workers = workers
        self.folder = folder
        self.token: Path | None = None
        self.looked_at = -math.inf
        self.n_fitting = 0

    def open(self) -> None:
        """Join or start the cluster, and see that jobs fit on it."""
        engine = self.engine
        folder = self.folder
        connect_to_ray(ray_engine_address(engine))
        if self.workers is None and not self._look():
            raise InputError(_no_room(engine))
        self.token = _write_token(folder) if folder is not None else None
        terminal = sys.stderr.isatty()
        if terminal:
            place_progress_bars(_RayBar)
        else:
            _without_colours()
        self.facts = {
            "versions": ray_worker.versions_on_node(_PACKAGES),
            "folder": str(folder.absolute()) if folder is not None else None,
            "token": str(self.token.absolute()) if self.token else None,
            "environment": {
                name: text for name, text in os.environ.items() if name.startswith(_ENVIRONMENT_OF_WORKERS)
            },
            "threads": max(1, int(engine.cpus_per_job)),
            "flush": _FLUSH_TERMINAL_S if terminal else _FLUSH_FILE_S,
        }
        work = cloudpickle.dumps((self.fn, self.setup))
        begin_work = cloudpickle.dumps(_begin_work)  # opened once versions agree
        self.work = ray.put((begin_work, work))
        self.kind = ray.remote(ray_worker.MechclustRayWorker).options(
            num_cpus=engine.cpus_per_job, num_gpus=engine.gpus_per_job, scheduling_strategy="SPREAD", max_restarts=0
        )
        self.waiting_since: float | None = time.monotonic()  # None: the message was given

    def room(self) -> int:
        """Return how many workers there may be at once, now."""
        if self.workers is not None:
            return self.workers  # whatever is there now: a cluster may start nodes when actors wait
        return max(1, self._look())  # if the last node is gone, an actor waits for another

    def _look(self) -> int:
        """Return how many jobs fit on the nodes, whether or not others use them now."""
        if time.monotonic() - self.looked_at > _SECONDS_BETWEEN_LOOKS:
            self.n_fitting = sum(_fitting(resources, self.engine) for resources in _nodes())
            self.looked_at = time.monotonic()
        return self.n_fitting

    def start(self) -> _RayWorker:
        """Begin another worker, which looks at its node and then loads the function."""
        actor = self.kind.remote()
        return _RayWorker(actor=actor, pending=[actor.check.remote(self.facts), actor.begin.remote([self.work])])

    def send(self, worker: _RayWorker, job: bytes) -> None:
        """Give a ready worker another job."""
        worker.pending.append(worker.actor.run.remote(job))

    def wait(
        self, workers: Sequence[_RayWorker], seconds: float | None
    ) -> list[tuple[_RayWorker, PoolWorkerReply | PoolWorkerLost]]:
        """Wait for events, and return at most one per worker."""
        worker_by_answer = {worker.pending[0]: worker for worker in workers if worker.pending}
        answers = list(worker_by_answer)
        ray.wait(answers, timeout=_SECONDS_BETWEEN_LOOKS if seconds is None else min(seconds, _SECONDS_BETWEEN_LOOKS))
        ready, _ = ray.wait(answers, num_returns=len(answers), timeout=0)
        events = []
        for answer in ready:
            worker = worker_by_answer[answer]
            events.append((worker, self._receive_from(worker)))
        self._tell_of_waiting(workers)
        return [(worker, event) for worker, event in events if event is not None]

    def _tell_of_waiting(self, workers: Sequence[_RayWorker]) -> None:
        """Print a message, once, after a while in which no node had room."""
        if any(worker.placed for worker in workers):
            self.waiting_since = time.monotonic()
        elif self.waiting_since is not None and time.monotonic() - self.waiting_since > _PATIENCE_S:
            wanted = _in_words(_wanted(self.engine))
            why = f"no node of the Ray cluster has {wanted} free for a job"
            print(f"mechclust: {why}; waiting until one has, Ctrl-C ends the wait", file=sys.stderr, flush=True)
            self.waiting_since = None

    def _receive_from(self, worker: _RayWorker) -> PoolWorkerReply | PoolWorkerLost | None:
        """Return a worker's first answer. ``None`` if that is no event, but a node that was checked."""
        try:
            answer = ray.get(worker.pending.pop(0))
        except RayTaskError as error:  # the node cannot even load the code
            return PoolWorkerReply(None, error.cause if isinstance(error.cause, Exception) else error)
        except RayError as error:
            return PoolWorkerLost(f"{worker.where}, {_cause(error)}")
        if isinstance(answer, bytes):
            return PoolWorkerReply(*unpickled_outcome(answer))
        worker.where = f"process {answer['process']} on node {answer['node']}"
        worker.placed = True
        return PoolWorkerReply(None, InputError(_refusal(answer, self.facts))) if answer["refused"] else None

    def end(self, workers: Sequence[_RayWorker]) -> None:
        """End workers at once, even during a job."""
        for worker in workers:
            with suppress(Exception):  # its process or the cluster has ended
                ray.kill(worker.actor)

    def close(self, *, broken: bool) -> None:
        """Remove the token. If the run is ``broken`` off, stop a cluster that we started, or leave one we joined."""
        if self.token is not None:
            self.token.unlink(missing_ok=True)
        place_progress_bars()
        if broken:
            leave_ray()


def _wanted(engine: Ray) -> dict[str, float]:
    """Return the resources that a job needs on its node."""
    return {"CPU": engine.cpus_per_job} | ({"GPU": engine.gpus_per_job} if engine.gpus_per_job else {})


def _in_words(amounts: Mapping[str, float]) -> str:
    texts = [f"{amount:g} {kind}" if amount == 1 else f"{amount:g} {kind}s" for kind, amount in amounts.items()]
    return " and ".join(texts)


def _nodes() -> list[Mapping[str, float]]:
    """Return the resources of each node that is alive."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _fitting(resources: Mapping[str, float], engine: Ray) -> int:
    """Return how many jobs a node has room for."""
    return math.floor(min(resources.get(kind, 0) / amount for kind, amount in _wanted(engine).items()) + 1e-9)


def _no_room(engine: Ray) -> str:
    """Return which resources no node has, and the way out."""
    nodes = _nodes()
    wanted = _wanted(engine)
    most = {kind: max((node.get(kind, 0) for node in nodes), default=0) for kind in wanted}
    lacking = {kind: amount for kind, amount in wanted.items() if most[kind] < amount} or wanted
    names = {"CPU": "cpus_per_job", "GPU": "gpus_per_job (--gpus-per-job)"}
    fewer = " and ".join(names[kind] for kind in lacking if most[kind])
    way = f"give fewer {fewer}, or " if fewer else ""
    if "GPU" in lacking and not most["GPU"]:
        way += "leave out --gpus-per-job, or "
    way += "say how many workers (--workers), which waits for nodes that the cluster may start"
    has = _in_words({kind: most[kind] for kind in lacking})
    return f"no node of the Ray cluster has {_in_words(lacking)} for a job (at most {has}); {way}"


def _write_token(folder: Path) -> Path:
    """Return a new file in the folder, for the nodes to look for."""
    token = temporary_file_of(folder / f"nodes-{uuid.uuid4().hex}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        token.touch()
    except OSError as error:
        raise InputError(f"cannot write to {str(folder)!r} ({error.strerror}); give another folder") from None
    return token


def _refusal(answer: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """Return why a node is not fit."""
    node = f"node {answer['node']}"
    if answer["refused"] == "folder":
        way = "give a folder (--out) on a file system that all nodes share"
        return f"{node} does not see {facts['folder']!r}; {way}"
    on_node = answer["versions"]
    in_driver = facts["versions"]
    differ = [name for name in in_driver if on_node[name] != in_driver[name]]
    node_has = " and ".join(f"{name} {on_node[name]}" for name in differ)
    driver_has = " and ".join(f"{name} {in_driver[name]}" for name in differ)
    return f"{node} has {node_has}, but this process has {driver_has}; install the same versions on all nodes"


class _RayBar:
    """A bar of tqdm_ray, which the driver draws and closes when its items are done."""

    def __init__(self, items: Iterable[Any] | None = None, **options: Any) -> None:
        self.bar = tqdm_ray.tqdm(items, **options)

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self.bar
        finally:
            self.bar.close()

    def update(self, n: int = 1) -> None:
        """Advance the bar by ``n`` items."""
        self.bar.update(n)

    def close(self) -> None:
        """End the bar."""
        self.bar.close()


def _without_colours() -> None:
    """Print without colours, which Ray's bars and the lines of workers would otherwise have in files too."""
    for name in ("RAY_COLOR_PREFIX", "RAY_TQDM_PATCH_PRINT"):
        os.environ.setdefault(name, "0")
    with suppress(AttributeError):  # a version of Ray without them
        tqdm_ray.instance().should_colorize = False


def _begin_work(work: bytes, facts: Mapping[str, Any]) -> tuple[WorkerFunction, bytes]:
    """Return the function of a job on a node, and the reply that it is ready."""
    import torch

    torch.set_num_threads(facts["threads"])
    wait_for_locks()
    place_progress_bars(_RayBar, flush_interval_s=facts["flush"])
    function = WorkerFunction(cloudpickle.dumps)
    return function, function.begin(work)


def _cause(error: RayError) -> str:
    text = str(error).lower()
    if "node died" in text or "node has died" in text or "node was terminated" in text:
        return "its node was lost"
    if "low on memory" in text or "memory monitor" in text:
        return "killed by Ray for too little memory"
    return "killed or crashed, often for too little memory"
