"""A real Ray cluster of two nodes with one CPU each, on this machine; made once for all tests that ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


class Nodes:
    """The cluster: ``address``, and nodes to add and to lose.

    Example:
        >>> map_jobs(abs, [1, -2], engine=Ray(nodes.address))  # doctest: +SKIP
    """

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(initialize_head=True, head_node_args=self._settings())
        self.address: str = self.cluster.address
        self.second = self.add()

    @staticmethod
    def _settings(**settings: Any) -> dict[str, Any]:
        return {"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_dashboard": False, **settings}

    def add(self, **settings: Any) -> Any:
        """Start another node; ``env_vars={...}`` is its environment."""
        return self.cluster.add_node(wait=True, **self._settings(**settings))

    def lose(self, node: Any) -> None:
        """Kill a node and all that runs on it."""
        self.cluster.remove_node(node, allow_graceful=False)

    def alive(self) -> int:
        """How many nodes have all their processes."""
        return sum(node.remaining_processes_alive() for node in self.cluster.list_all_nodes())

    def whole(self) -> None:
        """Have two nodes again, after one was lost."""
        if len(self.cluster.worker_nodes) == 0:
            self.second = self.add()


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Nodes]:
    """The cluster; take ``nodes``, which has both of them."""
    pytest.importorskip("ray")
    import ray

    cluster = Nodes()
    yield cluster
    ray.shutdown()
    cluster.cluster.shutdown()


@pytest.fixture
def nodes(ray_cluster: Nodes) -> Nodes:
    """Two nodes, also where the test before lost one."""
    ray_cluster.whole()
    return ray_cluster
