"""CKA with the controls by layer, and the groups of layers that it shows: shared, transition, inherited."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from mechclust.commands.compare.task_clusters import ClustersOfTasks
from mechclust.mossa.layer_groups import LEAST_FOR_GROUPS, LayerGroupsInterval, layer_groups_interval
from mechclust.mossa.task_curves import TaskCurves
from mechclust.report.text import list_text, ranges_text
from probes import ProbeResult
from tasks.text.visible import shortened

if TYPE_CHECKING:
    import pandas as pd

REST = "inherited"
"""Name of layers above the transition: nothing in the curves says that tuning altered them."""


@dataclass(frozen=True)
class ControlGroups:
    """Groups of layers, as far as the controls show them.

    Attributes:
        curves: CKA of base and tuned model with each control, by layer from 1: the embedding is in no group.
        seed: seed of the bootstrap over tasks.
    """

    curves: TaskCurves
    seed: int

    @property
    def why_none(self) -> str:
        """Reason why no groups are named, or ``""`` if they are."""
        n = len(self.curves.seen.tasks)
        if n >= LEAST_FOR_GROUPS:
            undefined = ranges_text(map(int, self.curves.seen.undefined_layers))
            return f"CKA with the controls is undefined at layers {undefined}" if undefined else ""
        held_out = self.curves.unseen.tasks
        without = f" (without the held-out {list_text(map(shortened, held_out))})" if held_out else ""
        return f"tasks with a control: {n}{without}, and medians and their spread need at least {LEAST_FOR_GROUPS}"

    @cached_property
    def interval(self) -> LayerGroupsInterval | None:
        """Groups of the tasks that are not held out, with intervals over tasks, or ``None`` if no groups are named."""
        return None if self.why_none else layer_groups_interval(self.curves.seen, seed=self.seed)

    def table(self) -> pd.DataFrame | None:
        """Return one row per group, see ``LayerGroupsInterval.rows``, and ``tasks``, or ``None`` without groups."""
        import pandas as pd

        if self.interval is None:
            return None
        table = pd.DataFrame(self.interval.rows(self.curves.layers, REST), dtype=object)
        table = table.assign(tasks=len(self.curves.seen.tasks)).astype(object)
        return table.where(table.notna(), np.nan)


def control_table(controls: Mapping[str, Mapping[str, ProbeResult]]) -> pd.DataFrame:
    """Return one row per layer of each control, see ``CompareResult.control_table``."""
    import pandas as pd

    tables = []
    for task, models in controls.items():
        sites = models["tuned"].coords["site"]
        columns: dict[str, Any] = {"task": task, "layer": [models["tuned"].layers[site] for site in sites]}
        columns |= {"site": sites, "n": int(models["tuned"]["n"][0])}
        for model in ("tuned", "base"):
            for end in ("", "_low", "_high"):
                columns[f"control_{model}{end}"] = models[model][f"debiased_cka{end}"][:, 0].double().numpy()
        tables.append(pd.DataFrame({**columns, "gain": columns["control_tuned"] - columns["control_base"]}))
    return pd.concat(tables, ignore_index=True)


def control_groups(
    controls: pd.DataFrame, n_dims: ProbeResult | None, clusters: ClustersOfTasks, label: str, seed: int
) -> ControlGroups:
    """Return the curves from which layer groups are read.

    Args:
        controls: debiased CKA by task and layer, see ``CompareResult.control_table``.
        n_dims: dimensions of both models, or ``None``.
        clusters: clusters of the tasks.
        label: label of all prompts together.
        seed: seed of the bootstrap over tasks.
    """
    blocks = controls[controls["layer"] > 0]
    tasks = tuple(controls["task"].unique())
    sites = blocks["site"].unique()
    dims = {}
    if n_dims is not None:
        for model in ("base", "tuned"):
            values = [n_dims.sel("n_dims", site=f"{model}/{site}", label=label) for site in sites]
            dims[model] = np.array(values, dtype=float)
    curves = TaskCurves(
        tasks=tasks,
        layers=tuple(map(str, blocks["layer"].unique())),
        base=blocks["control_base"].to_numpy().reshape(len(tasks), -1),
        tuned=blocks["control_tuned"].to_numpy().reshape(len(tasks), -1),
        ceiling=None,
        null=None,
        held_out=np.isin(tasks, clusters.held_out),
        clusters=tuple(clusters.of_task.get(task) for task in tasks),
        dims=dims,
    )
    return ControlGroups(curves, seed)
