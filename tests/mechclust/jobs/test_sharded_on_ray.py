"""Shards on a real cluster of two nodes: a killed worker and a lost node change no bit."""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from mechclust.jobs import Ray, run_sharded, save_rows_sharded
from probes import CKA, save_rows
from tests.mechclust.jobs import test_sharded_rows
from tests.mechclust.jobs.test_sharded import WHOLE, die_once, function, one, same, two


def wait_on(node: str, flag: Path) -> None:
    """On that node, and once only: for longer than it will live. On the other one until that node is at work, which may
    have been started only now."""
    import ray

    here, end = ray.get_runtime_context().get_node_id(), time.monotonic() + 120
    if here == node and not flag.exists():
        flag.touch()
        time.sleep(300)
    while here != node and not flag.exists() and time.monotonic() < end:
        time.sleep(0.1)


def trouble(killed: Path | None, node: str, flag: Path) -> None:
    """A kill of this process, and then the loss of that node."""
    if killed:
        die_once(killed)
    wait_on(node, flag)


def test_run_sharded_where_a_worker_is_killed_and_a_node_is_lost_in_a_shard(nodes: Any, tmp_path: Path) -> None:
    """Their shards are measured again on the other node. What was kept in the folder is not."""
    probes = [CKA(label="task", form="moments"), CKA(label="task", form="rows")]
    expected = run_sharded(two, [partial(function, k) for k in range(3)], probes, workers=1)
    flag, killed, second = tmp_path / "measuring", tmp_path / "killed", nodes.second
    shards = [
        partial(function, k, partial(trouble, killed if k == 1 else None, second.node_id, flag)) for k in range(3)
    ]

    def lose() -> None:
        while not flag.exists():
            time.sleep(0.1)
        nodes.lose(second)

    threading.Thread(target=lose, daemon=True).start()
    found = run_sharded(
        two, shards, [probe.clone() for probe in probes], engine=Ray(nodes.address), out=tmp_path / "out"
    )
    assert flag.exists()
    assert killed.exists()
    assert all(map(same, found, expected))


def test_save_rows_sharded_where_a_worker_is_killed_in_a_shard(nodes: Any, tmp_path: Path) -> None:
    expected = save_rows(one(), WHOLE, tmp_path / "one", labels=["task"])
    shards = [partial(function, k) for k in range(3)]
    shards[1] = partial(function, 1, partial(die_once, tmp_path / "killed", os.getpid))
    store = save_rows_sharded(one, shards, tmp_path / "s", labels=["task"], engine=Ray(nodes.address))
    assert (tmp_path / "killed").exists()
    assert test_sharded_rows.same(store, expected)
