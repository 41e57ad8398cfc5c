"""Numbers by checkpoint and layer, read from probe results, and when each layer crosses chance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float

from mechclust.report.chance import CHANCE_LEVEL, corrected
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
SINGLE = "above chance at single checkpoints only"
TESTED = ("clusters", "heads", "topics")  # of which the moment of crossing chance is told


@dataclass(frozen=True, eq=False)
class Curve:
    """One measure at all checkpoints. Anything not measured is NaN.

    Attributes:
        name: a key of ``TITLES``, or the name of a probe and of its measure.
        sites: hook names, those of the last checkpoint.
        layers: their numbers; block numbers for heads and topics.
        value: by checkpoint and layer.
        low: lower end of the central 95% of the chance distribution; for heads and topics, of the best head's.
        high: upper end.
        p: share of the chance distribution that is at least as high.
        n: number of examples at each checkpoint.
    """

    name: str
    sites: Sequence[str]
    layers: Sequence[int]
    value: Float[np.ndarray, "checkpoint layer"]
    low: Float[np.ndarray, "checkpoint layer"]
    high: Float[np.ndarray, "checkpoint layer"]
    p: Float[np.ndarray, "checkpoint layer"]
    n: Sequence[int]

    def without(self, checkpoints: Sequence[int]) -> Curve:
        """The same, not measured at these checkpoints."""
        ends = {name: getattr(self, name).copy() for name in ("value", "low", "high", "p")}
        for values in ends.values():
            values[list(checkpoints)] = np.nan
        return replace(self, **ends)

    @property
    def title(self) -> str:
        """The measure in words, its unit or scale in brackets."""
        return TITLES.get(self.name, self.name.replace("_", " "))

    @property
    def place(self) -> str:
        """What its layers are: ``"block"`` where they are attention's, else ``"layer"``."""
        return "block" if any(".attn." in site for site in self.sites) else "layer"

    @property
    def measured(self) -> bool:
        """Whether any value is defined."""
        return bool(np.isfinite(self.value).any())


def read_curve(name: str, results: Mapping[int, ProbeResult], n_checkpoints: int) -> Curve:
    """A curve from the results of a probe at each checkpoint.

    Args:
        name: a key of ``TITLES``.
        results: by the checkpoint's position in the series.
        n_checkpoints: length of the series.
    """
    return _curve(name, results, n_checkpoints, partial(_read, name))


def other_curves(name: str, results: Mapping[int, ProbeResult], n_checkpoints: int) -> list[Curve]:
    """One curve for each measure of any other probe that has a number per site, per site and label (that of the task
    is taken), or per site and head (their mean is taken)."""
    wanted, ends = (("site",), ("site", "label"), ("site", "head")), ("_low", "_high", "p_value")
    axes = results[max(results)].axes
    measures = [m for m in axes if axes[m] in wanted and not m.endswith(ends) and not m.startswith("null_")]
    # A chance interval without a measure's name is that of the first one.
    owners = {m: "" if m == measures[0] and f"{m}_null_low" not in axes else f"{m}_" for m in measures}
    return [_curve(f"{name}_{m}", results, n_checkpoints, partial(_read_other, m, owners[m])) for m in measures]


def _curve(
    name: str,
    results: Mapping[int, ProbeResult],
    n_checkpoints: int,
    read: Callable[[ProbeResult], Float[np.ndarray, "4 layer"]],
) -> Curve:
    """What ``read`` finds at each checkpoint; NaN where one is not measured, or has other sites than the last."""
    last = results[max(results)]
    sites = list(last.coords["site"])
    found, n = np.full((4, n_checkpoints, len(sites)), np.nan), [0] * n_checkpoints
    for i, result in results.items():
        n[i] = int(result.metadata.get("n_examples", result.metadata.get("n", 0)) or 0)
        if list(result.coords["site"]) == sites:
            found[:, i] = read(result)
    value, low, high, p = found
    return Curve(name, sites, [last.layers[site] for site in sites], value, low, high, p, n)


def _read_other(measure: str, owner: str, result: ProbeResult) -> Float[np.ndarray, "4 layer"]:
    """The same as ``_read`` of a measure of any probe, without a p-value."""
    rows = [_by_site(result, key) for key in (measure, f"{owner}null_low", f"{owner}null_high")]
    return np.stack([*rows, np.full_like(rows[0], np.nan)])


def _by_site(result: ProbeResult, measure: str) -> Float[np.ndarray, "layer"]:
    if measure not in result:
        return np.full(len(result.coords["site"]), np.nan)
    if "label" in result.axes[measure]:
        labels = result.coords["label"]
        return result.sel(measure, label="task" if "task" in labels else labels[0]).double().numpy()
    values = result[measure].double().numpy()
    return values if values.ndim == 1 else values.mean(axis=1)


def _read(name: str, result: ProbeResult) -> Float[np.ndarray, "4 layer"]:
    """Value, chance from and to, and p-value, by layer."""
    if name == "clusters":
        names = ("ari", "null_low", "null_high", "p_value")
        return np.stack([result.sel(key, label="task").numpy() for key in names])
    if name.startswith("cka"):
        keys = [f"debiased_cka{end}" for end in ("", "_null_low", "_null_high", "_p_value")]
        none = np.full(len(result.coords["site"]), np.nan)
        return np.stack([result.sel(key, label="all").numpy() if key in result else none for key in keys])
    if name == "heads":
        within = [result.sel(f"best_within_ratio{end}", equivalence="task") for end in ("", "_null_high", "_null_low")]
        return np.stack([*(1 - x.numpy() for x in within), result.sel("best_p_value", equivalence="task").numpy()])
    names = ("best_ratio", "best_ratio_null_low", "best_ratio_null_high", "best_p_value")
    return np.stack([result[name].numpy() for name in names])


def above_chance(curve: Curve, right: Sequence[int]) -> Bool[np.ndarray, "checkpoint layer"]:
    """Where p-values are at most .05 when corrected for all layers of the checkpoints ``right``."""
    found = np.zeros(curve.p.shape, dtype=bool)
    if len(right):
        p = corrected(curve.p[list(right)].reshape(-1)).reshape(len(right), -1)
        found[list(right)] = np.nan_to_num(p, nan=1.0) <= CHANCE_LEVEL
    return found


def crossings(curve: Curve, names: Sequence[str], right: Sequence[int]) -> pd.DataFrame:
    """When each layer crosses chance: the first checkpoint at which it is above chance and stays so at the next one.

    Args:
        curve: with p-values.
        names: names of all checkpoints.
        right: positions of the checkpoints without findings.

    Returns:
        One row per layer: ``measure``, ``layer``, ``site``, ``crosses_at`` (missing if it never does), ``after``
        (the checkpoint before, missing if the first one is above chance), ``value``, ``null_high``, ``note``.
    """
    import pandas as pd

    above, rows = above_chance(curve, right), []
    for column, (layer, site) in enumerate(zip(curve.layers, curve.sites, strict=True)):
        seen = [bool(above[i, column]) for i in right]
        at = next((k for k, yes in enumerate(seen) if yes and all(seen[k : k + 2])), None)
        never = SINGLE if any(seen) else "never above chance"
        note = never if at is None else "above chance from the first checkpoint" if at == 0 else ""
        if at is not None and at == len(seen) - 1 and at:
            note = "at the last checkpoint, with none after it to confirm"
        if at is not None and not all(seen[at:]):
            note = "; ".join(filter(None, [note, "at chance again later"]))
        rows.append(
            {
                "measure": curve.name,
                "layer": layer,
                "site": site,
                "crosses_at": np.nan if at is None else names[right[at]],
                "after": names[right[at - 1]] if at else np.nan,
                "value": np.nan if at is None else curve.value[right[at], column],
                "null_high": np.nan if at is None else curve.high[right[at], column],
                "note": note,
            }
        )
    return pd.DataFrame(rows)
