"""Estimate what a comparison takes before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mechclust.commands.compare.config import CompareConfig
from mechclust.commands.compare.inputs import Inputs
from mechclust.commands.cost import Cost, cka_cost, forward_seconds


def cost_of(inputs: Inputs, config: CompareConfig) -> Cost:
    """Return the time of forward passes, pairings and half-samples; without the sizes of a model, nothing of it."""
    base, tuned = (inputs.sizes[checkpoint] for checkpoint in inputs.checkpoints)
    n_layers = 1 + (base.n_layers or 0)
    width = max(base.d_model or 1, tuned.d_model or 1)
    draws = _draws([len(index) for index in inputs.of_task().values()], width, config)
    in_blocks = _draws(inputs.n_in_blocks(config), width, config)
    return Cost(_forward_seconds(inputs, config) + n_layers * (draws.seconds + in_blocks.seconds), draws.memory)


def _draws(n_of_tasks: Sequence[int], width: int, config: CompareConfig) -> Cost:
    """Return the cost of pairings and half-samples at a layer, of all prompts and of each task's."""
    units = config.unit_label is not None
    labels = [sum(n_of_tasks), *n_of_tasks] if n_of_tasks else []
    costs = [cka_cost(n, width, config.n_permutations, config.n_resamples, units=units) for n in labels]
    return Cost(sum(cost.seconds for cost in costs), max((cost.memory for cost in costs), default=0.0))


def _forward_seconds(inputs: Inputs, config: CompareConfig) -> float:
    """Return the time of saving hidden states, of what blocks add, and patching each block of the base."""
    positions = sum(batch.tokens.numel() for batch in inputs.batches)
    n_of_tasks = [len(index) for index in inputs.of_task().values()]
    in_blocks = sum(inputs.n_in_blocks(config)) / sum(n_of_tasks)
    patched = sum(min(n, config.n_patched) for n in n_of_tasks) / sum(n_of_tasks)
    base, tuned = inputs.checkpoints
    n_patches = 2 * (inputs.sizes[base].n_layers or 0)
    passes = {base: 1 + 2 * in_blocks + n_patches * patched, tuned: 1 + in_blocks}
    seconds = 0.0
    for checkpoint, n_passes in passes.items():
        settings = replace(config, device=checkpoint.device, dtype=checkpoint.dtype)
        seconds += forward_seconds(settings, inputs.sizes[checkpoint], n_passes * positions)
    return seconds
