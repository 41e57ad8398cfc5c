"""What is known before work starts: settings for other processes, and room on the disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mechclust.commands.mossa.estimate import Plan
from mechclust.commands.mossa.inputs import read_inputs
from mechclust.commands.mossa.models import models_of
from mechclust.report.folder import kept_bytes
from tasks import InputError
from tests.mechclust.commands.mossa import tiny


def test_jobs_find_every_path_from_any_folder(base, tasks, tmp_path, monkeypatch):
    for name in ("tuned", "without", "copy", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "clusters.toml").write_text(tiny.CLUSTERS)
    (tmp_path / "tasks").symlink_to(tasks)
    monkeypatch.chdir(tmp_path)
    config = tiny.settings(
        Path("tasks"),
        clusters=Path("clusters.toml"),
        experimental="tuned",
        without_held_out="without",
        controls=("copy", "swap=other", "count=hub/name"),
    )
    assert config.portable == config  # in this process nothing is anywhere else
    there = replace(config, workers=2).portable
    assert (there.tasks, there.clusters) == (tmp_path / "tasks", tmp_path / "clusters.toml")
    assert (there.experimental, there.without_held_out) == (str(tmp_path / "tuned"), str(tmp_path / "without"))
    assert there.controls == (f"copy={tmp_path / 'copy'}", f"swap={tmp_path / 'other'}", "count=hub/name")
    models = models_of(config.read(), config, {"copy": "copy", "count": "hub/name"})
    assert [model.source for model in models] == [
        "", str(tmp_path / "tuned"), str(tmp_path / "without"), str(tmp_path / "copy"), "hub/name",
    ]  # fmt: skip


class TestRoom:
    def test_what_is_kept_takes_no_more(self, result, base, tasks, out, tmp_path):
        """A finished run needs the report alone; a run that was begun, what it lacks."""
        config = tiny.settings(tasks, svcca=True, keep_rows=True)
        plan = Plan.of(read_inputs(str(base), config), config)
        assert plan.lacking(tmp_path) == plan.disk
        report = plan.disk - plan.rows - len(plan.steps) * plan.adapter
        assert plan.lacking(out) == report + max(0, plan.rows - kept_bytes(out / "rows"))
        begun = replace(plan, steps={**plan.steps, "control-more": 3})
        assert begun.lacking(out) == plan.lacking(out) + plan.adapter

    def test_too_little_is_refused(self, result, base, tasks, out, tmp_path, monkeypatch):
        config = tiny.settings(tasks, svcca=True, keep_rows=True)
        plan = replace(Plan.of(read_inputs(str(base), config), config), rows=2**30)
        monkeypatch.setattr("mechclust.commands.mossa.estimate.free_space", lambda _: 2**20)
        with pytest.raises(InputError) as caught:
            plan.check(config, tmp_path)
        assert str(caught.value).startswith("the run takes up to 1.06 GiB on disk, but ")
        with pytest.raises(InputError) as caught:
            plan.check(config, out)
        assert " on disk beside what it has kept, but " in str(caught.value)
        assert str(caught.value).endswith(
            "has 1 MiB free; give fewer prompts (--n-prompts), or another folder with --out"
        )
