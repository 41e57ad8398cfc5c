"""What a suite found, and its tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from mechclust.commands.topics.suite.config import SuiteConfig
from mechclust.commands.topics.suite.curves import Curve, Measure, curve_of, mean_of
from mechclust.commands.topics.suite.findings import findings_of
from mechclust.commands.topics.suite.job import VECTORS, Measured
from mechclust.commands.topics.suite.models import SuiteModel
from mechclust.commands.topics.suite.published import RANDOM, published_ratio
from mechclust.commands.topics.suite.texts import Texts
from mechclust.commands.topics.suite.vectors import PARTS, drawn_of
from mechclust.evidence import Findings
from mechclust.report.html import table_html
from mechclust.report.text import table_text
from probes import ProbeResult
from probes.engine.sites import head_name
from probes.store.files import file_name

if TYPE_CHECKING:
    import pandas as pd

ATTENTION: Mapping[str, Measure] = {"attention": "ratio", "attention at equal distance": "matched"}


@dataclass(frozen=True, eq=False)
class SuiteResult:
    """What ``run_suite`` found.

    Attributes:
        config: what was asked for.
        models: of the suite, in its order.
        texts: topic models and documents.
        trained: by name, what was found of those that could be measured.
        twins: by name, the same of each random twin.
        failed: by name, or name and twin, why one could not be measured.
    """

    config: SuiteConfig
    models: Sequence[SuiteModel]
    texts: Texts
    trained: Mapping[str, Measured]
    twins: Mapping[str, Sequence[Measured]]
    failed: Mapping[str, str]

    @property
    def thresholds(self) -> list[float]:
        """Rising."""
        return sorted(self.config.thresholds)

    @cached_property
    def findings(self) -> Findings:
        """P7 and what is said of every encoder."""
        return findings_of([m.attention for m in self._all()])

    def _all(self) -> Iterator[Measured]:
        yield from self.trained.values()
        for twins in self.twins.values():
            yield from twins

    def results(self) -> dict[str, ProbeResult]:
        """Everything measured, by the name of its file."""
        found: dict[str, ProbeResult] = {}
        for name, measured in self.trained.items():
            roles = {"trained": measured, **{f"random-seed{i}": m for i, m in enumerate(self.twins[name])}}
            for role, each in roles.items():
                found[f"{file_name(name)}/{role}/attention"] = each.attention
                found[f"{file_name(name)}/{role}/embedding"] = each.embedding
        return found

    def ratios(self) -> pd.DataFrame:
        """One row per model, measure, threshold and overlap: ``value, low, high, published``, and the same of random
        weights. Measures: attention, attention at equal distance, and cosine and dot product of each of ``VECTORS``."""
        import pandas as pd

        rows = [row for model in self.models if model.name in self.trained for row in self._rows(model)]
        return pd.DataFrame(rows)

    def _rows(self, model: SuiteModel) -> Iterator[dict[str, Any]]:
        trained, twins = self.trained[model.name], self.twins[model.name]
        random_row = RANDOM if model.published == "BERT" else ""
        for overlap in (False, True):
            for i, threshold in enumerate(self.thresholds):
                key = {"model": model.name, "overlap": overlap, "threshold": threshold}
                for name, measure in ATTENTION.items():
                    own = curve_of(trained.attention, measure, overlap)
                    row = {**key, "measure": name, **_cells("", own.at(i))}
                    row["published"] = published_ratio(model.published, name, threshold, overlap)
                    if twins:
                        other = mean_of([curve_of(t.attention, measure, overlap) for t in twins])
                        row |= _cells("random_", other.at(i))
                    row["random_published"] = published_ratio(random_row, name, threshold, overlap)
                    yield row
                for similarity in ("cosine", "dot"):
                    for vectors in VECTORS:
                        place = (threshold, overlap, vectors, similarity)
                        row = {**key, "measure": f"{similarity}, {vectors}"}
                        row |= _cells("", _similarity(trained.embedding, *place), PARTS - 1)
                        row["published"] = published_ratio(model.published, similarity, threshold, overlap)
                        if twins:
                            other = mean_of([_similarity(t.embedding, *place) for t in twins])
                            row |= _cells("random_", other, PARTS - 1)
                        row["random_published"] = published_ratio(random_row, similarity, threshold, overlap)
                        yield row

    def heads(self) -> pd.DataFrame:
        """One row per model, threshold, overlap, layer (0: ``blocks.0``) with its hook and head with its name (such as
        ``L0H3``): ``ratio``, ``matched`` and the ratio of random weights, each a mean over topic models."""
        import pandas as pd

        frames = []
        for name, measured in self.trained.items():
            result = measured.attention
            sites, heads = result.coords["site"], [int(head) for head in result.coords["head"]]
            places = [(result.layers[site], site, head) for site in sites for head in heads]
            twins = [t.attention for t in self.twins[name]]
            for v, (threshold, overlap) in enumerate(result.metadata["variants"]):
                table = pd.DataFrame(places, columns=["layer", "site", "head"])
                table["name"] = [head_name(layer, head) for layer, _, head in places]
                table.insert(0, "model", name)
                table.insert(1, "threshold", threshold)
                table.insert(2, "overlap", bool(overlap))
                for measure in ("ratio", "matched"):
                    table[measure] = result[measure][:, v].mean(dim=0).flatten().numpy()
                if twins:
                    drawn = [t["ratio"][:, v].mean(dim=0).flatten().numpy() for t in twins]
                    table["random"] = np.mean(drawn, axis=0)
                frames.append(table)
        return pd.concat(frames, ignore_index=True)

    def topics(self) -> pd.DataFrame:
        """One row per topic of each topic model, the largest first: its share of the corpus and its likeliest words."""
        import pandas as pd

        frames = []
        for seed, model in zip(self.texts.fitted.seeds, self.texts.fitted.models, strict=True):
            words = [", ".join(likeliest) for likeliest in model.top_words(10)]
            shares = [float("nan")] * len(words) if model.shares is None else model.shares.tolist()
            table = pd.DataFrame({"seed": seed, "topic": range(len(words)), "share": shares, "likeliest words": words})
            frames.append(table.sort_values("share", ascending=False, kind="stable"))
        return pd.concat(frames, ignore_index=True)

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Every table by the name of its file, computed once."""
        return {"ratios": self.ratios(), "heads": self.heads(), "topics": self.topics()}

    def shown(self, overlap: bool) -> pd.DataFrame:
        """A published table beside ours: a row for each model and threshold; a model that could not be measured has one
        row that says why."""
        import pandas as pd

        ratios, rows = self.tables["ratios"], []
        for model in self.models:
            if model.name not in self.trained:
                rows.append({"model": model.name, "attention": f"not measured: {self.failed[model.name]}"})
                continue
            for threshold in self.thresholds:
                part = ratios[(ratios["model"] == model.name) & (ratios["overlap"] == overlap)]
                of = part[part["threshold"] == threshold].set_index("measure")
                row = {"model": model.name, "threshold": f"{threshold:g}"}
                row |= {name: _text(of.loc[name]) for name in ATTENTION}
                row["published"] = _number(of.loc["attention", "published"])
                row["random weights"] = _text(of.loc["attention"], "random_")
                row["random, at equal distance"] = _text(of.loc["attention at equal distance"], "random_")
                rows.append(row)
        return pd.DataFrame(rows).fillna("–")

    @property
    def text(self) -> str:
        """Both tables for a terminal."""
        titles = {False: "Words of one topic", True: "Words may have several topics"}
        return "\n\n".join(f"{title}\n{table_text(self.shown(overlap), '.3f')}" for overlap, title in titles.items())

    def shown_embeddings(self, overlap: bool, similarity: str) -> pd.DataFrame:
        """The same of embeddings: each way to take a word's vector beside the published column."""
        import pandas as pd

        ratios, rows = self.tables["ratios"], []
        for model in self.models:
            part = ratios[(ratios["model"] == model.name) & (ratios["overlap"] == overlap)]
            for threshold in self.thresholds if len(part) else ():
                of = part[part["threshold"] == threshold].set_index("measure")
                row = {"model": model.name, "threshold": f"{threshold:g}"}
                row |= {vectors: _text(of.loc[f"{similarity}, {vectors}"]) for vectors in VECTORS}
                row["published"] = _number(of.loc[f"{similarity}, rows", "published"])
                row |= {
                    f"random: {vectors}": _number(of.loc[f"{similarity}, {vectors}"].get("random_value"))
                    for vectors in VECTORS
                }
                rows.append(row)
        return pd.DataFrame(rows).fillna("–")

    def _repr_html_(self) -> str:
        return table_html(self.shown(overlap=False), "Topic structure of a suite: words of one topic")


def _cells(prefix: str, of: Curve, freedom: float = math.inf) -> dict[str, float]:
    low, high = of.interval(freedom) or (float("nan"), float("nan"))
    return {f"{prefix}value": float(of.values.mean()), f"{prefix}low": low, f"{prefix}high": high}


def _similarity(embedding: ProbeResult, threshold: float, overlap: bool, vectors: str, similarity: str) -> Curve:
    """The ratio at one threshold."""
    variant = [(float(t), bool(o)) for t, o in embedding.metadata["variants"]].index((threshold, overlap))
    at = (slice(None), variant, embedding.coords["vectors"].index(vectors), ("cosine", "dot").index(similarity))
    ratio = np.asarray(embedding["ratio"][at].numpy())
    return Curve(ratio, drawn_of(ratio, embedding["ratio_without"][at].numpy()))


def _text(row: pd.Series[Any], prefix: str = "") -> str:
    """``1.32 (1.28 to 1.36)``."""
    value = row.get(f"{prefix}value", float("nan"))
    low, high = (row.get(f"{prefix}{end}", float("nan")) for end in ("low", "high"))
    return _number(value) if low != low else f"{_number(value)} ({_number(low)} to {_number(high)})"


def _number(value: Any) -> str:
    return "–" if value is None or value != value else f"{value:.3f}"
