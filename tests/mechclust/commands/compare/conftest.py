"""A base and a tuned model, and what was found of them; read only."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mechclust.commands.compare import CompareConfig, compare_models
from mechclust.models import load_pretrained
from probes import run
from tasks import LabelledPrompts
from tests.mechclust.commands.compare.cases import records, shake, write_prompts


@pytest.fixture
def prompts(tmp_path):
    return write_prompts(tmp_path / "prompts.jsonl", records())


@pytest.fixture
def config(prompts):
    return CompareConfig(prompts, min_per_task=8, n_resamples=20, n_permutations=0, tokens_per_batch=24)


@pytest.fixture
def apart(config):
    """The same, without blocks and patching, for which both models are loaded once more: they take half of a run."""
    return replace(config, blocks=False, n_patched=0)


@pytest.fixture
def plain(config):
    """The same, without the second opinion and the map."""
    return replace(config, top_pc=False, map_prompts=0)


@pytest.fixture
def least(plain):
    """Hidden states alone: neither blocks nor patching, second opinion or map."""
    return replace(plain, blocks=False, n_patched=0)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture(scope="session")
def shaken(write_checkpoint, tmp_path_factory):
    """The ``gpt2`` checkpoint with another second block; read only."""
    return write_checkpoint(tmp_path_factory.mktemp("shaken"), change=shake)


@pytest.fixture(scope="session")
def measured(gpt2, shaken, tmp_path_factory):
    """The two compared, with everything; read only."""
    folder = tmp_path_factory.mktemp("measured")
    path = write_prompts(folder / "prompts.jsonl", records())
    config = CompareConfig(path, min_per_task=8, n_resamples=20, n_permutations=9, tokens_per_batch=24)
    return compare_models(str(gpt2), str(shaken), config, folder / "out")


@pytest.fixture(scope="session")
def together(gpt2, shaken, measured):
    """What a probe finds in both models at once."""
    models = {"tuned": load_pretrained(shaken), "base": load_pretrained(gpt2)}
    tokenizer, texts = models["base"].tokenizer, LabelledPrompts.from_file(measured.config.prompts)
    return lambda probe: run(models, texts.batches(lambda text: tokenizer(text)["input_ids"]), probe)
