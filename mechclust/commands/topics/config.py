"""Settings of ``mechclust topics``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mechclust.commands.settings import CorpusSettings, UntrainedSettings, check_resamples
from tasks import InputError
from tasks.settings import Count, DrawsOrZero, PositiveShare, Repeats, Several, ShareBelowOne


@dataclass(frozen=True, kw_only=True)
class TopicsConfig(UntrainedSettings, CorpusSettings):
    """Settings of ``mechclust topics``; ``mechclust topics --help`` also shows those that commands share.

    Args:
        n_topics: topics of the LDA model.
        passes: times the topic model goes through the corpus.
        min_documents: words in fewer documents are left out of the topics.
        max_share: words in more than this share of the documents are left out of the topics.
        stop_words: left out of the topics: english, none, or a file with one word per line.
        thresholds: ambiguity: of V words, each topic keeps the int(V * threshold) + 1 likeliest. Corpora
            of less than about 10,000 different words need larger ones, such as .005 .01 .02.
        max_documents: measure the model on at most this many documents, drawn at random; the topics
            are fitted on all.
        max_length: tokens of a window, at most the model's context; longer documents are cut.
        n_permutations: random relabellings behind the null interval; 0 for none.
        n_resamples: random halves of the documents behind the 95% intervals of attention; 0 for none.
        tokens_per_batch: most tokens per forward pass, padding included; windows of like length go together.
        seed: of the topic model, the documents drawn, the relabellings and the halves.

    Example:
        >>> from pathlib import Path
        >>> TopicsConfig((Path("corpus.txt"),), n_topics=20).n_topics
        20
    """

    n_topics: Several = 100
    passes: Repeats = 6
    min_documents: Count = 5
    max_share: PositiveShare = 0.5
    stop_words: str = "english"
    thresholds: tuple[ShareBelowOne, ...] = (0.0005, 0.001, 0.002)
    max_documents: Count | None = None
    max_length: Several = 256
    n_permutations: DrawsOrZero = 99
    n_resamples: DrawsOrZero = 200
    tokens_per_batch: Count = 2048

    def check(self) -> None:
        """Refuse what cannot be measured with, before any work."""
        super().check()
        check_thresholds(self.thresholds)
        check_resamples(self.n_resamples)


def check_thresholds(thresholds: Sequence[float]) -> None:
    """Refuse no thresholds, and one that is given twice."""
    if not thresholds or len(set(thresholds)) < len(thresholds):
        raise InputError(f"thresholds is {thresholds}; expected one or several different numbers")
