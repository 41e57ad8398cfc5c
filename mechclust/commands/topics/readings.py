"""Conclusions on topic structure: one headline and a table of readings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from mechclust.commands.topics.curves import place_of
from mechclust.commands.topics.job import Measured
from mechclust.commands.topics.measurements import Measurements
from mechclust.commands.topics.tables import ATTENTION, first_threshold, ratio_text, vector_ratios
from mechclust.evidence.finding_tables import findings_in_tables
from mechclust.report.reading import Reading
from mechclust.report.text import list_text

if TYPE_CHECKING:
    import pandas as pd

_MAX_MODELS = 8  # that have readings
_PUBLISHED_DISTANCE = 0.0008  # of the cosine ratio of random weights from 1, words of one topic
_NO_RANDOM = "without random weights, nothing says what chance would give"
_PAIRS = "pairs of words of one topic and of different topics in every topic model"


def headline(result: Measurements, ratios: pd.DataFrame) -> str:
    """Return the conclusion.

    Args:
        result: the measurements.
        ratios: as ``TopicsResult.to_dataframe``.
    """
    threshold = first_threshold(ratios)
    plain = _plain(ratios, threshold)
    attention = plain.xs("attention", level="measure")["value"].dropna()
    if not len(attention):
        where = "" if len(result.models) == 1 else " in any model"
        return f"No threshold has a ratio{where}: it needs {_PAIRS}."
    if len(result.models) == 1:
        return _of_one_model(result, plain.loc[(attention.index[0], "attention")], threshold)
    ends = [f"{attention[name]:.3f} ({result.labels[name]})" for name in (attention.idxmin(), attention.idxmax())]
    judged = [finding for finding in findings_in_tables(result.findings) if finding.verdict != "not tested"]
    conclusion = f"{_what(threshold)}: {' to '.join(dict.fromkeys(ends))}"
    if not any(result.twins.values()):
        return f"{conclusion}; {_NO_RANDOM}."
    compared = "" if all(result.twins.values()) else " (of models with random weights)"
    verdicts = [f"{finding.id} {finding.verdict}{compared if finding.id == 'S1' else ''}" for finding in judged]
    return f"{conclusion}. {'; '.join(verdicts)}."


def _what(threshold: float) -> str:
    """Return what a headline's numbers are."""
    return f"Attention within over between topics, threshold {threshold:g}"


def _of_one_model(result: Measurements, attention: pd.Series[Any], threshold: float) -> str:
    """Return the ratio of the only model and of random weights, and whether it is above these."""
    (name,) = result.trained
    conclusion = f"{_what(threshold)}: {attention['value']:.3f}"
    if not result.twins[name]:
        return f"{conclusion} ({result.labels[name]}); {_NO_RANDOM}."
    verdicts = {finding.id: finding.verdict for finding in result.findings}
    random = f"{attention['random_value']:.3f} (random weights)"
    return (
        f"{conclusion} ({result.labels[name]}), {random}. Above random weights: {verdicts['S1']}; at equal distance: "
        f"{verdicts['S2']}."
    )


def readings(result: Measurements, ratios: pd.DataFrame) -> list[Reading]:
    """Return the readings: attention of each model, verdicts, and word vectors.

    Vectors are compared with the published columns, or with random weights for models without a published row.
    Arguments as ``headline``.
    """
    threshold = first_threshold(ratios)
    plain = _plain(ratios, threshold)
    conclusions: list[Reading] = []
    for name in list(result.trained)[:_MAX_MODELS]:
        conclusions.append(_attention(result.labels[name], plain.loc[name], threshold))
    for finding in result.findings:
        if finding.verdict != "not tested":
            statement = finding.statement[:1].upper() + finding.statement[1:]
            note = f" {finding.note[:1].upper()}{finding.note[1:]}." if finding.note else ""
            conclusions.append(Reading(finding.id, finding.verdict, verdict=f"{statement}.{note}"))
    conclusions += _embeddings(result, threshold)
    if result.has_published:
        conclusions += [*_closest_vectors(ratios), *_random_vectors(ratios)]
    return conclusions


def _plain(ratios: pd.DataFrame, threshold: float) -> pd.DataFrame:
    """Return the ratios of words of one topic at a threshold, by model and measure."""
    return ratios[(ratios["threshold"] == threshold) & ~ratios["overlap"]].set_index(["model", "measure"])


def _attention(name: str, measures: pd.DataFrame, threshold: float) -> Reading:
    what = f"Attention of {name}, same / different topic"
    where = f"threshold {threshold:g}"
    attention, matched = [measures.loc[measure] for measure in ATTENTION]
    if math.isnan(attention["value"]):
        return Reading(what, "unknown", where, verdict=f"A ratio needs {_PAIRS}.")
    random = attention.get("random_value", math.nan)
    value = f"{ratio_text(attention)}, at equal distance {ratio_text(matched)}"
    return Reading(what, value, where, random_weights="" if math.isnan(random) else f"{random:.3f}")


def _embeddings(result: Measurements, threshold: float) -> Iterator[Reading]:
    """Yield how much closer words of one topic are in the token embeddings of models without a published row.

    No ratio: its base may be 0.
    """
    compared = {model.name for model in result.models if model.published}
    for name in [name for name in result.trained if name not in compared][:_MAX_MODELS]:
        trained, *twins = [_cosine_difference(each, threshold) for each in (result.trained[name], *result.twins[name])]
        if not math.isnan(trained):
            yield Reading(
                f"Cosine of token embeddings of {result.labels[name]}, same - different topic",
                f"{trained:z.3f}",
                f"threshold {threshold:g}",
                random_weights=f"{np.mean(twins):z.3f}" if twins else "",
            )


def _cosine_difference(measured: Measured, threshold: float) -> float:
    """Return the mean over topic models, of words of one topic."""
    difference = measured.embedding.sel("difference", vectors="rows", similarity="cosine")
    return float(difference[:, place_of(measured.embedding, threshold, overlap=False)].mean())


def _closest_vectors(ratios: pd.DataFrame) -> Iterator[Reading]:
    """Yield which kind of word vector comes closest to the published cosines."""
    cosines = vector_ratios(ratios, "cosine")
    known = cosines[cosines["published"].notna() & (cosines["value"] > 0)]
    distances = np.log(known["value"] / known["published"]).abs().groupby(known["measure"], sort=False).mean()
    if len(distances):
        (best, factor), *others = np.exp(distances).sort_values(kind="stable").items()
        rest = ", ".join(f"{vectors} {other:.2f}" for vectors, other in others)
        yield Reading(
            "Word vectors closest to the published cosines",
            f"{best}, a factor of {factor:.2f} away on average",
            verdict=f"Others: {rest}." if rest else "",
        )


def _random_vectors(ratios: pd.DataFrame) -> Iterator[Reading]:
    """Yield how far from 1 the ratio of cosines is with random weights, for words of one topic."""
    cosines = vector_ratios(ratios[~ratios["overlap"]], "cosine")
    if "random_value" not in cosines or cosines["random_value"].isna().all():
        return
    distances = []
    for vectors, distance in (cosines["random_value"] - 1).abs().groupby(cosines["measure"], sort=False).max().items():
        distances.append(f"{distance:.4f} ({vectors})" if distance < 0.1 else f"{distance:.2g} ({vectors})")
    yield Reading(
        "Ratio of cosines with random weights, largest distance from 1",
        list_text(distances),
        verdict=f"The published one is within {_PUBLISHED_DISTANCE}.",
    )
