"""The interface of every synthetic task: a vocabulary, splits of labelled batches, a loss and an accuracy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import torch.nn.functional as F
from jaxtyping import Float, Integer
from torch import Tensor

from tasks.batch import Batch
from tasks.errors import InputError, error_suggestion
from tasks.settings import settings_from_json, settings_to_json

_TASKS: dict[str, type[Task]] = {}


class Task(ABC):
    """A source of labelled batches, rebuilt exactly from its configuration.

    A subclass is a frozen dataclass whose fields are the configuration. ``name`` identifies it in saved files,
    ``splits`` are the names that ``batches`` accepts. Every random draw is addressed (see ``tasks._random``), so that a
    batch depends only on the configuration and its number.

    Example:
        >>> from tasks import SparseModularAddition
        >>> task = SparseModularAddition(p=3, seed=1)
        >>> Task.from_config(task.to_config()) == task
        True
        >>> task.d_vocab, task.n_ctx, len(task.train_batch(step=0, batch_size=8))
        (3, 12, 8)
    """

    name: ClassVar[str] = ""
    splits: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.name:
            other = _TASKS.setdefault(cls.name, cls)
            if other.__qualname__ != cls.__qualname__:  # a notebook may define one class again
                raise InputError(
                    f"task {cls.__qualname__} has the name {cls.name!r} of {other.__qualname__}, so saved runs of "
                    "either would be opened as the other; give it a name of its own"
                )
            _TASKS[cls.name] = cls

    @property
    @abstractmethod
    def vocab(self) -> list[str]:
        """The printable string of every token id."""

    @property
    @abstractmethod
    def n_ctx(self) -> int:
        """The longest sequence this task makes."""

    @abstractmethod
    def batches(self, split: str, batch_size: int = 256) -> Iterator[Batch]:
        """Yield the examples of a split, in a fixed order."""

    @abstractmethod
    def train_batch(self, step: int, batch_size: int) -> Batch:
        """Return the training batch of one step, independent of earlier draws."""

    def train_batches(self, steps: range, batch_size: int) -> Batch:
        """Return the training batches of several steps as one, in order. A task may draw them faster together."""
        return Batch.concat([self.train_batch(step, batch_size) for step in steps])

    @property
    def d_vocab(self) -> int:
        """Number of token ids."""
        return len(self.vocab)

    def to_str_tokens(self, tokens: Integer[Tensor, "pos"]) -> list[str]:
        """Return the printable strings of one sequence."""
        return [self.vocab[token] for token in tokens.tolist()]

    def loss(self, logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> Float[Tensor, ""]:
        """Return the mean cross-entropy in nats of ``targets`` where ``loss_mask`` is true."""
        assert batch.targets is not None
        losses = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="none")
        if batch.loss_mask is None:
            return losses.mean()
        mask = batch.loss_mask.flatten()
        return (losses * mask).sum() / mask.sum()

    @abstractmethod
    def accuracy(self, logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> Float[Tensor, "batch"]:
        """Return 1 for each example whose answer is right and 0 for the others (float32)."""

    def _check_split(self, split: str) -> None:
        if split not in self.splits:
            raise InputError(f"no split {split!r} in {self.name}{error_suggestion(split, self.splits)}")

    def to_config(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary that ``Task.from_config`` turns back into an equal task."""
        return {"name": self.name, **settings_to_json(self)}

    @staticmethod
    def from_config(config: dict[str, Any]) -> Task:
        """Return the task that ``to_config`` described.

        Raises:
            InputError: for an unknown task or field, listing the known ones.
        """
        config = dict(config)
        name = config.pop("name", None)
        if name not in _TASKS:
            raise InputError(f"no task {name!r} (there are {', '.join(sorted(_TASKS))})")
        return settings_from_json(_TASKS[name], config)  # type: ignore[no-any-return]
