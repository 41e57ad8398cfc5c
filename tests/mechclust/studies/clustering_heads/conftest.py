"""One small run of the clustering-head study for all its tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from mechclust.report import Analysis
from mechclust.studies import get_study, run_study
from tests.mechclust.studies.clustering_heads.made_runs import SMALL


@pytest.fixture(scope="session")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> tuple[Analysis, Path]:
    """A run smaller than the smoke preset, from beginning to end: analysis, folder. Read only."""
    out = tmp_path_factory.mktemp("heads") / "run"
    return run_study(get_study("clustering-heads"), SMALL, out, workers=1), out
