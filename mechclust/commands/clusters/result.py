"""What ``mechclust clusters`` found, as a table and in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from mechclust.commands.clusters.config import ClustersConfig
from mechclust.models.tokenizers import in_words
from mechclust.report.chance import LEVEL, corrected, least_permutations
from mechclust.report.html import table_html
from mechclust.report.text import ranges, short_name
from probes import ProbeResult

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class ClustersResult:
    """What ``measure_clusters`` found.

    Attributes:
        model: the model's name.
        config: what was asked for.
        trained: ARI by site and label.
        untrained: the same for each untrained model.
        input_notes: what a reader must know of the prompts.
    """

    model: str
    config: ClustersConfig
    trained: ProbeResult
    untrained: Sequence[ProbeResult]
    input_notes: Sequence[str] = ()

    @cached_property
    def sentences(self) -> list[str]:
        """At which layers the clusters are the labels beyond chance, and what an untrained model gives; the most
        important first."""
        table = self.to_dataframe()
        return [s for label in self.trained.coords["label"] for s in _said(self, table[table["label"] == label])]

    @property
    def notes(self) -> list[str]:
        """What a reader must know of the numbers."""
        found, after = self.trained.metadata, ", after t-SNE" if self.config.tsne else ""
        clusters = ", ".join(f"{n} for {label!r}" for label, n in found["n_clusters"].items())
        return [
            *self.input_notes,
            f"{found['n']} prompts, hidden state at {self.config.states}{after}; clusters: {clusters}.",
            *([in_words(found["tokenization"])] if "tokenization" in found else []),
            "Chance: 95% of the index when the labels are handed out anew to the prompts; p: the share of "
            f"{self.config.n_permutations} such relabellings at least as high. Above chance: p of at most {LEVEL:g}, "
            "corrected for the number of layers looked at (Benjamini-Hochberg: of the layers named, at most 5% are "
            "there by chance, on average).",
            *self.trained.notes,
        ]

    def to_dataframe(self) -> pd.DataFrame:
        """One row per layer and label: ``layer, site, label, ari, null_low, null_high, p_value, untrained``."""
        import pandas as pd

        rows = []
        for j, label in enumerate(self.trained.coords["label"]):
            for i, site in enumerate(self.trained.coords["site"]):
                row: dict[str, Any] = {"layer": self.trained.layers[site], "site": site, "label": label}
                row.update({m: float(self.trained[m][i, j]) for m in ("ari", "null_low", "null_high", "p_value")})
                if self.untrained:
                    row["untrained"] = float(np.mean([float(r["ari"][i, j]) for r in self.untrained]))
                rows.append(row)
        return pd.DataFrame(rows)

    def _repr_html_(self) -> str:
        title = f"Task clusters in {short_name(self.model)}"
        return table_html(self.to_dataframe(), title, [*self.sentences, *self.notes])


def _said(result: ClustersResult, table: pd.DataFrame) -> list[str]:
    """The sentences of one label, a row per layer."""
    label, table = table["label"].iloc[0], table[table["ari"].notna()].reset_index(drop=True)
    if not len(table):
        return [f"By {label!r}, no layer has an index; the notes say why."]
    p = corrected(table["p_value"])
    above, best = p <= LEVEL, table.loc[table["ari"].idxmax()]
    one = len(table) == 1
    looked = f"corrected for {'the layer' if one else f'the {len(table)} layers'} looked at"
    highest = (
        f"the highest adjusted Rand index is {best.ari:z.3f}, at layer {best.layer} (chance: {best.null_low:z.3f} to "
        f"{best.null_high:z.3f}; p = {best.p_value:.2g})"
    )
    if not above.any():
        return [
            f"By {label!r}, no layer is shown to cluster above chance: {highest}, and the smallest p, {looked}, is "
            f"{np.nanmin(p):.2g}.",
            *_untrained(result, table, best),
            _what_nothing_means(result, table, label),
        ]
    layers = f"layer{'s' * (int(above.sum()) > 1)} {ranges(table['layer'][above])} of {ranges(table['layer'])}"
    sentences = [
        f"By {label!r}, hidden states cluster above chance at {'every layer' if above.all() else layers} (p of at most "
        f"{LEVEL:g}, {looked}); {highest}.",
        *_untrained(result, table, best),
    ]
    first = table.iloc[0]
    if above[0] and first.layer == 0:
        sentences.append(
            f"Layer 0, the embedding, is one of them (index {first.ari:z.3f}): there the words themselves (with their "
            f"places, where the model adds these first) tell the classes of {label!r} apart, before context is read."
        )
    return sentences


def _untrained(result: ClustersResult, table: pd.DataFrame, best: Any) -> list[str]:
    """What untrained models give where the model gives most, and where they give most themselves."""
    n = len(result.untrained)
    if not n or table["untrained"].isna().all():
        return []
    top = table.loc[table["untrained"].idxmax()]
    who, whose = (
        ("An untrained model of the same shape gives", "its")
        if n == 1
        else (f"{n} untrained models of the same shape give, on average,", "their")
    )
    there, most = f"{best.untrained:z.3f}", f"{top.untrained:z.3f}"
    elsewhere = f" and, at layer {top.layer}, {most}, {whose} highest" if most != there else ""
    much = ": as much without any training" if best.p_value <= LEVEL and top.untrained >= best.ari else ""
    return [f"{who} {there} at that layer{elsewhere}{much}."]


def _what_nothing_means(result: ClustersResult, table: pd.DataFrame, label: str) -> str:
    n, least = result.config.n_permutations, least_permutations(len(table))
    if n < least and table["p_value"].min() <= 1.5 / (1 + n):
        return (
            f"{n} relabellings are too few to tell for {len(table)} layers: no p can be below {1 / (1 + n):.2g}; give "
            f"--n-permutations {max(least, 1000)}."
        )
    return (
        f"That does not mean that the layers hold nothing of {label!r}: k-means finds what differs most among the "
        "prompts, which may be something else, and a classifier may read a label from directions that differ little."
    )
