"""The fields of a ``ProbeResult``, for functions that ``ProbeResult`` itself uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import prod
from typing import Any

from jaxtyping import Shaped
from torch import Tensor


@dataclass(frozen=True, repr=False)
class ResultFields:
    """The fields of a ``ProbeResult``, which describes them."""

    probe: str
    values: Mapping[str, Shaped[Tensor, "..."]]
    axes: Mapping[str, tuple[str, ...]]
    coords: Mapping[str, list[str]]
    layers: Mapping[str, int] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def result_size(result: ResultFields, axes: Sequence[str]) -> int:
    """Return the number of places along these axes together."""
    return prod(len(result.coords[axis]) for axis in axes)


def result_field_axes(result: ResultFields) -> list[str]:
    """Return the axes that some measure has, each once."""
    return list(dict.fromkeys(chain.from_iterable(result.axes.values())))
