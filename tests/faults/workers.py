"""Workers that are killed: processes of this machine, and of a Ray cluster of two nodes its workers, a whole node, and
the driver. The end has the bits of the undisturbed run on one machine.

The workers of Ray are actors, each of which does one job or one shard after another.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.faults.bench import Bench, Outcome, Trial
from tests.faults.process import Call, Ended, Failed, Process, command, descendants
from tests.faults.subjects import STUDIES, sharded

LOCAL, RAY = "lost workers of this machine", "lost workers, nodes and drivers of Ray"
_HELPERS = ("resource_tracker", "forkserver")  # processes of Python's own, which do no job
_NO_ACTOR = re.compile("IDLE|Agent")  # also Ray's own agents: a node ends with its agents, and the driver with its node
_PATIENCE = 120.0  # seconds in which something to kill must appear


def trials(size: str, draw: random.Random) -> list[Trial]:
    """Local workers of each study; of Ray each kind of loss, in a study and in shards.

    The small round leaves Ray to ``make cluster``.
    """
    small = size == "small"
    local = ("mossa",) if small else STUDIES
    found = [
        Trial(LOCAL, f"{name}, {k}", partial(_local, name), [name]) for name in local for k in range(1 if small else 3)
    ]
    losses = [] if small else [(loss, name) for loss in _LOSSES for name in (*STUDIES, "run_sharded")]
    return found + [
        Trial(RAY, f"{loss}, {name}", partial(_on_ray, loss, name), [name], alone=True) for loss, name in losses
    ]


def _local(name: str, bench: Bench, draw: random.Random) -> Outcome:
    """One or two workers, killed at moments drawn from the whole time."""
    with bench.place(draw) as folder:
        process = Process(_study(name), folder)
        told = _kill_workers(
            bench, process, draw, lambda: [pid for pid, line in descendants(process.pid) if _works(line)]
        )
        return _same(bench, name, folder, process.wait(), told)


def _study(name: str, *engine: str) -> Call:
    return command("run", name, "--preset", "smoke", "--workers", "2", *engine, "--out", "out")


def _works(line: str) -> bool:
    return "multiprocessing" in line and not any(helper in line for helper in _HELPERS)


def _kill_workers(bench: Bench, process: Process, draw: random.Random, workers: Callable[[], list[int]]) -> str:
    """Kill up to two workers, some time after the first is there; in words."""
    told: list[str] = []
    began = time.monotonic()
    while not process.poll() and not workers():
        if time.monotonic() > began + _PATIENCE:
            process.kill(group=True)
            raise Failed("no worker appears")
        time.sleep(0.05)
    for _ in range(draw.randint(1, 2)):
        after = draw.uniform(0, 10)
        end = time.monotonic() + after
        while not process.poll() and time.monotonic() < end:
            time.sleep(0.01)
        if (there := sorted(workers())) and not process.poll():
            with contextlib.suppress(ProcessLookupError):
                os.kill(draw.choice(there), signal.SIGKILL)
                bench.kills += 1
                told.append(f"a worker killed after {after:.1f} s more")
    return ", then ".join(told) or "nothing left to kill"


def _same(bench: Bench, name: str, folder: Path, ended: Ended, told: str) -> Outcome:
    try:
        bench.check_same(name, folder, ended, others_print=True)
    except Failed as failure:
        raise Failed(f"{told}: {failure}") from None
    return "same bits"


# ---- Ray ----


def _on_ray(loss: str, name: str, bench: Bench, draw: random.Random) -> Outcome:
    cluster = _cluster(bench)
    engine = ("--engine", "ray", "--address", cluster.address)
    call = sharded(cluster.address) if name == "run_sharded" else _study(name, *engine)
    with bench.place(draw) as folder:
        process = Process(call, folder, cluster.env)
        told = _LOSSES[loss](bench, cluster, process, draw)
        if loss == "the driver":
            process = Process(call, folder, cluster.env)
        return _same(bench, name, folder, process.wait(), f"{loss}: {told}")


class _Cluster:
    """A head without a core and two nodes with one each, held by a process of their own that ends with this one."""

    def __init__(self, log: Path) -> None:
        root = str(Path(__file__).parents[2])
        self.env = {"PYTHONPATH": root, "RAY_DEDUP_LOGS": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.workers"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log.open("wb"), text=True, cwd=root,
            env=os.environ | self.env,
        )  # fmt: skip
        self.address = self._answer()["address"]
        self.env["RAY_ADDRESS"] = self.address

    def _answer(self) -> dict[str, str]:
        assert self._server.stdout is not None
        for line in self._server.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        raise RuntimeError("the Ray cluster did not start")

    def lose_node(self) -> None:
        """kill -9 of a node with all its processes, and a new one in its place."""
        assert self._server.stdin is not None
        self._server.stdin.write("lose\n")
        self._server.stdin.flush()
        self._answer()

    def actors(self) -> list[int]:
        """Processes of the cluster that hold an actor of ours."""
        return [
            pid
            for pid, line in descendants(self._server.pid)
            if line.startswith("ray::") and not _NO_ACTOR.search(line)
        ]


def _lose_workers(bench: Bench, cluster: _Cluster, process: Process, draw: random.Random) -> str:
    return _kill_workers(bench, process, draw, cluster.actors)


def _wait_for_actors(cluster: _Cluster, process: Process, draw: random.Random) -> str:
    began = time.monotonic()
    while not process.poll() and not cluster.actors():
        if time.monotonic() > began + _PATIENCE:
            process.kill(group=True)
            raise Failed("no actor appears")
        time.sleep(0.05)
    after = draw.uniform(0, 10)
    end = time.monotonic() + after
    while not process.poll() and time.monotonic() < end:
        time.sleep(0.01)
    return f"{after:.1f} s after the first actor"


def _lose_node(bench: Bench, cluster: _Cluster, process: Process, draw: random.Random) -> str:
    told = _wait_for_actors(cluster, process, draw)
    cluster.lose_node()
    bench.kills += 1
    return told


def _lose_driver(bench: Bench, cluster: _Cluster, process: Process, draw: random.Random) -> str:
    told = _wait_for_actors(cluster, process, draw)
    process.kill(group=True)
    bench.kills += 1
    return told


_LOSSES: dict[str, Callable[[Bench, _Cluster, Process, random.Random], str]] = {
    "an actor": _lose_workers,
    "a node": _lose_node,
    "the driver": _lose_driver,
}
_started: list[_Cluster] = []


def _cluster(bench: Bench) -> _Cluster:
    """Started once in a process of the campaign."""
    if not _started:
        _started.append(_Cluster(bench.folder / "ray.log"))
    return _started[0]


def _serve() -> None:
    """Holds the cluster; loses a node for each line that comes in."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    cluster.wait_for_nodes()
    print(json.dumps({"address": cluster.address}), flush=True)
    for _ in sys.stdin:
        cluster.remove_node(nodes.pop(0), allow_graceful=False)
        nodes.append(cluster.add_node(num_cpus=1))
        print("{}", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    _serve()
