"""Estimate what attention and word vectors of topics take to measure, before the topics are fitted."""

from __future__ import annotations

from mechclust.commands.cost import Cost, forward_seconds, relabelling_seconds, topic_attention_bytes
from mechclust.commands.topics.config import TopicsConfig
from mechclust.models.sizes import Sizes
from tasks import Corpus

_TOKENS_PER_WORD = 1.5
_MAX_TOPIC_WORDS = 20_000


def cost_of(corpus: Corpus, sizes: Sizes, config: TopicsConfig) -> Cost:
    """Return the time of forward passes and relabellings, and the memory of relabellings and halves of the documents.

    Fitting the topics comes on top.

    Args:
        corpus: the documents.
        sizes: of the model.
        config: what to measure.
    """
    lengths = [round(_TOKENS_PER_WORD * len(document.split())) for document in corpus.documents]
    if config.max_documents is not None:
        lengths = lengths[: config.max_documents]
    positions = sum(lengths)
    n_layers = 1 + (sizes.n_layers or 0)
    n_heads = sizes.n_heads or 1
    pairs = sum(length * min(length, config.max_length) for length in lengths)
    n_words = min(positions, _MAX_TOPIC_WORDS)
    of_layer = relabelling_seconds(pairs, n_heads) + 2 * relabelling_seconds(n_words, sizes.d_model or 1)
    n_variants = 2 * len(config.thresholds)  # with and without words of several topics
    seconds = (1 + config.untrained) * forward_seconds(config, sizes, positions)
    seconds += n_variants * config.n_permutations * n_layers * of_layer
    memory = topic_attention_bytes(
        lengths, config.tokens_per_batch, n_layers * n_heads, config.n_permutations, config.n_resamples
    )
    return Cost(seconds, n_variants * memory)
