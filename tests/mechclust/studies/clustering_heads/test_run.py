"""What the clustering-head study's jobs keep: one goes on from where another ended."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mechclust.studies import get_study
from mechclust.studies.clustering_heads import curriculum, run
from mechclust.studies.clustering_heads.ablations import Ablations
from mechclust.studies.clustering_heads.config import Curriculum, jobs
from mechclust.training import Snapshots, accuracy
from probes import load_result

SMOKE = get_study("clustering-heads").preset("smoke")


def test_transfer_starts_from_the_solved_networks(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "SOLVED", -1.0)  # every network has solved it
    config = replace(SMOKE, epochs=2, curriculum=Curriculum(seeds=()), ablations=Ablations(seeds=()))
    job = jobs(config)[0]
    run.run_job(config, job, tmp_path)
    base = Snapshots(tmp_path / "models" / "base-seeds-200-201")
    there = Snapshots(tmp_path / "models" / "transfer-from-base-seeds-200-201")
    assert [task.p for task in there.tasks] == [3, 3]
    assert [config.seed for config in there.configs] == [200, 201]
    start, end = there.at(0), base.at(base.steps[-1])
    for name, values in end.items():
        assert torch.equal(start[name], values)
    final = load_result(next((tmp_path / "results" / "final").glob("transfer*.safetensors")))
    assert final.coords["network"] == ["transfer|200", "transfer|201"]


def test_a_base_job_is_done_when_its_transfer_is(tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    config = replace(SMOKE, seeds=(200,), epochs=2)
    monkeypatch.setattr(run, "_transfer", killed)
    with pytest.raises(KeyboardInterrupt):
        run.run_job(config, jobs(config)[0], tmp_path)
    assert not list((tmp_path / "results" / "final").glob("*"))


@pytest.mark.parametrize("arm", ["base", "curriculum"])
def test_networks_train_on_the_device_of_the_settings(arm, tmp_path, monkeypatch):
    asked = []

    def stopped(*_, device, **__):
        asked.append(device)
        raise KeyboardInterrupt

    for module in (run, curriculum):
        monkeypatch.setattr(module, "train_ensemble", stopped)
    (job, *_) = [job for job in jobs(SMOKE) if job.arms == (arm,)]
    with pytest.raises(KeyboardInterrupt):
        run.run_job(replace(SMOKE, device="cuda:0"), job, tmp_path)
    assert asked == ["cuda:0"]


def test_the_curriculum_goes_on_from_p_2(smoke):
    _, out = smoke
    folder = out / "models" / "curriculum-seeds-200-200"
    first, second, scratch = (Snapshots(folder / name) for name in ("p2", "curriculum", "scratch"))
    assert [s.tasks[0].p for s in (first, second, scratch)] == [2, 4, 4]
    assert [s.steps[-1] for s in (first, second, scratch)] == [2, 4, 6]
    for name, values in first.at(2).items():
        assert torch.equal(second.at(0)[name], values)
    result = load_result(out / "results" / "curriculum" / "seed200.safetensors")
    task = second.tasks[0]
    for place, snapshots in ((0, scratch), (-1, second)):
        (batch,) = task.batches("train", 100)
        loss = float(task.loss(snapshots.model(0)(batch.tokens), batch).detach())
        assert float(result["line"][place]) == pytest.approx(loss, rel=1e-5)
    for arm, snapshots in (("scratch", scratch), ("curriculum", second)):
        expected = accuracy(snapshots.model(0), task, "test")[0]
        assert float(result.sel("accuracy", arm=arm, split="test")) == pytest.approx(expected)
    assert np.isfinite(result["line"].numpy()).all()
    for arm, snapshots in (("scratch", scratch), ("curriculum", second)):  # from halfway to the end
        (batch,), own = task.batches("train", 100), result.sel("own_line", arm=arm)
        for place, step in ((0, snapshots.steps[1]), (-1, snapshots.steps[-1])):
            loss = float(task.loss(snapshots.model(0, step)(batch.tokens), batch).detach())
            assert float(own[place]) == pytest.approx(loss, rel=1e-5)
