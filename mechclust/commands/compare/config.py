"""Settings of ``mechclust compare``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mechclust.commands.settings import Dtype, ModelSettings, PromptSettings, check_map_prompts
from probes.functional.hsic import LEAST_DEBIASED
from tasks import InputError
from tasks.settings import (
    MAX_COUNT,
    MAX_DRAWS,
    Above,
    AtLeast,
    AtMost,
    Count,
    CountOrZero,
    DrawsOrZero,
    Positive,
    ShareBetween,
)

_Prompts = Annotated[int, AtLeast(LEAST_DEBIASED), AtMost(MAX_COUNT)]  # fewer do not define debiased CKA


@dataclass(frozen=True, kw_only=True)
class CompareConfig(ModelSettings, PromptSettings):
    """Settings of ``mechclust compare``; ``mechclust compare --help`` also shows those that commands share.

    Args:
        adapter: folder of an adapter on the tuned model (which may then be the base itself), saved by peft. The base
            is measured without it.
        chat: wrap each prompt as a user message in the tuned model's chat template, for all models.
        min_per_task: refuse a task with fewer prompts.
        max_per_task: use at most this many prompts per task, drawn at random.
        tolerance: a layer has changed for a task if the 95% interval of 1 - CKA lies above this.
        factor: a task stands out if it changed at least this many times as much as the others.
        n_resamples: number of half-samples for the 95% intervals over prompts or units.
        n_permutations: number of random pairings for the chance level; 0 for none.
        blocks: also what each block adds to the base's own hidden states, which decides which layers changed. Both
            models are in memory together for it. Without it, and if their weights do not fit, layers are judged by the
            residual stream, in which later layers inherit change.
        blocks_prompts: most prompts per task for ``blocks``.
        n_patched: prompts per task for patching, which says what of the change reaches the output: the tuned model's
            residual stream is written into the base after one block after another. Both models are in memory together
            for it; a prompt takes two forward passes per layer. 0 for none.
        least_restored: a layer matters to the output if the 95% interval of the share of the difference that its patch
            restores, beyond the patch of the layer before, lies above this, or below its negative.
        top_pc: also CKA without the largest principal component of each side, a second opinion where a few dimensions
            have huge values.
        device: device of the base model, such as ``cpu`` or ``cuda``.
        dtype: dtype of the base model's weights.
        tuned_device: device of the tuned model; by default the same as ``device``.
        tuned_dtype: dtype of the tuned model's weights; by default the same as ``dtype``.
        max_memory: most memory, in GiB, for the hidden states of the layers compared at once.
        map_prompts: most prompts on the report's map of base and tuned; 0 for no map.
        seed: seed for drawing ``max_per_task`` prompts, half-samples and pairings. Prompts for blocks, patching and the
            map are drawn by a hash of their place in the file.

    Example:
        >>> from pathlib import Path
        >>> CompareConfig(Path("prompts.jsonl"), tolerance=0.05).tolerance
        0.05
    """

    min_per_task: _Prompts = 20
    max_per_task: Count | None = None
    tolerance: ShareBetween = 0.01
    factor: Annotated[float, Above(1)] = 1.5
    n_resamples: Annotated[int, AtLeast(20), AtMost(MAX_DRAWS)] = 100
    n_permutations: DrawsOrZero = 20
    blocks: bool = True
    blocks_prompts: _Prompts | None = 200
    n_patched: CountOrZero = 32
    least_restored: ShareBetween = 0.01
    top_pc: bool = True
    tuned_device: str | None = None
    tuned_dtype: Dtype | None = None
    max_memory: Positive = 8.0
    map_prompts: CountOrZero = 2000

    def check(self) -> None:
        """Refuse what cannot be measured with, before any work."""
        super().check()
        if self.device_map is not None and self.tuned_device is not None:
            raise InputError(
                f"tuned_device is {self.tuned_device!r} and device_map {self.device_map!r}; give one of them"
            )
        self.check_device(self.tuned_device or self.device)
        check_map_prompts(self.map_prompts)
        if self.max_per_task is not None and self.max_per_task < self.min_per_task:
            raise InputError(f"max_per_task is {self.max_per_task}, below min_per_task = {self.min_per_task}")
