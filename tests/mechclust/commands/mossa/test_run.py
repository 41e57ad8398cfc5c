"""``run_mossa`` on a tiny Llama: what is trained, what is measured, and that nothing is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mechclust.commands.mossa.models import Model
from mechclust.models.adapters import with_adapter
from mechclust.training.tuning.adapter import digest_of_weights
from probes.functional import linear_cka
from tasks import InputError
from tests.faults.bits import bits, other
from tests.mechclust.commands.mossa import tiny

ROOT = Path(__file__).parents[4]


def test_what_is_trained(result, out):
    """The multi-task model, the one without held-out tasks, a control per task, and controls again."""
    names = sorted(path.name for path in (out / "adapters").iterdir())
    assert names == [
        "again-copy",
        "control-copy",
        "control-count",
        "control-first",
        "control-last",
        "control-swap",
        "tuned",
        "without-held-out",
    ]
    steps = {model.name: tuned.steps for model, tuned in result.trained.items()}
    assert steps == {name: {"tuned": 15, "without-held-out": 12}.get(name, 3) for name in names}
    examples = {model.name: tuned.examples for model, tuned in result.trained.items()}
    assert examples["tuned"] == 5 * tiny.TRAIN
    assert examples["without-held-out"] == 4 * tiny.TRAIN
    assert examples["control-last"] == tiny.TRAIN
    configs = [json.loads((out / "adapters" / name / "tuning.json").read_text())["config"] for name in names]
    assert len({config["seed"] for config in configs}) == len(names)  # or all would change the same directions
    assert {config["rank"] for config in configs} == {2}


def test_cka_is_that_of_huggingfaces_hidden_states(result, base, tasks, out):
    """An oracle that shares nothing with the run but the adapters: peft's models beside the weights, one prompt at a
    time."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    lines = [json.loads(line) for line in (tasks / "last_test.jsonl").read_text().splitlines()]

    def states(adapter: str | None) -> list[torch.Tensor]:
        model = transformers.AutoModelForCausalLM.from_pretrained(base).eval()
        model = model if adapter is None else with_adapter(model, out / "adapters" / adapter)
        found = []
        for line in lines:
            ids = tokenizer(line["inputs"] + "\nAnswer:", return_tensors="pt")["input_ids"]
            with torch.no_grad():
                hidden = model(ids, output_hidden_states=True).hidden_states
            found.append(torch.stack([layer[0, -1] for layer in hidden]))
        return list(torch.stack(found, dim=1).double())

    control, place = states("control-last"), result.tasks.index("last")
    for role, adapter in (("base", None), ("tuned", "without-held-out"), ("all-tasks", "tuned")):
        theirs = states(adapter)
        for layer in (1, 2):
            expected = linear_cka(theirs[layer], control[layer], debiased=True)
            assert result.values(role)[place, layer - 1] == pytest.approx(float(expected), abs=1e-5)
        expected = linear_cka(theirs[-1], control[-1], debiased=True)  # Hugging Face's last is after the final norm
        assert result.values(role, final_norm=True)[place] == pytest.approx(float(expected), abs=1e-5)


def test_what_is_measured(result):
    assert result.tasks == ["count", "first", "copy", "swap", "last"]  # cluster by cluster, held-out ones last
    assert list(result.held_out) == [False] * 4 + [True]
    assert len(result.measures) == 5
    assert result.n == tiny.TEST
    assert result.d == 16
    curves = result.curves()
    assert curves.layers == ("1", "2", "3")
    assert np.isfinite(curves.tuned).all()
    assert np.isfinite(curves.ceiling[2]).all()  # of copy
    assert np.isnan(curves.ceiling[[0, 1, 3, 4]]).all()
    assert np.isfinite(curves.null).all()
    assert set(curves.dims) == {"base", "tuned"}
    assert curves.dims["tuned"].shape == (3,)
    assert result.task_purity is not None
    assert np.isfinite(result.task_purity["tuned"][:4]).all()  # of seen tasks
    assert np.isnan(result.task_purity["tuned"][4]).all()
    assert set(curves.covariates)
    assert all(len(v) == 5 for v in curves.covariates.values())
    assert ((result.answers("tuned") >= 0) & (result.answers("tuned") <= 1)).all()
    assert (result.answers("control", "loss") < result.answers("base", "loss")).all()  # something was learnt


@pytest.mark.parametrize("when", ["training", "measuring"])
def test_killed_and_resumed_to_the_same_bits(result, base, tasks, out, tmp_path, when):
    command = [sys.executable, "-m", "tests.mechclust.commands.mossa.tiny", base, tasks, tmp_path / "run"]
    killed = subprocess.run([*command, when], cwd=ROOT, capture_output=True, timeout=300)
    assert killed.returncode == -9, killed.stderr
    left = [path.name for path in (tmp_path / "run" / "adapters").iterdir() if (path / "tuning.json").exists()]
    assert (len(left) == 0) if when == "training" else (len(left) == 8)
    times = {name: (tmp_path / "run" / "adapters" / name / "tuning.json").stat().st_mtime_ns for name in left}
    again = tiny.run(base, tasks, tmp_path / "run", svcca=True, keep_rows=True)
    for name, time in times.items():  # what was trained is not trained again
        assert (tmp_path / "run" / "adapters" / name / "tuning.json").stat().st_mtime_ns == time
    for name in ("tuned", "without-held-out", "control-swap", "again-copy"):
        assert digest_of_weights(tmp_path / "run" / "adapters" / name) == digest_of_weights(out / "adapters" / name)
    assert other(bits(tmp_path / "run" / "results"), bits(out / "results")) == ""
    assert [c.verdict for c in again.claims] == [c.verdict for c in result.claims]


def test_workers_change_no_bit(result, base, tasks, out, tmp_path):
    tiny.run(base, tasks, tmp_path / "run", svcca=True, workers=2)
    assert other(bits(tmp_path / "run" / "results"), bits(out / "results")) == ""
    assert not (tmp_path / "run" / "rows" / "copy").exists()
    assert (out / "rows" / "copy" / "base").exists()


def test_a_loss_that_is_not_finite_ends_one_adapter(base, tasks, tmp_path, monkeypatch):
    """The others go on; the task is left out, and said."""
    from mechclust.training.tuning.trainer import AnswerTrainer

    whole = AnswerTrainer.training_step

    def poisoned(self, model, inputs, *args, **options):
        if "control-swap" in self._name and self.state.global_step == 1:
            with torch.no_grad():
                for weight in model.parameters():
                    if weight.requires_grad:
                        weight.fill_(torch.nan)
        return whole(self, model, inputs, *args, **options)

    monkeypatch.setattr(AnswerTrainer, "training_step", poisoned)
    found = tiny.run(base, tasks, tmp_path / "run")
    assert found.tasks == ["count", "first", "copy", "last"]
    said = "the loss of control-swap is nan at step 2; lower --tuning.lr, or look for damaged examples"
    assert found.failed == {Model("control", "swap"): said}
    assert f"control-swap: {said}" in found.notes


def test_models_that_were_trained_elsewhere(result, base, tasks, out, tmp_path):
    """Adapters given by name measure the same."""
    given = {name: str(out / "adapters" / f"control-{name}") for name in tiny.TASKS}
    found = tiny.run(
        base,
        tasks,
        tmp_path / "run",
        experimental=str(out / "adapters" / "tuned"),
        without_held_out=str(out / "adapters" / "without-held-out"),
        controls=tuple(f"{name}={path}" for name, path in given.items()),
    )
    for role in ("base", "tuned", "all-tasks"):
        np.testing.assert_array_equal(found.values(role), result.values(role))
    assert not found.trained
    assert not (tmp_path / "run" / "adapters").exists()


class TestRefusals:
    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            ({"controls": ("copy=x",)}, "--controls are given without --experimental; give the multi-task model too"),
            (
                {"experimental": "x"},
                "--experimental is given without --controls; give a single-task model per task too",
            ),
            ({"chat": "yes"}, "this model's tokenizer has no chat template; leave out --chat"),
            (
                {"only": ("copy", "swap")},
                "has 2 tasks with 4 test prompts or more that are not held out; expected at least 3",
            ),
            ({"held_out": ("copy", "swap")}, "is the last of its cluster"),
            ({"n_prompts": 3}, "n_prompts is 3; expected at least 4"),
        ],
    )
    def test_before_anything_is_loaded(self, base, tasks, tmp_path, fields, said):
        with pytest.raises(InputError) as caught:
            tiny.run(base, tasks, tmp_path / "run", **fields)
        assert said in str(caught.value)
        assert not (tmp_path / "run" / "adapters").exists()

    def test_a_task_without_enough_prompts_is_left_out(self, base, tasks, tmp_path):
        import shutil

        folder = shutil.copytree(tasks, tmp_path / "tasks")
        path = folder / "copy_test.jsonl"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
        found = tiny.run(base, folder, tmp_path / "run", ceilings=0)
        assert "copy" not in found.tasks
        assert any("copy" in note and "4" in note for note in found.notes)

    def test_another_run_in_the_folder(self, result, base, tasks, out, tmp_path):
        with pytest.raises(InputError, match="was trained with other settings; give the same, or another folder"):
            tiny.run(base, tasks, out, steps_per_task=4)
        other_base = tiny.write_base(tmp_path / "base", hidden_size=32)
        with pytest.raises(InputError, match="holds what was measured of the base model"):
            tiny.run(other_base, tasks, out)

    def test_an_adapter_for_another_base(self, result, tasks, out, tmp_path):
        wide = tiny.write_base(tmp_path / "base", hidden_size=32)
        given = tuple(f"{name}={out / 'adapters' / f'control-{name}'}" for name in tiny.TASKS)
        with pytest.raises(InputError, match="does not fit this base"):
            tiny.run(wide, tasks, tmp_path / "run", experimental=str(out / "adapters" / "tuned"), controls=given)
