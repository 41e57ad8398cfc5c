"""A tiny base, tiny tasks, and a run of them; read only."""

from __future__ import annotations

import pytest

from tests.mechclust.commands.mossa import tiny


@pytest.fixture
def few_draws(monkeypatch):
    """Intervals of findings from few draws of tasks, for tests that are not about their width."""
    monkeypatch.setattr("mechclust.mossa.curve_findings.RESAMPLES", 40)


@pytest.fixture
def unpictured(monkeypatch):
    """Hidden states are shown in their first two dimensions, for tests of anything else: t-SNE takes a third of a
    small run."""
    monkeypatch.setattr("probes.projection.project_2d", lambda rows, seed: rows[:, :2])


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    return tiny.write_base(tmp_path_factory.mktemp("mossa") / "base")


@pytest.fixture(scope="session")
def tasks(tmp_path_factory):
    return tiny.write_tasks(tmp_path_factory.mktemp("mossa") / "tasks")


@pytest.fixture(scope="session")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("mossa") / "out"


@pytest.fixture(scope="session")
def result(base, tasks, out):
    return tiny.run(base, tasks, out, svcca=True, keep_rows=True)
