"""Do the nearest neighbours of a task's prompts belong to its cluster?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from probes import ProbeResult, RowStore, resolve
from probes.functional import neighbour_purity_chance
from probes.functional.neighbour_purity import nearest, same_label
from probes.store.files import versions


def purity_by_task(store: RowStore, names: Mapping[int, str], k: int) -> ProbeResult:
    """The share of each prompt's ``k`` nearest neighbours (Euclidean) that are of its task's cluster, by site and task.

    Args:
        store: hidden states of all tasks' prompts, with the labels ``task`` and ``cluster``.
        names: of the tasks, by number.
        k: neighbours.

    Returns:
        ``purity`` (site, task), and ``chance``: that of neighbours drawn at random.
    """
    labels = store.take(store.index, ["labels/task", "labels/cluster"])
    tasks, clusters = labels["labels/task"], labels["labels/cluster"]
    there = sorted(set(tasks.tolist()))
    rows: list[Sequence[float]] = []
    for site in store.sites:
        x = store.take(store.index, [f"rows/{site}"])[f"rows/{site}"]
        shares = same_label(nearest(x, k), clusters)
        rows.append([float(np.mean(shares[(tasks == task).numpy()])) for task in there])
    return ProbeResult(
        "PurityByTask",
        {
            "purity": torch.tensor(rows, dtype=torch.float64),
            "chance": torch.tensor(neighbour_purity_chance(clusters), dtype=torch.float64),
        },
        {"purity": ("site", "task"), "chance": ()},
        {"site": list(store.sites), "task": [names[task] for task in there]},
        {site.name: site.layer for site in resolve(store, list(store.sites))},
        metadata={"n": len(store.index), "k": k, "versions": versions()},
    )
