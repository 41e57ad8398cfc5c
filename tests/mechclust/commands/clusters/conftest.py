"""Quick settings on prompts whose last word tells the task."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mechclust.commands.clusters import ClustersConfig
from tests.mechclust.commands.clusters.cases import last_word_tells_the_task, write_prompts


@pytest.fixture
def prompts(tmp_path):
    return write_prompts(tmp_path / "prompts.jsonl", last_word_tells_the_task())


@pytest.fixture
def config(prompts):
    """Quick settings. Two untrained models are enough for their mean and range."""
    few = {"n_init": 2, "n_permutations": 49, "n_resamples": 20, "n_shuffles": 19, "untrained": 2}
    return ClustersConfig(prompts, **few, tokens_per_batch=64)


@pytest.fixture
def trained(config):
    """The same, of the trained model alone."""
    return replace(config, untrained=0)
