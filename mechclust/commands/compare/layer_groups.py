"""Name groups of layers from the controls: shared, in transition, or inheriting the change below them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from mechclust.commands.compare.task_clusters import ClustersOfTasks
from mechclust.mossa.layer_groups import LEAST_FOR_GROUPS, LayerGroupsInterval, layer_groups_interval
from mechclust.mossa.task_curves import TaskCurves
from mechclust.report.text import join, ranges
from probes import ProbeResult
from tasks.text.visible import short

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
        """Reason why no groups are named; empty if they are."""
        n = len(self.curves.seen.tasks)
        if n >= LEAST_FOR_GROUPS:
            undefined = ranges(map(int, self.curves.seen.undefined_layers))
            return f"CKA with the controls is undefined at layers {undefined}" if undefined else ""
        held_out = self.curves.unseen.tasks
        without = f" (without the held-out {join(map(short, held_out))})" if held_out else ""
        return f"tasks with a control: {n}{without}, and medians and their spread need at least {LEAST_FOR_GROUPS}"

    @cached_property
    def interval(self) -> LayerGroupsInterval | None:
        """Groups of the tasks that are not held out, with intervals over tasks; ``None`` if no groups are named."""
        return None if self.why_none else layer_groups_interval(self.curves.seen, seed=self.seed)

    def table(self) -> pd.DataFrame | None:
        """Return one row per group, see ``LayerGroupsInterval.rows``, and ``tasks``; ``None`` without groups."""
        import pandas as pd

        if self.interval is None:
            return None
        table = pd.DataFrame(self.interval.rows(self.curves.layers, REST), dtype=object)
        table = table.assign(tasks=len(self.curves.seen.tasks)).astype(object)
        return table.where(table.notna(), np.nan)


def control_groups(
    controls: Mapping[str, Mapping[str, ProbeResult]],
    n_dims: ProbeResult | None,
    clusters: ClustersOfTasks,
    label: str,
    seed: int,
) -> ControlGroups | None:
    """Return the curves from which layer groups are read; ``None`` without controls.

    Args:
        controls: by task, debiased CKA of its control with the ``tuned`` and the ``base`` model.
        n_dims: dimensions of both, or ``None``.
        clusters: clusters of the tasks.
        label: label of all prompts together.
        seed: seed of the bootstrap over tasks.
    """
    if not controls:
        return None
    first = next(iter(controls.values()))["tuned"]
    blocks = [site for site in first.coords["site"] if first.layers[site] > 0]
    curves = TaskCurves(
        tasks=tuple(controls),
        layers=tuple(str(first.layers[site]) for site in blocks),
        base=_curves(controls, "base", blocks),
        tuned=_curves(controls, "tuned", blocks),
        ceiling=None,
        null=None,
        held_out=np.array([task in clusters.held_out for task in controls]),
        clusters=tuple(clusters.of_task.get(task) for task in controls),
        dims={} if n_dims is None else _dims(n_dims, blocks, label),
    )
    return ControlGroups(curves, seed)


def _curves(
    controls: Mapping[str, Mapping[str, ProbeResult]], model: str, sites: Sequence[str]
) -> Float[np.ndarray, "task layer"]:
    places = [next(iter(controls.values()))[model].coords["site"].index(site) for site in sites]
    return np.stack([results[model]["debiased_cka"][places, 0].numpy() for results in controls.values()])


def _dims(n_dims: ProbeResult, sites: Sequence[str], label: str) -> dict[str, Float[np.ndarray, "layer"]]:
    """Return each model's dimensions by layer, if it has all of the sites."""
    dims = {}
    for model in ("base", "tuned"):
        names = [f"{model}/{site}" for site in sites]
        if set(names) <= set(n_dims.coords["site"]):
            dims[model] = np.array([float(n_dims.sel("n_dims", site=name, label=label)) for name in names])
    return dims
