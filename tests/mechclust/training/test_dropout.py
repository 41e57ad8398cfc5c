"""Dropout: what is dropped depends on the seed and the step alone, however often training is interrupted."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from mechclust.models import build_model
from mechclust.studies.clustering_heads.config import PoolingTransformerConfig
from mechclust.training import Member, TrainConfig, train, train_ensemble
from tasks import InputError, SparseModularAddition
from tests.mechclust.training.test_ensemble import assert_identical, interrupt
from tests.mechclust.training.test_train import Stopped, stop_at

TASK = SparseModularAddition(length=5, n_support=2, n_train=70, n_test=8)
MODEL = PoolingTransformerConfig(n_ctx=5, d_mlp=64, dropout=0.5)
SETTINGS = TrainConfig(
    steps=8, batch_size=16, lr=1e-2, schedule="constant", optimizer="adam", weight_decay=0.0, clip=None, save_every=3
)
MEMBERS = [Member(replace(MODEL, seed=seed), replace(TASK, seed=seed)) for seed in (0, 3)]
BACKENDS = ["vmap", "loop"]


def test_neurons_are_dropped_in_training_alone_and_the_rest_make_up_for_them():
    model, batch = build_model(MODEL), TASK.train_batch(0, 64)
    whole = model.eval().run_with_cache(batch.tokens)[1]["blocks.0.mlp.hook_post"]
    left = model.train().run_with_cache(batch.tokens)[1]["blocks.0.mlp.hook_post"]
    kept = left != 0
    assert 0.45 < kept.double().mean() < 0.55
    assert torch.allclose(left[kept], 2 * whole[kept])


@pytest.mark.parametrize(("share", "expected"), [(-0.1, "at least 0"), (1.0, "below 1")])
def test_a_share_that_leaves_nothing_is_refused(share, expected):
    with pytest.raises(InputError, match=f"^{re.escape(f'dropout is {share}; expected {expected}')}$"):
        PoolingTransformerConfig(dropout=share)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_interrupted_ensemble_drops_what_it_would_have_dropped(tmp_path, backend):
    train_ensemble(MEMBERS, SETTINGS, tmp_path / "whole", backend=backend)
    torch.rand(7)  # whatever else the process draws
    interrupt(tmp_path / "parts", SETTINGS, 7, backend, MEMBERS)
    train_ensemble(MEMBERS, SETTINGS, tmp_path / "parts", backend=backend)
    assert_identical(tmp_path / "parts", tmp_path / "whole")


def test_an_interrupted_network_drops_what_it_would_have_dropped(tmp_path):
    settings = replace(SETTINGS, checkpoint_every=7)
    whole = train(build_model(MODEL), TASK, settings, tmp_path / "whole")
    with pytest.raises(Stopped):
        train(build_model(MODEL), TASK, settings, tmp_path / "parts", [stop_at(7)])
    assert torch.equal(whole, train(build_model(MODEL), TASK, settings, tmp_path / "parts"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_members_drop_different_neurons(tmp_path, backend):
    twins = train_ensemble([MEMBERS[0]] * 2, replace(SETTINGS, steps=40), tmp_path, backend=backend).losses()
    assert (twins[:, 0] != twins[:, 1]).sum() > 30
    assert torch.allclose(*twins.mean(0), atol=0.2)


def test_networks_of_two_seeds_drop_different_neurons():
    task = replace(TASK, seed=5)
    first, second = (
        train(build_model(replace(MODEL, dropout=share)), task, replace(SETTINGS, steps=1)) for share in (0.0, 0.5)
    )
    assert not torch.equal(first, second)
    like = build_model(MODEL).state_dict()
    other = build_model(replace(MODEL, seed=9))
    other.load_state_dict(like)
    assert not torch.equal(train(other, task, replace(SETTINGS, steps=1)), second)
    assert torch.equal(train(build_model(MODEL), task, replace(SETTINGS, steps=1)), second)


def test_snapshots_drop_nothing(tmp_path):
    model = train_ensemble(MEMBERS, replace(SETTINGS, steps=4), tmp_path).model(0)
    tokens = TASK.train_batch(0, 16).tokens
    assert torch.equal(model(tokens), model(tokens))
