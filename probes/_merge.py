"""Two results as one, or why not. Behind ``ProbeResult.merge``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from probes.result import ProbeResult
from tasks import InputError

_STATES = "merge the probes' states instead (save_state in each job, then load_state, merge and compute)"


def merged(a: ProbeResult, b: ProbeResult) -> ProbeResult:
    """See ``ProbeResult.merge``."""
    if a.probe != b.probe:
        raise InputError(
            f"cannot merge results of {a.probe} and {b.probe}; put them side by side with "
            "pandas.concat([a.to_dataframe(), b.to_dataframe()])"
        )
    if _axes(a) != _axes(b):
        raise InputError(
            f"cannot merge {a.probe} results of other measures or axes: {_axes(a)} and {_axes(b)}; "
            "measure both with the same settings"
        )
    axis = _axis(a, b)
    values = {name: _values(name, axis, a, b) for name in a.values}
    coords = {**a.coords, axis: [*a.coords[axis], *b.coords[axis]]}
    layers = {**a.layers, **b.layers}
    if other := [site for site, layer in a.layers.items() if layers[site] != layer]:
        raise InputError(f"cannot merge {a.probe} results that have {other[0]!r} at other layers; measure one model")
    if axis == "site" or all(name.isdigit() for name in coords[axis]):  # the same result whichever comes first
        place = layers.__getitem__ if axis == "site" else int
        order = sorted(range(len(coords[axis])), key=lambda i: place(coords[axis][i]))
        coords[axis] = [coords[axis][i] for i in order]
        values = {
            name: value.index_select(a.axes[name].index(axis), torch.tensor(order)) if axis in a.axes[name] else value
            for name, value in values.items()
        }
    notes = list(dict.fromkeys([*a.notes, *b.notes]))
    metadata, differing = _metadata(a.probe, axis, a.metadata, b.metadata)
    return replace(a, values=values, coords=coords, layers=layers, metadata=metadata, notes=[*notes, *differing])


def _axes(result: ProbeResult) -> str:
    return ", ".join(f"{name} ({', '.join(axes)})" for name, axes in result.axes.items())


def _axis(a: ProbeResult, b: ProbeResult) -> str:
    """The one axis along which they differ."""
    used = dict.fromkeys(axis for axes in a.axes.values() for axis in axes)
    different = [axis for axis in used if a.coords[axis] != b.coords[axis]]
    if not different:
        raise InputError(
            f"cannot merge two {a.probe} results that measured the same things ({', '.join(used) or 'no axes'}); "
            f"if they saw different examples, {_STATES}"
        )
    if len(different) > 1:
        raise InputError(
            f"cannot merge {a.probe} results that differ along {' and '.join(different)}; "
            "they may differ along one axis only"
        )
    axis = different[0]
    if both := [name for name in a.coords[axis] if name in b.coords[axis]]:
        raise InputError(
            f"cannot merge {a.probe} results along {axis}: both have {both[0]!r}; give results of different {axis}s, "
            f"or, if they saw different examples, {_STATES}"
        )
    return axis


def _values(name: str, axis: str, a: ProbeResult, b: ProbeResult) -> Tensor:
    x, y = a.values[name], b.values[name]
    if axis in a.axes[name]:
        return torch.cat([x, y], dim=a.axes[name].index(axis))
    if not torch.allclose(x.double(), y.double(), rtol=0, atol=0, equal_nan=True):
        raise InputError(
            f"cannot merge {a.probe} results along {axis}: {name!r} is one number for all of it, and differs; measure "
            f"both parts in one run, or, if they saw different examples, {_STATES}"
        )
    return x


def _metadata(probe: str, axis: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Both records as one, and notes on what differs without changing what the numbers mean."""
    found: dict[str, Any] = {}
    notes: list[str] = []
    for key in dict.fromkeys([*a, *b]):
        x: Any = a.get(key)
        y: Any = b.get(key)
        if json.dumps(x, sort_keys=True) == json.dumps(y, sort_keys=True):  # lists and tuples are alike, so is NaN
            found[key] = x
        elif key == "versions":
            found[key] = x
            notes.append(f"merged from results of different versions: {x} and {y}")
        elif key == "parameters":
            if changed := [k for k in {**x, **y} if k != "at" and x.get(k) != y.get(k)]:
                raise InputError(
                    f"cannot merge {probe} results with different settings ({changed[0]} = {x.get(changed[0])} and "
                    f"{y.get(changed[0])}); measure both with the same"
                )
            found[key] = {**x, "at": f"{x.get('at')} and {y.get('at')}"}
        elif key in ("examples", "model"):
            if not (x and y):
                notes.append(f"merged without knowing whether both measured the same {key}")
                continue
            if key == "examples" and axis == "label":  # each of its own examples
                notes.append("labels were measured on examples of their own")
                continue
            what = "examples" if key == "examples" else "models"
            way = f"; {_STATES}" if key == "examples" else "; compare them side by side instead"
            raise InputError(f"cannot merge {probe} results of different {what}{way}")
        elif (
            isinstance(x, Mapping) and isinstance(y, Mapping) and all(x[k] == y[k] for k in x if k in y) and key != "n"
        ):
            found[key] = {**x, **y}
        else:
            raise InputError(
                f"cannot merge {probe} results whose {key!r} differs ({x} and {y}): they did not measure the same "
                f"examples; {_STATES}"
            )
    return found, notes
