"""Tables of a comparison: by layer and task, by task and by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Shaped

from mechclust.commands.compare.measurements import Measurements
from probes import ProbeResult

if TYPE_CHECKING:
    import pandas as pd

TITLES = {  # in the report's order
    "tasks": "Tasks, the most changed first",
    "layers": "Layers, by depth",
    "compare": "Every layer and task",
}
_MEASURES = {  # by column of the table
    "cka": "cka",
    "debiased_cka": "debiased_cka",
    "low": "debiased_cka_low",
    "high": "debiased_cka_high",
    "null_high": "debiased_cka_null_high",
}
_PATCHING_MEASURES = ("restored", "restored_low", "restored_high", "rise", "rise_low", "rise_high")
_BLOCK_MEASURES = {"block_cka": "debiased_cka", "block_low": "debiased_cka_low", "block_high": "debiased_cka_high"}


def layer_task_table(result: Measurements) -> pd.DataFrame:
    """Return one row per layer and label, see ``CompareResult.to_dataframe``."""
    import pandas as pd

    sites = result.cka.coords["site"]
    labels = result.cka.coords["label"]
    widths = result.cka.metadata["d"]
    columns: dict[str, Any] = {
        "layer": len(labels) * result.layer_numbers,
        "site": len(labels) * sites,
        "task": np.repeat(labels, len(sites)).tolist(),
        "n": np.repeat(result.cka["n"].tolist(), len(sites)),
        "d_tuned": len(labels) * [widths[f"tuned/{site}"] for site in sites],
        "d_base": len(labels) * [widths[f"base/{site}"] for site in sites],
    }
    for column, measure in _MEASURES.items():
        if measure in result.cka.values:
            columns[column] = _column(result.cka[measure].double().numpy())
    no_value = np.full((len(sites), 1), np.nan)  # of all prompts together
    if result.without_top_pc is not None:
        without_top = result.without_top_pc["debiased_cka"].double().numpy()
        columns["without_top_pc"] = _column(np.hstack([no_value, without_top]))
    if result.blocks is not None:
        for column, measure in _BLOCK_MEASURES.items():
            columns[column] = _column(result.block_values(measure).double().numpy())
    if result.patching is not None:
        columns |= _patching_columns(result, result.patching)
    columns["change"] = _column(1 - result.cka["debiased_cka"].double().numpy())
    columns["changed"] = _decisions(np.ma.column_stack([result.changed_together, result.changed]))
    columns["stands_out"] = _decisions(np.ma.column_stack([np.ma.masked_invalid(no_value), result.stands_out]))
    return pd.DataFrame(columns)


def _patching_columns(result: Measurements, patching: ProbeResult) -> dict[str, Any]:
    """Return the columns of patching, whose sites are the layers of the table."""
    columns: dict[str, Any] = {name: _column(patching[name].numpy()) for name in _PATCHING_MEASURES}
    columns["chance_restored"] = _column(patching["chance"].numpy())
    verdicts = [np.ma.MaskedArray(each.matters, mask=np.isnan(each.low)) for each in result.output_verdicts.values()]
    columns["matters"] = _decisions(np.ma.column_stack(verdicts))
    return columns


def _column(values: Shaped[np.ndarray, "layer label"]) -> list[Any]:
    """Return the values by label and then layer."""
    return values.T.ravel().tolist()  # type: ignore[no-any-return]


def _decisions(masked: np.ma.MaskedArray) -> list[bool | float]:
    """Return booleans by label and then layer, with NaN for undecided ones."""
    return [np.nan if decision is None else bool(decision) for decision in masked.T.ravel().tolist()]


def task_table(result: Measurements) -> pd.DataFrame:
    """Return one row per task, see ``CompareResult.summary``."""
    import pandas as pd

    layers = result.common[0]
    low, high = result.interval
    no_mean = np.full(len(result.tasks), np.nan)
    means = {
        name: values[layers].mean(axis=0) if layers.any() else no_mean
        for name, values in {"change": result.change, "low": low, "high": high}.items()
    }
    largest = np.where(np.isfinite(result.change), result.change, -np.inf).argmax(axis=0)
    places = (largest, np.arange(len(largest)))
    measured = np.isfinite(result.change[places])
    at_layer = [result.layer_numbers[i] if ok else None for i, ok in zip(largest, measured, strict=True)]
    changed = result.changed.filled(False).T
    table = pd.DataFrame(
        {
            "task": list(result.tasks),
            "n": result.cka["n"][1:].tolist(),
            **means,
            "stands_out": _decisions(result.outstanding(**means)),
            "layers": result.ranges_of(layers),
            "begins_at": _whole([result.first_layer(mask) for mask in changed]),
            "largest": result.change[places],
            "largest_low": low[places],
            "largest_high": high[places],
            "at_layer": _whole(at_layer),
            "changed_layers": [result.ranges_of(mask) for mask in changed],
            "stands_out_layers": [result.ranges_of(mask) for mask in result.stands_out.filled(False).T],
            "no_interval_layers": [result.ranges_of(mask) for mask in ~result.known.T],
        }
    )
    if result.patching is not None:
        table["output_layers"] = [result.ranges_of(result.output_verdicts[task].matters) for task in result.tasks]
    return table.sort_values("change", ascending=False, kind="stable", ignore_index=True)


def _whole(layers: Sequence[int | None]) -> Shaped[np.ndarray, "task"]:
    """Return integers and NaN as objects: floats would be printed as ``3.0``."""
    return np.array([np.nan if layer is None else layer for layer in layers], dtype=object)


def layer_table(result: Measurements) -> pd.DataFrame:
    """Return one row per layer with a CKA, see ``CompareResult.by_layer``."""
    import pandas as pd

    measured = np.isfinite(result.change).any(axis=1)
    change = result.change[measured]
    return pd.DataFrame(
        {
            "layer": np.array(result.layer_numbers)[measured],
            "site": np.array(result.cka.coords["site"], dtype=object)[measured],
            "change": np.nanmean(change, axis=1),
            "tasks": np.isfinite(change).sum(axis=1),
            "least": np.nanmin(change, axis=1),
            "most": np.nanmax(change, axis=1),
            "most_task": [result.tasks[k] for k in np.nanargmax(change, axis=1)],
            "changed": result.changed[measured].filled(False).sum(axis=1),
            "no_interval": (~result.known[measured]).sum(axis=1),
        }
    ).sort_values("layer", kind="stable", ignore_index=True)
