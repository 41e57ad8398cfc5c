"""Topics on several processes and on a Ray cluster: what this process finds, but for the rounding of sums."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch

from mechclust.commands.topics import TopicsConfig, measure_topics
from mechclust.models import load_pretrained
from probes import load_result
from tasks import InputError
from tests.mechclust.commands.test_topics import plant, write_planted_corpus


@pytest.fixture(scope="module")
def bert(write_checkpoint, tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("bert"), "bert", change=plant)


@pytest.fixture(scope="module")
def here(bert, tmp_path_factory):
    """In this process: settings and result; read only."""
    folder = tmp_path_factory.mktemp("here")
    config = TopicsConfig(
        (write_planted_corpus(folder / "corpus"),), n_topics=3, passes=2, split="file", min_documents=2, max_share=1.0,
        stop_words="none", thresholds=(0.05, 0.2), max_length=16, n_permutations=19, tokens_per_batch=256,
    )  # fmt: skip
    return config, measure_topics(str(bert), config)


def assert_same(here, out, result):
    """Integers to the bit, sums of attention and of states to rounding."""
    found, wanted = result.results, here[1].results
    assert list(found) == [name for name in wanted if result.untrained or name.startswith("trained/")]
    for name, expected in ((name, wanted[name]) for name in found):
        for key, x in expected.values.items():
            if x.is_floating_point():
                torch.testing.assert_close(found[name].values[key], x, rtol=1e-9, atol=1e-12, equal_nan=True)
            else:
                assert torch.equal(found[name].values[key], x)
        for key in ("examples", "model", "tokenization"):
            assert found[name].metadata.get(key) == expected.metadata.get(key)
        kept = load_result(out / "results" / f"{name}.safetensors")
        assert kept.metadata["tokenization"] == expected.metadata["tokenization"]
    assert result.caveats == here[1].caveats


@pytest.fixture(scope="module")
def by_two(bert, here, tmp_path_factory, fork_server):
    """In two processes, without an untrained model: folder and result."""
    out = tmp_path_factory.mktemp("by_two")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mechclust.jobs.local._CONTEXT", fork_server)
        return out, measure_topics(str(bert), replace(here[0], workers=2, untrained=0), out)


@pytest.mark.slow
def test_two_processes(here, by_two):
    assert_same(here, *by_two)


def test_a_cluster_goes_on_with_an_untrained_model(bert, here, by_two, tmp_path, nodes):
    shutil.copytree(by_two[0], tmp_path, dirs_exist_ok=True)
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "shards").rglob("shard-*")}
    assert len(kept) == 2
    config = replace(here[0], engine="ray", address=nodes.address, workers=1)
    result = measure_topics(str(bert), config, tmp_path)
    assert_same(here, tmp_path, result)
    assert any(name.startswith("untrained-seed0/") for name in result.results)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert len([*(tmp_path / "shards").rglob("shard-*")]) == 4
    result.write(tmp_path)
    assert not (tmp_path / "shards").exists()


def test_a_model_in_memory_is_for_this_process_only(bert, here, tmp_path):
    with pytest.raises(InputError, match=r"cannot be loaded by other processes \(workers=2\); give its name or folder"):
        measure_topics(load_pretrained(bert), replace(here[0], workers=2), tmp_path / "out")
    assert not (tmp_path / "out").exists()
