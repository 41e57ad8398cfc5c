"""A series of checkpoints that need no training: the weights of a tiny GPT-2 on a random walk."""

from __future__ import annotations

import shutil

import pytest
from safetensors.torch import load_file, save_file

from mechclust import HistoryConfig, measure_history
from tests.mechclust.commands.history.walk import STEPS, loads, walked_weights


@pytest.fixture(scope="session")
def walk(gpt2):
    """Weights of ``checkpoint-10`` to ``checkpoint-50``."""
    return walked_weights(load_file(gpt2 / "model.safetensors"), len(STEPS))


@pytest.fixture(scope="session")
def write_step(gpt2):
    """``write_step(folder, weights)`` writes a checkpoint with GPT-2's configuration and tokenizer."""

    def write(folder, weights):
        shutil.copytree(gpt2, folder)
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        return folder

    return write


@pytest.fixture(scope="session")
def series(walk, write_step, tmp_path_factory):
    """The folder with ``checkpoint-10`` to ``checkpoint-50``; read only."""
    folder = tmp_path_factory.mktemp("walk") / "run"
    for step, weights in zip(STEPS, walk, strict=True):
        write_step(folder / f"checkpoint-{step}", weights)
    return folder


@pytest.fixture(scope="session")
def quick(history_prompts):
    """Settings under which little is computed."""
    return HistoryConfig(
        history_prompts,
        n_init=1,
        n_permutations=19,
        n_resamples=0,
        cka_permutations=0,
        map_layers=(2,),
        map_prompts=12,
    )


@pytest.fixture(scope="session")
def walked(series, quick, tmp_path_factory):
    """The series measured without interruption: result, folder, and the loads; read only."""
    out = tmp_path_factory.mktemp("walked") / "out"
    with loads() as found:
        result = measure_history(series, quick, out)
    return result, out, found
