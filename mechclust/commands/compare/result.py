"""What ``mechclust compare`` found, as tables and in sentences, and the rule by which layers and tasks are named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from mechclust.commands.compare.inputs import CompareConfig
from mechclust.report.html import table_html
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
    def layer_numbers(self) -> list[int]:
        """Of the tuned model's sites."""
        return [self.cka.layers[site] for site in self.cka.coords["site"]]

    @cached_property
    def change(self) -> np.ndarray:
        """``[layer task]`` 1 - debiased CKA.

        Raises:
            InputError: where the models' layers are not the same; so do all that build on it, down to ``by_layer``.
        """
        return self._change("debiased_cka")

    @cached_property
    def interval(self) -> tuple[np.ndarray, np.ndarray]:
        """``[layer task]`` lower and upper end of the change: 95% over prompts."""
        return self._change("debiased_cka_high"), self._change("debiased_cka_low")

    def _change(self, measure: str) -> np.ndarray:
        if not self.diagonal:
            raise InputError(
                "the models' layers are not the same, so none has changed into another; read to_dataframe()"
            )
        return 1 - self.cka[measure].numpy()[:, 1:]

    @cached_property
    def changed(self) -> np.ndarray:
        """``[layer task]``: whether the 95% interval of the change lies above the tolerance."""
        return self.interval[0] > self.config.tolerance

    @cached_property
    def stands_out(self) -> np.ndarray:
        """``[layer task]``: see ``standing_out``."""
        return np.array([self._standing_out(*row) for row in zip(self.change, *self.interval, strict=True)])

    def _standing_out(self, change: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        return standing_out(change, low, high, tolerance=self.config.tolerance, factor=self.config.factor)

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Every table by the name of its file, computed once."""
        found = {"compare": self.to_dataframe()}
        if self.diagonal:
            found |= {"tasks": self.summary(), "layers": self.by_layer()}
        if self.controls:
            found["controls"] = self.control_table()
        return found

    @cached_property
    def sentences(self) -> list[str]:
        """Which layers changed, for which tasks; a few sentences, the most important first."""
        if not self.diagonal:
            return _most_alike(self)
        if self.changed.any():
            return [_changed_layers(self), _tasks(self), *_where(self), *_controls(self)]
        return [
            "No layer changed: at every layer and for every task, the 95% interval of 1 - CKA reaches down to the "
            f"tolerance of {self.config.tolerance:g}.",
            *_controls(self),
        ]

    def _repr_html_(self) -> str:
        table = self.tables["tasks" if self.diagonal else "compare"]
        return table_html(table, f"What tuning changed: {self.tuned} against {self.base}", self.sentences)

    def to_dataframe(self) -> pd.DataFrame:
        """One row per layer and task, and ``"(all)"`` prompts together: ``layer, site, task, n, d_tuned, d_base, cka,
        debiased_cka, low, high, null_high, rbf_cka, change, changed, stands_out``.

        ``low`` and ``high``: 95% over prompts. ``null_high``: 97.5% of debiased CKA for prompts paired at random.
        ``change``: 1 - debiased CKA. Where the models' layers are not the same: ``base_layer`` and ``base_site`` that
        the tuned model's layer is most like for the task, with their CKA and no interval.
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
                if self.rbf is not None:
                    row["rbf_cka"] = float(self.rbf["debiased_rbf_cka"][i, k - 1]) if k else np.nan
                row["change"] = 1 - row["debiased_cka"]
                if self.diagonal:
                    told = {"changed": self.changed, "stands_out": self.stands_out}
                    row |= {name: bool(k and found[i, k - 1]) for name, found in told.items()}
                rows.append(row)
        table = pd.DataFrame(rows)
        if not self.diagonal:
            for name in ("base_layer", "base_site"):  # of integers and NaN
                table[name] = table[name].astype(object).where(table["debiased_cka"].notna(), np.nan)
        return table

    def _nearest(self, site: int, label: int) -> int:
        values = self.cka["debiased_cka"][site, :, label].numpy()
        return 0 if np.isnan(values).all() else int(np.nanargmax(values))

    def summary(self) -> pd.DataFrame:
        """One row per task, the most changed first: ``task, n, change, low, high, stands_out, largest, largest_low,
        largest_high, at_layer, changed_layers, stands_out_layers``.

        ``change`` is the mean over the layers at which every task has one; ``low`` and ``high`` are the means of the
        layers' ends, which is at least as wide as the interval of the mean. ``largest`` is the layer's where it is.
        """
        import pandas as pd

        values = {"change": self.change, "low": self.interval[0], "high": self.interval[1]}
        measured = np.isfinite(self.change).any(axis=0)
        rows = np.isfinite(self.change[:, measured]).all(axis=1)
        nothing = np.full(len(self.tasks), np.nan)
        means = {name: x[rows].mean(axis=0) if rows.any() else nothing for name, x in values.items()}
        largest = np.where(np.isfinite(self.change), self.change, -np.inf).argmax(axis=0)
        at = {name: x[largest, range(len(self.tasks))] for name, x in values.items()}
        table = pd.DataFrame(
            {
                "task": list(self.tasks),
                "n": self.cka["n"][1:].tolist(),
                **means,
                "stands_out": self._standing_out(*means.values()),
                "largest": at["change"],
                "largest_low": at["low"],
                "largest_high": at["high"],
                "at_layer": [self.layer_numbers[i] for i in largest],
                "changed_layers": [self.ranges_of(mask) for mask in self.changed.T],
                "stands_out_layers": [self.ranges_of(mask) for mask in self.stands_out.T],
            }
        )
        return table.sort_values("change", ascending=False, kind="stable", ignore_index=True)

    def by_layer(self) -> pd.DataFrame:
        """One row per layer, the most changed first: ``layer, site``, ``change`` (mean over tasks), ``least`` and
        ``most`` of any task, ``most_task``, and how many tasks ``changed``."""
        import pandas as pd

        measured = np.isfinite(self.change).any(axis=1)
        change = self.change[measured]
        table = pd.DataFrame(
            {
                "layer": np.array(self.layer_numbers)[measured],
                "site": np.array(self.cka.coords["site"], dtype=object)[measured],
                "change": np.nanmean(change, axis=1),
                "least": np.nanmin(change, axis=1),
                "most": np.nanmax(change, axis=1),
                "most_task": [self.tasks[k] for k in np.nanargmax(change, axis=1)],
                "changed": self.changed[measured].sum(axis=1),
            }
        )
        return table.sort_values("change", ascending=False, kind="stable", ignore_index=True)

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


def _changed_layers(result: CompareResult) -> str:
    table, layers = result.tables["layers"], result.ranges_of(np.any(result.changed, axis=1))
    first, last = table.iloc[0], table.iloc[-1]
    most = f"most at layer {first.layer} (1 - CKA {first.change:z.2f} on average over tasks)"
    least = f", least at layer {last.layer} ({last.change:z.2f})" if len(table) > 1 else ""
    return f"Layers that changed for at least one task: {layers} of {ranges(result.layer_numbers)}; {most}{least}."


def _tasks(result: CompareResult) -> str:
    table = result.tables["tasks"]
    out, rest = table[table["stands_out"]], table[~table["stands_out"] & table["change"].notna()]
    if len(out):
        names = join(f"{r.task} ({r.change:.2f}, {r.low:.2f} to {r.high:.2f})" for r in out.itertuples())
        return (
            f"Over all layers, {names} stand{'s' * (len(out) == 1)} out (mean 1 - CKA and 95% over prompts), against "
            f"at most {rest['change'].max():.2f} ({rest.iloc[0]['task']}) for the other{'s' * (len(rest) > 1)}."
        )
    if not len(rest):
        return "No task can be compared with another: no layer has a CKA for every task."
    first, last = rest.iloc[0], rest.iloc[-1]
    return (
        f"Over all layers, no task stands out: mean 1 - CKA is {last.change:.2f} ({last.task}) to {first.change:.2f} "
        f"({first.task})."
    )


def _where(result: CompareResult) -> list[str]:
    """Tasks that stand out at the same layers share a sentence part."""
    groups: dict[str, list[str]] = {}
    for row in result.tables["tasks"].itertuples():
        if row.stands_out_layers:
            groups.setdefault(row.stands_out_layers, []).append(row.task)
    if not groups:
        return ["At no layer does a task stand out from the others."]
    parts = (f"{join(tasks)} at layer{'s' * (not at.isdigit())} {at}" for at, tasks in groups.items())
    return [f"Layer by layer, these stand out: {'; '.join(parts)}."]


def _most_alike(result: CompareResult) -> list[str]:
    table = result.tables["compare"]
    table = table[(table["task"] == ALL) & table["debiased_cka"].notna()]
    pairs = ", ".join(f"{r.layer} like {r.base_layer} ({r.debiased_cka:.2f})" for r in table.itertuples())
    return [
        f"The models do not have the same layers ({len(result.cka.coords['site'])} in the tuned one and "
        f"{len(result.cka.coords['other_site'])} in the base one, the embedding included), so every layer was compared "
        "with every other, and which layers changed is left to the reader.",
        f"Over all prompts, tuned layers are most like these base layers (CKA): {pairs or 'none'}.",
    ]


def _controls(result: CompareResult) -> list[str]:
    if not result.controls:
        return []
    gain = result.tables["controls"].groupby("layer")["gain"].median().dropna()
    if not len(gain):
        return []
    n = len(result.controls)
    return [
        f"Against {n} control{'s' * (n != 1)}, the tuned model is more like a model of the task alone than the base "
        f"is, in the median by {gain.max():.2f} at layer {gain.idxmax()} (most) and {gain.min():.2f} at layer "
        f"{gain.idxmin()} (least)."
    ]


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


def join(names: Iterable[str]) -> str:
    """Such as ``"a, b and c"``."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
