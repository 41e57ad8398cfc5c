"""The step into a loss spike, repeated with one part of the network frozen: does the spike disappear?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call

from mechclust.models import build_model
from mechclust.studies.clustering_heads.config import MLP, SOLVED, XI
from mechclust.studies.clustering_heads.curves import Spike, spike_threshold, spikes_after_solving
from mechclust.studies.clustering_heads.cut import holding_activation
from mechclust.studies.clustering_heads.dynamics import MeasuredRows, measured_rows, task_of
from mechclust.training import Snapshots
from probes import ProbeResult
from probes.engine.record import record

FROZEN = ("norm direction", "norm scale", "wedges", "attention", "head", "feed-forward")
_SITES = {
    "norm direction": "blocks.0.ln2.hook_normalized",
    "norm scale": "blocks.0.ln2.hook_scale",
    "attention": "blocks.0.attn.hook_pattern",
    "head": XI,
}  # of parts whose activation is frozen
_PRE = f"{MLP}.hook_pre"
_POST = f"{MLP}.hook_post"


def replay_spikes(snapshots: Snapshots, member: int, dynamics: ProbeResult) -> ProbeResult:
    """Repeat the step from the last quiet snapshot to each spike after solving, with one part frozen.

    All weights move as they did in that epoch. The frozen part keeps its earlier value, sequence by sequence:

    - *norm direction*: the normalised sequence embedding, which is all that the feed-forward layer reads. Near xi = 0,
      a short step turns it a long way.
    - *norm scale*: the number that xi is divided by, so that the norm is linear: its nonlinearity alone.
    - *wedges*: the gates of the feed-forward layer, ``Phi(pre)`` in ``gelu(pre) = pre Phi(pre)``: no sequence crosses
      from one side of a neuron to the other.
    - *attention*: the attention pattern, another nonlinearity. No explanation of spikes involves it: the control.
    - *head*: all of xi, and *feed-forward*: the feed-forward layer's weights. Which of the two moved?

    The updates of an epoch are taken as one step. The optimiser's reaction to the change is not replayed.

    Measures:
        ``loss`` (spike, frozen): training loss with that part frozen. ``spike_loss``, ``quiet_loss``, ``threshold``
            (spike): the loss at the spike, at the snapshot before, and above which there is a spike.
        ``gone`` (spike, frozen): 1 if the loss stays below the threshold.

    Args:
        snapshots: of an ensemble of pooling transformers on sparse modular addition.
        member: number of the network in the ensemble.
        dynamics: the result of ``dynamics`` for it.
    """
    spikes = spikes_after_solving(dynamics["train_loss"].numpy(), dynamics["test_accuracy"].numpy(), SOLVED)
    rows = measured_rows(task_of(snapshots, member))
    model = build_model(snapshots.configs[member])
    replayed = [_replayed(snapshots, member, spike, rows, model) for spike in spikes]
    losses = torch.tensor(replayed, dtype=torch.float64).reshape(len(spikes), len(FROZEN) + 2)
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


def _replayed(snapshots: Snapshots, member: int, spike: Spike, rows: MeasuredRows, model: Any) -> list[float]:
    """Return the loss before a spike, at it, and with each part frozen."""
    pair = snapshots.of(member, [snapshots.steps[spike.epoch - 1], snapshots.steps[spike.epoch]])
    before = {name: values[0] for name, values in pair.items()}
    after = {name: values[1] for name, values in pair.items()}
    feed_forward_before = {name: values for name, values in before.items() if name.startswith(MLP)}
    with record(model, [*_SITES.values(), _PRE]) as quiet:
        loss_before = _loss(model, rows, before)
    frozen = {"feed-forward": _loss(model, rows, after | feed_forward_before)}
    with gates_of(model, quiet[_PRE][0]):
        frozen["wedges"] = _loss(model, rows, after)
    for part, site in _SITES.items():
        with holding_activation(model, site, quiet[site][0]):
            frozen[part] = _loss(model, rows, after)
    return [loss_before, _loss(model, rows, after), *(frozen[part] for part in FROZEN)]


@torch.no_grad()
def _loss(model: Any, rows: MeasuredRows, weights: dict[str, Float[Tensor, "..."]]) -> float:
    """Return the training loss of a network with these weights."""
    logits = functional_call(model, weights, (rows.batch.tokens,))
    return float(F.cross_entropy(logits, rows.batch.label("answer"), reduction="none") @ rows.train)


@contextmanager
def gates_of(model: Any, pre: Float[Tensor, "row 1 d_mlp"]) -> Iterator[None]:
    """Give the feed-forward layer the gates of these pre-activations inside the block."""
    gates = torch.special.ndtr(pre)
    with record(model, [_PRE]) as seen, record(model, [_POST], partial(_gated, seen[_PRE], gates)):
        yield


def _gated(
    pre: Sequence[Float[Tensor, "row 1 d_mlp"]],
    gates: Float[Tensor, "row 1 d_mlp"],
    name: str,
    activation: Float[Tensor, "row 1 d_mlp"],
) -> Float[Tensor, "row 1 d_mlp"]:
    """Return the latest pre-activations times the gates, in place of the activation."""
    return pre[-1] * gates
