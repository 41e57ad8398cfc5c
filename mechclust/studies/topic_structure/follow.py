"""What the topic-structure study follows during training besides its probes."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from mechclust.studies.topic_structure.arms import DECAY
from mechclust.studies.topic_structure.blocks import topic_blocks
from mechclust.studies.topic_structure.labelling import RANDOM, RIGHT, topics_by_labelling
from mechclust.studies.topic_structure.optimum import minimiser, moments_of, value_distance
from mechclust.studies.topic_structure.theory import stage_one_value
from mechclust.training import WeightNorms
from probes import ProbeResult
from probes.store.versions import package_versions
from tasks import TopicDocuments

_SEED_OFFSET_OF_OTHERS = 10**6  # added to the seed to draw other documents
_DEV_BATCH = 500  # documents at once
_TEXT_BATCH = 100  # documents at once, of which attention between tokens is measured
_MAX_PAIRS = 2**22  # of tokens in all of them together


class Follower(Protocol):
    """A callback that keeps what it measures until the end of training."""

    def __call__(self, step: int, model: Any) -> None: ...

    def compute(self) -> ProbeResult:
        """Return the measurements."""
        ...


@torch.no_grad()
def dev_loss(model: Any, task: TopicDocuments) -> float:
    """Return the mean loss of a network on all development documents."""
    total = 0.0
    count = 0
    for batch in task.batches("dev", _DEV_BATCH):
        assert batch.targets is not None
        targets = batch.targets[batch.loss_mask]
        total += float(task.loss_at(model.logits_at_loss(batch), targets)) * len(targets)
        count += len(targets)
    return total / count


class DevLoss:
    """Measures the loss on all development documents at checkpoints, as a callback for a training loop.

    Args:
        task: gives the documents.
        at: only at these steps; ``None``: at every checkpoint.
    """

    def __init__(self, task: TopicDocuments, at: Sequence[int] | None = None) -> None:
        self._task = task
        self._at = at
        self._losses: dict[int, list[float]] = {}

    def __call__(self, step: int, model: Any) -> None:
        """Measure the loss before ``step``."""
        if self._at is None or step in self._at:
            self._losses[step] = [dev_loss(model, self._task)]

    def compute(self) -> ProbeResult:
        """Return ``loss`` with axis (step)."""
        return _over_steps("DevLoss", ["loss"], self._losses)


class WeightChanges(WeightNorms):
    """Distances of each weight from where it began, at every step, in single precision.

    Args:
        names: parameters of the model to follow; ``None``: all that are trained.
        norms: keep the norm of each weight too.
    """

    def __init__(self, names: Sequence[str] | None = None, norms: bool = False) -> None:
        super().__init__(names)
        self._measures = ("change", "norm") if norms else ("change",)

    def compute(self) -> ProbeResult:
        """Return ``change``, and ``norm`` if it is kept, with axes (step, weight)."""
        result = super().compute()
        values = {name: result[name].float() for name in self._measures}
        return replace(result, values=values, axes=dict.fromkeys(values, ("step", "weight")))


class WordAttention:
    """Measures attention between tokens at the checkpoint of the best development loss, as a training callback.

    It is kept for every two tokens, so that topics can be assigned to them afterwards. The network before training does
    not count.

    Args:
        task: gives the documents.
        n_documents: development documents on which attention is measured, without masks.
        lengths: how many tokens of each, one measurement for each number.
    """

    def __init__(self, task: TopicDocuments, n_documents: int, lengths: Sequence[int]) -> None:
        self._task = task
        self._n_documents = n_documents
        self._lengths = lengths
        self._losses: dict[int, float] = {}
        self._best: Any = None

    def __call__(self, step: int, model: Any) -> None:
        """Measure the loss before ``step``, and keep a copy of the network if it is the lowest."""
        if step == 0:
            return
        loss = dev_loss(model, self._task)
        if self._best is None or loss < min(self._losses.values()):
            self._best = copy.deepcopy(model)
        self._losses[step] = loss

    def compute(self) -> ProbeResult:
        """Return ``sum`` and ``pairs`` with axes (length, query, key), over all pairs, and ``loss`` (step)."""
        sums: list[Float[Tensor, "query key"]] = []
        pairs: list[Float[Tensor, "query key"]] = []
        d_vocab = self._task.d_vocab
        batch_size = max(1, min(_TEXT_BATCH, _MAX_PAIRS // d_vocab**2))
        for length in self._lengths:
            attention = torch.zeros(d_vocab, d_vocab, dtype=torch.float64)
            count = torch.zeros_like(attention)
            for batch in self._task.text("dev", self._n_documents, length, batch_size):
                attention_in_batch, count_in_batch = self._best.attention_between_tokens(batch)
                attention += attention_in_batch
                count += count_in_batch
            sums.append(attention.float())
            pairs.append(count.float())
        by_pair = ("length", "query", "key")
        return ProbeResult(
            probe="WordAttention",
            values={
                "sum": torch.stack(sums),
                "pairs": torch.stack(pairs),
                "loss": torch.tensor(list(self._losses.values()), dtype=torch.float64),
            },
            axes={"sum": by_pair, "pairs": by_pair, "loss": ("step",)},
            coords={
                "length": [str(length) for length in self._lengths],
                "query": self._task.vocab,
                "key": self._task.vocab,
                "step": [str(step) for step in self._losses],
            },
            metadata={"versions": package_versions()},
        )


class TopicEffects:
    """Measures by how much ``W_E^T W_E`` separates topics, as a callback for a training loop.

    Args:
        task: gives the words' topics.
    """

    def __init__(self, task: TopicDocuments) -> None:
        self._topics = topics_by_labelling(task)
        self._effects: dict[int, list[float]] = {}

    def __call__(self, step: int, model: Any) -> None:
        """Measure the effects before ``step``."""
        embed = model.embed.W_E.detach()
        self._effects[step] = [topic_blocks(embed @ embed.T, self._topics[name]).effect for name in (RIGHT, RANDOM)]

    def compute(self) -> ProbeResult:
        """Return ``TopicBlocks.effect`` with right and with random labels, with axis (step)."""
        return _over_steps("TopicEffects", [RIGHT, RANDOM], self._effects)


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
        return _over_steps("WayToMinimiser", list(self._goals), self._distances)


def _over_steps(probe: str, measures: Sequence[str], by_step: Mapping[int, Sequence[float]]) -> ProbeResult:
    """Return measures with axis (step), from the values of all of them at each step."""
    values = torch.tensor(list(by_step.values()), dtype=torch.float64)
    return ProbeResult(
        probe=probe,
        values=dict(zip(measures, values.unbind(dim=1), strict=True)),
        axes=dict.fromkeys(measures, ("step",)),
        coords={"step": [str(step) for step in by_step]},
        metadata={"versions": package_versions()},
    )
