"""Conclusions on a suite: one headline and a table of readings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from mechclust.commands.topics.suite.measurements import Measurements
from mechclust.commands.topics.suite.tables import ATTENTION, ratio_text
from mechclust.commands.topics.suite.vectors import VECTORS
from mechclust.evidence.finding_tables import findings_in_tables
from mechclust.report.reading import Reading
from mechclust.report.text import list_text, model_name_text

if TYPE_CHECKING:
    import pandas as pd

_MAX_ENCODERS = 8  # that have readings
_PUBLISHED_DISTANCE = 0.0008  # of the cosine ratio of random weights from 1


def headline(result: Measurements, ratios: pd.DataFrame) -> str:
    """Return the conclusion.

    Args:
        result: the measurements.
        ratios: as ``SuiteResult.to_dataframe``.
    """
    threshold = min(result.thresholds)
    attention = _plain(ratios, threshold).xs("attention", level="measure")["value"].dropna()
    if not len(attention):
        return f"At threshold {threshold:g} no words of one topic met in any encoder, so there is no ratio."
    ends = [f"{attention[name]:.3f} ({model_name_text(name)})" for name in (attention.idxmin(), attention.idxmax())]
    judged = [finding for finding in findings_in_tables(result.findings) if finding.verdict != "not tested"]
    verdicts = [f"{finding.id} {finding.verdict}" for finding in judged]
    conclusion = f"Attention, same over different topic at threshold {threshold:g}: {' to '.join(dict.fromkeys(ends))}."
    return f"{conclusion} {'; '.join(verdicts)}." if verdicts else conclusion


def readings(result: Measurements, ratios: pd.DataFrame) -> list[Reading]:
    """Return the readings: attention of each encoder, verdicts, and which vectors fit the published columns.

    Arguments as ``headline``.
    """
    threshold = min(result.thresholds)
    plain = _plain(ratios, threshold)
    conclusions: list[Reading] = []
    for name in list(result.trained)[:_MAX_ENCODERS]:
        conclusions.append(_attention(name, plain.loc[name], threshold))
    for finding in result.findings:
        if finding.verdict != "not tested":
            statement = finding.statement[:1].upper() + finding.statement[1:]
            conclusions.append(Reading(finding.id, finding.verdict, verdict=f"{statement}."))
    return [*conclusions, *_closest_vectors(ratios), *_random_vectors(ratios)]


def _plain(ratios: pd.DataFrame, threshold: float) -> pd.DataFrame:
    """Return the ratios of words of one topic at a threshold, by model and measure."""
    return ratios[(ratios["threshold"] == threshold) & ~ratios["overlap"]].set_index(["model", "measure"])


def _attention(name: str, measures: pd.DataFrame, threshold: float) -> Reading:
    what = f"Attention of {name}, same / different topic"
    where = f"threshold {threshold:g}"
    attention, matched = [measures.loc[measure] for measure in ATTENTION]
    if math.isnan(attention["value"]):
        return Reading(what, "none", where, verdict="No words of one topic met.")
    random = attention.get("random_value", math.nan)
    value = f"{ratio_text(attention)}, at equal distance {ratio_text(matched)}"
    return Reading(what, value, where, random_weights="" if math.isnan(random) else f"{random:.3f}")


def _closest_vectors(ratios: pd.DataFrame) -> Iterator[Reading]:
    """Yield which kind of word vector comes closest to the published cosines."""
    factors = {}
    for vectors in VECTORS:
        cosine = ratios[ratios["measure"] == f"cosine, {vectors}"]
        known = cosine[cosine["published"].notna() & (cosine["value"] > 0)]
        if len(known):
            factors[vectors] = float(np.exp(np.abs(np.log(known["value"] / known["published"])).mean()))
    if factors:
        best, *others = sorted(factors, key=factors.__getitem__)
        rest = ", ".join(f"{vectors} {factors[vectors]:.2f}" for vectors in others)
        yield Reading(
            "Word vectors closest to the published cosines",
            f"{best}, a factor of {factors[best]:.2f} away on average",
            verdict=f"Others: {rest}." if rest else "",
        )


def _random_vectors(ratios: pd.DataFrame) -> Iterator[Reading]:
    """Yield how far from 1 the ratio of cosines is with random weights."""
    if "random_value" not in ratios or ratios["random_value"].isna().all():
        return
    distances = []
    for vectors in VECTORS:
        values = ratios.loc[ratios["measure"] == f"cosine, {vectors}", "random_value"]
        distance = float((values - 1).abs().max())
        distances.append(f"{distance:.4f} ({vectors})" if distance < 0.1 else f"{distance:.2g} ({vectors})")
    yield Reading(
        "Ratio of cosines with random weights, largest distance from 1",
        list_text(distances),
        verdict=f"The published one is within {_PUBLISHED_DISTANCE}.",
    )
