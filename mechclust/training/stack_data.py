"""Training batches of many networks, stacked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from einops import rearrange, repeat
from jaxtyping import Int, Shaped
from torch import Tensor

from mechclust.jobs.batch_tensors import tensors_of_batch
from mechclust.models.config import ModelConfig
from mechclust.training.member import Member
from tasks import Batch, InputError

ANSWERS = "answers"  # the targets of networks that give one row of logits per sequence
StackedBatch: TypeAlias = dict[str, Shaped[Tensor, "member batch ..."]]
TrainingSet: TypeAlias = dict[str, Int[Tensor, "member example ..."]]


class StackData:
    """Training batches of all members. If the tasks have a fixed training set, it is gathered at once.

    Args:
        members: networks and their data.
        batch_size: examples of a step and member.
        device: device of the batches.

    Attributes:
        answers: the loss is of one answer per sequence, not of every token.
    """

    def __init__(self, members: Sequence[Member], batch_size: int, device: str) -> None:
        self._tasks: list[Any] = [member.task for member in members]
        self._batch_size = batch_size
        self._device = device
        self._sizes = [batch_size if member.batch_size is None else member.batch_size for member in members]
        for i, size in enumerate(self._sizes):
            if batch_size % size:
                raise InputError(
                    f"member {i} has a batch_size of {size}; expected a divisor of the ensemble's ({batch_size})"
                )
        # A transformer has logits at every token, as the task's own loss takes them.
        self.answers = not isinstance(members[0].model, ModelConfig)
        self._causal = getattr(members[0].model, "attention", None) == "causal"
        self._training_set: TrainingSet | None = None
        if self.answers and all(hasattr(task, "train_rows") for task in self._tasks):
            self._training_set = _training_set(self._tasks)

    def __call__(self, steps: range) -> list[StackedBatch]:
        """Return the tokens of each of the given steps, and the loss's inputs, by name."""
        if not self.answers:
            return [self._batch_with_targets(step) for step in steps]
        if self._training_set is None:
            sequences = self._drawn(steps)
        elif all(size == self._training_set["tokens"].shape[1] for size in self._sizes):
            # The mean loss of all sequences does not depend on their order.
            return [{name: values.to(self._device) for name, values in self._training_set.items()}] * len(steps)
        else:
            sequences = self._gathered(steps, self._training_set)
        by_step = {
            name: rearrange(values, "member (step batch) ... -> step member batch ...", step=len(steps))
            .contiguous()
            .to(self._device)
            for name, values in sequences.items()
        }
        return [{name: values[i] for name, values in by_step.items()} for i in range(len(steps))]

    def _gathered(self, steps: range, training_set: TrainingSet) -> dict[str, Int[Tensor, "member sequence ..."]]:
        """Return the sequences of several steps, one step after the other, from the training set."""
        rows = [
            self._filled(task.train_rows(steps, size), size)
            for task, size in zip(self._tasks, self._sizes, strict=True)
        ]
        member = torch.arange(len(rows))[:, None]
        return {name: values[member, torch.stack(rows)] for name, values in training_set.items()}

    def _drawn(self, steps: range) -> dict[str, Int[Tensor, "member sequence ..."]]:
        """Return the sequences of several steps, one step after the other, as the tasks draw them."""
        tokens = []
        answers = []
        for task, size in zip(self._tasks, self._sizes, strict=True):
            batch = task.train_batches(steps, size)
            tokens.append(self._filled(batch.tokens, size))
            answers.append(self._filled(batch.targets[batch.loss_mask], size))
        return {"tokens": torch.stack(tokens), ANSWERS: torch.stack(answers)}

    def _filled(self, rows: Shaped[Tensor, "row ..."], size: int) -> Shaped[Tensor, "filled ..."]:
        """Return each batch of ``size`` rows over and over, which leaves its mean loss as it is."""
        again = self._batch_size // size
        if again == 1:
            return rows
        return repeat(rows, "(step batch) ... -> (step again batch) ...", batch=size, again=again)

    def _batch_with_targets(self, step: int) -> StackedBatch:
        """Return the members' batches of one step, padded to one length, with all that the tasks' loss asks for."""
        batches = []
        for task, size in zip(self._tasks, self._sizes, strict=True):
            batch = task.train_batch(step, size)
            batches.append(batch.select(torch.arange(self._batch_size) % len(batch)))
        lengths = {batch.tokens.shape[1] for batch in batches}
        have_masks = all(batch.attention_mask is not None and batch.loss_mask is not None for batch in batches)
        if len(lengths) > 1 and have_masks:
            batches = [batch.padded_to(max(lengths)) for batch in batches]
        expected = _description(batches[0])
        for i, batch in enumerate(batches):
            description = _description(batch)
            if description != expected:
                raise InputError(
                    f"at step {step} member {i} trains on {description}, member 0 on {expected}; only seeds may differ"
                )
        tensors = [tensors_of_batch(batch) for batch in batches]
        names = [name for name in tensors[0] if name != "attention_mask" or self._needs_mask(batches)]
        return {name: torch.stack([member[name] for member in tensors]).to(self._device) for name in names}

    def _needs_mask(self, batches: Sequence[Batch]) -> bool:
        """Return whether padding matters: in a causal model padding on the right does not, and no mask is faster."""
        if self._causal and all(batch.padded_right for batch in batches):
            return False
        return not all(batch.attention_mask is None or bool(batch.attention_mask.all()) for batch in batches)


def _training_set(tasks: Sequence[Any]) -> TrainingSet:
    """Return all training sequences of all members, and their answers."""
    batches = [Batch.concat(list(task.batches("train", 4096))) for task in tasks]
    first = batches[0].tokens.shape
    for i, batch in enumerate(batches):
        if batch.tokens.shape != first:
            raise InputError(
                f"member {i} trains on {len(batch)} sequences of {batch.tokens.shape[1]} tokens, member 0 on "
                f"{first[0]} of {first[1]}; only seeds may differ"
            )
    answers = [batch.targets[batch.loss_mask] for batch in batches]  # type: ignore[index]
    return {"tokens": torch.stack([batch.tokens for batch in batches]), ANSWERS: torch.stack(answers)}


def _description(batch: Batch) -> str:
    names = [name for name in tensors_of_batch(batch) if name not in ("tokens", "index")]
    return f"{len(batch)} sequences of {batch.tokens.shape[1]} tokens with {', '.join(names)}"
