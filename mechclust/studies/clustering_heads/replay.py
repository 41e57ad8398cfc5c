"""The step into a loss spike, repeated with one part of the network frozen: does the spike disappear?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from mechclust.models import build_model
from mechclust.studies.clustering_heads.config import MLP, SOLVED, XI
from mechclust.studies.clustering_heads.curves import Spike, spike_threshold, spikes_after_solving
from mechclust.studies.clustering_heads.dynamics import MeasuredRows, measured_rows, task_of
from mechclust.training import Snapshots
from probes import ProbeResult
from probes.engine.hooks import record

FROZEN = ("norm direction", "norm scale", "wedges", "attention", "head", "feed-forward")
_DIRECTION, _SCALE = "blocks.0.ln2.hook_normalized", "blocks.0.ln2.hook_scale"
_PATTERN = "blocks.0.attn.hook_pattern"
_PRE, _POST = f"{MLP}.hook_pre", f"{MLP}.hook_post"
_SITES = (XI, _DIRECTION, _SCALE, _PATTERN, _PRE)
Weights = Mapping[str, Tensor]


def replay(snapshots: Snapshots, member: int, dynamics: ProbeResult) -> ProbeResult:
    """The step from the last quiet snapshot to a spike, repeated with one part frozen, for every spike after solving.

    All weights move as they did in that epoch. The frozen part keeps its earlier value, sequence by sequence:

    - *norm direction*: the normalised sequence embedding, which is all that the feed-forward layer reads. Near xi = 0,
      a short step turns it a long way.
    - *norm scale*: the number that xi is divided by, so that the norm is linear: its nonlinearity alone.
    - *wedges*: the gates of the feed-forward layer, ``Phi(pre)`` in ``gelu(pre) = pre Phi(pre)``: no sequence crosses
      from one side of a neuron to the other.
    - *attention*: the attention pattern, another nonlinearity. No explanation of spikes involves it: the control.
    - *head*: all of xi, and *feed-forward*: the feed-forward layer's weights. Which of the two moved?

    The updates of an epoch are taken as one step; how the optimiser would have reacted to the change is not replayed.

    Measures:
        ``loss`` (spike, frozen): training loss with that part frozen; ``spike_loss``, ``quiet_loss``, ``threshold``
            (spike): the loss at the spike, at the snapshot before, and above which there is a spike.
        ``gone`` (spike, frozen): 1 if the loss stays below the threshold.

    Args:
        snapshots: of an ensemble of pooling transformers on sparse modular addition.
        member: number of the network in the ensemble.
        dynamics: the result of ``dynamics`` for it.
    """
    spikes = spikes_after_solving(dynamics["train_loss"].numpy(), dynamics["test_accuracy"].numpy(), SOLVED)
    rows, model = measured_rows(task_of(snapshots, member)), build_model(snapshots.configs[member])
    found = list(_replayed(snapshots, member, spikes, rows, model))
    losses = torch.tensor(found, dtype=torch.float64).reshape(len(spikes), len(FROZEN) + 2)
    threshold = torch.tensor([spike_threshold(spike.before) for spike in spikes], dtype=torch.float64)
    by_part = losses[:, 2:]
    values = {
        "loss": by_part,
        "gone": (by_part <= threshold[:, None]).double(),
        "quiet_loss": losses[:, 0],
        "spike_loss": losses[:, 1],
        "threshold": threshold,
    }
    return ProbeResult(
        "Replay",
        values,
        {name: ("spike", "frozen") if x.ndim == 2 else ("spike",) for name, x in values.items()},
        {"spike": [str(snapshots.epochs[spike.epoch]) for spike in spikes], "frozen": list(FROZEN)},
        metadata={"n": len(rows.batch)},
        notes=[] if spikes else ["no loss spike after the task was solved"],
    )


def _replayed(
    snapshots: Snapshots, member: int, spikes: list[Spike], rows: MeasuredRows, model: Any
) -> Iterator[list[float]]:
    """For each spike, the loss before it, at it, and with each part frozen."""
    tokens, answers = rows.batch.tokens, rows.batch.label("answer")

    def loss(weights: Weights, frozen: AbstractContextManager[Any] | None = None) -> float:
        with torch.no_grad(), frozen or nullcontext():
            logits = functional_call(model, dict(weights), (tokens,))
        return float(F.cross_entropy(logits, answers, reduction="none") @ rows.train)

    for spike in spikes:
        pair = snapshots.of(member, [snapshots.steps[spike.epoch - 1], snapshots.steps[spike.epoch]])
        before, now = ({name: values[i] for name, values in pair.items()} for i in (0, 1))
        with record(model, _SITES) as seen:
            quiet = loss(before)
        was = {site: seen[site][0] for site in _SITES}
        half = {**now, **{name: values for name, values in before.items() if name.startswith(MLP)}}
        frozen = [
            loss(now, kept(model, {_DIRECTION: was[_DIRECTION]})),
            loss(now, kept(model, {_SCALE: was[_SCALE]})),
            loss(now, gates_of(model, was[_PRE])),
            loss(now, kept(model, {_PATTERN: was[_PATTERN]})),
            loss(now, kept(model, {XI: was[XI]})),
            loss(half),
        ]
        yield [quiet, loss(now), *frozen]


def kept(model: Any, values: Mapping[str, Tensor]) -> AbstractContextManager[Any]:
    """Inside, some hook points have these values, whatever the weights."""
    return record(model, values, lambda name, own: values[name])


def gates_of(model: Any, pre: Tensor) -> AbstractContextManager[Any]:
    """Inside, the feed-forward layer's gates are those of the pre-activations ``pre``, ``[n 1 d_mlp]``."""
    gates, seen = torch.special.ndtr(pre), dict[str, Tensor]()

    def receive(name: str, own: Tensor) -> Tensor | None:
        if name == _PRE:
            seen[name] = own
            return None
        return seen[_PRE] * gates

    return record(model, [_PRE, _POST], receive)
