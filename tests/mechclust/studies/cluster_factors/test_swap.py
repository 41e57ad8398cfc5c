"""Centroids are exchanged where a network is known to keep the task, and where it is known not to."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
import torch

from mechclust.models import build_model, model_for
from mechclust.studies.cluster_factors.swap import KINDS, POSITIONS, swap_centroids
from tasks import InputError, InstructionFollowing

TASK = InstructionFollowing(n_tasks=4, n_outputs=3, n_mappings=8, variants=30, n_eval=200, validation_share=0.4)


class Circuit(torch.nn.Module):
    """Layer 0 is empty; layer 1 holds the task at x, as a direction, beside x; the answer is read from these.
    Where the instruction ends, before x, layer 1 holds the task alone, and nothing reads it.

    ``follows``: whether the answer is read from the state at x, or from the tokens whatever the state is.
    """

    def __init__(self, task, known, follows=True):
        super().__init__()
        self.task, self.follows = task, follows
        self.of = {tuple(t.tolist()): int(a) for b in known for t, a in zip(b.tokens, b.labels["task"], strict=True)}
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.hook_dict = dict.fromkeys(("hook_embed", "blocks.0.hook_resid_post"))
        self._hooks = {}

    @contextmanager
    def hooks(self, fwd_hooks):
        self._hooks = dict(fwd_hooks)
        try:
            yield self
        finally:
            self._hooks = {}

    def _at(self, name, x):
        if name not in self._hooks:
            return x
        new = self._hooks[name](x, None)
        return x if new is None else new

    def forward(self, tokens, attention_mask=None):
        n_tasks, first = self.task.n_tasks, 1 + self.task.n_symbols
        d = n_tasks + self.task.n_inputs
        self._at("hook_embed", torch.zeros(*tokens.shape, d))
        state = torch.zeros(*tokens.shape, d)
        own = [self.of[tuple(row.tolist())] for row in tokens]
        is_input = (tokens >= first) & (tokens < first + self.task.n_inputs)
        at = is_input.long().argmax(1)
        rows = torch.arange(len(tokens))
        state[rows, at, torch.tensor(own)] = state[rows, at - 1, torch.tensor(own)] = 1
        inputs = tokens[rows, at] - first
        state[rows, at, n_tasks + inputs] = 1
        state = self._at("blocks.0.hook_resid_post", state)
        read = state[rows, at, :n_tasks].argmax(1) if self.follows else torch.tensor(own)
        answers = torch.from_numpy(self.task.mappings)[read, inputs].clamp(min=0)
        logits = torch.zeros(*tokens.shape, self.task.d_vocab)
        logits[rows, at, answers] = 1
        return logits


def swapped(follows=True, seed=0):
    (known,), (asked,) = (list(TASK.batches(split, 200)) for split in ("train_subset", "validation_subset"))
    model = Circuit(TASK, (known, asked), follows)
    return swap_centroids(model, TASK, known, asked, seed)


def paired_by_hand():
    """How many of the edited examples another task maps to another answer."""
    (asked,) = TASK.batches("validation_subset", 200)
    of_input = TASK.mappings[:, asked.label("input").numpy() - 1 - TASK.n_symbols]
    own = of_input[asked.label("task").numpy(), np.arange(len(asked))]
    return int(((of_input >= 0) & (of_input != own)).any(axis=0).sum())


def test_the_answer_follows_where_the_state_holds_the_task():
    found = swapped()
    assert found.coords["position"] == list(POSITIONS)
    assert found.metadata["n"] == paired_by_hand()
    became = found["became"][POSITIONS.index("input")].numpy()
    assert became[KINDS.index("task")].tolist() == [0, 1]
    assert became[1:, 1].max() < 0.5  # a random direction may reach another task now and then


def test_a_place_that_is_not_read_changes_nothing():
    found = swapped()
    assert found["became"][POSITIONS.index("instruction_end")].abs().max() == 0


def test_an_answer_that_does_not_follow_the_state_stays():
    assert swapped(follows=False)["became"].max() == 0


def test_draws_depend_on_the_seed_alone():
    assert torch.equal(swapped(seed=3)["became"], swapped(seed=3)["became"])


def test_on_a_network_of_ours():
    (known,), (asked,) = (list(TASK.batches(split, 200)) for split in ("train_subset", "validation_subset"))
    model = build_model(model_for(TASK, seed=0, n_layers=2, d_model=16, n_heads=2))
    before = [p.clone() for p in model.parameters()]
    found = swap_centroids(model, TASK, known, asked)
    assert found["became"].shape == (len(POSITIONS), len(KINDS), 3)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    # at layer 0 all states of one input are the same: nothing is left when their mean is taken off
    same = found["became"][POSITIONS.index("input"), :, 0]
    assert np.ptp(same.numpy()) == 0


def test_without_another_task_it_is_refused():
    one = InstructionFollowing(n_tasks=1, variants=20, n_eval=30, validation_share=0.4)
    (known,), (asked,) = (list(one.batches(split, 200)) for split in ("train_subset", "validation_subset"))
    with pytest.raises(InputError) as refused:
        swap_centroids(Circuit(one, (known, asked)), one, known, asked)
    assert str(refused.value) == (
        f"none of the {len(asked)} edited examples has another task that is defined on its input, answers "
        "differently and has other examples to average over; give more known examples"
    )


def test_controls_move_the_state_as_far_as_the_difference_between_tasks():
    added: list[np.ndarray] = []

    class Recorded(Circuit):
        def _at(self, name, x):
            new = super()._at(name, x)
            if new is not x and name.startswith("blocks"):
                added.append((new - x).sum(dim=1).numpy())
            return new

    (known,), (asked,) = (list(TASK.batches(split, 200)) for split in ("train_subset", "validation_subset"))
    swap_centroids(Recorded(TASK, (known, asked)), TASK, known, asked)
    vectors = np.reshape(added, (len(POSITIONS), len(KINDS), -1, TASK.n_tasks + TASK.n_inputs))
    moved = np.linalg.norm(vectors, axis=-1)
    task, random, halves = moved[POSITIONS.index("input")]
    assert np.abs(vectors[POSITIONS.index("input"), KINDS.index("task"), :, TASK.n_tasks :]).max() < 1e-6  # not of x
    assert task.min() > 0.5
    assert random == pytest.approx(task, rel=1e-5)
    some = halves > 0
    assert some.any()
    assert halves[some] == pytest.approx(task[some], rel=1e-5)
    halves = vectors[POSITIONS.index("input"), KINDS.index("halves")]
    assert (-halves.min(axis=-1) > halves.max(axis=-1)).any()  # a difference, which may point away from its task
    task, _, halves = vectors[POSITIONS.index("instruction_end")]  # where the state is the task alone
    assert ((np.abs(task) > 0.5).sum(axis=-1) == 2).all()
    assert np.abs(halves).max() == 0  # halves differ by rounding only
