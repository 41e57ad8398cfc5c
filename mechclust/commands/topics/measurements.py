"""Measurements of a model's topic structure: the parts from which tables, readings and figures are made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mechclust.commands.topics.config import TopicsConfig
from mechclust.commands.topics.variants import Variant
from probes import ProbeResult
from tasks import TopicModel
from tasks.text.encoded_corpus import EncodedCorpus


@dataclass(frozen=True)
class ModelMeasures:
    """Results of one model under every variant, or ``None`` if a variant leaves fewer than two topics.

    Attributes:
        attention: of ``TopicAttention``.
        vectors: of ``TopicEmbedding`` at the residual stream: each word's mean hidden state.
        embedding: these measures of the rows of the token embedding matrix.
    """

    attention: Sequence[ProbeResult | None]
    vectors: Sequence[ProbeResult | None]
    embedding: Sequence[ProbeResult | None]


@dataclass(frozen=True, repr=False)
class Measurements:
    """Measurements of a model and of untrained ones, with the attributes of ``TopicsResult``."""

    model: str
    config: TopicsConfig
    topics: TopicModel
    n_documents: int
    n_files: int
    encoded: EncodedCorpus
    variants: Sequence[Variant]
    trained: ModelMeasures
    untrained: Sequence[ModelMeasures]
    empty_files: Sequence[str] = ()
    corpus_notes: Sequence[str] = ()

    @property
    def highest_ends(self) -> tuple[float, float]:
        """The 95% interval of the highest ratio of a head of the first variant, wide enough for the best of all."""
        for attention in self.trained.attention:
            if attention is not None and "highest_ratio_low" in attention and attention["highest_ratio"].isfinite():
                return float(attention["highest_ratio_low"]), float(attention["highest_ratio_high"])
        return math.nan, math.nan
