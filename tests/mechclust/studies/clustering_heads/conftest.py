"""One small run of the clustering-head study, and two trained networks, for all its tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from mechclust.report import Analysis
from mechclust.studies import get_study, run_study
from mechclust.studies.clustering_heads.config import PoolingTransformerConfig
from mechclust.training import Member, Snapshots, TrainConfig, train_ensemble
from tasks import SparseModularAddition
from tests.mechclust.studies.clustering_heads.made_runs import SMALL


@pytest.fixture(scope="session")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> tuple[Analysis, Path]:
    """A run smaller than the smoke preset, from beginning to end: analysis, folder. Read only."""
    out = tmp_path_factory.mktemp("heads") / "run"
    return run_study(get_study("clustering-heads"), SMALL, out, workers=1), out


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Snapshots:
    """Two networks trained for a few epochs. Read only."""
    members = [
        Member(
            PoolingTransformerConfig(n_ctx=6, d_mlp=8, seed=s),
            SparseModularAddition(length=6, n_support=3, n_train=64, n_test=48, seed=s),
        )
        for s in (0, 1)
    ]
    settings = {"schedule": "constant", "optimizer": "adam", "weight_decay": 0.0, "clip": None, "lr": 0.02}
    return train_ensemble(
        members, TrainConfig(steps=80, batch_size=16, **settings), tmp_path_factory.mktemp("t"), backend="vmap"
    )
