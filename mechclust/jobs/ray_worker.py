"""The actor that does jobs on a node of a Ray cluster.

This module is sent to the nodes as code, because they may have another mechclust or none. It must not import mechclust.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from platform import python_version
from typing import Any

import ray

_LOOKS_FOR_TOKEN = 6
_SECONDS_BETWEEN_LOOKS = 0.5


class MechclustRayWorker:
    """Does one job after another, once it has seen that the node is fit for them."""

    def check(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Look at this node. Mechclust is imported after this, with the driver's environment."""
        os.environ.update(facts["environment"])
        answer: dict[str, Any] = {"node": ray.util.get_node_ip_address(), "process": os.getpid(), "refused": None}
        versions = versions_on_node(facts["versions"])
        if versions != facts["versions"]:
            return {**answer, "refused": "versions", "versions": versions}
        if facts["token"] is not None and not _appears(facts["token"]):
            return {**answer, "refused": "folder"}
        self.facts = facts
        return answer

    def begin(self, work: list[Any]) -> bytes:
        """Load the function, and return the reply that it is ready."""
        begin_work, fn_and_setup = ray.get(work[0])
        self.function, reply = ray.cloudpickle.loads(begin_work)(fn_and_setup, self.facts)
        return reply  # type: ignore[no-any-return]

    def run(self, job: bytes) -> bytes:
        """Do a job, and return the reply with its value or error."""
        return self.function.run(job)  # type: ignore[no-any-return]


def versions_on_node(packages: Iterable[str]) -> dict[str, str]:
    """Return the installed version of each package, or ``"missing"``. For ``"python"``, its first two numbers."""
    versions = {}
    for package in packages:
        if package == "python":
            versions[package] = ".".join(python_version().split(".")[:2])
            continue
        try:
            versions[package] = version(package)
        except PackageNotFoundError:  # a checkout that is on the path only
            versions[package] = "missing"
    return versions


def _appears(path: str) -> bool:
    """Return whether a file is there, or appears soon: shared file systems show a new file a little later."""
    for _ in range(_LOOKS_FOR_TOKEN):
        if os.path.exists(path):
            return True
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    return False
