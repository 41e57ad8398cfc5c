"""Compare clusters with every label and surface feature, at every layer, and find the one they follow."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from mechclust.commands.units import label_codes
from mechclust.evidence.p_values import CHANCE_LEVEL, corrected_p_values, least_permutations_for_p_values
from probes.functional.adjusted_rand import adjusted_rand_moments, adjusted_rand_null, adjusted_rand_score
from probes.functional.permutation_test import permutation_p_value
from probes.functional.relabelling import Relabelling
from tasks.text.visible import shortened

if TYPE_CHECKING:
    import pandas as pd

MOSTLY = 0.5
"""Mean adjusted mutual information from which clusters follow a label or feature."""
PARTLY = 0.1
"""Mean adjusted mutual information from which clusters follow a label or feature in part."""
_ALIKE = 0.9
"""Adjusted mutual information from which two labels or features are named together."""
TIE = 0.01
"""Difference of mean agreements up to which neither of two labels or features is followed more."""
_COLUMNS = ["layer", "name", "kind", "n_values", "ami", "ari", "untrained", "untrained_high", "p_value"]

Clusters = Int[np.ndarray, "layer example"]
Codes = Int[np.ndarray, "example"]


@dataclass(frozen=True)
class Followed:
    """Agreement of clusters with labels and features.

    Attributes:
        table: ``layer, name, kind, n_values, ami, ari, untrained, untrained_high, p_value, p_corrected``, a row per
            layer and candidate. ``untrained`` is the mean ``ami`` of models with random weights, ``untrained_high`` the
            highest. Both are NaN without such models.
        alike: agreement of the candidates with each other (adjusted mutual information), by sorted pair.
        unshown: labels that a stricter test than the table's does not show, such as one that permutes labels only
            within the classes of another.
        untested: candidates without a p-value at any layer, because too few relabellings are possible.
    """

    table: pd.DataFrame
    alike: Mapping[tuple[str, str], float]
    unshown: Collection[str] = ()
    untested: Collection[str] = ()

    @cached_property
    def means(self) -> dict[str, float]:
        """Mean agreement of each candidate over ``layers``, the highest first."""
        return self._means("ami")

    @cached_property
    def highest_of_random(self) -> dict[str, float]:
        """Like ``means``, of the highest model with random weights at every layer, or NaN without such models."""
        return self._means("untrained_high")

    @property
    def layers(self) -> list[int]:
        """Layers over which agreement is averaged: all above the embedding, if there are any."""
        layers = sorted(set(self.table["layer"]))
        return [layer for layer in layers if layer > 0] or layers

    def _means(self, column: str) -> dict[str, float]:
        table = self.table[self.table["layer"].isin(self.layers)]
        means = table.groupby("name", sort=False)[column].mean().sort_values(ascending=False, kind="stable")
        return {str(name): float(value) for name, value in means.items()}

    def no_more_than_random(self, name: str) -> bool:
        """Return whether clusters of random weights agree with ``name`` as much, within ``TIE``."""
        return self.highest_of_random[name] >= self.means[name] - TIE

    @cached_property
    def features(self) -> set[str]:
        """Candidates that are surface features and no labels of the file."""
        return set(self.table["name"][self.table["kind"] == "feature"])

    def called(self, name: str) -> str:
        """Return the name of a label or feature for a sentence."""
        if name in self.features:
            return f"the prompts' {name}"
        return "the task" if name == "task" else f"the label '{shortened(name)}'"

    @cached_property
    def shown(self) -> dict[str, float]:
        """Mean agreement of the candidates that are above chance at some layer and followed at least in part."""
        above = set(self.table["name"][self.table["p_corrected"] <= CHANCE_LEVEL]) - set(self.unshown)
        return {name: mean for name, mean in self.means.items() if name in above and mean >= PARTLY}

    def best(self, first: Sequence[str] = ()) -> str | None:
        """Return the candidate that the clusters follow most, at least in part, or ``None`` if they follow none.

        Args:
            first: labels that are preferred to another candidate that is higher by ``TIE`` at most.
        """
        return _preferred(self.shown, first)

    def untested_best(self, first: Sequence[str] = ()) -> str | None:
        """Return the untested candidate that clusters agree with most, if at least in part and more than with ``best``.

        Args:
            first: labels that are preferred to another untested one that is higher by ``TIE`` at most.
        """
        best = self.best(first)
        least = PARTLY if best is None else self.means[best] + TIE
        return _preferred({name: m for name, m in self.means.items() if name in self.untested and m >= least}, first)

    def same_as(self, name: str) -> list[str]:
        """Return the candidates that divide the prompts nearly as ``name`` does."""
        return [other for other in self.means if other != name and self._alike(name, other) >= _ALIKE]

    def as_much_as(self, name: str) -> list[str]:
        """Return the candidates followed as much as ``name`` that divide the prompts in another way."""
        return [
            other
            for other, mean in self.shown.items()
            if other != name and abs(mean - self.means[name]) <= TIE and self._alike(name, other) < _ALIKE
        ]

    def besides_task(self, first: Sequence[str]) -> str | None:
        """Return the candidates, other than the task, that the clusters follow most or as much as the task."""
        best = self.best(first)
        return next(iter(self.as_much_as(best)), None) if best == "task" else best

    def _alike(self, one: str, other: str) -> float:
        return self.alike[min(one, other), max(one, other)]


def _preferred(means: Mapping[str, float], first: Sequence[str]) -> str | None:
    """Return the highest of means in descending order, or one of ``first`` that is lower by ``TIE`` at most."""
    if not means:
        return None
    top = next(iter(means))
    return next((name for name in first if means.get(name, -1.0) >= means[top] - TIE), top)


@dataclass(frozen=True)
class _Candidate:
    """A label or surface feature that clusters may follow.

    Attributes:
        name: its name.
        kind: ``label`` or ``feature``.
        codes: value of each example, as a number.
    """

    name: str
    kind: str
    codes: Codes


def what_clusters_follow(
    clusters: Clusters,
    layers: Sequence[int],
    labels: Mapping[str, Sequence[str]],
    features: Mapping[str, Sequence[str]],
    p_values: Mapping[str, Sequence[float]] | None = None,
    units: Codes | None = None,
    untrained: Sequence[Clusters] = (),
) -> Followed:
    """Compare clusters with candidates by adjusted mutual information (Vinh, Epps & Bailey 2010) and Rand index.

    The first index allows for a candidate's number of values, so that candidates can be compared. The p-value is the
    index's, from its exact moments under relabelling. Candidates and clusters with too few classes for moments are
    relabelled at random, as often as the number of tests needs.

    Args:
        clusters: cluster of each example, by layer.
        layers: number of each layer.
        labels: of the examples. Labels with one value, or with all values different, are left out.
        features: of the examples, with these exceptions too.
        p_values: of labels that were tested in another way, by layer. If no layer is significant, the label is not
            followed.
        units: of the examples that belong together: candidates are then relabelled by whole units, or within them. A
            candidate that is the units themselves is relabelled by example: other orders of its values are itself.
        untrained: ``clusters`` of each model with random weights.
    """
    import pandas as pd
    from sklearn.metrics import adjusted_mutual_info_score

    candidates = [*_candidates("label", labels), *_candidates("feature", features)]
    n_tests = len(layers) * len(candidates)
    rows: list[dict[str, Any]] = []
    for layer, trained, *random_weights in zip(layers, clusters, *untrained, strict=True):
        for candidate in candidates:
            rows.append(
                {"layer": layer, **_agreement(candidate, trained, random_weights)}
                | {"p_value": _p_value(candidate.codes, trained, n_tests, units)}
            )
    table = pd.DataFrame(rows, columns=_COLUMNS)
    table["p_corrected"] = corrected_p_values(table["p_value"]) if len(table) else []
    alike = {}
    for one, other in combinations(sorted(candidates, key=attrgetter("name")), 2):
        alike[one.name, other.name] = float(adjusted_mutual_info_score(one.codes, other.codes))
    p_values = p_values or {}
    unshown = [name for name, p in p_values.items() if not (corrected_p_values(p) <= CHANCE_LEVEL).any()]
    untested = {name for name, p in p_values.items() if np.isnan(p).all()}
    untested |= {str(name) for name, rows in table.groupby("name") if rows["p_value"].isna().all()}
    return Followed(table, alike, unshown, untested)


def _candidates(kind: str, values_by_name: Mapping[str, Sequence[str]]) -> Iterator[_Candidate]:
    """Yield the labels or features that clusters can follow: neither all equal nor all different."""
    for name, values in values_by_name.items():
        if 1 < len(set(values)) < len(values):
            yield _Candidate(name, kind, label_codes(values))


def _agreement(candidate: _Candidate, trained: Codes, random_weights: Sequence[Codes]) -> dict[str, Any]:
    """Return the columns of a candidate's agreement with clusters at one layer, and with clusters of random weights."""
    from sklearn.metrics import adjusted_mutual_info_score

    random = [adjusted_mutual_info_score(candidate.codes, clusters) for clusters in random_weights]
    return {
        "name": candidate.name,
        "kind": candidate.kind,
        "n_values": int(candidate.codes.max()) + 1,
        "ami": float(adjusted_mutual_info_score(candidate.codes, trained)),
        "ari": adjusted_rand_score(candidate.codes, trained),
        "untrained": float(np.mean(random)) if random else math.nan,
        "untrained_high": max(random, default=math.nan),
    }


def _same_classes(one: Codes, other: Codes) -> bool:
    n_pairs = np.unique(np.stack([one, other]), axis=1).shape[1]
    return n_pairs == len(np.unique(one)) == len(np.unique(other))


def _p_value(codes: Codes, clusters: Codes, n_tests: int, units: Codes | None) -> float:
    index = adjusted_rand_score(codes, clusters)
    draws = max(999, least_permutations_for_p_values(n_tests))
    if units is not None and not _same_classes(codes, units):
        if not Relabelling.from_classes(codes, units).enough(named=False):
            return math.nan
        null = adjusted_rand_null(clusters, codes, draws, units=units)
    else:
        p = adjusted_rand_moments(codes, clusters).null(index)[2]
        if not np.isnan(p):
            return p
        one_stratum = np.zeros(len(codes))  # then whole tables are drawn, which is faster
        null = adjusted_rand_null(codes, clusters, draws, within=one_stratum)
    return float(permutation_p_value(index, null))
