"""Which words have which topics: variants by ambiguity threshold, with words of several topics or without."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, product

import torch
from jaxtyping import Bool
from torch import Tensor

from tasks import InputError, TopicModel
from tasks.text.topic_model import least_topic_model_threshold


def variants_of(thresholds: Sequence[float]) -> list[tuple[float, bool]]:
    """Return threshold and overlap of each variant, in the order of the measurements.

    With overlap, words kept by several topics have all of them. Without, they have none.
    """
    return [(threshold, overlap) for overlap, threshold in product((False, True), thresholds)]


def variant_name(threshold: float, overlap: bool) -> str:
    """Return a variant's name in files, such as ``0.001-overlap``."""
    return f"{threshold:g}-{'overlap' if overlap else 'no-overlap'}"


def kept_words(
    models: Sequence[TopicModel], thresholds: Sequence[float]
) -> tuple[list[str], Bool[Tensor, "topic_seed variant word topic"]]:
    """Return the words that any of the topic models keeps at any threshold, and their topics under every variant."""
    kept = torch.stack([model.membership(max(thresholds)).any(dim=1) for model in models]).any(dim=0)
    by_model = []
    for model in models:
        by_model.append(torch.stack([model.membership(*variant)[kept] for variant in variants_of(thresholds)]))
    return list(compress(models[0].words, kept.tolist())), torch.stack(by_model)


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
