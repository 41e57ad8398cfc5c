"""Which words have which topics: variants by ambiguity threshold, with words of several topics or without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress, product

import torch
from jaxtyping import Bool
from torch import Tensor

from tasks import InputError, TopicModel
from tasks.text.topic_model import least_topic_model_threshold


@dataclass(frozen=True, eq=False)
class Variant:
    """One way to say which words have which topics.

    Attributes:
        threshold: the ambiguity threshold.
        overlap: whether words kept by several topics have all of them, or none.
        topics: topics of the words that any variant keeps.
    """

    threshold: float
    overlap: bool
    topics: Bool[Tensor, "word topic"]

    @property
    def name(self) -> str:
        """Name in files, such as ``0.001-overlap``."""
        return f"{self.threshold:g}-{'overlap' if self.overlap else 'no-overlap'}"


def n_topics(topics: Bool[Tensor, "word topic"]) -> int:
    """Return how many topics have a word. With fewer than two, no comparison is possible."""
    return int(topics.any(dim=0).sum())


def kept_words(models: Sequence[TopicModel], thresholds: Sequence[float]) -> Bool[Tensor, "word"]:
    """Return which words any of the topic models keeps at any threshold."""
    kept = [model.membership(max(thresholds)).any(dim=1) for model in models]
    return torch.stack(kept).any(dim=0)


def chosen_words(words: Sequence[str], chosen: Bool[Tensor, "word"]) -> list[str]:
    """Return the words that are chosen."""
    return list(compress(words, chosen.tolist()))


def keys_of(thresholds: Sequence[float]) -> list[tuple[float, bool]]:
    """Return threshold and overlap of each variant, in the order of the measurements."""
    return [(threshold, overlap) for overlap, threshold in product((False, True), thresholds)]


def variants_of(model: TopicModel, thresholds: Sequence[float], kept: Bool[Tensor, "word"]) -> list[Variant]:
    """Return every variant of a topic model over the words that are kept."""
    return [
        Variant(threshold, overlap, model.membership(threshold, overlap)[kept])
        for threshold, overlap in keys_of(thresholds)
    ]


def check_pairs(n_words: int, thresholds: Sequence[float]) -> None:
    """Refuse thresholds if none lets two words share a topic: every mean over a topic's pairs would be NaN."""
    if int(n_words * max(thresholds)) > 0:
        return
    least = least_topic_model_threshold(n_words)
    way_out = "more text, or more words (a lower --no-below, a higher --no-above)"
    if least < 1:
        way_out = f"--thresholds of at least {least:g}, {way_out}"
    words = "1 different word" if n_words == 1 else f"{n_words} different words"
    raise InputError(
        f"the topics have {words}, of which the largest threshold, {max(thresholds):g}, keeps one per topic, and "
        f"comparing words of a topic takes two; give {way_out}"
    )
