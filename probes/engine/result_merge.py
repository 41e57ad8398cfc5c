"""Merge two results of one probe into one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor

from probes.engine.result_fields import ResultFields, result_field_axes
from tasks import InputError

_MERGE_STATES = "merge the probes' states instead (save_state in each job, then load_state, merge and compute)"


def merge_results(a: ResultFields, b: ResultFields) -> dict[str, Any]:
    """Return the fields of a merged result that differ from ``a``'s. See ``ProbeResult.merge``.

    Raises:
        InputError: for results that do not merge, with the reason.
    """
    _check_same_measures(a, b)
    axis = _differing_axis(a, b)
    if axis == "site" and "p_holm" in a.values:
        raise InputError(
            f"cannot merge {a.probe} results of different sites, since p_holm is corrected over all heads of one; "
            "measure all sites in one run"
        )
    values = {name: _joined(name, axis, a, b) for name in a.values}
    coords = {**a.coords, axis: [*a.coords[axis], *b.coords[axis]]}
    layers = _merged_layers(a, b)
    if axis == "site" or all(name.isdigit() for name in coords[axis]):  # independent of the order
        names = coords[axis]
        keys = [layers[name] for name in names] if axis == "site" else [int(name) for name in names]
        order = sorted(range(len(names)), key=keys.__getitem__)
        coords[axis] = [names[i] for i in order]
        for name, axes in a.axes.items():
            if axis in axes:
                values[name] = values[name].index_select(axes.index(axis), torch.tensor(order))
    metadata, metadata_notes = _merged_metadata(a, b, axis)
    notes = [*dict.fromkeys([*a.notes, *b.notes]), *metadata_notes]
    return {"values": values, "coords": coords, "layers": layers, "metadata": metadata, "notes": notes}


def _check_same_measures(a: ResultFields, b: ResultFields) -> None:
    if a.probe != b.probe:
        raise InputError(
            f"cannot merge results of {a.probe} and {b.probe}; put them side by side with "
            "pandas.concat([a.to_dataframe(), b.to_dataframe()])"
        )
    measures_a = _measures_text(a)
    measures_b = _measures_text(b)
    if measures_a != measures_b:
        raise InputError(
            f"cannot merge {a.probe} results of different measures or axes: {measures_a} and {measures_b}; "
            "measure both with the same settings"
        )


def _measures_text(result: ResultFields) -> str:
    return ", ".join(f"{name} ({', '.join(axes)})" for name, axes in result.axes.items())


def _differing_axis(a: ResultFields, b: ResultFields) -> str:
    """Return the one axis along which the coordinates differ."""
    used = result_field_axes(a)
    different = [axis for axis in used if a.coords[axis] != b.coords[axis]]
    if not different:
        raise InputError(
            f"cannot merge two {a.probe} results that measured the same things ({', '.join(used) or 'no axes'}); "
            f"if they saw different examples, {_MERGE_STATES}"
        )
    if len(different) > 1:
        raise InputError(
            f"cannot merge {a.probe} results that differ along {' and '.join(different)}; "
            "they may differ along one axis only"
        )
    axis = different[0]
    in_both = [name for name in a.coords[axis] if name in b.coords[axis]]
    if in_both:
        raise InputError(
            f"cannot merge {a.probe} results along {axis}: both have {in_both[0]!r}; give results of different "
            f"{axis}s, or, if they saw different examples, {_MERGE_STATES}"
        )
    return axis


def _joined(name: str, axis: str, a: ResultFields, b: ResultFields) -> Shaped[Tensor, "..."]:
    x = a.values[name]
    y = b.values[name]
    if axis in a.axes[name]:
        return torch.cat([x, y], dim=a.axes[name].index(axis))
    if not torch.allclose(x.double(), y.double(), rtol=0, atol=0, equal_nan=True):
        raise InputError(
            f"cannot merge {a.probe} results along {axis}: {name!r} has one value for all of it, which differs; "
            f"measure both parts in one run, or, if they saw different examples, {_MERGE_STATES}"
        )
    return x


def _merged_layers(a: ResultFields, b: ResultFields) -> dict[str, int]:
    layers = {**a.layers, **b.layers}
    for site, layer in a.layers.items():
        if layers[site] != layer:
            raise InputError(f"cannot merge {a.probe} results that have {site!r} at different layers; use one model")
    return layers


# ---- metadata ----


def _merged_metadata(a: ResultFields, b: ResultFields, axis: str) -> tuple[dict[str, Any], list[str]]:
    """Return the metadata of both, and notes on differences that do not change the meaning of the numbers."""
    merged: dict[str, Any] = {}
    notes: list[str] = []
    for key in dict.fromkeys([*a.metadata, *b.metadata]):
        x: Any = a.metadata.get(key)
        y: Any = b.metadata.get(key)
        if json.dumps(x, sort_keys=True) == json.dumps(y, sort_keys=True):  # lists equal tuples, and NaN equals NaN
            merged[key] = x
        elif key == "versions":
            merged[key] = x
            notes.append(f"merged from results of different versions: {x} and {y}")
        elif key == "form":  # both give the same numbers
            merged[key] = "rows and moments"
        elif key == "padding":  # depends on how examples were batched, which changes no number
            merged[key] = y if x is None else x
        elif key == "parameters":
            merged[key] = _merged_parameters(a.probe, x, y)
        elif key in ("examples", "model"):
            notes.append(_note_on_subject(a.probe, key, axis, known_in_both=bool(x and y)))
        elif key != "n" and _agree(x, y):
            merged[key] = {**x, **y}
        else:
            raise InputError(
                f"cannot merge {a.probe} results whose {key!r} differs ({x} and {y}): they did not measure the same "
                f"examples; {_MERGE_STATES}"
            )
    return merged, notes


def _merged_parameters(probe: str, x: Mapping[str, Any], y: Mapping[str, Any]) -> dict[str, Any]:
    for name in {**x, **y}:
        if name != "at" and x.get(name) != y.get(name):
            raise InputError(
                f"cannot merge {probe} results with different settings ({name} = {x.get(name)} and {y.get(name)}); "
                "measure both with the same"
            )
    return {**x, "at": f"{x.get('at')} and {y.get('at')}"}


def _note_on_subject(probe: str, key: str, axis: str, *, known_in_both: bool) -> str:
    """Return a note on examples or models that differ, or raise if the numbers cannot be joined."""
    if not known_in_both:
        return f"merged without knowing whether both measured the same {key}"
    if key == "model":
        raise InputError(f"cannot merge {probe} results of different models; compare them side by side instead")
    if axis != "label":
        raise InputError(f"cannot merge {probe} results of different examples; {_MERGE_STATES}")
    return "labels were measured on examples of their own"


def _agree(x: object, y: object) -> bool:
    """Return whether these are tables without a key whose values differ."""
    if not isinstance(x, Mapping) or not isinstance(y, Mapping):
        return False
    return all(x[key] == y[key] for key in x if key in y)
