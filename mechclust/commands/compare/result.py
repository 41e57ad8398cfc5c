"""What ``mechclust compare`` found: its tables, and the rule by which layers and tasks are named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mechclust.commands.compare.inputs import CompareConfig
from probes import ProbeResult
from tasks import InputError

if TYPE_CHECKING:
    import pandas as pd

ALL = "(all)"  # the label of all prompts together


def standing_out(
    change: np.ndarray, low: np.ndarray, high: np.ndarray, *, tolerance: float, factor: float
) -> np.ndarray:
    """Which tasks changed clearly more than the others.

    The tasks are split in two where the squared deviations of log change from the two groups' means are least
    (Jenks' natural break; changes count as at least the tolerance). Those above stand out if their intervals lie
    above the tolerance and above every interval of the others, and the least of them changed at least ``factor``
    times as much as the most of the others. Otherwise none does: the tasks changed alike, or there are no two groups.
    A comparison between these tasks, therefore; not a test of what a model was tuned on.

    Args:
        change: ``[task]``, such as 1 - CKA; NaN for a task that is left out.
        low, high: ``[task]`` ends of its interval.
        tolerance: a change up to this is none.
        factor: see above.

    Returns:
        ``[task]`` booleans.

    Example:
        >>> change = np.array([0.9, 0.1, 0.5, 0.12])
        >>> standing_out(change, change - 0.05, change + 0.05, tolerance=0.01, factor=1.5)
        array([ True, False,  True, False])
        >>> bool(standing_out(change, change - 0.3, change + 0.3, tolerance=0.01, factor=1.5).any())
        False
    """
    found = np.zeros(len(change), dtype=bool)
    usable = np.flatnonzero(np.isfinite(change) & np.isfinite(low) & np.isfinite(high))
    order = usable[np.argsort(-change[usable], kind="stable")]
    if len(order) < 2:
        return found
    size = np.maximum(change[order], tolerance)
    logs = np.log(size)
    spread = [len(logs[:k]) * logs[:k].var() + len(logs[k:]) * logs[k:].var() for k in range(1, len(logs))]
    k = 1 + int(np.argmin(spread))
    apart = low[order[:k]].min() > max(tolerance, high[order[k:]].max())
    found[order[:k]] = apart and size[k - 1] >= factor * size[k]
    return found


@dataclass(frozen=True)
class CompareResult:
    """What ``compare_models`` found.

    Attributes:
        base, tuned: the models' names.
        config: what was asked for.
        tasks: names.
        cka: of ``CKA`` between tuned and base, with axes (site, label), the labels being ``"(all)"`` and the tasks;
            (site, other_site, label), every layer with every other, where the models' layers are not the same.
        rbf: ``debiased_rbf_cka`` (site, label) of the tasks, or ``None``.
        n_dims, purity: of ``NDims`` and ``NeighbourPurity``, sites being named ``tuned/hook_embed`` and so on.
        controls: by task, ``CKA`` of its control with the ``tuned`` and with the ``base`` model on its prompts.
        notes: what a reader must know of the input.
    """

    base: str
    tuned: str
    config: CompareConfig
    tasks: Sequence[str]
    cka: ProbeResult
    rbf: ProbeResult | None
    n_dims: ProbeResult
    purity: ProbeResult
    controls: Mapping[str, Mapping[str, ProbeResult]]
    notes: Sequence[str] = ()

    @property
    def diagonal(self) -> bool:
        """Whether each layer was compared with the same layer of the other model."""
        return "other_site" not in self.cka.coords

    @property
    def layers(self) -> list[int]:
        """Of the tuned model's sites."""
        return [self.cka.layers[site] for site in self.cka.coords["site"]]

    def _repr_html_(self) -> str:
        from mechclust.commands.compare.words import sentences
        from mechclust.report.page import table_html

        table = self.summary() if self.diagonal else self.table()
        return table_html(f"What tuning changed: {self.tuned} against {self.base}", table, sentences(self))

    # ---- by layer and task ----

    def table(self) -> pd.DataFrame:
        """One row a layer and task, and ``"(all)"`` prompts together: ``layer, site, task, n, d_tuned, d_base, cka,
        debiased_cka, low, high, null_high, rbf_cka, change, changed, stands_out``.

        ``low`` and ``high``: 95% over prompts. ``null_high``: 97.5% of debiased CKA for prompts paired at random.
        ``change``: 1 - debiased CKA. Where the models' layers are not the same: ``base_layer`` and ``base_site`` that
        the tuned model's layer is most like for the task, with their CKA and no interval.
        """
        import pandas as pd

        changed, out = (self._by_task(self.changed()), self._by_task(self.stands_out())) if self.diagonal else ({}, {})
        rows = []
        for k, task in enumerate(self.cka.coords["label"]):
            for i, site in enumerate(self.cka.coords["site"]):
                j = i if self.diagonal else self._nearest(i, k)
                other = self.cka.coords["site" if self.diagonal else "other_site"][j]
                place = (i, k) if self.diagonal else (i, j, k)
                d = [self.cka.metadata["d"][name] for name in (f"tuned/{site}", f"base/{other}")]
                row: dict[str, Any] = {
                    "layer": self.cka.layers[site],
                    "site": site,
                    "task": task,
                    "n": int(self.cka["n"][k]),
                }
                row |= {"d_tuned": d[0], "d_base": d[1]}
                row |= {} if self.diagonal else {"base_layer": self.cka.layers[other], "base_site": other}
                row |= {m: float(self.cka[m][place]) for m in ("cka", "debiased_cka")}
                ends = {"low": "low", "high": "high", "null_high": "null_high"} if self.diagonal else {}
                row |= {
                    name: float(self.cka[f"debiased_cka_{end}"][place])
                    for name, end in ends.items()
                    if f"debiased_cka_{end}" in self.cka.values
                }
                if self.rbf is not None:
                    row["rbf_cka"] = float(self.rbf["debiased_rbf_cka"][i, k - 1]) if k else np.nan
                row["change"] = 1 - row["debiased_cka"]
                if self.diagonal:
                    row |= {"changed": changed.get((i, task), False), "stands_out": out.get((i, task), False)}
                rows.append(row)
        table = pd.DataFrame(rows)
        if not self.diagonal:
            for name in ("base_layer", "base_site"):  # of integers and NaN
                table[name] = table[name].astype(object).where(table["debiased_cka"].notna(), np.nan)
        return table

    def change(self, measure: str = "debiased_cka") -> np.ndarray:
        """``[layer task]`` 1 - debiased CKA, or 1 minus an end of its interval.

        Raises:
            InputError: where the models' layers are not the same; so do all that build on it, down to ``by_layer``.
        """
        if not self.diagonal:
            raise InputError("the models' layers are not the same, so none has changed into another; read table()")
        return 1 - self.cka[measure].numpy()[:, 1:]

    def _interval(self) -> tuple[np.ndarray, np.ndarray]:
        """Ends of the change."""
        return self.change("debiased_cka_high"), self.change("debiased_cka_low")

    def changed(self) -> np.ndarray:
        """``[layer task]``: whether the 95% interval of the change lies above the tolerance."""
        return self._interval()[0] > self.config.tolerance

    def stands_out(self) -> np.ndarray:
        """``[layer task]``: see ``standing_out``."""
        return np.array([self._standing_out(*row) for row in zip(self.change(), *self._interval(), strict=True)])

    def _standing_out(self, change: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        return standing_out(change, low, high, tolerance=self.config.tolerance, factor=self.config.factor)

    def _by_task(self, found: np.ndarray) -> dict[tuple[int, str], bool]:
        return {(i, task): bool(row[k]) for i, row in enumerate(found) for k, task in enumerate(self.tasks)}

    def _nearest(self, site: int, label: int) -> int:
        values = self.cka["debiased_cka"][site, :, label].numpy()
        return 0 if np.isnan(values).all() else int(np.nanargmax(values))

    # ---- summaries ----

    def summary(self) -> pd.DataFrame:
        """One row a task, the most changed first: ``task, n, change, low, high, stands_out, largest, largest_low,
        largest_high, at_layer, changed_layers, stands_out_layers``.

        ``change`` is the mean over the layers at which every task has one; ``low`` and ``high`` are the means of the
        layers' ends, which is at least as wide as the interval of the mean. ``largest`` is the layer's where it is.
        """
        import pandas as pd

        change, low, high = self.change(), *self._interval()
        measured = np.isfinite(change).any(axis=0)
        rows = np.isfinite(change[:, measured]).all(axis=1)
        means = [x[rows].mean(axis=0) if rows.any() else np.full(len(self.tasks), np.nan) for x in (change, low, high)]
        out = self._standing_out(*means)
        changed, stands_out, found = self.changed(), self.stands_out(), []
        for k, task in enumerate(self.tasks):
            i = int(np.nanargmax(change[:, k])) if measured[k] else 0
            at = {"largest": change[i, k], "largest_low": low[i, k], "largest_high": high[i, k]}
            found.append(
                {
                    "task": task,
                    "n": int(self.cka["n"][k + 1]),
                    **{name: mean[k] for name, mean in zip(("change", "low", "high"), means, strict=True)},
                    "stands_out": bool(out[k]),
                    **at,
                    "at_layer": self.layers[i],
                    "changed_layers": self._ranges(changed[:, k]),
                    "stands_out_layers": self._ranges(stands_out[:, k]),
                }
            )
        return pd.DataFrame(found).sort_values("change", ascending=False, kind="stable", ignore_index=True)

    def by_layer(self) -> pd.DataFrame:
        """One row a layer, the most changed first: ``layer, site``, ``change`` (mean over tasks), ``least`` and
        ``most`` of any task, ``most_task``, and how many tasks ``changed``."""
        import pandas as pd

        rows = []
        for i, (site, change) in enumerate(zip(self.cka.coords["site"], self.change(), strict=True)):
            if np.isfinite(change).any():
                rows.append(
                    {
                        "layer": self.layers[i],
                        "site": site,
                        "change": np.nanmean(change),
                        "least": np.nanmin(change),
                        "most": np.nanmax(change),
                        "most_task": self.tasks[int(np.nanargmax(change))],
                        "changed": int(self.changed()[i].sum()),
                    }
                )
        columns = ["layer", "site", "change", "least", "most", "most_task", "changed"]
        table = pd.DataFrame(rows, columns=columns)
        return table.sort_values("change", ascending=False, kind="stable", ignore_index=True)

    def _ranges(self, mask: np.ndarray) -> str:
        return ranges(layer for layer, found in zip(self.layers, mask, strict=True) if found)

    # ---- controls ----

    def control_table(self) -> pd.DataFrame:
        """One row a control's task and layer: ``task, layer, site, n``, debiased CKA of the control with the tuned
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


def ranges(layers: Iterable[int]) -> str:
    """Such as ``"0-2, 5"``.

    Example:
        >>> ranges([0, 1, 2, 5])
        '0-2, 5'
    """
    parts: list[list[int]] = []
    for layer in layers:
        if parts and layer == parts[-1][-1] + 1:
            parts[-1].append(layer)
        else:
            parts.append([layer])
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)
