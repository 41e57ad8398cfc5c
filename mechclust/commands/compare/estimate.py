"""Estimate what a comparison takes before it begins."""

from __future__ import annotations

from mechclust.commands.compare.config import CompareConfig
from mechclust.commands.compare.inputs import Inputs
from mechclust.commands.cost import Cost, cka_cost, forward_seconds


def cost_of(inputs: Inputs, config: CompareConfig) -> Cost:
    """Return the time of forward passes, pairings and half-samples; without the sizes of a model, nothing of it."""
    base, tuned = (inputs.sizes[checkpoint] for checkpoint in inputs.checkpoints)
    n_layers = 1 + (base.n_layers or 0)
    width = max(base.d_model or 1, tuned.d_model or 1)
    n_of_tasks = list(map(len, inputs.of_task().values()))
    labels = [sum(n_of_tasks), *n_of_tasks]
    units = config.unit_label is not None
    draws = [cka_cost(n, width, config.n_permutations, config.n_resamples, units=units) for n in labels]
    seconds = (1 + config.blocks) * sum(cost.seconds for cost in draws)
    return Cost(_forward_seconds(inputs, config) + n_layers * seconds, draws[0].memory)


def _forward_seconds(inputs: Inputs, config: CompareConfig) -> float:
    """Return the time of saving hidden states, of what blocks add, and patching each block of the base."""
    positions = sum(batch.tokens.numel() for batch in inputs.batches)
    passes = 1 + config.blocks
    seconds = sum(passes * forward_seconds(config, sizes, positions) for sizes in inputs.sizes.values())
    n_prompts = sum(map(len, inputs.batches))
    n_patched = min(config.n_patched * len(inputs.tasks), n_prompts)
    base = inputs.sizes[inputs.checkpoints[0]]
    patched = positions * n_patched / n_prompts
    return seconds + 2 * (base.n_layers or 0) * forward_seconds(config, base, patched)
