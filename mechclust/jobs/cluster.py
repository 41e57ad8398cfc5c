"""Jobs on a Ray cluster. This and the connection are the only places that import Ray."""

from __future__ import annotations

import math
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from typing import Any

from mechclust.jobs.connection import connect, leave
from mechclust.jobs.engine import Ray, address_of
from mechclust.jobs.outcome import attempt, opened
from mechclust.jobs.pool import Reply, Worker, WorkerLost, WorkerPool
from mechclust.jobs.progress import place_bars
from probes.store.files import temporary_of
from probes.store.locks import wait_for_dead_owners
from tasks import InputError

# Read when ray is imported. That a worker or a node was lost we say ourselves, in one sentence and on standard error.
_NOISE = r"A worker died or was killed|Raylet is terminated|marked dead because|is dead because its worker"
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", _NOISE)
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster that we start reports to nobody

try:
    import ray
    from ray import cloudpickle
    from ray.exceptions import RayError, RayTaskError
    from ray.experimental import tqdm_ray
except ImportError as lacking:
    if lacking.name != "ray":
        raise
    raise InputError("jobs on Ray need the package ray: pip install 'mechclust[ray]'") from None

_PACKAGES = ("mechclust", "torch", "transformer-lens")
_CARRIED = ("MECHCLUST_", "HF_", "TRANSFORMERS_", "TOKENIZERS_", "OMP_NUM_THREADS", "PYTHONHASHSEED")
_LOOK = 1.0  # seconds between two looks at what the cluster has
_PATIENCE = 30.0  # seconds without a worker on any node, after which that is said


@dataclass(kw_only=True, eq=False)
class RayWorker(Worker):
    """An actor, what it was asked and has not answered yet, and where it is."""

    actor: Any
    asked: list[Any]
    where: str = "a process that had not started"
    placed: bool = False  # on a node


# Actors for plain jobs too: an actor that is lost says which process on which node it was, what it was at is known (for
# the count and for time limits), and it looks at versions and folder once, not once a job.
class RayPool(WorkerPool[RayWorker]):
    """At most so many actors, or as many as the cluster has room for."""

    def __init__(
        self,
        engine: Ray,
        fn: Callable[..., Any],
        setup: Callable[[], Any] | None,
        workers: int | None,
        folder: Path | None,
    ) -> None:
        self.engine, self.fn, self.setup = engine, fn, setup
        self.workers, self.folder = workers, folder
        self.token: Path | None = None
        self.looked, self.fits = 0.0, 0

    def open(self) -> None:
        """Join or start the cluster, and see that jobs fit on it."""
        engine, folder = self.engine, self.folder
        connect(address_of(engine))
        if self.workers is None and not self._look():
            raise InputError(_no_room(engine))
        self.token = _write_token(folder) if folder is not None else None
        terminal = sys.stderr.isatty()
        if terminal:
            place_bars(RayBar)
        else:
            _without_colours()
        self.facts = {
            "versions": _versions(),
            "folder": str(folder.absolute()) if folder is not None else None,
            "token": str(self.token.absolute()) if self.token else None,
            "environment": {name: text for name, text in os.environ.items() if name.startswith(_CARRIED)},
            "threads": max(1, int(engine.cpus_per_job)),
            "flush": 0.5 if terminal else 10.0,
        }
        work = cloudpickle.dumps((self.fn, self.setup))
        self.work = ray.put((cloudpickle.dumps((begin_work, do)), work))  # the first is opened once versions agree
        self.kind = ray.remote(_worker_class()).options(
            num_cpus=engine.cpus_per_job, num_gpus=engine.gpus_per_job, scheduling_strategy="SPREAD", max_restarts=0
        )
        self.waiting_since: float | None = time.monotonic()  # None: it was said

    def room(self) -> int:
        if self.workers is not None:
            return self.workers  # whatever is there now: a cluster may start nodes when actors wait
        return max(1, self._look())  # where the last node is gone, an actor waits for another

    def _look(self) -> int:
        """How many jobs fit on the nodes, whoever else uses them now."""
        if time.monotonic() - self.looked > _LOOK:
            alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            self.fits = sum(_fitting(node, self.engine) for node in alive)
            self.looked = time.monotonic()
        return self.fits

    def start(self) -> RayWorker:
        actor = self.kind.remote()
        return RayWorker(actor=actor, asked=[actor.check.remote(self.facts), actor.begin.remote([self.work])])

    def send(self, worker: RayWorker, job: Any) -> None:
        worker.asked.append(worker.actor.run.remote(cloudpickle.dumps(job)))

    def wait(self, workers: Sequence[RayWorker], seconds: float | None) -> list[tuple[RayWorker, Reply | WorkerLost]]:
        first = {worker.asked[0]: worker for worker in workers if worker.asked}
        ray.wait(list(first), timeout=_LOOK if seconds is None else min(seconds, _LOOK))
        answered, _ = ray.wait(list(first), num_returns=len(first), timeout=0)
        events = [(first[asked], self._receive_from(first[asked])) for asked in answered]
        self._tell_of_waiting(workers)
        return [(worker, event) for worker, event in events if event is not None]

    def _tell_of_waiting(self, workers: Sequence[RayWorker]) -> None:
        """Once, after a while in which no node had room."""
        if any(worker.placed for worker in workers):
            self.waiting_since = time.monotonic()
        elif self.waiting_since is not None and time.monotonic() - self.waiting_since > _PATIENCE:
            wanted = _in_words(_wanted(self.engine))
            why = f"no node of the Ray cluster has {wanted} free for a job"
            print(f"mechclust: {why}; waiting until one has, Ctrl-C ends the wait", file=sys.stderr, flush=True)
            self.waiting_since = None

    def _receive_from(self, worker: RayWorker) -> Reply | WorkerLost | None:
        """The answer to the first of what it was asked; ``None`` where that is no event: a node that was checked."""
        try:
            answer = ray.get(worker.asked.pop(0))
        except RayTaskError as error:  # what a node cannot even load
            return Reply(None, error.cause if isinstance(error.cause, Exception) else error)
        except RayError as error:
            return WorkerLost(f"{worker.where}, {_cause(error)}")
        if isinstance(answer, bytes):
            return Reply(*opened(answer))
        worker.where, worker.placed = f"process {answer['process']} on node {answer['node']}", True
        return Reply(None, InputError(_refusal(answer, self.facts))) if answer["refused"] else None

    def end(self, workers: Sequence[RayWorker]) -> None:
        for worker in workers:
            with suppress(Exception):  # its process or the cluster has ended
                ray.kill(worker.actor)

    def close(self, *, broken: bool) -> None:
        """Broken off, a cluster that we started is stopped, one that we joined is left."""
        if self.token is not None:
            self.token.unlink(missing_ok=True)
        place_bars()
        if broken:
            leave()


def _wanted(engine: Ray) -> dict[str, float]:
    """What a job needs of its node."""
    return {"CPU": engine.cpus_per_job} | ({"GPU": engine.gpus_per_job} if engine.gpus_per_job else {})


def _in_words(amounts: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {kind}{'' if amount == 1 else 's'}" for kind, amount in amounts.items())


def _fitting(has: Mapping[str, float], engine: Ray) -> int:
    """How many jobs a node has room for."""
    return math.floor(min(has.get(kind, 0) / amount for kind, amount in _wanted(engine).items()) + 1e-9)


def _no_room(engine: Ray) -> str:
    """What lacks, and the way out."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
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
    """A file of the driver's in the folder, for the nodes to look for."""
    token = temporary_of(folder / f"nodes-{uuid.uuid4().hex}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        token.touch()
    except OSError as error:
        raise InputError(f"cannot write to {str(folder)!r} ({error.strerror}); give another folder") from None
    return token


def _versions() -> dict[str, str]:
    found = {"python": ".".join(python_version().split(".")[:2])}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # a checkout that is on the path only
            found[package] = "missing"
    return found


def _refusal(answer: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """Why a node is not fit."""
    node = f"node {answer['node']}"
    if answer["refused"] == "folder":
        way = "give a folder (--out) on a file system that all nodes share"
        return f"{node} does not see {facts['folder']!r}; {way}"
    differ = [name for name, ours in facts["versions"].items() if answer["versions"][name] != ours]
    theirs, ours = (
        " and ".join(f"{name} {versions[name]}" for name in differ)
        for versions in (answer["versions"], facts["versions"])
    )
    return f"{node} has {theirs}, but this process has {ours}; install the same versions on all nodes"


def _worker_class() -> type:
    """Made here so that its code travels to the nodes, which may have another mechclust or none."""

    class MechclustWorker:
        def check(self, facts: dict[str, Any]) -> dict[str, Any]:
            """Look at this node. Mechclust is imported after this, with the driver's environment."""
            import os
            import time
            from importlib.metadata import PackageNotFoundError, version
            from platform import python_version

            import ray

            os.environ.update(facts["environment"])
            about: dict[str, Any] = {"node": ray.util.get_node_ip_address(), "process": os.getpid(), "refused": None}
            ours: dict[str, str] = {"python": ".".join(python_version().split(".")[:2])}
            for package in facts["versions"]:
                if package != "python":
                    try:
                        ours[package] = version(package)
                    except PackageNotFoundError:
                        ours[package] = "missing"
            if ours != facts["versions"]:
                return {**about, "refused": "versions", "versions": ours}
            if facts["token"] is not None:
                for _ in range(6):  # shared file systems show a new file a little later
                    if os.path.exists(facts["token"]):
                        break
                    time.sleep(0.5)
                else:
                    return {**about, "refused": "folder"}
            self.facts = facts
            return about

        def begin(self, work: list[Any]) -> bytes:
            """Make ready."""
            import ray

            ours, given = ray.get(work[0])
            begin, self.do = ray.cloudpickle.loads(ours)
            self.fn, reply = begin(given, self.facts)
            return reply

        def run(self, job: bytes) -> bytes:
            """Do a job."""
            return self.do(self.fn, job)

    return MechclustWorker


class RayBar:
    """A bar of tqdm_ray, which the driver draws; closed when its items are done."""

    def __init__(self, items: Iterable[Any] | None = None, **options: Any) -> None:
        self.bar = tqdm_ray.tqdm(items, **options)

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self.bar
        finally:
            self.bar.close()

    def update(self, n: int = 1) -> None:
        """So many more are done."""
        self.bar.update(n)

    def close(self) -> None:
        """No more is done."""
        self.bar.close()


def _without_colours() -> None:
    """Where nobody sees them: Ray's own bars and the lines that workers print would have them in files too."""
    for name in ("RAY_COLOR_PREFIX", "RAY_TQDM_PATCH_PRINT"):
        os.environ.setdefault(name, "0")
    with suppress(AttributeError):  # a version of Ray without them
        tqdm_ray.instance().should_colorize = False


def begin_work(work: bytes, facts: Mapping[str, Any]) -> tuple[Callable[..., Any] | None, bytes]:
    """On a node: the function of a job, with what ``setup`` made, and the reply that says so."""
    import torch

    torch.set_num_threads(facts["threads"])
    wait_for_dead_owners()
    place_bars(RayBar, flush_interval_s=facts["flush"])
    made: list[Callable[..., Any]] = []

    def make() -> None:
        fn, setup = cloudpickle.loads(work)
        made.append(fn if setup is None else partial(fn, setup()))

    reply = attempt(make, dumps=cloudpickle.dumps)
    return (made[0] if made else None), reply


def do(fn: Callable[..., Any], job: bytes) -> bytes:
    """On a node: a job."""
    return attempt(lambda: fn(cloudpickle.loads(job)), dumps=cloudpickle.dumps)


def _cause(error: RayError) -> str:
    text = str(error).lower()
    if "node died" in text or "node has died" in text or "node was terminated" in text:
        return "its node was lost"
    if "low on memory" in text or "memory monitor" in text:
        return "killed by Ray for too little memory"
    return "killed or crashed, often for too little memory"
