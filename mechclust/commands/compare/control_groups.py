"""Layer groups from the controls: which layers are shared, in transition, or inherit the change below them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from mechclust.commands.compare.task_clusters import ClustersOfTasks
from mechclust.mossa.layer_groups import LEAST_FOR_GROUPS, LayerGroupsInterval, layer_groups_interval
from mechclust.mossa.task_curves import TaskCurves
from mechclust.report.text import join, ranges
from probes import ProbeResult
from tasks.text.visible import short

if TYPE_CHECKING:
    import pandas as pd


REST = "inherited"
"""What layers above the transition are called: nothing in the curves says that tuning altered them."""


@dataclass(frozen=True)
class ControlGroups:
    """What the controls say of groups of layers.

    Attributes:
        curves: of the tasks that have a control, by layer from 1: the embedding is in no group.
        seed: for the bootstrap over tasks.
    """

    curves: TaskCurves
    seed: int

    @property
    def why_none(self) -> str:
        """Why no groups are named; empty where they are."""
        n, held_out = len(self.curves.seen.tasks), list(self.curves.unseen.tasks)
        if n >= LEAST_FOR_GROUPS:
            undefined = ranges(map(int, self.curves.seen.undefined_layers))
            return undefined and f"No layer groups are named: CKA with the controls is undefined at layers {undefined}."
        without = f" (without the held-out {join(map(short, held_out))})" if held_out else ""
        return (
            f"No layer groups are named: {n} task{'s have' if n != 1 else ' has'} a control{without}, and medians over "
            f"tasks and their spread need at least {LEAST_FOR_GROUPS}."
        )

    @cached_property
    def found(self) -> LayerGroupsInterval | None:
        """The groups of the tasks that are not held out, with intervals over these."""
        return None if self.why_none else layer_groups_interval(self.curves.seen, seed=self.seed)

    @property
    def sentences(self) -> list[str]:
        """The groups in words, or why there are none."""
        if self.found is None:
            return [self.why_none]
        return [
            f"Layer groups, from the controls of {len(self.curves.seen.tasks)} tasks: "
            f"{self.found.in_words(self.curves.layers, REST)}. From the transition on, tuned is more similar to the "
            "controls than the base is. This does not show that these layers hold tasks: compare knows neither "
            "whether the controls learnt their tasks nor how similar tuned is to controls of other tasks (mechclust "
            "mossa measures both)."
        ]

    def table(self) -> pd.DataFrame | None:
        """One row for each group, see ``LayerGroupsInterval.rows``, and ``tasks``; None where no groups are named."""
        import pandas as pd

        if self.found is None:
            return None
        rows = [{**row, "tasks": len(self.curves.seen.tasks)} for row in self.found.rows(self.curves.layers, REST)]
        table = pd.DataFrame(rows, dtype=object)
        return table.where(table.notna(), np.nan)


def control_groups(
    controls: Mapping[str, Mapping[str, ProbeResult]],
    n_dims: ProbeResult | None,
    clusters: ClustersOfTasks,
    label: str,
    seed: int,
) -> ControlGroups | None:
    """What the controls say of groups of layers; None without controls.

    Args:
        controls: by task, debiased CKA of its control with the ``tuned`` and the ``base`` model.
        n_dims: dimensions of both, or None.
        clusters: of the tasks.
        label: of all prompts together.
        seed: for the bootstrap over tasks.
    """
    if not controls:
        return None
    first = next(iter(controls.values()))["tuned"]
    places = [i for i, site in enumerate(first.coords["site"]) if first.layers[site] > 0]
    sites = [first.coords["site"][i] for i in places]
    curves = {
        model: np.stack([found[model]["debiased_cka"][places, 0].numpy() for found in controls.values()])
        for model in ("base", "tuned")
    }
    tasks = tuple(controls)
    return ControlGroups(
        TaskCurves(
            tasks=tasks,
            layers=tuple(str(first.layers[site]) for site in sites),
            base=curves["base"],
            tuned=curves["tuned"],
            ceiling=None,
            null=None,
            held_out=np.array([task in clusters.held_out for task in tasks]),
            clusters=tuple(clusters.of_task.get(task) for task in tasks),
            dims={} if n_dims is None else _dims(n_dims, sites, label),
        ),
        seed,
    )


def _dims(n_dims: ProbeResult, sites: Sequence[str], label: str) -> dict[str, np.ndarray]:
    """By model ``[layer]``, where it has all of these sites."""
    found = {}
    for model in ("base", "tuned"):
        names = [f"{model}/{site}" for site in sites]
        if set(names) <= set(n_dims.coords["site"]):
            found[model] = np.array([float(n_dims.sel("n_dims", site=name, label=label)) for name in names])
    return found
