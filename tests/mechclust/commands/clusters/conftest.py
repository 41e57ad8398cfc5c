"""Quick settings on prompts whose last word tells the task, and what was measured with them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace

import pytest

from mechclust.commands.clusters import ClustersConfig, measure_clusters
from probes import RowStore
from tests.mechclust.commands.clusters.cases import last_word_tells_the_task, write_prompts


@pytest.fixture
def prompts(tmp_path):
    return write_prompts(tmp_path / "prompts.jsonl", last_word_tells_the_task())


def quick(prompts, **changes):
    few = {"n_init": 2, "n_permutations": 49, "n_resamples": 20, "n_shuffles": 19, "untrained": 2}
    return ClustersConfig(prompts, **{**few, "tokens_per_batch": 64, **changes})


@pytest.fixture
def config(prompts):
    """Quick settings. Two untrained models are enough for their mean and range."""
    return quick(prompts)


@pytest.fixture
def trained(config):
    """The same, of the trained model alone."""
    return replace(config, untrained=0)


@pytest.fixture(scope="session")
def measured(gpt2, tmp_path_factory):
    """``gpt2`` measured with these settings, by two labels, also given the first word: result, folder; read only."""
    folder = tmp_path_factory.mktemp("measured")
    config = quick(write_prompts(folder / "prompts.jsonl", last_word_tells_the_task()))
    config = replace(config, also=("first",), given="first word")
    return measure_clusters(str(gpt2), config, folder / "out"), folder / "out"


@pytest.fixture(scope="session")
def alone(gpt2, tmp_path_factory):
    """The task of the trained model alone; read only."""
    folder = tmp_path_factory.mktemp("alone")
    prompts = write_prompts(folder / "prompts.jsonl", last_word_tells_the_task())
    return measure_clusters(str(gpt2), quick(prompts, untrained=0), folder / "out"), folder / "out"


@pytest.fixture
def states(monkeypatch, tmp_path):
    """``states(model, config)``: the hidden states that would be measured, and nothing is."""

    def saved(model, config, **options):
        out = Path(mkdtemp(dir=tmp_path))
        with monkeypatch.context() as patch:
            patch.setattr("mechclust.commands.clusters.measure._measure", lambda *_, **__: SimpleNamespace(results={}))
            measure_clusters(model, config, out, **options)
        return RowStore(out / "rows" / "trained")

    return saved


@pytest.fixture
def begun(alone, tmp_path):
    """A copy of that folder, in which all is measured."""
    return shutil.copytree(alone[1], tmp_path / "out")
