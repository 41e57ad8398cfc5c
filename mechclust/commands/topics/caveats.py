"""Caveats on the numbers of ``mechclust topics``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mechclust.commands.topics.measurements import Measurements
from mechclust.commands.topics.vectors import PARTS
from mechclust.models.tokenizers import tokenization_in_words
from mechclust.report.text import list_text
from tasks.text.topic_model import least_topic_model_threshold


def caveats(result: Measurements) -> list[str]:
    """Return how the models were measured, and the omissions."""
    weights = result.texts.fitted.settings.get("weights")
    source = "" if result.config.topic_model is None else ", as the file says"
    return [
        _measured(result),
        _intervals(result),
        *_unknown(result),
        *(f"{_label(result, name)} could not be measured: {why}" for name, why in result.failed.items()),
        *_tokenization(result),
        *_few_words(result),
        *_undefined(result),
        *result.texts.notes,
        "Rows: rows of the token embedding matrix, over all pairs of different words. Self-pairs in: a word paired "
        "with itself counts as the same topic, as in the published code. hook_embed: what the first block reads, a "
        "mean over occurrences (in BERT-like encoders, rows plus position and type, normalised). Contextual: the same "
        "for the last block's output.",
        "A ratio divides by the mean of different-topic pairs. If that is near 0, as with rows of a random matrix, the "
        "ratio says little.",
        "At equal distance: pairs that are equally many tokens apart are compared.",
        "Case is ignored; a word's row is its most frequent token's.",
        *([f"Topics were fitted on {weights}{source}."] if weights else []),
    ]


def _measured(result: Measurements) -> str:
    texts = result.texts
    fitted = texts.fitted
    topics = f"{fitted.models[0].n_topics} topics over {len(fitted.words)} words"
    seeds = f"seed {list_text(map(str, fitted.seeds))}"
    models = "the model was" if len(result.models) == 1 else "the models were"
    measured = f"{models} measured on {len(texts.documents)}"
    if fitted.corpus != texts.corpus:
        count = "a topic model" if len(fitted.seeds) == 1 else f"{len(fitted.seeds)} topic models"
        return f"{topics}, by {count} of a file ({seeds}); {measured} of {texts.n_documents} documents."
    times = "once" if len(fitted.seeds) == 1 else f"{len(fitted.seeds)} times"
    return f"{topics}, fitted {times} ({seeds}) on {texts.n_documents} documents; {measured} of them."


def _intervals(result: Measurements) -> str:
    """Return over what intervals are. One topic model, or one copy with random weights, has no variation to cover."""
    topics = " and the topic models" if len(result.texts.fitted.seeds) > 1 else ""
    weights = copies = ""
    if any(len(twins) > 1 for twins in result.twins.values()):
        weights = ", and those of several copies with random weights these weights too"
        copies = ", and so is each of several copies"
    return (
        f"Intervals (95%) cover the documents measured{topics}{weights}. For attention, documents are resampled whole; "
        f"for cosine and dot product, each of {PARTS} parts of them is left out (a jackknife){copies}."
    )


def _label(result: Measurements, failed: str) -> str:
    """Return the short name of a model, or of a copy with random weights, that could not be measured."""
    name, comma, copy = failed.partition(", random weights")
    return f"{result.labels.get(name, name)}{comma}{copy}"


def _unknown(result: Measurements) -> Iterator[str]:
    """Yield which variation the intervals do not cover."""
    fitted = result.texts.fitted
    if len(fitted.seeds) == 1:
        yield "With one topic model nothing is known of what its seed adds; give --topic-seeds 0 1 2."
    single = [result.labels[name] for name, twins in result.twins.items() if len(twins) == 1]
    if single:
        yield (
            f"With one set of random weights ({list_text(single)}) nothing is known of what its seed adds; give "
            "--untrained 3 (or twins = 3 in the suite file)."
        )
    if fitted.undercount:
        yield (
            "The corpus has more different words than were kept in memory, so the number of documents of a word may be "
            f"too low by up to {fitted.undercount}: in the weights, and where rare words are left out."
        )


def _tokenization(result: Measurements) -> Iterator[str]:
    for name, measured in result.trained.items():
        label = result.labels[name]
        about = measured.attention.metadata
        share = about["lost"] / about["occurrences"] if about["occurrences"] else float("nan")
        yield (
            f"{label}: {about['lost']} of {about['occurrences']} occurrences of topic words ({share:.0%}) are not "
            f"counted (split into pieces or unknown); {about['words_seen']} different words were seen whole."
        )
        tokenization = about["tokenization"]
        yield f"{label}: {tokenization_in_words(tokenization)}"
        if " before" not in tokenization.get("adds", " before"):
            yield (
                f"{label}: The tokenizer puts no special token before a text, so heads that attend mostly to the first "
                "token attend to a word, whatever its topic; compare with --bos yes."
            )
        if about["cut"]:
            yield (
                f"{label}: {about['cut']} documents were longer than a window and cut into several; words in different "
                "windows are not compared."
            )


def _few_words(result: Measurements) -> Iterator[str]:
    """Yield why thresholds have no values, and that topics have little text."""
    fitted = result.texts.fitted
    n_words = len(fitted.words)
    alone = [f"{threshold:g}" for threshold in result.thresholds if int(n_words * threshold) == 0]
    if alone:
        yield (
            f"Of {n_words} words, threshold {', '.join(alone)} keeps one per topic, which makes no pair; give "
            f"--thresholds of at least {least_topic_model_threshold(n_words):g}, or more text."
        )
    for name, measured in result.trained.items():
        for note in measured.attention.notes:
            yield f"{result.labels[name]}: {note}."
    n_weak = max(0 if m.shares is None else int((m.shares < 0.1 / m.n_topics).sum()) for m in fitted.models)
    if n_weak:
        yield (
            f"Up to {n_weak} of {fitted.models[0].n_topics} topics have less than a tenth of an even share of the "
            "corpus; their words mean little. Ask for fewer topics (--n-topics), or give more text."
        )


def _undefined(result: Measurements) -> Iterator[str]:
    """Yield when resampled documents have no pairs of words of one topic, or of different ones."""
    for name, measured in result.trained.items():
        measures = [measured.attention[f"overall_{measure}_resampled"].numpy() for measure in ("ratio", "matched")]
        drawn = np.stack(measures)
        known = np.isfinite(drawn).any(axis=-1)  # another note is about a threshold without any pairs
        n_undefined = int(np.isnan(drawn[known]).sum(axis=-1).max(initial=0))
        if n_undefined:
            yield (
                f"{result.labels[name]}: up to {n_undefined} of {drawn.shape[-1]} resamples of the documents leave a "
                "ratio undefined. They are left out of its interval; where they are more than 5%, there is no interval."
            )
