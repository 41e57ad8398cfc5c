"""Numbers by checkpoint and layer, read from probe results, and when each layer crosses chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float

from mechclust.report.chance import LEVEL, corrected
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
TESTED = ("clusters", "heads", "topics")  # of which the moment of crossing chance is told


@dataclass(frozen=True, eq=False)
class Curve:
    """One measure at all checkpoints. Anything not measured is NaN.

    Attributes:
        name: a key of ``TITLES``.
        sites: hook names, those of the last checkpoint.
        layers: their numbers; block numbers for heads and topics.
        value: by checkpoint and layer.
        low: lower end of the central 95% of the chance distribution.
        high: upper end.
        p: share of the chance distribution that is at least as high; for heads and topics, corrected for the heads of
            the model or layer.
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

    @property
    def title(self) -> str:
        """The measure in words."""
        return TITLES[self.name]


def read_curve(name: str, results: Mapping[int, ProbeResult], n_checkpoints: int) -> Curve:
    """A curve from the results of a probe at each checkpoint.

    Args:
        name: a key of ``TITLES``.
        results: by the checkpoint's position in the series.
        n_checkpoints: length of the series.
    """
    last = results[max(results)]
    sites = list(last.coords["site"])
    shape = (4, n_checkpoints, len(sites))
    found, n = np.full(shape, np.nan), [0] * n_checkpoints
    for i, result in results.items():
        n[i] = int(result.metadata.get("n_examples", result.metadata.get("n", 0)) or 0)
        if list(result.coords["site"]) == sites:
            found[:, i] = _read(name, result)
    value, low, high, p = found
    return Curve(name, sites, [last.layers[site] for site in sites], value, low, high, p, n)


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
        ratio = result.sel("within_ratio", equivalence="task").numpy()
        p = result.sel("p_holm", equivalence="task").numpy()
        chance = 1 - float(result.sel("within_ratio_chance", equivalence="task"))
        best = _best(-ratio)
        return np.stack([1 - _at(ratio, best), np.full(len(best), np.nan), np.full(len(best), chance), _at(p, best)])
    ratio = result["ratio"].numpy()
    best = _best(ratio)
    low, high, p = (_at(result[key].numpy(), best) for key in ("ratio_null_low", "ratio_null_high", "p_value"))
    return np.stack([_at(ratio, best), low, high, np.minimum(p * ratio.shape[1], 1)])


def _best(values: np.ndarray) -> np.ndarray:
    """The head with the largest value of each layer; NaN is none."""
    return np.where(np.isnan(values), -np.inf, values).argmax(axis=1)


def _at(values: np.ndarray, head: np.ndarray) -> np.ndarray:
    return np.take_along_axis(values, head[:, None], axis=1)[:, 0]


def above_chance(curve: Curve, right: Sequence[int]) -> Bool[np.ndarray, "checkpoint layer"]:
    """Where p-values are at most .05 when corrected for all layers of the checkpoints ``right``."""
    found = np.zeros(curve.p.shape, dtype=bool)
    if len(right):
        p = corrected(curve.p[list(right)].reshape(-1)).reshape(len(right), -1)
        found[list(right)] = np.nan_to_num(p, nan=1.0) <= LEVEL
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
        note = "never above chance" if at is None else "above chance from the first checkpoint" if at == 0 else ""
        if at is not None and at == len(seen) - 1 and at:
            note = "at the last checkpoint, with none after it to confirm"
        if at is not None and not all(seen[at:]):
            note = "; ".join(filter(None, [note, "at chance again later"]))
        rows.append(
            {
                "measure": curve.name,
                "layer": layer,
                "site": site,
                "crosses_at": None if at is None else names[right[at]],
                "after": names[right[at - 1]] if at else None,
                "value": np.nan if at is None else curve.value[right[at], column],
                "null_high": np.nan if at is None else curve.high[right[at], column],
                "note": note,
            }
        )
    return pd.DataFrame(rows)
