"""Clusters on several processes and on a Ray cluster: what is found is what this process finds."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch

from mechclust.commands.clusters import ClustersConfig, measure_clusters
from mechclust.models import load_pretrained
from probes import RowStore
from tests.mechclust.commands.clusters.cases import last_word_tells_the_task, write_prompts
from tests.mechclust.commands.refusals import refusal

MODELS = ("trained", "untrained-seed0")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    prompts = write_prompts(tmp_path_factory.mktemp("prompts") / "prompts.jsonl", last_word_tells_the_task())
    return ClustersConfig(prompts, n_init=2, n_permutations=49, n_shuffles=19, tokens_per_batch=24, given="first word")


@pytest.fixture(scope="module")
def here(gpt2, config, tmp_path_factory):
    """In this process: settings, folder, result; read only."""
    out = tmp_path_factory.mktemp("here") / "out"
    return config, out, measure_clusters(str(gpt2), config, out)


def assert_same(here, out, result):
    """Rows and integers to the bit, and so the statistics, which are computed from the same rows in the same way."""
    _, known, expected = here
    for model in MODELS[: 1 + result.config.untrained]:
        one, other = (RowStore(folder / "rows" / model) for folder in (known, out))
        assert one.model == other.model
        names = [f"rows/{site}" for site in one.sites]
        two = [store.take(one.index, names) for store in (one, other)]
        assert all(torch.equal(two[0][name], two[1][name]) for name in names)
    models = (result.trained, *result.untrained)
    for curves, others in zip((expected.trained, *expected.untrained)[: len(models)], models, strict=True):
        for name, found in curves.by_name.items():
            other = others.by_name[name]
            assert all(torch.equal(x.nan_to_num(9), other[key].nan_to_num(9)) for key, x in found.values.items())
            assert other.metadata == found.metadata
    if result.untrained:
        assert result.to_dataframe().equals(expected.to_dataframe())
        assert result.sentences == expected.sentences
    assert (result.shown.clusters == expected.shown.clusters).all()


@pytest.fixture(scope="module")
def by_two(gpt2, here, tmp_path_factory, fork_server):
    """In two processes, without an untrained model: folder and result."""
    out = tmp_path_factory.mktemp("by_two")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mechclust.jobs.local._CONTEXT", fork_server)
        return out, measure_clusters(str(gpt2), replace(here[0], workers=2, untrained=0), out)


@pytest.mark.slow
def test_two_processes(here, by_two):
    assert_same(here, *by_two)


def test_a_cluster_goes_on_with_an_untrained_model(gpt2, here, by_two, tmp_path, nodes, monkeypatch):
    shutil.copytree(by_two[0], tmp_path, dirs_exist_ok=True)
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "rows/trained").rglob("*.safetensors")}
    assert any(path.parent.name == "measured" for path in kept)
    monkeypatch.chdir(gpt2.parent)  # the nodes have another folder
    config = replace(here[0], engine="ray", address=nodes.address, workers=1)
    assert_same(here, tmp_path, measure_clusters(gpt2.name, config, tmp_path))
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


def test_a_model_in_memory_is_for_this_process_only(gpt2, config, tmp_path):
    for changes, asked in (({"workers": 2}, "workers=2"), ({"engine": "ray"}, "engine='ray'")):
        assert refusal(measure_clusters, load_pretrained(gpt2), replace(config, **changes), tmp_path / "out") == (
            f"a model in memory cannot be loaded by other processes ({asked}); give its name or folder, or leave out "
            "engine and workers"
        )
    assert not (tmp_path / "out").exists()


def test_memory_counts_for_all_workers_of_this_machine(gpt2, config, tmp_path, states):
    config = replace(config, max_memory=0.2)
    assert states(str(gpt2), replace(config, untrained=0, given="none"))
    said = refusal(measure_clusters, str(gpt2), replace(config, workers=2), tmp_path / "out")
    assert said.startswith("measuring 2 layers at once takes about 0.25")
    assert said.endswith("give fewer --workers or prompts (--max-rows), or raise --max-memory")
