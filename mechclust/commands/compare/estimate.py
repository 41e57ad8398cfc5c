"""Estimate what a comparison takes before it begins."""

from __future__ import annotations

from mechclust.commands.compare.config import CompareConfig
from mechclust.commands.compare.inputs import Inputs
from mechclust.commands.cost import Cost, cka_cost, forward_seconds


def cost_of(inputs: Inputs, config: CompareConfig) -> Cost:
    """Return the time of forward passes, pairings and half-samples; without the sizes of a model, nothing of it."""
    base, tuned = (inputs.sizes[checkpoint] for checkpoint in inputs.checkpoints[:2])
    n_layers = 1 + (base.n_layers or 0)
    width = max(base.d_model or 1, tuned.d_model or 1)
    n_of_task = {task: len(index) for task, index in inputs.of_task().items()}
    labels = [sum(n_of_task.values()), *n_of_task.values()]
    draws = [cka_cost(n, width, config.n_permutations, config.n_resamples) for n in labels]
    seconds = (1 + config.blocks) * sum(cost.seconds for cost in draws)
    for control in inputs.checkpoints[2:]:  # with both models
        seconds += 2 * cka_cost(n_of_task[str(control.task)], width, 0, config.n_resamples).seconds
    return Cost(_forward_seconds(inputs, config) + n_layers * seconds, draws[0].memory)


def _forward_seconds(inputs: Inputs, config: CompareConfig) -> float:
    """Return the time of saving hidden states, of what blocks add, and patching each block of the base."""
    seconds = 0.0
    for checkpoint, sizes in inputs.sizes.items():
        positions = sum(batch.tokens.numel() for batch in inputs.batches_of(checkpoint.task))
        seconds += forward_seconds(config, sizes, positions)
        if checkpoint.task is None:
            seconds += config.blocks * forward_seconds(config, sizes, positions)
    n_prompts = sum(map(len, inputs.batches))
    n_patched = min(config.n_patched * len(inputs.tasks), n_prompts)
    base = inputs.sizes[inputs.checkpoints[0]]
    patched = sum(batch.tokens.numel() for batch in inputs.batches) * n_patched / n_prompts
    return seconds + 2 * (base.n_layers or 0) * forward_seconds(config, base, patched)
