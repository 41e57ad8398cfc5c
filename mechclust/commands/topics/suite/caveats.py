"""Caveats on the numbers of a suite."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mechclust.commands.topics.caveats import lost_words, tokenization_notes
from mechclust.commands.topics.suite.measurements import Measurements
from mechclust.commands.topics.suite.vectors import PARTS
from mechclust.report.text import list_text


def caveats(result: Measurements) -> list[str]:
    """Return how the suite was measured, and the omissions."""
    weights = result.texts.fitted.settings.get("weights")
    source = "" if result.config.topic_model is None else ", as the file says"
    return [
        _measured(result),
        "Intervals (95%) cover the documents measured and the topic models, and those of random weights the weights "
        "too. For attention, documents are resampled whole; for cosine and dot product, each of "
        f"{PARTS} parts of them is left out (a jackknife), and so is each random twin.",
        *_unknown(result),
        *(f"{name} could not be measured: {why}" for name, why in result.failed.items()),
        *_tokenization(result),
        *_undefined(result),
        *result.texts.notes,
        "Rows: rows of the token embedding matrix, over all pairs of different words. Self-pairs in: a word paired "
        "with itself counts as the same topic, as in the published code. hook_embed: what the first block reads, a "
        "mean over occurrences (in BERT-like encoders, rows plus position and type, normalised). Contextual: the same "
        "for the last block's output.",
        "A ratio divides by the mean of different-topic pairs. If that is near 0, as with rows of a random matrix, the "
        "ratio says little.",
        "At equal distance: pairs that are equally many tokens apart are compared.",
        *([f"Topics were fitted on {weights}{source}."] if weights else []),
    ]


def _measured(result: Measurements) -> str:
    texts = result.texts
    fitted = texts.fitted
    times = "once" if len(fitted.seeds) == 1 else f"{len(fitted.seeds)} times"
    return (
        f"{fitted.models[0].n_topics} topics over {len(fitted.words)} words, fitted {times} (seed "
        f"{list_text(map(str, fitted.seeds))}) on {texts.n_documents} documents; encoders were measured on "
        f"{len(texts.documents)} of them."
    )


def _unknown(result: Measurements) -> Iterator[str]:
    """Yield which variation the intervals do not cover."""
    fitted = result.texts.fitted
    if len(fitted.seeds) == 1:
        yield "With one topic model nothing is known of what its seed adds; give --topic-seeds 0 1 2."
    single = [name for name, twins in result.twins.items() if len(twins) == 1]
    if single:
        yield (
            f"With one set of random weights ({list_text(single)}) nothing is known of what its seed adds; give twins "
            "= 3 in the suite file."
        )
    if fitted.undercount:
        yield (
            "The corpus has more different words than were kept in memory, so the number of documents of a word may be "
            f"too low by up to {fitted.undercount}: in the weights, and where rare words are left out."
        )


def _tokenization(result: Measurements) -> Iterator[str]:
    for name, measured in result.trained.items():
        about = measured.attention.metadata
        yield (
            f"{name}: {lost_words(about['lost'], about['occurrences'])} are not counted (split into pieces or "
            f"unknown); {about['words_seen']} different words were seen whole."
        )
        for note in tokenization_notes(about["tokenization"]):
            yield f"{name}: {note}"


def _undefined(result: Measurements) -> Iterator[str]:
    """Yield when resampled documents have no pairs of words of one topic, or of different ones."""
    for name, measured in result.trained.items():
        measures = [measured.attention[f"overall_{measure}_resampled"].numpy() for measure in ("ratio", "matched")]
        drawn = np.stack(measures)
        known = np.isfinite(drawn).any(axis=-1)  # another note is about a threshold without any pairs
        n_undefined = int(np.isnan(drawn[known]).sum(axis=-1).max(initial=0))
        if n_undefined:
            yield (
                f"{name}: up to {n_undefined} of {drawn.shape[-1]} resamples of the documents leave a ratio undefined. "
                "They are left out of its interval; where they are more than 5%, there is no interval."
            )
