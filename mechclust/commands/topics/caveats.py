"""Caveats on the numbers of ``mechclust topics``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from mechclust.commands.topics.measurements import Measurements
from mechclust.models.tokenizers import tokenization_in_words
from tasks.text.topic_model import least_topic_model_threshold


def caveats(result: Measurements) -> list[str]:
    """Return the scope of the measurements, their omissions, and how to read the numbers."""
    return [
        _measured(result),
        "Chance: central 95% of the value when topics are reassigned to words at random; p: the share of such "
        "relabellings that are at least as high. Above chance: p of at most 0.05, corrected for the number of "
        "comparisons (Benjamini-Hochberg: on average, at most 5% of those named are there by chance).",
        *_on_intervals(result),
        *_left_out(result),
        *result.corpus_notes,
        *_tokenization(result),
        *_empty_variants(result),
        "Case is ignored: several token ids can be the same word; its row of the embedding matrix is its most "
        "frequent token's.",
        "Cosine and dot product: rows of the token embedding matrix, over all pairs of different words. A ratio "
        "divides by the mean of different-topic pairs; where that is near 0, as with untrained embeddings, the "
        "ratio says little and the difference counts.",
    ]


def _measured(result: Measurements) -> str:
    topics = result.topics
    files = "1 file" if result.n_files == 1 else f"{result.n_files} files"
    return (
        f"{result.n_documents} documents (of text files: {result.config.documents}) of {files}; {topics.n_topics} "
        f"topics over {len(topics.words)} words; the model was measured on {result.encoded.n_documents} documents."
    )


def _on_intervals(result: Measurements) -> Iterator[str]:
    n = result.config.n_resamples
    if n:
        yield (
            f"In brackets after a ratio of attention: its 95% interval over documents, from {n} random halves of them. "
            "Of several thresholds, the outermost ends; of the highest head, ends wide enough for the best of "
            "all. It covers the choice of documents, not of words, so it does not replace p."
        )


def _left_out(result: Measurements) -> Iterator[str]:
    encoded = result.encoded
    n_words = len(encoded.words)
    n_never = int((encoded.token_of_word < 0).sum())
    yield (
        f"{lost_words(encoded.lost, encoded.occurrences)} do not count: the tokenizer splits or does not know "
        f"them; {n_never} of {n_words} topic words are never one token."
    )
    n_empty = len(result.empty_files)
    if n_empty == 1:
        yield f"1 file holds no word and was left out: {result.empty_files[0]!r}."
    elif n_empty:
        yield f"{n_empty} files hold no word and were left out: {result.empty_files[0]!r} and others."
    if encoded.n_cut:
        yield (
            f"{encoded.n_cut} documents were longer than a window and cut into several "
            f"({len(encoded.windows)} windows in all); words in different windows are not compared."
        )
    topics = result.topics
    n_weak = 0 if topics.shares is None else int((topics.shares < 0.1 / topics.n_topics).sum())
    if n_weak:
        yield (
            f"{n_weak} of {topics.n_topics} topics have less than a tenth of an even share of the corpus; their words "
            "mean little. Ask for fewer topics, or give more text."
        )


def lost_words(lost: int, occurrences: int) -> str:
    """Return how many occurrences of topic words were lost.

    Example:
        >>> lost_words(1, 4)
        '1 of 4 occurrences of topic words (25%)'
    """
    share = lost / occurrences if occurrences else float("nan")
    return f"{lost} of {occurrences} occurrences of topic words ({share:.0%})"


def _tokenization(result: Measurements) -> list[str]:
    measured = next(embedding for embedding in result.trained.embedding if embedding is not None)
    tokenization = measured.metadata.get("tokenization")
    return [] if tokenization is None else tokenization_notes(tokenization)


def tokenization_notes(tokenization: Mapping[str, Any]) -> list[str]:
    """Return how texts became tokens, and the effect on attention if a text's first token is a word of it.

    Args:
        tokenization: as from ``mechclust.models.tokenizers.tokenization_of``.
    """
    notes = [tokenization_in_words(tokenization)]
    if " before" not in tokenization.get("adds", " before"):
        notes.append(
            "The tokenizer puts no special token before a text, so heads that attend mostly to the first token attend "
            "to a word, whatever its topic; compare with --bos yes."
        )
    return notes


def _empty_variants(result: Measurements) -> Iterator[str]:
    """Yield the reasons for NaN values, each once."""
    measured = list(chain.from_iterable(vars(result.trained).values()))
    if any(probe is None for probe in measured):
        yield "At thresholds without a value, fewer than two topics keep a word, so there is nothing to compare."
    for note in dict.fromkeys(note for probe in measured if probe is not None for note in probe.notes):
        if "were not seen" not in note:  # said of all variants at once
            yield f"{note}."
    n_words = len(result.topics.words)
    alone = sorted({variant.threshold for variant in result.variants if int(n_words * variant.threshold) == 0})
    if alone:
        thresholds = ", ".join(f"{threshold:g}" for threshold in alone)
        yield (
            f"Of {n_words} words, threshold {thresholds} keeps one per topic, which makes no pair; give thresholds of "
            f"at least {least_topic_model_threshold(n_words):g}, or more text."
        )
