"""Engines: local processes or a Ray cluster."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tasks import InputError
from tasks.settings import CountOrZero, check_settings


@dataclass(frozen=True)
class Ray:
    """A Ray cluster (``pip install 'mechclust[ray]'``): an existing one, or a new one on this machine.

    Args:
        address: ``"HOST:PORT"`` or ``"auto"`` joins a cluster, ``"local"`` starts one on this machine. ``None``: the
            one that the environment variable ``RAY_ADDRESS`` names, or else a new one on this machine.
        gpus_per_job: GPUs per job, such as 1, or 0.5 for two jobs that share one. A job sees only its GPUs (none for
            0).
        cpus_per_job: cores per job, and as many torch threads.
        retries: how often a job is run again after losing its worker or node.

    Raises:
        InputError: for an invalid address, and numbers that no node can provide.

    Example:
        >>> Ray("auto", gpus_per_job=1).cpus_per_job
        1
    """

    address: str | None = None
    gpus_per_job: float = 0
    cpus_per_job: float = 1
    retries: CountOrZero = 3

    def __post_init__(self) -> None:
        check_settings(self)
        if self.address is not None:
            _check_address(self.address)
        _check_amount("gpus_per_job (--gpus-per-job)", self.gpus_per_job, "GPU", none=True)
        _check_amount("cpus_per_job", self.cpus_per_job, "CPU", none=False)


def _check_address(address: str, name: str = "address") -> None:
    """Refuse an invalid address of a cluster.

    Raises:
        InputError: such as ``"address is 'head'; expected HOST:PORT (6379 on the head node), auto or local"``.
    """
    expected = "HOST:PORT (6379 on the head node), auto or local"
    if not address:
        raise InputError(f"{name} is empty; expected {expected}")
    host, _, port = address.rpartition(":")
    known = address in ("auto", "local") or ("://" not in address and host and port.isascii() and port.isdecimal())
    if not known:
        raise InputError(f"{name} is {address!r}; expected {expected}")
    if host and not 1 <= int(port[:9]) <= 65535:
        raise InputError(f"{name} is {address!r}; expected a port from 1 to 65535")


def ray_engine_address(engine: Ray) -> str:
    """Return the engine's address, or else the environment's, or ``"local"``.

    Raises:
        InputError: if ``RAY_ADDRESS`` is invalid.
    """
    if engine.address is not None:
        return engine.address
    address = os.environ.get("RAY_ADDRESS") or "local"
    _check_address(address, "RAY_ADDRESS")
    return address


def _check_amount(name: str, amount: float, kind: str, *, none: bool) -> None:
    """Refuse an amount that Ray cannot give to a job: it counts in ten-thousandths, and above 1 in whole numbers."""
    if not ((none and amount == 0) or 1e-4 <= amount <= 1 or (amount > 1 and amount % 1 == 0)):
        least = "0, " if none else ""
        expected = f"{least}a part of one {kind} (at least 0.0001) or a whole number"
        raise InputError(f"{name} is {amount!r}; expected {expected}")


Engine: TypeAlias = Literal["local", "ray"] | Ray
