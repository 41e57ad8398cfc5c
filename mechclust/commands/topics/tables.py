"""Tables of a model's topic structure: by head, layer, variant, measure and topic."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mechclust.commands.topics.measurements import Measurements
from mechclust.commands.topics.variants import Variant
from mechclust.evidence.intervals import value_with_interval
from probes import ProbeResult
from probes.engine.head_names import head_name
from probes.functional.topic_embedding import SIMILARITIES
from tasks import TopicModel

if TYPE_CHECKING:
    import pandas as pd

_MAX_HEADS = 10  # that are shown
_RATIO = {"ratio": "ratio", "null_low": "ratio_null_low", "null_high": "ratio_null_high", "p_value": "p_value"}
_ENDS = {"low": "ratio_low", "high": "ratio_high"}  # of an interval over documents, of attention only
_TESTED = {"null_low": "_null_low", "null_high": "_null_high"}  # suffix of the probe's measure


class _TestedMeasure(NamedTuple):
    """A measure that is compared with chance: the results it is from, its name in them, its p, and its place."""

    kind: str
    measure: str
    p_value: str
    place: tuple[int, ...]
    summary_column: str


_MEASURES = {
    "attention, ratio": _TestedMeasure("attention", "overall_ratio", "overall_p_value", (), "attention"),
    "cosine, difference": _TestedMeasure("embedding", "difference", "difference_p_value", (0, 0), "cosine_difference"),
    "dot, difference": _TestedMeasure("embedding", "difference", "difference_p_value", (0, 1), "dot_difference"),
}


def head_table(result: Measurements) -> pd.DataFrame:
    """Return one row per variant and head, see ``TopicsResult.to_dataframe``."""
    import pandas as pd

    measured = next(attention for attention in result.trained.attention if attention is not None)
    sites = list(enumerate(measured.coords["site"]))
    heads = list(enumerate(measured.coords["head"]))
    rows = []
    for place, variant in enumerate(result.variants):
        attention = result.trained.attention[place]
        for (s, site), (h, head) in product(sites, heads):
            row = {**_key(variant), "layer": measured.layers[site], "site": site, "head": int(head)}
            row["name"] = head_name(row["layer"], row["head"])
            for b, bucket in enumerate(measured.coords["bucket"]):
                within = (f"{bucket}_within", s, h)
                row[bucket] = _number(attention, *(("mean", s, h, b) if bucket == "same_word" else within))
                row[f"pairs_{bucket}"] = 0 if attention is None else int(attention["pairs"][b])
            row["ratio"] = _number(attention, "ratio", s, h)
            if result.config.n_resamples:
                row |= {measure: _number(attention, measure, s, h) for measure in _ENDS.values()}
            row |= {name: _number(attention, measure, s, h) for name, measure in _RATIO.items()}
            if result.untrained:
                row["untrained"] = _untrained(result, "attention", place, "ratio", s, h)
            rows.append(row)
    return pd.DataFrame(rows)


def layer_table(result: Measurements) -> pd.DataFrame:
    """Return one row per variant and layer, see ``TopicsResult.by_layer``."""
    import pandas as pd

    measured = next(vectors for vectors in result.trained.vectors if vectors is not None)
    rows = []
    for place, variant in enumerate(result.variants):
        for s, site in enumerate(measured.coords["site"]):
            row = {**_key(variant), "layer": measured.layers[site], "site": site}
            rows.append(row | _similarity(result, "vectors", place, s))
    return pd.DataFrame(rows)


def variant_table(result: Measurements) -> pd.DataFrame:
    """Return one row per variant, see ``TopicsResult.summary``."""
    import pandas as pd

    whole = result.encoded.token_of_word >= 0
    rows = []
    for place, variant in enumerate(result.variants):
        attention = result.trained.attention[place]
        row = _key(variant)
        row["topics"] = variant.n_topics
        row["words"] = int((variant.topics.any(dim=1) & whole).sum())
        row |= _similarity(result, "embedding", place, 0)
        measured = {**_RATIO, **_ENDS} if result.config.n_resamples else _RATIO
        row |= {f"attention_{name}": _number(attention, f"overall_{measure}") for name, measure in measured.items()}
        row["attention_difference"] = _attention_difference(attention)
        if result.untrained:
            row["attention_untrained"] = _untrained(result, "attention", place, "overall_ratio")
            differences = [_attention_difference(model.attention[place]) for model in result.untrained]
            row["attention_difference_untrained"] = _mean(differences)
        rows.append(row)
    return pd.DataFrame(rows).rename(columns={f"{name}_ratio": name for name in (*SIMILARITIES, "attention")})


def measure_table(result: Measurements, summary: pd.DataFrame) -> pd.DataFrame:
    """Return one row per measure and variant, see ``TopicsResult.by_measure``.

    Args:
        result: the measurements.
        summary: as from ``variant_table``.
    """
    import pandas as pd

    rows = []
    for name, tested in _MEASURES.items():
        for place, variant in enumerate(result.variants):
            of_variant = summary.iloc[place]
            probe = getattr(result.trained, tested.kind)[place]
            row = {"measure": name, **_key(variant), "topics": of_variant["topics"], "words": of_variant["words"]}
            row["value"] = _number(probe, tested.measure, *tested.place)
            if result.config.n_resamples:
                row |= {f"value_{end}": of_variant.get(f"{tested.summary_column}_{end}", np.nan) for end in _ENDS}
            for column, suffix in _TESTED.items():
                row[column] = _number(probe, f"{tested.measure}{suffix}", *tested.place)
            row["p_value"] = _number(probe, tested.p_value, *tested.place)
            if result.untrained:
                row["untrained"] = of_variant[f"{tested.summary_column}_untrained"]
            rows.append(row)
    return pd.DataFrame(rows)


def shown_measures(table: pd.DataFrame, *, with_intervals: bool = False) -> pd.DataFrame:
    """Return ``TopicsResult.by_measure`` for readers: each value with its chance interval and p.

    Args:
        table: as ``TopicsResult.by_measure``.
        with_intervals: also over documents, which a terminal has no room for.
    """
    chance = []
    for row in table.itertuples():
        known = row.null_low == row.null_low
        chance.append(f"{row.null_low:z.3g} to {row.null_high:z.3g}" if known else None)
    table = table.assign(
        threshold=table["threshold"].map("{:g}".format),
        overlap=table["overlap"].map({True: "with", False: "without"}),
        null_low=chance,
    )
    if with_intervals and "value_low" in table:
        in_words = _with_intervals(table, "value", ".3f")
        values = [
            text if low == low else value
            for text, low, value in zip(in_words, table["value_low"], table["value"], strict=True)
        ]
        table = table.assign(value=values)
    table = table.drop(columns=["null_high", "value_low", "value_high"], errors="ignore")
    return table.rename(columns={"null_low": "chance", "p_value": "p"})


def _with_intervals(table: pd.DataFrame, name: str, number: str) -> list[str | None]:
    """Return the numbers of a column as texts with their intervals, ``None`` for a missing one."""
    values = table[[name, f"{name}_low", f"{name}_high"]].itertuples(index=False)
    return [value_with_interval(value, ends, number) if value == value else None for value, *ends in values]


def topic_table(topics: TopicModel) -> pd.DataFrame:
    """Return one row per topic, the largest first: its share of the corpus and its likeliest words."""
    import pandas as pd

    words = [", ".join(likeliest) for likeliest in topics.top_words(10)]
    shares = float("nan") if topics.shares is None else topics.shares.tolist()
    table = pd.DataFrame({"topic": range(len(words)), "share": shares, "likeliest words": words})
    return table.sort_values("share", ascending=False, kind="stable")


def best_heads(heads: pd.DataFrame) -> pd.DataFrame:
    """Return the ten heads with the highest ratio, for readers.

    Args:
        heads: heads of one variant, as from ``head_table``.
    """
    hidden = ["threshold", "overlap", "same_word", *(name for name in heads if name.startswith("pairs_"))]
    names = {"null_low": "chance from", "null_high": "chance to", "p_value": "p", "untrained": "random weights"}
    best = heads.sort_values("ratio", ascending=False, kind="stable").head(_MAX_HEADS)
    if "ratio_low" in best:
        best = best.assign(ratio=_with_intervals(best, "ratio", ".3f")).drop(columns=["ratio_low", "ratio_high"])
    return best.drop(columns=hidden).rename(columns=names)


def first_measured(heads: pd.DataFrame) -> pd.DataFrame:
    """Return the heads of the first variant that has any ratio: without overlap, if anything is left there."""
    measured = heads[heads["ratio"].notna()]
    return measured.merge(measured[["threshold", "overlap"]].head(1))


def _similarity(result: Measurements, kind: str, variant: int, site: int) -> dict[str, float]:
    probe = getattr(result.trained, kind)[variant]
    row = {}
    for place, similarity in enumerate(SIMILARITIES):
        for name, measure in {**_RATIO, "difference": "difference"}.items():
            row[f"{similarity}_{name}"] = _number(probe, measure, site, place)
        if result.untrained:
            row[f"{similarity}_untrained"] = _untrained(result, kind, variant, "ratio", site, place)
            row[f"{similarity}_difference_untrained"] = _untrained(result, kind, variant, "difference", site, place)
    return row


def _key(variant: Variant) -> dict[str, Any]:
    return {"threshold": variant.threshold, "overlap": variant.overlap}


def _number(result: ProbeResult | None, measure: str, *place: int) -> float:
    return float("nan") if result is None else float(result[measure][place])


def _untrained(result: Measurements, kind: str, variant: int, measure: str, *place: int) -> float:
    """Return the mean over untrained models."""
    return _mean(_number(getattr(model, kind)[variant], measure, *place) for model in result.untrained)


def _attention_difference(result: ProbeResult | None) -> float:
    return _number(result, "overall_same_topic_within") - _number(result, "overall_different_topic_within")


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
