"""Tables: ratios, heads and topics, and the ones shown next to the published tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from mechclust.commands.topics.curves import Curve, Measure, curve_of, mean_of, place_of
from mechclust.commands.topics.job import Measured
from mechclust.commands.topics.measurements import Measurements
from mechclust.commands.topics.models import TopicsModel
from mechclust.commands.topics.published import RANDOM, published_ratio
from mechclust.commands.topics.vectors import PARTS, VECTORS, drawn_of
from probes.engine.head_names import head_name
from probes.functional.topic_embedding import SIMILARITIES

if TYPE_CHECKING:
    import pandas as pd

ATTENTION: Mapping[str, Measure] = {"attention": "ratio", "attention at equal distance": "matched"}
KINDS_OF_TOPICS = {False: "words of one topic", True: "words may have several topics"}


def ratio_table(result: Measurements) -> pd.DataFrame:
    """Return one row per model, measure, threshold and overlap, see ``TopicsResult.to_dataframe``."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for model in result.models:
        if model.name in result.trained:
            for overlap, place in product((False, True), range(len(result.thresholds))):
                rows += _rows(result, model, overlap, place)
    return pd.DataFrame(rows)


def first_threshold(ratios: pd.DataFrame) -> float:
    """Return the least threshold at which the attention of any model has a ratio: others keep too few words.

    Args:
        ratios: as from ``ratio_table``.
    """
    plain = ratios[(ratios["measure"] == "attention") & ~ratios["overlap"]]
    measured = plain[plain["value"].notna()]
    return float((measured if len(measured) else plain)["threshold"].min())


def _rows(result: Measurements, model: TopicsModel, overlap: bool, place: int) -> Iterator[dict[str, Any]]:
    """Yield the measures of a model at one threshold."""
    measured = [result.trained[model.name], *result.twins[model.name]]
    threshold = result.thresholds[place]
    for name, measure in ATTENTION.items():
        numbers = [curve_of(each.attention, measure, overlap).at(place) for each in measured]
        yield _row(model, overlap, threshold, name, numbers)
    for similarity, vectors in product(SIMILARITIES, VECTORS):
        numbers = [_similarity(each, threshold, overlap, vectors, similarity) for each in measured]
        yield _row(model, overlap, threshold, f"{similarity}, {vectors}", numbers)


def _row(model: TopicsModel, overlap: bool, threshold: float, measure: str, numbers: Sequence[Curve]) -> dict[str, Any]:
    """Return a row of the numbers of the trained model, the first, and of its copies with random weights."""
    trained, *twins = numbers
    freedom = math.inf if measure in ATTENTION else PARTS - 1
    published = measure.partition(",")[0]  # the same for all kinds of word vectors
    random_model = RANDOM if model.published == "BERT" else ""
    row = {"model": model.name, "overlap": overlap, "threshold": threshold, "measure": measure}
    row |= _cells("", trained, freedom)
    row["published"] = published_ratio(model.published, published, threshold, overlap)
    if twins:
        row |= _cells("random_", mean_of(twins), freedom)
    row["random_published"] = published_ratio(random_model, published, threshold, overlap)
    return row


def _cells(prefix: str, number: Curve, freedom: float) -> dict[str, float]:
    low, high = number.interval(freedom) or (math.nan, math.nan)
    return {f"{prefix}value": float(number.values.mean()), f"{prefix}low": low, f"{prefix}high": high}


def _similarity(measured: Measured, threshold: float, overlap: bool, vectors: str, similarity: str) -> Curve:
    """Return the ratio of one kind of word vectors under one variant."""
    embedding = measured.embedding
    variant = place_of(embedding, threshold, overlap)
    ratio, without = [
        embedding.sel(measure, vectors=vectors, similarity=similarity)[:, variant].numpy()
        for measure in ("ratio", "ratio_without")
    ]
    return Curve(ratio, drawn_of(ratio, without))


def head_table(result: Measurements) -> pd.DataFrame:
    """Return one row per model, variant and head, see ``TopicsResult.heads``."""
    import pandas as pd

    frames = []
    for name, measured in result.trained.items():
        attention = measured.attention
        rows = []
        for site, head in product(attention.coords["site"], map(int, attention.coords["head"])):
            layer = attention.layers[site]
            rows.append({"layer": layer, "site": site, "head": head, "name": head_name(layer, head)})
        twins = [twin.attention for twin in result.twins[name]]
        for v, (threshold, overlap) in enumerate(attention.metadata["variants"]):
            variant = {"model": name, "threshold": threshold, "overlap": bool(overlap)}
            table = pd.DataFrame([{**variant, **row} for row in rows])
            for measure in ("ratio", "matched"):
                table[measure] = attention[measure][:, v].mean(dim=0).flatten().numpy()
            if twins:
                of_twins = [twin["ratio"][:, v].mean(dim=0).flatten().numpy() for twin in twins]
                table["random"] = np.mean(of_twins, axis=0)
            frames.append(table)
    return pd.concat(frames, ignore_index=True)


def best_heads(heads: pd.DataFrame, threshold: float) -> pd.DataFrame:
    """Return each model's eight heads with the highest ratio at a threshold, words of one topic, for readers.

    Args:
        heads: as from ``head_table``.
        threshold: the ambiguity threshold.
    """
    plain = heads[(heads["threshold"] == threshold) & ~heads["overlap"]]
    best = plain.sort_values("ratio", ascending=False, kind="stable").groupby("model", sort=False).head(8)
    names = {"matched": "at equal distance", "random": "random weights"}
    return best.drop(columns=["threshold", "overlap"]).rename(columns=names)


def seed_table(result: Measurements) -> pd.DataFrame:
    """Return one row per topic of each topic model, the largest first, with its likeliest words."""
    import pandas as pd

    frames = []
    for seed, model in zip(result.texts.fitted.seeds, result.texts.fitted.models, strict=True):
        words = [", ".join(likeliest) for likeliest in model.top_words(10)]
        shares = math.nan if model.shares is None else model.shares.tolist()
        table = pd.DataFrame({"seed": seed, "topic": range(len(words)), "share": shares, "likeliest words": words})
        frames.append(table.sort_values("share", ascending=False, kind="stable"))
    return pd.concat(frames, ignore_index=True)


def attention_table(result: Measurements, ratios: pd.DataFrame, overlap: bool) -> pd.DataFrame:
    """Return a published table next to ours, see ``TopicsResult.shown``.

    Args:
        result: the measurements.
        ratios: as from ``ratio_table``.
        overlap: whether words may have several topics.
    """
    import pandas as pd

    rows = []
    for model in result.models:
        if model.name not in result.trained:
            why = f"not measured: {result.failed[model.name]}"
            rows.append({"model": result.labels[model.name], "threshold": "–", "attention": why})
        rows += _by_threshold(result, ratios, model, overlap, _attention_cells)
    return _without_unpublished(result, pd.DataFrame(rows).fillna("–"))


def vector_table(result: Measurements, ratios: pd.DataFrame, overlap: bool, similarity: str) -> pd.DataFrame:
    """Return each way to take a word's vector next to the published column.

    Args:
        result: the measurements.
        ratios: as from ``ratio_table``.
        overlap: whether words may have several topics.
        similarity: ``"cosine"`` or ``"dot"``.
    """
    import pandas as pd

    of_similarity = vector_ratios(ratios, similarity)
    rows: list[dict[str, str]] = []
    for model in result.models:
        rows += _by_threshold(result, of_similarity, model, overlap, _vector_cells)
    return _without_unpublished(result, pd.DataFrame(rows).fillna("–"))


def vector_ratios(ratios: pd.DataFrame, similarity: str) -> pd.DataFrame:
    """Return the rows of ``ratio_table`` of one similarity, in which ``measure`` is the kind of word vectors."""
    rows = ratios[ratios["measure"].str.startswith(f"{similarity}, ")]
    return rows.assign(measure=rows["measure"].str.removeprefix(f"{similarity}, "))


def _without_unpublished(result: Measurements, table: pd.DataFrame) -> pd.DataFrame:
    """Leave out the column of published values if no model has any."""
    return table if result.has_published else table.drop(columns="published", errors="ignore")


def _by_threshold(
    result: Measurements,
    ratios: pd.DataFrame,
    model: TopicsModel,
    overlap: bool,
    cells: Callable[[pd.DataFrame], dict[str, str]],
) -> Iterator[dict[str, str]]:
    """Yield a row for each threshold, with the cells of a table of its measures."""
    of_model = ratios[(ratios["model"] == model.name) & (ratios["overlap"] == overlap)]
    for threshold, table in of_model.groupby("threshold"):
        yield {"model": result.labels[model.name], "threshold": f"{threshold:g}", **cells(table.set_index("measure"))}


def _attention_cells(measures: pd.DataFrame) -> dict[str, str]:
    row = {name: ratio_text(measures.loc[name]) for name in ATTENTION}
    row["published"] = _number(measures.loc["attention", "published"])
    row["random weights"] = ratio_text(measures.loc["attention"], "random_")
    row["random, at equal distance"] = ratio_text(measures.loc["attention at equal distance"], "random_")
    return row


def _vector_cells(measures: pd.DataFrame) -> dict[str, str]:
    row = {vectors: ratio_text(measures.loc[vectors]) for vectors in VECTORS}
    row["published"] = _number(measures.loc["rows", "published"])
    row |= {f"random: {vectors}": _number(measures.loc[vectors].get("random_value", math.nan)) for vectors in VECTORS}
    return row


def ratio_text(row: pd.Series[Any], prefix: str = "") -> str:
    """Return a value with its interval, such as ``1.320 (1.280 to 1.360)``."""
    value, low, high = [row.get(f"{prefix}{name}", math.nan) for name in ("value", "low", "high")]
    return _number(value) if math.isnan(low) else f"{_number(value)} ({_number(low)} to {_number(high)})"


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"
