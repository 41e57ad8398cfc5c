"""Find the models of papers, by the kind of their configuration."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import Any

from probes.engine.registry import entry_point_package, load_entry_point
from tasks import InputError

TRANSFORMER = "transformer"  # the kind of ModelConfig
_ENTRY_POINTS = "mechclust.models"


@cache  # reading the entry points of all installed packages takes 40 ms
def model_class_of_kind(kind: str) -> Any:
    """Return the class of a paper's model, by the kind of its configuration.

    Each is an entry point of the group ``mechclust.models``, ``kind = "package.module:Model"``, where ``Model(config)``
    builds it and ``Model.config_class`` is the class of its configuration.

    Raises:
        InputError: for a kind that no installed package registers, or one whose module cannot be imported.
    """
    points = entry_points(group=_ENTRY_POINTS)
    if kind not in points.names:
        raise InputError(f"no model of kind {kind!r} (there are {', '.join((TRANSFORMER, *sorted(points.names)))})")
    model, fault = load_entry_point(points[kind], _fault_of_class)
    if fault:
        raise InputError(f"the model of kind {kind!r} of {entry_point_package(points[kind])} is broken: {fault}")
    return model


def _fault_of_class(model: Any) -> str:
    return "" if hasattr(model, "config_class") else "has no config_class; name the class of its configuration there"
