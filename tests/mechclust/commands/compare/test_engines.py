"""Comparisons on several processes and on a Ray cluster: what is found is what this process finds."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch

from mechclust.commands import saved_rows
from mechclust.commands.compare import compare_models
from mechclust.jobs import map_jobs
from mechclust.models import load_pretrained
from probes import RowStore, load_result
from tasks import InputError
from tests.mechclust.commands.refusals import refusal


@pytest.fixture(scope="module")
def here(measured):
    """In this process: settings, folder, result; read only."""
    return measured.config, measured.config.prompts.parent / "out", measured


def assert_same(here, out, result):
    """To the bit: rows, and what is computed from them in parts that do not depend on the workers."""
    _, known, expected = here
    for model in ("base", "tuned", "blocks-base", "blocks-tuned"):
        one, other = (RowStore(folder / "rows" / model) for folder in (known, out))
        names = [*(f"rows/{site}" for site in one.sites), "labels/task"]
        two = [store.take(one.index, names) for store in (one, other)]
        assert all(torch.equal(two[0][name], two[1][name]) for name in names)
    found, wanted = result.results, expected.results
    assert list(found) == list(wanted)
    for name, other in wanted.items():
        values = found[name].values
        assert all(torch.equal(x.nan_to_num(9), values[key].nan_to_num(9)) for key, x in other.values.items())
        assert found[name].metadata == other.metadata
        assert load_result(out / "results" / f"{name}.safetensors").metadata == other.metadata
    assert result.to_dataframe().equals(expected.to_dataframe())
    assert result.sentences == expected.sentences
    assert all((result.planes.xy[name] == xy).all() for name, xy in expected.planes.xy.items())


@pytest.mark.slow
def test_two_processes(gpt2, shaken, here, tmp_path, forked):
    config = replace(here[0], workers=2)
    assert_same(here, tmp_path, compare_models(str(gpt2), str(shaken), config, tmp_path))


def test_a_cluster(gpt2, shaken, here, tmp_path, nodes):
    config = replace(here[0], engine="ray", address=nodes.address, workers=1)
    assert_same(here, tmp_path, compare_models(str(gpt2), str(shaken), config, tmp_path))


def test_a_model_in_memory_is_for_this_process_only(gpt2, shaken, here, tmp_path):
    with pytest.raises(InputError, match=r"cannot be loaded by other processes \(workers=2\); give its name or folder"):
        compare_models(str(gpt2), load_pretrained(shaken), replace(here[0], workers=2), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_another_model_is_named_by_the_job(gpt2, here, tmp_path, monkeypatch):
    monkeypatch.setattr(  # the jobs in this process, for speed
        saved_rows, "map_jobs", lambda fn, jobs, **on: map_jobs(fn, jobs, **{**on, "workers": 1})
    )
    shutil.copytree(here[1], tmp_path, dirs_exist_ok=True)
    assert refusal(compare_models, str(gpt2), str(gpt2), replace(here[0], workers=2), tmp_path) == (
        f"job 'tuned': tuned {str(gpt2)!r}: {str(tmp_path / 'rows' / 'tuned')!r} holds rows of another model or "
        "dtype; give another folder with --out, or delete this one"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"engine": "slurm"}, "engine is 'slurm'; expected 'local' or 'ray'"),
        ({"workers": 0}, "workers is 0; expected at least 1"),
        ({"workers": 2, "job_timeout": 0.0}, "job_timeout is 0.0; expected above 0"),
        ({"address": "auto"}, "--address is for a Ray cluster; add --engine ray, or leave it out"),
        ({"gpus_per_job": 1.0}, "--gpus-per-job is for a Ray cluster; add --engine ray, or leave it out"),
        (
            {"job_timeout": 9.0},
            "--job-timeout ends worker processes, and there are none; add --workers 2 or --engine ray, or leave it out",
        ),
    ],
)
def test_options_that_do_not_go_together(measured, changes, said):
    assert refusal(replace(measured.config, **changes).check) == said


def test_a_device_of_the_cluster_need_not_be_here(measured):
    settings = replace(measured.config, engine="ray", gpus_per_job=1, device="cuda:77", tuned_device="cuda:78")
    settings.check()
    with pytest.raises(InputError):
        replace(settings, engine="local", gpus_per_job=0).check()
