"""What the clusters follow: their agreement with every label and surface feature, at every layer."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from mechclust.report.chance import CHANCE_LEVEL, corrected, least_permutations
from probes.functional.adjusted_rand import adjusted_rand_moments, adjusted_rand_null, adjusted_rand_score
from probes.functional.units import Relabelling
from tasks.text.visible import short

if TYPE_CHECKING:
    import pandas as pd

MOSTLY, PARTLY = 0.5, 0.1  # mean adjusted mutual information from which clusters follow something, or follow it in part
ALIKE = 0.9  # agreement of two labels or features from which they are told together
_COLUMNS = ["layer", "name", "kind", "n_values", "ami", "ari", "untrained", "untrained_high", "p_value"]
TIE = 0.01  # difference of means from which one is said to be followed more


@dataclass(frozen=True)
class Followed:
    """Agreement of clusters with labels and features.

    Attributes:
        table: ``layer, name, kind, n_values, ami, ari, untrained, untrained_high, p_value, p_corrected``, a row per
            layer and candidate. ``untrained`` is the mean ``ami`` of models with random weights, ``untrained_high`` the
            highest; NaN without them.
        alike: agreement of the candidates with each other (adjusted mutual information), by pair.
        unshown: labels that a stricter test than the table's does not show, as where labels are handed out within
            another one only.
    """

    table: pd.DataFrame
    alike: Mapping[tuple[str, str], float]
    unshown: Collection[str] = ()

    @cached_property
    def means(self) -> dict[str, float]:
        """Candidate to its mean agreement over the layers above the embedding, the highest first."""
        return self._means("ami")

    @cached_property
    def highest_of_random(self) -> dict[str, float]:
        """``means`` with the highest model with random weights at every layer; NaN without them."""
        return self._means("untrained_high")

    def _means(self, column: str) -> dict[str, float]:
        table = self.table
        if (table["layer"] > 0).any():
            table = table[table["layer"] > 0]
        means = table.groupby("name", sort=False)[column].mean().sort_values(ascending=False, kind="stable")
        return {str(name): float(value) for name, value in means.items()}

    def no_more_than_random(self, name: str) -> bool:
        """Whether clusters of random weights agree with ``name`` as much, within ``TIE``."""
        return self.highest_of_random[name] >= self.means[name] - TIE

    @cached_property
    def features(self) -> set[str]:
        """Candidates that are surface features, not labels of the file."""
        return set(self.table["name"][self.table["kind"] == "feature"])

    def called(self, name: str) -> str:
        """A label or feature in a sentence."""
        if name in self.features:
            return f"the prompts' {name}"
        return "the task" if name == "task" else f"the label '{short(name)}'"

    @cached_property
    def shown(self) -> dict[str, float]:
        """Those of ``means`` that are above chance at some layer, and large enough to speak of."""
        above = set(self.table["name"][self.table["p_corrected"] <= CHANCE_LEVEL]) - set(self.unshown)
        return {name: mean for name, mean in self.means.items() if name in above and mean >= PARTLY}

    def best(self, first: Sequence[str] = ()) -> str | None:
        """What the clusters follow, at least in part; ``None`` for nothing.

        Args:
            first: labels that are named where another is higher by ``TIE`` at most.
        """
        if not self.shown:
            return None
        top = next(iter(self.shown))
        return next((name for name in first if self.shown.get(name, -1.0) >= self.shown[top] - TIE), top)

    def same_as(self, name: str) -> list[str]:
        """Candidates that part the prompts nearly as ``name`` does."""
        return [other for other in self.means if other != name and self._alike(name, other) >= ALIKE]

    def as_much_as(self, name: str) -> list[str]:
        """Candidates that part the prompts in another way, and agree with the clusters as much as ``name``."""
        return [
            other
            for other, mean in self.shown.items()
            if other != name and abs(mean - self.means[name]) <= TIE and self._alike(name, other) < ALIKE
        ]

    def beside_the_task(self, first: Sequence[str]) -> str | None:
        """What else than the task the clusters follow: most of all, or as much."""
        best = self.best(first)
        return next(iter(self.as_much_as(best)), None) if best == "task" else best

    def _alike(self, one: str, other: str) -> float:
        return self.alike[min(one, other), max(one, other)]


def what_clusters_follow(
    clusters: Int[np.ndarray, "layers n"],
    layers: Sequence[int],
    labels: Mapping[str, Sequence[str]],
    features: Mapping[str, Sequence[str]],
    p_values: Mapping[str, Sequence[float]] | None = None,
    units: Int[np.ndarray, "n"] | None = None,
    untrained: Sequence[Int[np.ndarray, "layers n"]] = (),
) -> Followed:
    """Adjusted mutual information (Vinh, Epps & Bailey 2010) and adjusted Rand index of clusters with candidates.

    The first allows for how many values a candidate has, so that candidates can be compared. The p-value is that of
    the index, from its exact moments under relabelling. Candidates and clusters with too few classes for moments are
    relabelled at random, as often as the number of tests asks for.

    Args:
        clusters: cluster of each example, by layer.
        layers: number of each layer.
        labels: of the examples; those with one value, or all different, are left out.
        features: of the examples; the same.
        p_values: of labels that were tested in another way, by layer; where these show nothing, the label is not
            followed.
        units: of the examples that belong together: candidates are then relabelled by whole units, or within them.
        untrained: ``clusters`` of each model with random weights.
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
    for layer, found, *random_clusters in zip(layers, clusters, *untrained, strict=True):
        for name, (kind, codes) in candidates.items():
            index = adjusted_rand_score(codes, found)
            random = [adjusted_mutual_info_score(codes, each) for each in random_clusters]
            rows.append(
                {
                    "layer": layer,
                    "name": name,
                    "kind": kind,
                    "n_values": int(codes.max()) + 1,
                    "ami": float(adjusted_mutual_info_score(codes, found)),
                    "ari": index,
                    "untrained": float(np.mean(random)) if random else math.nan,
                    "untrained_high": max(random, default=math.nan),
                    "p_value": _p_value(codes, found, index, len(layers) * len(candidates), units),
                }
            )
    table = pd.DataFrame(rows, columns=_COLUMNS)
    table["p_corrected"] = corrected(table["p_value"]) if len(table) else []
    names = sorted(candidates)
    alike = {
        (a, b): float(adjusted_mutual_info_score(candidates[a][1], candidates[b][1]))
        for i, a in enumerate(names)
        for b in names[i + 1 :]
    }
    unshown = [name for name, p in (p_values or {}).items() if not (corrected(p) <= CHANCE_LEVEL).any()]
    return Followed(table, alike, unshown)


def _p_value(
    codes: Int[np.ndarray, "n"],
    clusters: Int[np.ndarray, "n"],
    index: float,
    n_tests: int,
    units: Int[np.ndarray, "n"] | None,
) -> float:
    draws = max(999, least_permutations(n_tests))
    if units is not None:
        if not Relabelling.from_classes(codes, units).enough(named=False):
            return math.nan
        null = adjusted_rand_null(clusters, codes, draws, units=units)
        return (1 + int((null >= index).sum())) / (1 + draws)
    p = adjusted_rand_moments(codes, clusters).null(index)[2]
    if not np.isnan(p):
        return p
    null = adjusted_rand_null(codes, clusters, draws, within=np.zeros(len(codes)))  # as tables, which is faster
    return (1 + int((null >= index).sum())) / (1 + draws)
