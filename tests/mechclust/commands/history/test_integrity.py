"""Each kind of wrong checkpoint is planted and found; clean trainings of many kinds give no alarm."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from mechclust.commands.history.integrity import Identity, check_series
from mechclust.models.weight_digest import weights_digest

CONFIG = {"n_layer": 2, "n_head": 4}


def network(draw):
    return nn.Sequential(nn.Embedding(12, 8), nn.Flatten(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 12))


def states(model, x):
    """``[layer example d]``: the embeddings, and what the hidden layer makes of them."""
    with torch.no_grad():
        embedded = model[:2](x)
        return torch.stack([embedded, model[2:4](embedded)])


def linear_cka(x, y):
    """Of two ``[layer example d]``, by layer: ``|Y'X|^2 / (|X'X| |Y'Y|)`` of centred columns."""
    x, y = (each.double() - each.double().mean(dim=1, keepdim=True) for each in (x, y))
    xy, xx, yy = (torch.linalg.matrix_norm(a.mT @ b) for a, b in ((x, y), (x, x), (y, y)))
    return (xy.square() / (xx * yy)).numpy()


def trained(seed, n=21):
    """A real training of a small network, with one of several optimisers, schedules and spacings of checkpoints.

    Its checkpoints, and the CKA of each with the last one, by layer.
    """
    draw = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = network(draw)
    makers = (
        lambda w: torch.optim.SGD(w, 0.3, momentum=0.9),
        lambda w: torch.optim.AdamW(w, 3e-3, weight_decay=0.1),
        lambda w: torch.optim.Adam(w, 0.02),
        lambda w: torch.optim.SGD(w, 1.0),
    )
    optimizer = makers[seed % len(makers)](model.parameters())
    spaced = [round(60 * i / (n - 1)) for i in range(n)]
    logarithmic = sorted({0, *(round(60 ** (i / 40)) for i in range(41))})
    steps = (spaced, logarithmic, list(range(n)))[seed % 3]
    total = steps[-1]
    kinds = {
        0: lambda t: 1.0,
        1: lambda t: 0.5 * (1 + math.cos(math.pi * t / (total + 1))),
        2: lambda t: 1.0 if t < 0.9 * total else (total + 1 - t) / (0.1 * total + 1),
        3: lambda t: min(1.0, (t + 1) / 10),
    }
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, kinds[seed // 3 % 4])
    x = torch.randint(0, 12, (64, 3), generator=draw)
    y = (x.sum(dim=1) + (torch.rand(64, generator=draw) < 0.2)) % 12
    found, hidden = [], []
    for step in range(total + 1):
        if step in steps:
            found.append(Identity(f"step{step}", weights_digest(model), CONFIG, "tokens"))
            hidden.append(states(model, x))
        rows = torch.randint(0, 64, (16,), generator=draw)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
        schedule.step()
    return found, np.stack([linear_cka(each, hidden[-1]) for each in hidden])


@pytest.fixture(scope="module")
def trainings():
    return [trained(seed) for seed in range(12)]


@pytest.fixture(scope="module")
def clean(trainings):
    """One of the series."""
    return trainings[1][0]


@pytest.mark.slow
def test_no_false_alarm_in_a_thousand_pairs_of_real_trainings(trainings):
    trainings = [*trainings, *(trained(seed) for seed in range(12, 52))]
    pairs = sum(len(series) - 1 for series, _ in trainings)
    alarms = [(seed, found.text) for seed, (series, cka) in enumerate(trainings) for found in check_series(series, cka)]
    assert pairs >= 1000
    assert alarms == []


def test_the_alarm_about_hidden_states_would_ring(trainings):
    """In the same trainings, the last one's hidden states at an early checkpoint; some late ones are as near to it."""
    assert any((1 - cka[-2]).max() < 1e-6 for _, cka in trainings)
    for series, cka in trainings:
        early = len(series) // 4
        planted = np.concatenate([cka[:early], cka[-1:], cka[early + 1 :]])
        assert [(found.kind, found.checkpoints) for found in check_series(series, planted)] == [("states", (early,))]
        planted[:, 0] = np.nan  # all prompts end in the same token
        assert [(found.kind, found.checkpoints) for found in check_series(series, planted)] == [("states", (early,))]


def test_a_stale_checkpoint(clean):
    series = list(clean)
    series[4] = replace(series[4], weights=series[-1].weights)
    series[6] = replace(series[6], weights=series[-1].weights)
    (finding,) = check_series(series)
    assert (finding.kind, finding.checkpoints) == ("last", (4, 6))
    assert finding.text == f"'{series[4].name}' and '{series[6].name}' have the weights of the last checkpoint."


@pytest.mark.parametrize(("later", "kinds"), [(1.2e-4, []), (2e-4, ["states"])])
def test_states_count_as_the_last_ones_if_later_ones_are_clearly_others(clean, later, kinds):
    cka = np.full((len(clean), 2), 1 - later)
    cka[-1], cka[4] = 1, 1 - 5e-6
    assert [finding.kind for finding in check_series(clean, cka)] == kinds


def test_special_tokens_that_the_trainer_copies_into_the_configuration(clean):
    """A model that was saved before training lacks them."""
    series = [replace(each, config={**CONFIG, "pad_token_id": 0}) for each in clean]
    series[0] = replace(series[0], config={**CONFIG, "pad_token_id": None}, tokenizer=None)  # it brings none
    assert check_series(series) == []
    series[0] = replace(series[0], config={"n_layer": 3, "pad_token_id": 0, "b": 1, "c": 2})
    assert [finding.text for finding in check_series(series)] == [
        f"'{series[0].name}' has another configuration (b '1', not missing; c '2', not missing; n_head missing, not "
        "'4', and 1 more)."
    ]
    series[0] = replace(series[0], config={**CONFIG, "pad_token_id": 3})
    assert [finding.text for finding in check_series(series)] == [
        f"'{series[0].name}' has another configuration (pad_token_id '3', not '0')."
    ]
