"""Return a result's numbers in the containers of other packages: a data frame, and a data set with named axes."""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING, Any

import torch

from probes.engine.result_fields import ResultFields, result_field_axes
from tasks import InputError

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

_COLUMNS = ("probe", "measure", "site", "layer", "other_site", "head", "label", "step", "coords", "value")
_AXES_WITH_COLUMN = ("site", "other_site", "head", "label", "step")
_INTEGERS = ("layer", "head", "step")


def result_dataframe(result: ResultFields) -> pd.DataFrame:
    """Return a row for each number of a result, see ``ProbeResult.to_dataframe``."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for measure, tensor in result.values.items():
        axes = result.axes[measure]
        places = product(*(result.coords[axis] for axis in axes))
        for place, value in zip(places, tensor.flatten().tolist(), strict=True):
            at = dict(zip(axes, place, strict=True))
            row: dict[str, Any] = {axis: at[axis] for axis in _AXES_WITH_COLUMN if axis in at}
            others = ", ".join(f"{axis}={at[axis]}" for axis in at if axis not in _AXES_WITH_COLUMN)
            row |= {"probe": result.probe, "measure": measure, "coords": others, "value": value}
            if "site" in at:
                row["layer"] = result.layers[at["site"]]
            rows.append(row)
    frame = pd.DataFrame(rows, columns=_COLUMNS)
    for name in _INTEGERS:
        frame[name] = pd.to_numeric(frame[name]).astype("Int64")
    return frame.astype({"value": "float64"} | dict.fromkeys(("site", "other_site", "label"), "string"))


def result_dataset(result: ResultFields) -> xr.Dataset:
    """Return a variable for each measure of a result, see ``ProbeResult.to_xarray``."""
    try:
        import xarray as xr
    except ImportError:
        raise InputError("to_xarray needs xarray; install it with: pip install 'mechclust[xarray]'") from None
    used = result_field_axes(result)
    along: dict[str, object] = {}
    for axis, names in result.coords.items():
        if axis in used:
            along[axis] = [int(name) for name in names] if axis in _INTEGERS else names
    if "site" in along:
        along["layer"] = ("site", [result.layers[site] for site in result.coords["site"]])
    variables = {}
    for measure, tensor in result.values.items():
        name = f"{measure}_" if measure in along else measure
        values = tensor.float() if tensor.dtype == torch.bfloat16 else tensor  # numpy has no bfloat16
        variables[name] = (result.axes[measure], values.numpy())
    attributes = {"probe": result.probe, "notes": list(result.notes), "metadata": json.dumps(result.metadata)}
    return xr.Dataset(variables, along, attributes)
