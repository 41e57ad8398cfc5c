"""What ``mechclust compare`` found, as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from mechclust.commands.compare.cluster_tables import cluster_summary, clusters_by_layer
from mechclust.commands.compare.config import CompareConfig
from mechclust.commands.compare.control_groups import ControlGroups, control_groups
from mechclust.commands.compare.opinions import OPINIONS
from mechclust.commands.compare.planes import PromptPlanes
from mechclust.commands.compare.rule import common_layers, standing_out
from mechclust.commands.compare.task_clusters import ClustersOfTasks
from mechclust.report.text import ranges
from probes import ProbeResult
from tasks import InputError

if TYPE_CHECKING:
    import pandas as pd

ALL = "(all)"  # the label of all prompts together
_MEASURES = {  # by column of the table
    "cka": "cka",
    "debiased_cka": "debiased_cka",
    "low": "debiased_cka_low",
    "high": "debiased_cka_high",
    "null_high": "debiased_cka_null_high",
}


@dataclass(frozen=True)
class CompareTables:
    """The measurements and their tables; see ``CompareResult``, which also puts them into sentences."""

    base: str
    tuned: str
    config: CompareConfig
    tasks: Sequence[str]
    cka: ProbeResult
    controls: Mapping[str, Mapping[str, ProbeResult]]
    rbf: ProbeResult | None = None
    without_top_pc: ProbeResult | None = None
    svcca: ProbeResult | None = None
    n_dims: ProbeResult | None = None
    purity: ProbeResult | None = None
    best_pair: ProbeResult | None = None
    clusters: ClustersOfTasks = ClustersOfTasks()
    families: tuple[str, ...] = ()
    notes: Sequence[str] = ()
    distinct: Mapping[tuple[str, str], int] = field(default_factory=dict)
    tokenization: Mapping[str, Any] = field(default_factory=dict)
    planes: PromptPlanes | None = None

    @property
    def diagonal(self) -> bool:
        """Whether each layer was compared with the same layer of the other model."""
        return "other_site" not in self.cka.coords

    @property
    def opinions(self) -> dict[str, ProbeResult]:
        """The requested second opinions, by name."""
        found = {name: getattr(self, name) for name in OPINIONS}
        return {name: result for name, result in found.items() if result is not None}

    @property
    def layer_numbers(self) -> list[int]:
        """Of the tuned model's sites."""
        return [self.cka.layers[site] for site in self.cka.coords["site"]]

    @cached_property
    def change(self) -> np.ndarray:
        """``[layer task]`` 1 - debiased CKA.

        Raises:
            InputError: if the models' layers are not the same; the same holds for everything below, up to ``by_layer``.
        """
        return self._change("debiased_cka")[:, 1:]

    @cached_property
    def interval(self) -> tuple[np.ndarray, np.ndarray]:
        """``[layer task]`` lower and upper end of the change: 95% over prompts; NaN if there is none."""
        return self._change("debiased_cka_high")[:, 1:], self._change("debiased_cka_low")[:, 1:]

    def _change(self, measure: str) -> np.ndarray:
        """``[layer label]``, all prompts together first."""
        if not self.diagonal:
            raise InputError("the models have different layers, so none has changed into another; read to_dataframe()")
        return 1 - self.cka[measure].numpy()

    @cached_property
    def known(self) -> np.ndarray:
        """``[layer task]``: whether there is a change with an interval, so that it can be judged."""
        return np.isfinite(self.change) & np.isfinite(self.interval[0]) & np.isfinite(self.interval[1])

    @cached_property
    def changed(self) -> np.ma.MaskedArray:
        """``[layer task]``: whether the 95% interval of the change lies above the tolerance; masked where there is
        no interval."""
        return np.ma.MaskedArray(self.interval[0] > self.config.tolerance, mask=~self.known)

    @cached_property
    def changed_together(self) -> np.ma.MaskedArray:
        """``[layer]``: the same for all prompts together."""
        low = self._change("debiased_cka_high")[:, 0]
        return np.ma.MaskedArray(low > self.config.tolerance, mask=~np.isfinite(low))

    @cached_property
    def stands_out(self) -> np.ma.MaskedArray:
        """``[layer task]``: see ``standing_out``."""
        return np.ma.stack([self._standing_out(*row) for row in zip(self.change, *self.interval, strict=True)])

    def _standing_out(self, change: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ma.MaskedArray:
        return standing_out(change, low, high, tolerance=self.config.tolerance, factor=self.config.factor)

    @cached_property
    def common(self) -> tuple[np.ndarray, np.ndarray]:
        """``[layer]`` over which tasks are compared, and ``[task]`` that are; see ``common_layers``."""
        return common_layers(self.known)

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Every table by the name of its file, computed once."""
        found = {"compare": self.to_dataframe()}
        if self.diagonal:
            found |= {"tasks": self.summary(), "layers": self.by_layer()}
        if self.controls:
            found["controls"] = self.control_table()
        if self.groups is not None and (groups := self.groups.table()) is not None:
            found["layer_groups"] = groups
        if self.diagonal and self.clusters.seen():
            found["clusters"] = cluster_summary(self.clusters.seen(), found["tasks"])
            found["clusters_by_layer"] = clusters_by_layer(
                self.clusters.seen(), found["compare"], found.get("controls")
            )
        if self.opinions:
            found["second_opinions"] = self.opinion_table(found["compare"])
        return found

    @cached_property
    def groups(self) -> ControlGroups | None:
        """What the controls show about groups of layers; None without controls."""
        if not self.diagonal:
            return None
        return control_groups(self.controls, self.n_dims, self.clusters, ALL, self.config.seed)

    def opinion_table(self, by_task: pd.DataFrame) -> pd.DataFrame:
        """One row per layer and measure, of debiased CKA and each second opinion: median, ``least`` and ``most`` over
        the ``tasks`` that have one there, ``n_least`` and ``n_most`` prompts of a task, and ``differs``, the median
        over tasks of the difference from debiased CKA."""
        import pandas as pd

        counts = {"debiased_cka": self.cka["n"][1:]} | {
            OPINIONS[name].column: result["n"] for name, result in self.opinions.items()
        }
        rows = []
        of_tasks = by_task[by_task["task"] != ALL]
        for (layer, site), part in of_tasks.groupby(["layer", "site"], sort=False):
            for column, n in counts.items():
                values = part[column].dropna()
                row: dict[str, Any] = {"layer": layer, "site": site, "measure": column, "tasks": len(values)}
                row |= {"n_least": int(n.min()), "n_most": int(n.max())}
                row |= {"median": values.median(), "least": values.min(), "most": values.max()}
                rows.append({**row, "differs": (part[column] - part["debiased_cka"]).median()})
        return pd.DataFrame(rows)

    def to_dataframe(self) -> pd.DataFrame:
        """One row per layer and task, and ``"(all)"`` prompts together: ``layer, site, task, n, d_tuned, d_base, cka,
        debiased_cka, low, high, null_high``, the second opinions that were asked for (``rbf_cka``, ``without_top_pc``,
        ``svcca``), ``change, changed, stands_out``.

        ``low`` and ``high``: 95% over prompts. ``null_high``: 97.5% of debiased CKA for prompts paired at random.
        ``change``: 1 - debiased CKA. ``changed`` and ``stands_out`` are missing where there is no interval, and
        ``stands_out`` for all prompts together, which are no task. Where the models' layers are not the same:
        ``base_layer`` and ``base_site`` that the tuned model's layer is most like for the task, with their CKA, no
        interval, ``p_value`` (of the largest CKA over all base layers, by Holm over the tuned layers) and
        ``elsewhere``: whether it is more like this layer than like the one at its relative depth.
        """
        import pandas as pd

        rows, d = [], self.cka.metadata["d"]
        for k, task in enumerate(self.cka.coords["label"]):
            for i, site in enumerate(self.cka.coords["site"]):
                j = i if self.diagonal else self._nearest(i, k)
                other = self.cka.coords["site" if self.diagonal else "other_site"][j]
                place = (i, k) if self.diagonal else (i, j, k)
                row: dict[str, Any] = {"layer": self.cka.layers[site], "site": site, "task": task}
                row |= {"n": int(self.cka["n"][k]), "d_tuned": d[f"tuned/{site}"], "d_base": d[f"base/{other}"]}
                if not self.diagonal:
                    row |= {"base_layer": self.cka.layers[other], "base_site": other}
                row |= {name: float(self.cka[m][place]) for name, m in _MEASURES.items() if m in self.cka.values}
                for name, result in self.opinions.items():
                    column, measure, _ = OPINIONS[name]
                    row[column] = float(result[measure][i, k - 1]) if k else np.nan
                row["change"] = 1 - row["debiased_cka"]
                row |= {} if self.diagonal else self._searched(i, k, j)
                if self.diagonal:
                    row["changed"] = _told(self.changed[i, k - 1] if k else self.changed_together[i])
                    row["stands_out"] = _told(self.stands_out[i, k - 1]) if k else np.nan
                rows.append(row)
        table = pd.DataFrame(rows)
        if not self.diagonal:
            for name in ("base_layer", "base_site"):  # of integers and NaN
                table[name] = table[name].astype(object).where(table["debiased_cka"].notna(), np.nan)
        return table

    def elsewhere(self, site: int, label: int) -> bool:
        """Whether a tuned layer is similar to the base, and most to another layer than the one at its depth."""
        return self.best_pair is not None and bool(self.best_pair["elsewhere"][site, label])

    def _searched(self, site: int, label: int, nearest: int) -> dict[str, float | bool]:
        """What the search for the most similar base layer says, if it was made."""
        if self.best_pair is None:
            return {}
        same = int(self.best_pair["best"][site, label]) == nearest  # of the prompts that were searched with
        p_value = float(self.best_pair["adjusted"][site, label])
        return {"p_value": p_value, "elsewhere": same and self.elsewhere(site, label)}

    def _nearest(self, site: int, label: int) -> int:
        values = self.cka["debiased_cka"][site, :, label].numpy()
        return 0 if np.isnan(values).all() else int(np.nanargmax(values))

    def summary(self) -> pd.DataFrame:
        """One row per task, the most changed first: ``task, n, change, low, high, stands_out, layers, begins_at,
        largest, largest_low, largest_high, at_layer, changed_layers, stands_out_layers, no_interval_layers``.

        ``change`` is the mean over ``layers``, at which every task that is compared has an interval (see
        ``common_layers``): the same for all tasks, and for ``low`` and ``high``, the means of the layers' ends, which
        is at least as wide as the interval of the mean. A task without an interval at one of these has no ``low``,
        ``high`` and ``stands_out``; without a CKA at one, no ``change`` either. ``begins_at`` is the first layer, by
        depth, of ``changed_layers``; ``largest`` the largest change, ``at_layer``.
        """
        import pandas as pd

        rows = self.common[0]
        nothing = np.full(len(self.tasks), np.nan)
        values = {"change": self.change, "low": self.interval[0], "high": self.interval[1]}
        means = {name: x[rows].mean(axis=0) if rows.any() else nothing for name, x in values.items()}
        largest = np.where(np.isfinite(self.change), self.change, -np.inf).argmax(axis=0)
        at = {name: x[largest, range(len(self.tasks))] for name, x in values.items()}
        where = [None if np.isnan(x) else self.layer_numbers[i] for i, x in zip(largest, at["change"], strict=True)]
        table = pd.DataFrame(
            {
                "task": list(self.tasks),
                "n": self.cka["n"][1:].tolist(),
                **means,
                "stands_out": [_told(x) for x in self._standing_out(*means.values())],
                "layers": self.ranges_of(rows),
                "begins_at": _whole([self.begins(k) for k in range(len(self.tasks))]),
                "largest": at["change"],
                "largest_low": at["low"],
                "largest_high": at["high"],
                "at_layer": _whole(where),
                "changed_layers": [self.ranges_of(mask) for mask in self.changed.filled(False).T],
                "stands_out_layers": [self.ranges_of(mask) for mask in self.stands_out.filled(False).T],
                "no_interval_layers": [self.ranges_of(mask) for mask in ~self.known.T],
            }
        )
        return table.sort_values("change", ascending=False, kind="stable", ignore_index=True)

    def begins(self, task: int | None) -> int | None:
        """The first layer, by depth, that changed for a task (by its number), or for all prompts together (``None``);
        ``None`` where none did."""
        mask = self.changed_together if task is None else self.changed[:, task]
        found = np.flatnonzero(mask.filled(False))
        return self.layer_numbers[int(found[0])] if len(found) else None

    def by_layer(self) -> pd.DataFrame:
        """One row per layer, by depth: ``layer, site``, ``change`` (mean over the ``tasks`` that have a CKA there),
        ``least`` and ``most`` of any task, ``most_task``, how many tasks ``changed``, and how many have
        ``no_interval``, so that it cannot be told."""
        import pandas as pd

        measured = np.isfinite(self.change).any(axis=1)
        change = self.change[measured]
        return pd.DataFrame(
            {
                "layer": np.array(self.layer_numbers)[measured],
                "site": np.array(self.cka.coords["site"], dtype=object)[measured],
                "change": np.nanmean(change, axis=1),
                "tasks": np.isfinite(change).sum(axis=1),
                "least": np.nanmin(change, axis=1),
                "most": np.nanmax(change, axis=1),
                "most_task": [self.tasks[k] for k in np.nanargmax(change, axis=1)],
                "changed": self.changed[measured].filled(False).sum(axis=1),
                "no_interval": (~self.known[measured]).sum(axis=1),
            }
        ).sort_values("layer", kind="stable", ignore_index=True)

    def ranges_of(self, mask: np.ndarray) -> str:
        """Layers for which ``mask`` is true, such as ``"0-2, 5"``."""
        return ranges(layer for layer, found in zip(self.layer_numbers, mask, strict=True) if found)

    def control_table(self) -> pd.DataFrame:
        """One row per layer of each control: ``task, layer, site, n``, debiased CKA of the control with the tuned
        (``control_tuned``) and with the base model (``control_base``) over the task's prompts, each with ``_low`` and
        ``_high``, and ``gain``, the first minus the second."""
        import pandas as pd

        rows = []
        for task, found in self.controls.items():
            for i, site in enumerate(found["tuned"].coords["site"]):
                row: dict[str, Any] = {"task": task, "layer": found["tuned"].layers[site], "site": site}
                row["n"] = int(found["tuned"]["n"][0])
                for model in ("tuned", "base"):
                    for end in ("", "_low", "_high"):
                        row[f"control_{model}{end}"] = float(found[model][f"debiased_cka{end}"][i, 0])
                rows.append({**row, "gain": row["control_tuned"] - row["control_base"]})
        return pd.DataFrame(rows)


def _told(found: Any) -> bool | float:
    """Missing if it cannot be decided."""
    return np.nan if found is np.ma.masked else bool(found)


def _whole(layers: Sequence[int | None]) -> np.ndarray:
    """Integers and missing values: floats would be printed as ``3.0``."""
    return np.array([np.nan if layer is None else layer for layer in layers], dtype=object)
