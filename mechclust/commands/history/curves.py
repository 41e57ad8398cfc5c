"""Numbers by checkpoint and layer, read from probe results, and when each layer crosses chance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float

from mechclust.evidence.p_values import CHANCE_LEVEL, corrected_p_values
from probes import ProbeResult

if TYPE_CHECKING:
    import pandas as pd

TITLES = {
    "clusters": "clusters against tasks (adjusted Rand index)",
    "cka_last": "CKA with the last checkpoint (debiased)",
    "cka_first": "CKA with the first checkpoint (debiased)",
    "cka_previous": "CKA with the checkpoint before (debiased)",
    "heads": "variance between tasks in a head's output, the best head (share)",
    "topics": "attention within topics over attention between them, the best head (ratio)",
}
TESTED = ("clusters", "heads", "topics")
"""Measures of which crossings of chance are found."""
FROM_FIRST = "above chance from the first checkpoint"
SINGLE = "above chance at single checkpoints only"
UNTESTED = "too few relabellings for a p-value"
UNDEFINED = "undefined at every checkpoint"
OPEN_NOTES = (UNTESTED, UNDEFINED)
"""Notes on layers of which it is unknown whether they cross chance."""
_MEASURES_OF_HALVES: Mapping[str, tuple[str, Mapping[str, str]]] = {  # by the curve's first word
    "clusters": ("ari_halves", {"label": "task"}),
    "cka": ("debiased_cka_halves", {"label": "all"}),
    "topics": ("best_ratio_halves", {}),
}
_AXES = (("site",), ("site", "label"), ("site", "head"))  # of measures that become curves

_TABLES = ("value", "low", "high", "p", "value_low", "value_high")  # fields by checkpoint and layer

_Table = Float[np.ndarray, "checkpoint layer"]
_ByLayer = Float[np.ndarray, "layer"]
_Halves = Float[np.ndarray, "checkpoint layer half"]
_Numbers = Float[np.ndarray, "6 layer"]  # of a checkpoint, in the order of _TABLES


@dataclass(frozen=True, eq=False)
class Curve:
    """One measure at all checkpoints. Anything not measured is NaN.

    Attributes:
        name: a key of ``TITLES``, or the name of a probe and of its measure.
        sites: hook names at the last checkpoint.
        layers: their numbers, or block numbers for heads and topics.
        value: the measure.
        low: lower end of the central 95% of the chance distribution, for heads and topics of the best head's.
        high: upper end.
        p: share of the chance distribution that is at least as high.
        n: number of examples at each checkpoint.
        value_low: lower end of the value's 95% interval over prompts, units or documents.
        value_high: upper end.
        halves: the measure in random halves of the units, common to all checkpoints and layers. ``None`` for none.
        n_units: number of these prompts, units or documents.
    """

    name: str
    sites: Sequence[str]
    layers: Sequence[int]
    value: _Table
    low: _Table
    high: _Table
    p: _Table
    n: Sequence[int]
    value_low: _Table
    value_high: _Table
    halves: _Halves | None = None
    n_units: int = 0

    def without(self, checkpoints: Iterable[int]) -> Curve:
        """Return the curve as if not measured at these checkpoints."""
        tables = {name: getattr(self, name).copy() for name in _TABLES}
        if self.halves is not None:
            tables["halves"] = self.halves.copy()
        for table in tables.values():
            table[list(checkpoints)] = np.nan
        return replace(self, **tables)

    @property
    def title(self) -> str:
        """The measure in words, its unit or scale in brackets."""
        return TITLES.get(self.name, self.name.replace("_", " "))

    @property
    def place(self) -> str:
        """``"block"`` for measures of attention, else ``"layer"``."""
        return "block" if any(".attn." in site for site in self.sites) else "layer"

    @property
    def measured(self) -> bool:
        """Whether any value is defined."""
        return bool(np.isfinite(self.value).any())


def read_curve(name: str, results: Mapping[int, ProbeResult], n_checkpoints: int) -> Curve:
    """Return a curve from the results of a probe at each checkpoint.

    Args:
        name: a key of ``TITLES``.
        results: by the checkpoint's position in the series.
        n_checkpoints: length of the series.
    """
    curve = _curve(name, results, n_checkpoints, partial(_read, name))
    last = results[max(results)]
    n_units = last.metadata.get("n_units", 0)
    return replace(
        curve,
        halves=_halves(name, curve, results),
        n_units=int(n_units["all"] if isinstance(n_units, Mapping) else n_units),
    )


def other_curves(name: str, results: Mapping[int, ProbeResult], n_checkpoints: int) -> list[Curve]:
    """Return a curve for each measure of any other probe that has numbers per site.

    Of numbers per label, the task's are taken, or those of ``"all"``, or else their mean. Of numbers per head, their
    mean. Of the roles of heads, the score of the best head.
    """
    last = results[max(results)]
    if "role" in last.coords:
        roles = last.coords["role"]
        return [_curve(f"{name}_best_{role}", results, n_checkpoints, partial(_read_role, role)) for role in roles]
    axes = last.axes
    curves: list[Curve] = []
    for measure in axes:
        if axes[measure] not in _AXES or measure.startswith("null_"):
            continue
        if measure.endswith(("_low", "_high", "p_value")):
            continue
        # A chance interval without a measure's name belongs to the first one.
        unnamed = not curves and f"{measure}_null_low" not in axes
        read = partial(_read_other, measure, "" if unnamed else f"{measure}_")
        curves.append(_curve(f"{name}_{measure}", results, n_checkpoints, read))
    return curves


def _curve(
    name: str, results: Mapping[int, ProbeResult], n_checkpoints: int, read: Callable[[ProbeResult], _Numbers]
) -> Curve:
    """Read each checkpoint's numbers, with NaN if it is not measured, or has other sites than the last."""
    last = results[max(results)]
    sites = list(last.coords["site"])
    numbers = np.full((6, n_checkpoints, len(sites)), np.nan)
    n = [0] * n_checkpoints
    for i, result in results.items():
        n[i] = _n_examples(result)
        if list(result.coords["site"]) == sites:
            numbers[:, i] = read(result)
    layers = [last.layers[site] for site in sites]
    tables: dict[str, Any] = dict(zip(_TABLES, numbers, strict=True))
    return Curve(name, sites, layers, n=n, **tables)


def _n_examples(result: ProbeResult) -> int:
    """Return the number of examples.

    It is the total of a probe that counts them by class, the most of one that counts them by label, and all that were
    measured if a probe does not count.
    """
    if "n" in result.values:
        return int(result["n"].max())
    measured = str(result.metadata.get("examples", 0)).partition("-")[0]
    n = result.metadata.get("n_examples", result.metadata.get("n")) or measured
    return max(n.values()) if isinstance(n, Mapping) else int(n)


def _read_other(measure: str, prefix: str, result: ProbeResult) -> _Numbers:
    """Return the numbers of a measure of any probe, without a p-value."""
    rows = [_by_site(result, name) for name in (measure, f"{prefix}null_low", f"{prefix}null_high")]
    missing = np.full_like(rows[0], np.nan)
    ends = [missing, missing]
    if "head" not in result.axes[measure] and not _is_mean(result, measure):  # of a mean, there is no interval
        ends = [_by_site(result, f"{measure}_{end}") for end in ("low", "high")]
    return np.stack([*rows, missing, *ends])


def _read_role(role: str, result: ProbeResult) -> _Numbers:
    """Return the highest score of a role at each site, without intervals and a p-value."""
    highest = np.fmax.reduce(result.sel("score", role=role).double().numpy(), axis=1)
    return np.stack([highest, *np.full((5, len(highest)), np.nan)])


def _is_mean(result: ProbeResult, measure: str) -> bool:
    """Return whether the curve of a measure is a mean over labels, none of which is the task or all examples."""
    return "label" in result.axes[measure] and not {"task", "all"} & set(result.coords["label"])


def _by_site(result: ProbeResult, measure: str) -> _ByLayer:
    if measure not in result:
        return np.full(len(result.coords["site"]), np.nan)
    if "label" in result.axes[measure] and not _is_mean(result, measure):
        label = "task" if "task" in result.coords["label"] else "all"
        return result.sel(measure, label=label).double().numpy()
    values = result[measure].double().numpy()
    return values if values.ndim == 1 else values.mean(axis=1)


def _read(name: str, result: ProbeResult) -> _Numbers:
    """Return the numbers of a measure of ``TITLES``."""
    if name == "clusters":
        return _stacked(result, ["ari", "null_low", "null_high", "p_value", "ari_low", "ari_high"], label="task")
    if name == "topics":
        of_best = ("ratio", "ratio_null_low", "ratio_null_high", "p_value", "ratio_low", "ratio_high")
        return _stacked(result, [f"best_{measure}" for measure in of_best])
    if name == "heads":
        within = ["best_within_ratio", "best_within_ratio_null_high", "best_within_ratio_null_low", "best_p_value"]
        numbers = _stacked(result, within, equivalence="task")
        missing = np.full((2, numbers.shape[1]), np.nan)
        return np.concatenate([1 - numbers[:3], numbers[3:], missing])  # the share between tasks
    ends = ("", "_null_low", "_null_high", "_p_value", "_low", "_high")
    return _stacked(result, [f"debiased_cka{end}" for end in ends], label="all")


def _stacked(result: ProbeResult, measures: Sequence[str], **at: str) -> Float[np.ndarray, "measure layer"]:
    """Return measures at the named coordinates, with NaN for ones that the probe did not compute."""
    missing = np.full(len(result.coords["site"]), np.nan)
    return np.stack([result.sel(name, **at).double().numpy() if name in result else missing for name in measures])


def _halves(name: str, curve: Curve, results: Mapping[int, ProbeResult]) -> _Halves | None:
    """Return a measure in each half of the prompts or documents, NaN at checkpoints without it.

    ``None`` if all are.
    """
    measure, at = _MEASURES_OF_HALVES.get(name.partition("_")[0], ("", {}))
    kept = {i: result for i, result in results.items() if measure in result}
    if not kept:
        return None
    n_halves = len(kept[max(kept)].coords["half"])
    halves = np.full((*curve.value.shape, n_halves), np.nan)
    for i, result in kept.items():
        if list(result.coords["site"]) == list(curve.sites):
            halves[i] = result.sel(measure, **at).double().numpy()
    return halves


def above_chance(curve: Curve, right: Sequence[int]) -> Bool[np.ndarray, "right layer"]:
    """Return where p-values are at most .05 when corrected for all layers of the checkpoints ``right``."""
    p = curve.p[list(right)]
    return corrected_p_values(p.reshape(-1)).reshape(p.shape) <= CHANCE_LEVEL


def crossings(curve: Curve, names: Sequence[str], right: Sequence[int]) -> pd.DataFrame:
    """Find when each layer crosses chance: the first checkpoint above chance whose next one is above chance too.

    Args:
        curve: with p-values.
        names: names of all checkpoints.
        right: positions of the checkpoints without findings.

    Returns:
        One row per layer: ``measure``, ``layer``, ``site``, ``crosses_at`` (missing if it never does, or if
        that is unknown), ``after`` (the checkpoint before, missing if the first one is above chance), ``value``,
        ``null_high``, ``note``.
    """
    import pandas as pd

    rows = []
    for column, above in enumerate(above_chance(curve, right).T):
        at = _crossing(above)
        row: dict[str, Any] = {"measure": curve.name, "layer": curve.layers[column], "site": curve.sites[column]}
        row |= dict.fromkeys(("crosses_at", "after", "value", "null_high"), np.nan)
        if at is not None:
            row["crosses_at"] = names[right[at]]
            row["value"] = curve.value[right[at], column]
            row["null_high"] = curve.high[right[at], column]
        if at:
            row["after"] = names[right[at - 1]]
        rows.append({**row, "note": _unknown(curve, right, column) or _note(above, at)})
    return pd.DataFrame(rows)


def _unknown(curve: Curve, right: Sequence[int], column: int) -> str:
    """Return why it is not known whether a layer crosses chance, or ``""`` if it was tested."""
    if np.isfinite(curve.p[right, column]).any():
        return ""
    return UNTESTED if np.isfinite(curve.value[right, column]).any() else UNDEFINED


def _crossing(above: Bool[np.ndarray, "right"]) -> int | None:
    """Return the first place that is above chance with the one after it. The last place needs none after it."""
    return next((k for k in range(len(above)) if above[k : k + 2].all()), None)


def _note(above: Bool[np.ndarray, "right"], at: int | None) -> str:
    if at is None:
        return SINGLE if above.any() else "never above chance"
    notes = []
    if at == 0:
        notes.append(FROM_FIRST)
    elif at == len(above) - 1:
        notes.append("at the last checkpoint, with none after it to confirm")
    if not above[at:].all():
        notes.append("at chance again later")
    return "; ".join(notes)
