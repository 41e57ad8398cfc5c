"""Spikes replayed with a part frozen: against the formula of the network, and where the cause is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mechclust.models import build_model
from mechclust.studies.clustering_heads.config import PoolingTransformerConfig
from mechclust.studies.clustering_heads.replay import FROZEN, gates_of, replay_spikes
from probes import ProbeResult
from tests.probes.planted_heads import TASK, everything, solved_network

QUIET = 14  # snapshots before the spike


class Made:
    """Snapshots of one network that stays as it is, and changes in the last epoch."""

    def __init__(self, before, after):
        self.tasks = [TASK]
        self.configs = [PoolingTransformerConfig()]
        self.models = [before] * QUIET + [after]
        self.steps = [64 * i for i in range(len(self.models))]
        self.epochs = list(range(len(self.models)))

    def of(self, member, steps):
        chosen = [dict(self.models[self.steps.index(step)].named_parameters()) for step in steps]
        return {name: torch.stack([w[name].detach() for w in chosen]) for name in chosen[0]}


def changed(change):
    model = solved_network()
    with torch.no_grad():
        change(model)
    return model


def logits(model, xi, normed=None, gates=None):
    """From the sequence embedding on, by formula; a part may be given."""
    w = {name: value.detach() for name, value in model.named_parameters()}
    normed = xi / (xi.square().mean(-1, keepdim=True).sqrt() + 1e-5) if normed is None else normed
    pre = normed @ w["blocks.0.mlp.W_in"] + w["blocks.0.mlp.b_in"]
    gates = torch.special.ndtr(pre) if gates is None else gates
    hidden = (pre * gates) @ w["blocks.0.mlp.W_out"] + w["blocks.0.mlp.b_out"]
    return (xi + hidden) @ w["embed.W_E"].T


def embedded(model):
    kept = []
    with model.hooks(fwd_hooks=[("blocks.0.hook_resid_mid", lambda x, hook: kept.append(x.detach()[:, 0]))]):
        model(everything().tokens)
    return kept[0]


def loss_of(values):
    task = TASK
    (batch,) = task.batches("train", 4096)
    place = 2 ** torch.arange(12).flip(0)
    rows = (batch.tokens * place).sum(dim=1)
    return float(torch.nn.functional.cross_entropy(values[rows], batch.labels["answer"]))


def dynamics(model):
    """Quiet, solved, and a spike at the end."""
    loss = np.full(QUIET + 1, 1e-4)
    loss[-1] = 1.0
    values = {"train_loss": torch.from_numpy(loss), "test_accuracy": torch.ones(QUIET + 1, dtype=torch.float64)}
    return ProbeResult(
        "HeadDynamics", values, dict.fromkeys(values, ("epoch",)), {"epoch": [str(e) for e in range(QUIET + 1)]}
    )


def replayed(change):
    after = changed(change)
    return replay_spikes(Made(solved_network(), after), 0, dynamics(after)), after


def turn_values(model):
    """The head turns xi by a right angle."""
    model.blocks[0].attn.W_V.copy_(torch.tensor([[0.0, -1.0], [1.0, 0.0]]))


def shift_neurons(model):
    """The feed-forward layer's wedges move by the width of one."""
    model.blocks[0].mlp.b_in.add_(15.0)


@pytest.mark.parametrize("change", [turn_values, shift_neurons])
def test_every_loss_is_that_of_the_formula(change):
    result, after = replayed(change)
    before = solved_network()
    old, new = embedded(before), embedded(after)
    was = {name: value.detach() for name, value in before.named_parameters()}
    normed = old / (old.square().mean(-1, keepdim=True).sqrt() + 1e-5)
    gates = torch.special.ndtr(normed @ was["blocks.0.mlp.W_in"] + was["blocks.0.mlp.b_in"])
    found = dict(zip(FROZEN, result["loss"][0].tolist(), strict=True))
    assert result.coords["spike"] == [str(QUIET)]
    assert float(result["quiet_loss"]) == pytest.approx(loss_of(logits(before, old)), rel=1e-4)
    assert float(result["spike_loss"]) == pytest.approx(loss_of(logits(after, new)), rel=1e-4)
    assert found["norm direction"] == pytest.approx(loss_of(logits(after, new, normed=normed)), rel=1e-4)
    scaled = new / (old.square().mean(-1, keepdim=True).sqrt() + 1e-5)
    assert found["norm scale"] == pytest.approx(loss_of(logits(after, new, normed=scaled)), rel=1e-4)
    assert found["wedges"] == pytest.approx(loss_of(logits(after, new, gates=gates)), rel=1e-4)
    assert found["head"] == pytest.approx(loss_of(logits(after, old)), rel=1e-4)
    assert torch.equal(result["gone"], (result["loss"] <= result["threshold"][:, None]).double())
    assert float(result["threshold"]) == 1e-3


def test_the_head_that_moved_is_what_to_freeze():
    result, _ = replayed(turn_values)
    found = dict(zip(FROZEN, result["loss"][0].tolist(), strict=True))
    assert found["head"] == pytest.approx(float(result["quiet_loss"]), rel=1e-4)
    assert found["feed-forward"] == pytest.approx(float(result["spike_loss"]), rel=1e-4)  # it has not moved
    assert found["attention"] == pytest.approx(float(result["spike_loss"]), rel=1e-4)  # nor has this
    assert found["norm direction"] < float(result["spike_loss"])


def turn_query(model):
    """The head looks away from the support."""
    model.blocks[0].attn.query.neg_()


def test_the_attention_that_moved_is_what_to_freeze():
    result, _ = replayed(turn_query)
    found = dict(zip(FROZEN, result["loss"][0].tolist(), strict=True))
    assert found["attention"] == pytest.approx(float(result["quiet_loss"]), rel=1e-3)
    assert found["head"] == pytest.approx(float(result["quiet_loss"]), rel=1e-3)
    assert found["feed-forward"] == pytest.approx(float(result["spike_loss"]), rel=1e-4)


def test_the_feed_forward_layer_that_moved_is_what_to_freeze():
    result, _ = replayed(shift_neurons)
    found = dict(zip(FROZEN, result["loss"][0].tolist(), strict=True))
    assert found["feed-forward"] == pytest.approx(float(result["quiet_loss"]), rel=1e-4)
    assert found["head"] == found["norm direction"] == pytest.approx(float(result["spike_loss"]), rel=1e-4)


def test_without_spikes_after_solving_there_is_nothing_to_replay(tmp_path):
    quiet = dynamics(None)
    quiet["train_loss"][-1] = 1e-4
    result = replay_spikes(Made(solved_network(), solved_network()), 0, quiet)
    assert result["gone"].shape == (0, len(FROZEN))
    assert result.notes == ["no loss spike after the task was solved"]
    result.save(tmp_path / "replay.safetensors")
    never = dynamics(None)
    never["test_accuracy"][:] = 0.5
    assert replay_spikes(Made(solved_network(), solved_network()), 0, never)["gone"].shape == (0, len(FROZEN))


def test_gates_of_the_same_network_change_nothing():
    model = build_model(PoolingTransformerConfig(seed=5))
    tokens = everything().tokens[:9]
    kept = []
    with model.hooks(fwd_hooks=[("blocks.0.mlp.hook_pre", lambda x, hook: kept.append(x.detach()))]):
        plain = model(tokens)
    with gates_of(model, kept[0]):
        torch.testing.assert_close(model(tokens), plain)
    with gates_of(model, torch.zeros_like(kept[0])):  # every gate half open: the layer is linear
        halved = model(tokens)
    assert not torch.allclose(halved, plain)
