"""Estimate what a history takes before it begins."""

from __future__ import annotations

from mechclust.commands.cost import (
    LABEL_WIDTH,
    Cost,
    cka_cost,
    forward_seconds,
    half_clustering_seconds,
    relabelling_seconds,
    topic_attention_bytes,
)
from mechclust.commands.history.config import AGAINST, HistoryConfig
from mechclust.commands.history.inputs import Inputs
from mechclust.models.sizes import Sizes


def cost_of(inputs: Inputs, sizes: Sizes, n_checkpoints: int, config: HistoryConfig) -> Cost:
    """Return the time of forward passes, permutations and half-samples of all checkpoints.

    Args:
        inputs: the prompts and the corpus.
        sizes: sizes of a checkpoint.
        n_checkpoints: length of the series.
        config: what to measure.
    """
    n = len(inputs.prompts)
    n_tasks = len(inputs.prompts.classes["task"])
    width = sizes.d_model or 1
    n_layers = 1 + (sizes.n_layers or 0)
    of_layer = 0.0
    memory = 0.0
    if "clusters" in config.measured:
        of_layer += config.n_permutations * relabelling_seconds(n, LABEL_WIDTH)
        of_layer += config.n_resamples * half_clustering_seconds(n, width, n_tasks)
        memory = 8.0 * n * config.n_resamples
    if "cka" in config.measured:
        units = config.unit_label is not None
        cka = cka_cost(n, width, config.cka_permutations, config.n_resamples, units=units)
        of_layer += len(AGAINST) * cka.seconds
        memory = max(memory, cka.memory)
    if "heads" in config.measured:
        of_layer += config.n_permutations * relabelling_seconds(n, n_tasks * width)
        memory = max(memory, 8.0 * config.n_permutations * n_layers * (sizes.n_heads or 1))
    positions = sum(batch.tokens.numel() for batch in inputs.batches)
    if inputs.corpus is not None:
        lengths = [len(window) for window in inputs.corpus.windows]
        n_heads = sizes.n_heads or 1
        positions += sum(lengths)
        of_layer += config.n_permutations * relabelling_seconds(sum(length**2 for length in lengths), n_heads)
        memory = max(
            memory,
            topic_attention_bytes(
                lengths, config.tokens_per_batch, n_layers * n_heads, config.n_permutations, config.n_resamples
            ),
        )
    seconds = n_checkpoints * (forward_seconds(config, sizes, positions) + n_layers * of_layer)
    return Cost(seconds, memory)
