"""A tiny base, tiny tasks, and a run of them; read only."""

from __future__ import annotations

import pytest

from tests.mechclust.commands.mossa import tiny


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
