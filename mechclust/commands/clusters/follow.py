"""What the clusters follow: their agreement with every label and surface feature, at every layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from mechclust.report.chance import LEVEL, corrected
from probes.functional.task_cluster_ari import adjusted_rand_score, contingency

if TYPE_CHECKING:
    import pandas as pd

MOSTLY, PARTLY = 0.5, 0.1  # mean adjusted mutual information from which clusters follow something, or follow it in part
ALIKE = 0.9  # agreement of two labels or features from which they are told together
TIE = 0.01  # difference of means from which one is said to be followed more
_CELLS = 2**21  # of the random tables held at once


@dataclass(frozen=True)
class Followed:
    """Agreement of clusters with labels and features.

    Attributes:
        table: ``layer, name, kind, n_values, ami, ari, p_value, p_corrected``, a row per layer and candidate.
        alike: agreement of the candidates with each other (adjusted mutual information), by pair.
    """

    table: pd.DataFrame
    alike: Mapping[tuple[str, str], float]

    @cached_property
    def means(self) -> dict[str, float]:
        """Candidate to its mean agreement over the layers above the embedding, the highest first."""
        table = self.table
        if (table["layer"] > 0).any():
            table = table[table["layer"] > 0]
        found = table.groupby("name", sort=False)["ami"].mean().sort_values(ascending=False, kind="stable")
        return {str(name): float(value) for name, value in found.items()}

    def best(self, first: Sequence[str] = ()) -> str | None:
        """What the clusters follow, at least in part; ``None`` for nothing.

        Args:
            first: labels that are named where another is higher by ``TIE`` at most.
        """
        shown = set(self.table["name"][self.table["p_corrected"] <= LEVEL])
        means = {name: mean for name, mean in self.means.items() if name in shown and mean >= PARTLY}
        if not means:
            return None
        top = next(iter(means))
        return next((name for name in first if means.get(name, -1.0) >= means[top] - TIE), top)

    def with_it(self, name: str) -> list[str]:
        """Candidates that part the prompts nearly as ``name`` does, or agree with the clusters as much."""
        return [
            other
            for other, mean in self.means.items()
            if other != name
            and (abs(mean - self.means[name]) <= TIE or self.alike[min(name, other), max(name, other)] >= ALIKE)
        ]


def what_clusters_follow(
    clusters: Int[np.ndarray, "layers n"],
    layers: Sequence[int],
    labels: Mapping[str, Sequence[str]],
    features: Mapping[str, Sequence[str]],
    *,
    n_permutations: int = 1000,
    seed: int = 0,
) -> Followed:
    """Adjusted mutual information (Vinh, Epps & Bailey 2010) and adjusted Rand index of clusters with candidates.

    The first allows for how many values a candidate has, so that candidates can be compared. Its p is the share of
    random relabellings with at least as much mutual information; these have the same class sizes, so their tables are
    drawn directly, whatever the number of examples.

    Args:
        clusters: cluster of each example, by layer.
        layers: number of each layer.
        labels: of the examples; those with one value, or all different, are left out.
        features: likewise.
        n_permutations: random relabellings.
        seed: of these.
    """
    import pandas as pd
    from sklearn.metrics import adjusted_mutual_info_score

    candidates = {
        name: (kind, np.unique(values, return_inverse=True)[1])
        for kind, these in (("label", labels), ("feature", features))
        for name, values in these.items()
        if 1 < len(set(values)) < len(values)
    }
    rows: list[dict[str, Any]] = []
    for k, (layer, found) in enumerate(zip(layers, clusters, strict=True)):
        for j, (name, (kind, codes)) in enumerate(candidates.items()):
            rows.append(
                {
                    "layer": layer,
                    "name": name,
                    "kind": kind,
                    "n_values": int(codes.max()) + 1,
                    "ami": float(adjusted_mutual_info_score(codes, found)),
                    "ari": adjusted_rand_score(codes, found),
                    "p_value": _p_value(contingency(codes, found), n_permutations, (seed, k, j)),
                }
            )
    table = pd.DataFrame(rows, columns=["layer", "name", "kind", "n_values", "ami", "ari", "p_value"])
    table["p_corrected"] = corrected(table["p_value"]) if len(table) else []
    names = sorted(candidates)
    alike = {
        (a, b): float(adjusted_mutual_info_score(candidates[a][1], candidates[b][1]))
        for i, a in enumerate(names)
        for b in names[i + 1 :]
    }
    return Followed(table, alike)


def _p_value(table: Int[np.ndarray, "r c"], n_permutations: int, seed: tuple[int, int, int]) -> float:
    """Share of random tables of the same margins that tell at least as much, the observed one counted.

    With fixed margins the mutual information is, up to constants, the sum of ``n log n`` over the cells.
    """
    from scipy.stats import random_table

    rng = np.random.default_rng(seed)
    drawn = random_table(table.sum(axis=1), table.sum(axis=0))
    at_a_time = max(1, _CELLS // table.size)
    observed, above, left = _told(table[None])[0], 0, n_permutations
    while left:
        some = min(left, at_a_time)
        above += int((_told(drawn.rvs(size=some, random_state=rng)) >= observed - 1e-9 * abs(observed)).sum())
        left -= some
    return (1 + above) / (1 + n_permutations)


def _told(tables: np.ndarray) -> np.ndarray:
    cells = tables.astype(np.float64)
    return np.asarray((cells * np.log(np.maximum(cells, 1.0))).sum(axis=(1, 2)))
