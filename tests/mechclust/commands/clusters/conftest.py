"""Quick settings on prompts whose last word tells the task, and what was measured with them."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from mechclust.commands.clusters import ClustersConfig, measure_clusters
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
    """``gpt2`` measured with these settings: result, folder; read only."""
    folder = tmp_path_factory.mktemp("measured")
    prompts = write_prompts(folder / "prompts.jsonl", last_word_tells_the_task())
    return measure_clusters(str(gpt2), quick(prompts), folder / "out"), folder / "out"


@pytest.fixture(scope="session")
def alone(gpt2, tmp_path_factory):
    """The same of the trained model alone; read only."""
    folder = tmp_path_factory.mktemp("alone")
    prompts = write_prompts(folder / "prompts.jsonl", last_word_tells_the_task())
    return measure_clusters(str(gpt2), quick(prompts, untrained=0), folder / "out"), folder / "out"


@pytest.fixture
def begun(alone, tmp_path):
    """A copy of that folder, in which all is measured."""
    return shutil.copytree(alone[1], tmp_path / "out")
