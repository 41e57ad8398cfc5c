"""The findings of a suite, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mechclust.commands.topics.caveats import tokenization_notes
from mechclust.commands.topics.suite.job import VECTORS
from mechclust.commands.topics.suite.result import SuiteResult
from mechclust.commands.topics.suite.vectors import PARTS
from mechclust.report.text import join

if TYPE_CHECKING:
    import pandas as pd

_MOST = 8  # encoders that get a sentence of their own


def lead_of(result: SuiteResult) -> list[str]:
    """The conclusion: attention of each encoder, the findings, and which vectors fit the published columns."""
    table = result.tables["ratios"]
    first = min(result.thresholds)
    plain = table[(table["threshold"] == first) & ~table["overlap"]].set_index(["model", "measure"])
    found = [_attention(name, plain.loc[name], first) for name in list(result.trained)[:_MOST]]
    found += [
        f"{finding.id}, {finding.statement}: {finding.verdict}."
        for finding in result.findings
        if finding.verdict != "not tested"
    ]
    return [*found, *_vectors(table)]


def _attention(name: str, of: pd.DataFrame, threshold: float) -> str:
    own, matched = of.loc["attention"], of.loc["attention at equal distance"]
    if own["value"] != own["value"]:
        return f"{name}: at threshold {threshold:g} no words of one topic met, so there is no ratio."
    random = own.get("random_value", float("nan"))
    beside = "" if random != random else f"; with random weights {random:.3f}"
    return (
        f"{name}: attention between words of one topic is {_span(own)} times that between words of different topics "
        f"(threshold {threshold:g}), {_span(matched)} times at equal distance{beside}."
    )


def _span(row: pd.Series[float]) -> str:
    ends = "" if row["low"] != row["low"] else f" ({row['low']:.3f} to {row['high']:.3f})"
    return f"{row['value']:.3f}{ends}"


def _vectors(table: pd.DataFrame) -> list[str]:
    """Which kind of word vector reproduces the published values, for encoders and for random weights."""
    cosine = table[table["measure"].str.startswith("cosine, ")]
    known = cosine[cosine["published"].notna() & (cosine["value"] > 0)]
    found = []
    if len(known):
        off = _distances(known, "value", "published")
        best = min(off, key=lambda vectors: off[vectors])
        found.append(
            f"Of the kinds of word vectors, {best} comes closest to the published cosines: a factor of "
            f"{np.exp(off[best]):.2f} away on average ({_others(off, best)})."
        )
    if "random_value" in cosine and len(random := cosine[cosine["random_value"].notna()]):
        means = {v: random[random["measure"] == f"cosine, {v}"]["random_value"] for v in VECTORS}
        off = {v: float((values - 1).abs().max()) for v, values in means.items()}
        found.append(
            "With random weights the cosine's ratio is at most this far from 1: "
            + join(f"{_decimals(far)} ({v})" for v, far in off.items())
            + "; the published one is within 0.0008."
        )
    return found


def _distances(known: pd.DataFrame, ours: str, theirs: str) -> dict[str, float]:
    """Mean absolute difference of logarithms by vectors."""
    return {
        vectors: float(np.abs(np.log(part[ours] / part[theirs])).mean())
        for vectors in VECTORS
        if len(part := known[known["measure"] == f"cosine, {vectors}"])
    }


def _others(off: dict[str, float], best: str) -> str:
    return ", ".join(f"{vectors} {np.exp(far):.2f}" for vectors, far in off.items() if vectors != best)


def _decimals(x: float) -> str:
    return f"{x:.4f}" if x < 0.1 else f"{x:.2g}"


def notes_of(result: SuiteResult) -> list[str]:
    """How it was measured, and what was left out."""
    texts, fitted, config = result.texts, result.texts.fitted, result.config
    n = len(fitted.seeds)
    notes = [
        f"{fitted.models[0].n_topics} topics over {len(fitted.words)} words, fitted {n} time{'s' * (n != 1)} (seed "
        f"{join(map(str, fitted.seeds))}) on {texts.n_documents} documents; encoders were measured on "
        f"{len(texts.documents)} of them.",
        "Intervals (95%) cover the documents measured and the topic models, and those of random weights the weights "
        "too. For attention, documents are resampled whole; for cosine and dot product, each of "
        f"{PARTS} parts of them is left out (a jackknife), and so is each random twin.",
    ]
    if n == 1:
        notes.append("With one topic model nothing is known of what its seed adds; give --topic-seeds 0 1 2.")
    if single := [name for name, twins in result.twins.items() if len(twins) == 1]:
        notes.append(
            f"With one set of random weights ({join(single)}) nothing is known of what its seed adds; give twins = 3 "
            "in the suite file."
        )
    if fitted.undercount:
        notes.append(
            "The corpus has more different words than were kept in memory, so the number of documents of a word may be "
            f"too low by up to {fitted.undercount}: in the weights, and where rare words are left out."
        )
    notes += [f"{name} could not be measured: {why}" for name, why in result.failed.items()]
    notes += _lost(result)
    notes += _undefined(result)
    return [*notes, *texts.notes, *_READ, *_weights(fitted.settings.get("weights"), config.topic_model is None)]


def _lost(result: SuiteResult) -> list[str]:
    found = []
    for name, measured in result.trained.items():
        about = measured.attention.metadata
        share = about["lost"] / about["occurrences"] if about["occurrences"] else float("nan")
        found.append(
            f"{name}: {share:.0%} of {about['occurrences']} occurrences of topic words are not counted (split into "
            f"pieces or unknown); {about['words_seen']} different words were seen whole."
        )
        notes = tokenization_notes(about["tokenization"])
        found += [f"{name}: {note}" for note in notes]
    return found


def _undefined(result: SuiteResult) -> list[str]:
    """Where resampled documents have no pairs of words of one topic, or of different ones."""
    found = []
    for name, measured in result.trained.items():
        drawn = np.stack([measured.attention[f"overall_{m}_resampled"].numpy() for m in ("ratio", "matched")])
        known = np.isfinite(drawn).any(axis=-1)  # a threshold without any pairs is said elsewhere
        if most := int(np.isnan(drawn[known]).sum(axis=-1).max(initial=0)):
            found.append(
                f"{name}: up to {most} of {drawn.shape[-1]} resamples of the documents leave a ratio undefined. They "
                "are left out of its interval; where they are more than 5%, there is no interval."
            )
    return found


def _weights(weights: object, ours: bool) -> list[str]:
    return [f"Topics were fitted on {weights}{'' if ours else ', as the file says'}."] if weights else []


_READ: Sequence[str] = (
    "Rows: rows of the token embedding matrix, over all pairs of different words. Self-pairs in: a word paired with "
    "itself counts as the same topic, as in the published code. hook_embed: what the first block reads, a mean over "
    "occurrences (in BERT-like encoders, rows plus position and type, normalised). Contextual: the same for "
    "the last block's output.",
    "A ratio divides by the mean of different-topic pairs. If that is near 0, as with rows of a random matrix, the "
    "ratio says little.",
    "At equal distance: pairs that are equally many tokens apart are compared.",
)
