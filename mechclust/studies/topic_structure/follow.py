"""What the topic-structure study follows during training besides its probes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from mechclust.studies.topic_structure.arms import DECAY
from mechclust.studies.topic_structure.optimum import minimiser, moments_of, value_distance
from mechclust.studies.topic_structure.theory import stage_one_value
from mechclust.training import ProbeCallback, WeightNorms
from probes import ProbeResult, run
from probes.engine.hooks import HookedModel, forward, record
from probes.engine.identity import fingerprint
from probes.store.files import versions
from tasks import Batch, InputError, TopicDocuments

_SEED_OFFSET_OF_OTHERS = 10**6  # added to the seed to draw other documents
_DEV_BATCH = 500  # documents at once
PATTERN = "blocks.0.attn.hook_pattern"
_DIVERGED = "training diverged: attention is not finite"


class Follower(Protocol):
    """A callback that keeps what it measures until the end of training."""

    def __call__(self, step: int, model: Any) -> None: ...

    def compute(self) -> ProbeResult:
        """Return the measurements."""
        ...


class DevLoss:
    """Measures the loss on all development documents at checkpoints, as a callback for a training loop.

    Args:
        task: gives the documents.
        at: only at these steps; ``None``: at every checkpoint.
    """

    def __init__(self, task: TopicDocuments, at: Sequence[int] | None = None) -> None:
        self._task = task
        self._at = at
        self._losses: dict[int, float] = {}

    @torch.no_grad()
    def __call__(self, step: int, model: Any) -> None:
        """Measure the loss before ``step``."""
        if self._at is not None and step not in self._at:
            return
        total = 0.0
        count = 0
        for batch in self._task.batches("dev", _DEV_BATCH):
            assert batch.targets is not None
            targets = batch.targets[batch.loss_mask]
            total += float(self._task.loss_at(model.logits_at_loss(batch), targets)) * len(targets)
            count += len(targets)
        self._losses[step] = total / count

    def compute(self) -> ProbeResult:
        """Return ``loss`` with axis (step)."""
        return _over_steps("DevLoss", {"loss": list(self._losses.values())}, self._losses)


class WeightChanges(WeightNorms):
    """Distances of each weight from where it began, at every step, in single precision."""

    def compute(self) -> ProbeResult:
        """Return ``change`` with axes (step, weight)."""
        norms = super().compute()
        return replace(norms, values={"change": norms["change"].float()}, axes={"change": norms.axes["change"]})


class AttentionOrDiverged(ProbeCallback):
    """A ``ProbeCallback`` with one probe, whose result is NaN, with a note, once attention is no longer finite.

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
            (batches,) = self.batches.values()
            if all(_is_finite(model, batch) for batch in batches):
                raise
            for path in self.lacks(step, model):
                (result,) = run(self._untrained(), batches, list(self.probes.values()))
                _undefined(result, model).save(path)


@torch.no_grad()
def _is_finite(model: Any, batch: Batch) -> bool:
    with record(model, [PATTERN]) as recorded:
        forward(model, batch)
    return bool(recorded[PATTERN][0].isfinite().all())


def _undefined(result: ProbeResult, model: Any) -> ProbeResult:
    """Return a result without its numbers: that of a network that diverged."""
    values = dict(result.values)
    for name, numbers in result.values.items():
        if numbers.is_floating_point():
            values[name] = torch.full_like(numbers, torch.nan)
    return replace(result, values=values, notes=[_DIVERGED], metadata={**result.metadata, "model": fingerprint(model)})


class WayToMinimiser:
    """Distances of ``W_V`` from three matrices at every checkpoint: a callback for a network with weight decay.

    ``closed``: the closed form; ``own``: the minimiser of the documents that it is trained on; ``other``: that of
    equally many other documents. The last shows how far apart two minimisers are, and the distance of a network that
    learnt the topics but not its own documents.

    Args:
        task: gives the training documents.
    """

    def __init__(self, task: TopicDocuments) -> None:
        self._task = task
        self._goals: dict[str, Float[Tensor, "d_vocab d_vocab"]] = {}
        self._distances: dict[int, list[float]] = {}

    def __call__(self, step: int, model: Any) -> None:
        """Measure the distances before ``step``."""
        if not self._goals:
            self._solve()
        value = model.paper_value().double()
        self._distances[step] = [value_distance(value, goal, self._task) for goal in self._goals.values()]

    def _solve(self) -> None:
        others = replace(self._task, seed=self._task.seed + _SEED_OFFSET_OF_OTHERS)
        self._goals = {
            "closed": stage_one_value(self._task),
            "own": minimiser(moments_of(self._task), DECAY),
            "other": minimiser(moments_of(others), DECAY),
        }

    def compute(self) -> ProbeResult:
        """Return ``closed``, ``own`` and ``other`` with axis (step)."""
        curves = zip(*self._distances.values(), strict=True)
        return _over_steps("WayToMinimiser", dict(zip(self._goals, curves, strict=True)), self._distances)


def _over_steps(name: str, curves: Mapping[str, Sequence[float]], steps: Iterable[int]) -> ProbeResult:
    return ProbeResult(
        probe=name,
        values={name: torch.tensor(curve, dtype=torch.float64) for name, curve in curves.items()},
        axes=dict.fromkeys(curves, ("step",)),
        coords={"step": [str(step) for step in steps]},
        metadata={"versions": versions()},
    )
