"""One smoke run of the clustering-head study for all its tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from mechclust.report import Analysis
from mechclust.studies import get_study, run_study


@pytest.fixture(scope="session")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> tuple[Analysis, Path]:
    """The smoke preset from beginning to end: analysis, folder. Read only."""
    study, out = get_study("clustering-heads"), tmp_path_factory.mktemp("heads") / "run"
    return run_study(study, study.preset("smoke"), out, workers=1), out
