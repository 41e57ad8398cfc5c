"""What the topic-structure study follows during training besides its probes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Protocol

import torch

from mechclust.studies.topic_structure.arms import DECAY
from mechclust.studies.topic_structure.optimum import distance, minimiser, moments_of
from mechclust.studies.topic_structure.theory import stage_one_value
from mechclust.training import ProbeCallback, WeightNorms
from mechclust.training.callbacks import result_path
from probes import ProbeResult, run
from probes.engine.hooks import HookedModel, forward, record
from probes.engine.identity import fingerprint
from probes.store.files import versions
from tasks import Batch, InputError, TopicDocuments

_OTHERS = 10**6  # added to the seed to draw other documents
_DEV = 500  # documents at once
PATTERN = "blocks.0.attn.hook_pattern"
_DIVERGED = "training diverged: attention is not finite"


class Follower(Protocol):
    """A callback that keeps what it measures until the end of training."""

    def __call__(self, step: int, model: Any) -> None: ...

    def compute(self) -> ProbeResult:
        """What was measured."""
        ...


class DevLoss:
    """The loss on all development documents at checkpoints, as a callback for a training loop.

    Args:
        task: gives the documents.
        at: only at these steps; ``None``: at every checkpoint.
    """

    def __init__(self, task: TopicDocuments, at: Sequence[int] | None = None) -> None:
        self._task, self._at, self._losses = task, at, dict[int, float]()

    @torch.no_grad()
    def __call__(self, step: int, model: Any) -> None:
        """Measure the loss before ``step``."""
        if self._at is not None and step not in self._at:
            return
        total, count = 0.0, 0
        for batch in self._task.batches("dev", _DEV):
            assert batch.targets is not None
            targets = batch.targets[batch.loss_mask]
            total += float(self._task.loss_at(model.logits_at_loss(batch), targets)) * len(targets)
            count += len(targets)
        self._losses[step] = total / count

    def compute(self) -> ProbeResult:
        """``loss`` with axis (step)."""
        return _over_steps("DevLoss", {"loss": list(self._losses.values())}, self._losses)


class WeightChanges(WeightNorms):
    """How far each weight is from where it began, at every step, in single precision."""

    def compute(self) -> ProbeResult:
        """Return ``change`` with axes (step, weight)."""
        found = super().compute()
        return replace(found, values={"change": found["change"].float()}, axes={"change": found.axes["change"]})


class AttentionOrDiverged(ProbeCallback):
    """A ``ProbeCallback`` whose measures are NaN, with a note, once attention is no longer finite.

    Args:
        untrained: builds the network as it was before training, which gives the result its shape.
        **options: of ``ProbeCallback``.
    """

    def __init__(self, untrained: Callable[[], HookedModel], **options: Any) -> None:
        super().__init__(**options)
        self._untrained = untrained

    def __call__(self, step: int, model: Any) -> None:
        """Measure attention before ``step``."""
        try:
            super().__call__(step, model)
        except InputError:
            if all(_finite(model, batch) for batches in self.batches.values() for batch in batches):
                raise
            lacking = set(self.lacks(step, model))
            for (split, batches), (name, probe) in product(self.batches.items(), self.probes.items()):
                if (path := result_path(self.out, step, f"{split}.{name}")) in lacking:
                    (result,) = run(self._untrained(), batches, [probe])
                    _undefined(result, model).save(path)


@torch.no_grad()
def _finite(model: Any, batch: Batch) -> bool:
    with record(model, [PATTERN]) as seen:
        forward(model, batch)
    return bool(seen[PATTERN][0].isfinite().all())


def _undefined(result: ProbeResult, model: Any) -> ProbeResult:
    """The same result without its numbers: that of a network that diverged."""
    values = {k: torch.full_like(x, torch.nan) if x.is_floating_point() else x for k, x in result.values.items()}
    return replace(result, values=values, notes=[_DIVERGED], metadata={**result.metadata, "model": fingerprint(model)})


class WayToMinimiser:
    """How far ``W_V`` is from three matrices at every checkpoint: a callback for a network with weight decay.

    ``closed``: the closed form; ``own``: the minimiser of the documents that it is trained on; ``other``: that of
    equally many other documents. The last shows how far apart two minimisers are, and the distance of a network that
    learnt the topics but not its own documents.

    Args:
        task: gives the training documents.
    """

    def __init__(self, task: TopicDocuments) -> None:
        self._task = task
        self._goals: dict[str, torch.Tensor] = {}
        self._found: dict[int, list[float]] = {}

    def __call__(self, step: int, model: Any) -> None:
        """Measure the distances before ``step``."""
        if not self._goals:
            own, other = (moments_of(of) for of in (self._task, replace(self._task, seed=self._task.seed + _OTHERS)))
            self._goals = {
                "closed": stage_one_value(self._task),
                "own": minimiser(own, DECAY),
                "other": minimiser(other, DECAY),
            }
        value = model.paper_value().double()
        self._found[step] = [distance(value, goal, self._task) for goal in self._goals.values()]

    def compute(self) -> ProbeResult:
        """``closed``, ``own`` and ``other`` with axis (step)."""
        columns = zip(*self._found.values(), strict=True)
        return _over_steps("WayToMinimiser", dict(zip(self._goals, map(list, columns), strict=True)), self._found)


def _over_steps(name: str, values: Mapping[str, Sequence[float]], steps: Mapping[int, Any]) -> ProbeResult:
    return ProbeResult(
        probe=name,
        values={k: torch.tensor(v, dtype=torch.float64) for k, v in values.items()},
        axes=dict.fromkeys(values, ("step",)),
        coords={"step": [str(step) for step in steps]},
        metadata={"versions": versions()},
    )
