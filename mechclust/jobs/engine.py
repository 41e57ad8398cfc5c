"""Where jobs run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tasks import InputError


@dataclass(frozen=True)
class Ray:
    """A Ray cluster (``pip install 'mechclust[ray]'``): an existing one, or a new one on this machine.

    Args:
        address: ``"HOST:PORT"`` or ``"auto"`` joins a cluster, ``"local"`` starts one on this machine. ``None``: the
            one that the environment variable ``RAY_ADDRESS`` names, or else a new one on this machine.
        gpus_per_job: such as 1, or 0.5 for two jobs that share one. A job sees no others, with 0 none at all.
        cpus_per_job: cores, and as many torch threads.
        retries: how often a job is run again that lost its worker or node.

    Raises:
        InputError: for a negative number, or no CPU.

    Example:
        >>> Ray("auto", gpus_per_job=1).cpus_per_job
        1
    """

    address: str | None = None
    gpus_per_job: float = 0
    cpus_per_job: float = 1
    retries: int = 3

    def __post_init__(self) -> None:
        if self.address == "":
            raise InputError("address is empty; expected HOST:PORT, auto or local")
        if self.gpus_per_job < 0:
            raise InputError(f"gpus_per_job is {self.gpus_per_job}; expected at least 0")
        if self.gpus_per_job > 1 and self.gpus_per_job % 1:
            raise InputError(f"gpus_per_job is {self.gpus_per_job}; expected a whole number, or a part of one GPU")
        if self.cpus_per_job <= 0:
            raise InputError(f"cpus_per_job is {self.cpus_per_job}; expected more than 0")
        if self.retries < 0:
            raise InputError(f"retries is {self.retries}; expected at least 0")


Engine: TypeAlias = Literal["local", "ray"] | Ray
