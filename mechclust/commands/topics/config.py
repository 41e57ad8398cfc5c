"""Settings of ``mechclust topics``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from mechclust.commands.settings import CorpusSettings, UntrainedSettings, check_window
from mechclust.commands.topics.published import THRESHOLDS
from tasks import InputError
from tasks.settings import (
    MAX_DRAWS,
    AtLeast,
    AtMost,
    Count,
    PositiveShare,
    Repeats,
    Seed,
    Several,
    ShareBelowOne,
    check_different_settings,
)
from tasks.text.word_counts import Weighting

_PUBLISHED: dict[str, Any] = {
    "n_topics": 100, "passes": 6, "vocabulary": 100_000, "no_below": 20, "no_above": 0.1, "weights": "tfidf",
    "stop_words": "english",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TopicsConfig(UntrainedSettings, CorpusSettings):
    """Settings of ``mechclust topics``; ``mechclust topics --help`` also shows those that commands share.

    The settings of the topic models default to the published ones, or to those of the topic file if one is given.

    Args:
        adapter: folder of an adapter (LoRA or a relative, saved by peft) to add to the model, if there is one model.
        untrained: how many copies with random weights (seeds 0, 1, ...) to measure beside each model. ``twins`` in a
            suite file overrides it.
        least_words: documents with fewer words are left out; make_wiki uses 50.
        topic_model: a file of topics written by an earlier run, used instead of fitting.
        topic_seeds: seeds of the topic models, which are otherwise identical; 0 1 2 by default.
        n_topics: number of topics of the LDA model (100).
        passes: passes over the corpus (6).
        vocabulary: maximum number of words (100,000).
        no_below: words in fewer documents are left out (20).
        no_above: words in more than this share of the documents are left out (0.1).
        weights: word weights that the topics are fitted to: counts or tfidf (tfidf).
        stop_words: words left out of the topics: english, none, or a file with one word per line (english).
        thresholds: ambiguity thresholds: each topic keeps the int(V * threshold) + 1 likeliest of V words. Corpora of
            less than about 10,000 different words need larger ones, such as .005 .01 .02.
        max_documents: measure the models on this many documents, drawn at random.
        max_length: tokens per window, at most the model's context; longer documents are cut.
        resamples: resamples of the documents for each interval of attention.
        tokens_per_batch: maximum number of tokens per forward pass, padding included; windows of similar length are
            batched together.
        seed: seed for drawing and resampling documents.

    Example:
        >>> TopicsConfig((Path("corpus.txt"),), n_topics=20).n_topics
        20
    """

    least_words: Count = 1
    topic_model: Path | None = None
    topic_seeds: tuple[Seed, ...] = ()
    n_topics: Several | None = None
    passes: Repeats | None = None
    vocabulary: Several | None = None
    no_below: Count | None = None
    no_above: PositiveShare | None = None
    weights: Weighting | None = None
    stop_words: str | None = None
    thresholds: tuple[ShareBelowOne, ...] = THRESHOLDS
    max_documents: Several = 1000
    max_length: Several = 256
    resamples: Annotated[int, AtLeast(20), AtMost(MAX_DRAWS)] = 199
    tokens_per_batch: Count = 2048

    def check(self) -> None:
        """Refuse what cannot be measured with, before any work."""
        super().check()
        check_different_settings(topic_seeds=self.topic_seeds)
        if not self.thresholds or len(set(self.thresholds)) < len(self.thresholds):
            raise InputError(f"thresholds is {self.thresholds}; expected one or several different numbers")
        check_window(self.max_length, self.tokens_per_batch)

    @property
    def one_thread(self) -> bool:
        """Return true: all work is jobs, which take one thread also in this process."""
        return True

    @property
    def given(self) -> dict[str, Any]:
        """Settings of the topic models that were given."""
        return {name: getattr(self, name) for name in _PUBLISHED if getattr(self, name) is not None}

    @property
    def fitting(self) -> dict[str, Any]:
        """Settings of the topic models: those that were given, and the published ones for the rest."""
        return {**_PUBLISHED, **self.given}
