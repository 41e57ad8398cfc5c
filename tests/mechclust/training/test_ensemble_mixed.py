"""Members of different widths and batch sizes: each as if trained alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mechclust import ModelConfig, model_for
from mechclust.models import build_model
from mechclust.models.weights import get_weights
from mechclust.studies.clustering_heads.config import PoolingTransformerConfig
from mechclust.training import LowRank, Member, TrainConfig, stack, train, train_ensemble
from tasks import InputError, SkillSuite, SparseModularAddition
from tests.mechclust.training.test_ensemble import assert_identical, interrupt

TASK = SparseModularAddition(length=5, n_support=2, n_train=70, n_test=8)
CONFIG = TrainConfig(
    steps=9, batch_size=16, lr=1e-2, schedule="cosine", optimizer="adamw", weight_decay=0.1, clip=0.5, save_every=4
)


@pytest.fixture(autouse=True)
def _double(monkeypatch):
    """Train ensembles in float64, where rounding cannot become a step of Adam."""
    monkeypatch.setattr(stack, "build_model", lambda config: build_model(config).double())


def member(seed, width, batch_size=None):
    model = PoolingTransformerConfig(n_ctx=5, d_mlp=width, seed=seed)
    return Member(model, replace(TASK, seed=seed), batch_size=batch_size)


MEMBERS = [member(0, 4), member(1, 9, 4), member(2, 2, 16), member(3, 9, 1)]


def alone(one, config):
    """Final weights of the same network trained by ``train``."""
    model = build_model(one.model).double()
    train(model, one.task, replace(config, batch_size=one.batch_size or config.batch_size))
    return get_weights(model)


def check(snapshots, members, config, atol=1e-9):
    for i, one in enumerate(members):
        expected = alone(one, config)
        model, last = get_weights(snapshots.model(i)), snapshots.of(i, [config.steps])
        assert last.keys() == expected.keys()
        for name, values in expected.items():
            torch.testing.assert_close(last[name][0], values, atol=atol, rtol=0, msg=f"{name} of member {i}")
            assert torch.equal(model[name], last[name][0].float())


@pytest.mark.parametrize("backend", ["vmap", "loop"])
def test_widths_and_batch_sizes_mixed(tmp_path, backend):
    snapshots = train_ensemble(MEMBERS, CONFIG, tmp_path, backend=backend)
    check(snapshots, MEMBERS, CONFIG)
    stacked = snapshots.at(CONFIG.steps)["blocks.0.mlp.W_out"]
    assert stacked.shape == (4, 9, 2)
    assert bool((stacked[0, 4:] == 0).all())
    assert bool((stacked[1] != 0).all())


def test_a_mixed_run_resumes_with_the_same_bits(tmp_path):
    interrupt(tmp_path / "two", CONFIG, 6, members=MEMBERS)
    for out in ("two", "whole"):
        train_ensemble(MEMBERS, CONFIG, tmp_path / out, backend="vmap")
    assert_identical(tmp_path / "two", tmp_path / "whole")


def test_a_batch_of_all_sequences_beside_one_of_some(tmp_path):
    members, config = [member(0, 4), member(1, 4, 35)], replace(CONFIG, steps=3, batch_size=TASK.n_train)
    check(train_ensemble(members, config, tmp_path), members, config)
    with pytest.raises(InputError, match="holds a run with ensemble members"):
        train_ensemble([members[0], replace(members[1], batch_size=10)], config, tmp_path)


def test_transformers_of_different_widths(tmp_path):
    suite = SkillSuite()
    shape = {"n_layers": 1, "d_model": 8, "n_heads": 2, "init_std": 0.3}
    config = TrainConfig(steps=4, batch_size=8, lr=0.1, optimizer="sgd")  # Adam would magnify the rounding of b_K
    members = [
        Member(model_for(suite, seed=0, d_mlp=12, **shape), suite),
        Member(model_for(suite, seed=1, **shape), suite, batch_size=2),
    ]
    assert all(isinstance(one.model, ModelConfig) for one in members)
    check(train_ensemble(members, config, tmp_path, backend="vmap"), members, config)


def test_what_is_refused(tmp_path):
    with pytest.raises(
        InputError, match=r"member 1 has a batch_size of 5; expected a divisor of the ensemble's \(16\)"
    ):
        train_ensemble([member(0, 4), member(1, 4, 5)], CONFIG, tmp_path)
    with pytest.raises(InputError, match="batch_size is 0; expected at least 1"):
        member(0, 4, 0)
    with pytest.raises(InputError, match=r"batch_size is 2\.5; expected an integer of at least 1"):
        member(0, 4, 2.5)
    suite = SkillSuite()
    members = [Member(model_for(suite, n_layers=1, d_model=8, n_heads=2, d_mlp=n), suite) for n in (8, 16)]
    settings = TrainConfig(steps=2, batch_size=4)
    with pytest.raises(
        InputError, match=r"member 1 has a d_mlp of 16, member 0 of 8; expected one width with low_rank"
    ):
        train_ensemble(members, settings, tmp_path, low_rank=LowRank(rank=1))
