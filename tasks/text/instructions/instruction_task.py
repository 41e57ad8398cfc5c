"""One instruction task: its examples, its cluster, and whether it is held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.text.instructions.example import Example
from tasks.text.visible import quoted

LEAST_TEST_PROMPTS = 4  # debiased CKA is not defined on fewer examples


@dataclass(frozen=True, repr=False)
class InstructionTask:
    """The examples of one task.

    Attributes:
        name: name of the task, as the data write it, with any characters.
        cluster: cluster of the task, or ``None``.
        held_out: whether it is not among the tasks of the multi-task model.
        train: examples to learn from.
        validation: examples to watch learning on. May be empty.
        test: examples whose prompts are measured. May be empty.
    """

    name: str
    cluster: str | None
    held_out: bool
    train: Sequence[Example]
    validation: Sequence[Example] = ()
    test: Sequence[Example] = ()

    def __repr__(self) -> str:
        counts = f"{len(self.train)} train, {len(self.validation)} validation and {len(self.test)} test examples"
        return f"InstructionTask({quoted(self.name)}, {counts})"

    @property
    def too_few(self) -> bool:
        """Whether there are too few test prompts for debiased CKA, fewer than 4."""
        return len(self.test) < LEAST_TEST_PROMPTS
