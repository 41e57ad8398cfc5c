"""Topics as a file: the same bits come back, and what does not belong is refused in one sentence."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from mechclust.commands.topics import topic_file
from mechclust.commands.topics.topic_file import (
    FittedTopics,
    check_fits,
    load_topics,
    models_of_seeds,
    save_topics,
    with_seed,
)
from probes.store.files import DamagedError
from probes.store.safetensors_files import write_safetensors
from tasks import TopicModel
from tasks.text.topic_model import fit_topics_to_counts
from tests.mechclust.commands.refusals import refusal

WORDS = ["bär", "cat", "don't", "été"]
WAY = "fit the topics anew (leave out --topic-model)"


@pytest.fixture(scope="module")
def counts() -> csr_matrix:
    draw = np.random.default_rng(0)
    return csr_matrix(draw.integers(0, 3, (30, 4)).astype(np.int32))


@pytest.fixture(scope="module")
def fitted(counts) -> FittedTopics:
    fitted = FittedTopics([], [], {"n_topics": 2, "passes": 1, "weights": "counts"}, "abc")
    for seed in (4, 1):
        fitted = with_seed(fitted, seed, fit_topics_to_counts(WORDS, counts, 2, 1, seed))
    return fitted


def test_the_same_bits_come_back(fitted, tmp_path):
    path = tmp_path / "t.safetensors"
    save_topics(path, replace(fitted, undercount=3))
    loaded = load_topics(path)
    assert loaded.words == WORDS
    assert loaded.undercount == 3
    assert loaded.seeds == [1, 4]
    for one, other in zip(loaded.models, fitted.models, strict=True):
        assert torch.equal(one.weights, other.weights)
        assert torch.equal(one.shares, other.shares)
    assert not torch.equal(loaded.models[0].weights, loaded.models[1].weights)
    assert loaded.settings == {"n_topics": 2, "passes": 1, "weights": "counts"}
    assert loaded.corpus == "abc"
    assert check_fits(path, loaded, n_topics=2, weights="counts", seed=7) is None
    first = path.read_bytes()
    save_topics(path, loaded)
    assert path.read_bytes() == first


def test_topics_without_shares(tmp_path):
    save_topics(tmp_path / "t", FittedTopics([TopicModel(["a", "b"], torch.eye(2))], [0]))
    assert load_topics(tmp_path / "t").models[0].shares is None


def test_another_tokenizer_is_refused(fitted, tmp_path):
    path = tmp_path / "t"
    save_topics(path, replace(fitted, tokenizer="gensim"))
    assert refusal(load_topics, path) == (
        f"the words of '{path}' were told apart by another tokenizer (gensim; ours is mechclust-words-2); {WAY}"
    )
    save_topics(path, FittedTopics([TopicModel(["cat", "##s", "Dog"], torch.ones(2, 3) / 3)], [0]))
    assert refusal(load_topics, path) == (
        f"the words of '{path}' were told apart by another tokenizer ('##s' is not one word in lower case); {WAY}"
    )


def test_other_settings_are_refused(fitted):
    assert check_fits("t", fitted) is None
    assert refusal(check_fits, "t", fitted, n_topics=100) == (
        "the topics of 't' were fitted with n_topics 2, and 100 is asked for; give the file's own, or "
        f"{WAY}, or give a file made from this corpus with the same settings"
    )


def test_files_that_are_no_topics(fitted, tmp_path):
    path = tmp_path / "t"
    assert refusal(load_topics, path).startswith(f"no file '{path}'")
    write_safetensors(path, {"x": torch.zeros(1)}, {"format": "mechclust-result-1"})
    assert refusal(load_topics, path) == (
        f"'{path}' is not a file of topics (its format is mechclust-result-1); expected mechclust-topics-1, as "
        "mechclust topics writes it"
    )
    save_topics(path, fitted)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedError):
        load_topics(path)


def test_the_file_says_what_made_it(fitted, tmp_path):
    from safetensors import safe_open

    save_topics(tmp_path / "t", fitted)
    with safe_open(tmp_path / "t", framework="pt") as file:
        header = file.metadata()
    assert json.loads(header["settings"]) == dict(fitted.settings)
    assert header["tokenizer"] == topic_file.TOKENIZER
    assert "scikit-learn" in json.loads(header["versions"])


def test_a_subset_has_the_models_of_its_seeds(fitted):
    other = fitted.seeds[1]
    part = models_of_seeds(fitted, [other])
    assert (list(part.seeds), part.settings, part.corpus) == ([other], fitted.settings, fitted.corpus)
    assert part.models[0] is fitted.models[1]
