"""Results by cluster of tasks: medians and ranges over a cluster's tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


def cluster_summary(clusters: Mapping[str, Sequence[str]], summary: pd.DataFrame) -> pd.DataFrame:
    """One row per cluster, the most changed first: ``cluster, tasks``, median, least and most over its tasks of
    their mean ``change`` (``change``, ``change_least``, ``change_most``), of how many tasks (``change_tasks``: those
    that have one), and ``layers``, over which it is.

    Args:
        clusters: to their tasks.
        summary: by task, as ``CompareTables.summary`` gives it.
    """
    import pandas as pd

    change = summary.set_index("task")["change"]
    rows = []
    for cluster, tasks in clusters.items():
        values = change[list(tasks)].to_numpy(dtype=float)
        rows.append({"cluster": cluster, "tasks": len(tasks), **_spread("change", values)})
    table = pd.DataFrame(rows).assign(layers=summary["layers"].iloc[0])
    return table.sort_values("change", ascending=False, kind="stable", ignore_index=True)


def clusters_by_layer(
    clusters: Mapping[str, Sequence[str]], by_task: pd.DataFrame, controls: pd.DataFrame | None
) -> pd.DataFrame:
    """One row per cluster and layer: ``cluster, layer, site``, and of ``change`` the median over the cluster's tasks,
    ``_least``, ``_most`` and ``_tasks``, how many have one there; where there are controls likewise of
    ``control_base``, ``control_tuned`` and ``gain``.

    Args:
        clusters: to their tasks.
        by_task: by layer and task, as ``CompareTables.to_dataframe`` gives it.
        controls: as ``CompareTables.control_table`` gives it.
    """
    import pandas as pd

    parts = [(by_task, ["change"]), (controls, ["control_base", "control_tuned", "gain"])]
    rows = []
    for cluster, tasks in clusters.items():
        for (layer, site), _ in by_task.groupby(["layer", "site"], sort=False):
            row: dict[str, Any] = {"cluster": cluster, "layer": layer, "site": site}
            for table, columns in parts:
                if table is None:
                    continue
                here = table[(table["site"] == site) & table["task"].isin(tasks)]
                for column in columns:
                    row |= _spread(column, here[column].to_numpy(dtype=float))
            rows.append(row)
    return pd.DataFrame(rows)


def _spread(name: str, values: np.ndarray) -> dict[str, float | int]:
    """Median, minimum and maximum of the numbers that exist; NaN if there are none."""
    values = values[np.isfinite(values)]
    found = (np.median(values), values.min(), values.max()) if len(values) else (np.nan,) * 3
    median, least, most = map(float, found)
    return {name: median, f"{name}_least": least, f"{name}_most": most, f"{name}_tasks": len(values)}
