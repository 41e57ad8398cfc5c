"""The fields of a ``ProbeResult``, for functions that ``ProbeResult`` itself uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from math import prod
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Shaped
from torch import Tensor


@runtime_checkable
class ResultFields(Protocol):
    """Anything with the fields of a ``ProbeResult``."""

    @property
    def probe(self) -> str:
        """Name of the probe's class."""

    @property
    def values(self) -> Mapping[str, Shaped[Tensor, "..."]]:
        """Measure name to tensor."""

    @property
    def axes(self) -> Mapping[str, tuple[str, ...]]:
        """Measure name to the names of its tensor's axes."""

    @property
    def coords(self) -> Mapping[str, list[str]]:
        """Axis name to the names along it."""

    @property
    def layers(self) -> Mapping[str, int]:
        """Hook name to layer number."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Parameters, number of examples, versions and so on."""

    @property
    def notes(self) -> list[str]:
        """Remarks for a reader."""


def result_size(result: ResultFields, axes: Sequence[str]) -> int:
    """Return the number of places along these axes together."""
    return prod(len(result.coords[axis]) for axis in axes)


def result_field_axes(result: ResultFields) -> list[str]:
    """Return the axes that some measure has, each once."""
    return list(dict.fromkeys(chain.from_iterable(result.axes.values())))
