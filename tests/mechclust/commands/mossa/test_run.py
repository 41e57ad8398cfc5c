"""``run_mossa`` on a tiny Llama: what is trained, what is measured, and that nothing is lost."""

from __future__ import annotations

import json
import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from mechclust.commands.mossa import measure
from mechclust.commands.mossa.inputs import read_inputs
from mechclust.commands.mossa.jobs import model_jobs, task_jobs
from mechclust.commands.mossa.models import ResidentBase
from mechclust.commands.mossa.pooled import measure_pooled
from mechclust.models.adapters import with_adapter
from mechclust.training.tuning.adapter import tuned_adapter_digest
from probes import RowStore
from probes.functional import linear_cka
from tasks import InputError
from tests.faults.bits import bits, other
from tests.mechclust.commands.mossa import tiny
from tests.mechclust.commands.refusals import refusal

pytestmark = pytest.mark.usefixtures("few_draws")
LEAST = {"n_resamples": 0, "n_answers": 0, "nulls": 0, "rbf": False, "without_top": False}
SHORT = {**LEAST, "steps_per_task": 2, "ceilings": 0}  # a poisoned adapter ends in its second step


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
        last_tokens = []
        for line in lines:
            ids = tokenizer(line["inputs"] + "\nAnswer:", return_tensors="pt")["input_ids"]
            with torch.no_grad():
                hidden = model(ids, output_hidden_states=True).hidden_states
            last_tokens.append(torch.stack([layer[0, -1] for layer in hidden]))
        return list(torch.stack(last_tokens, dim=1).double())

    control = states("control-last")
    place = result.tasks.index("last")
    for role, adapter in (("base", None), ("tuned", "without-held-out"), ("all-tasks", "tuned")):
        model_states = states(adapter)
        for layer in (1, 2):
            expected = linear_cka(model_states[layer], control[layer], debiased=True)
            assert result.values(role)[place, layer - 1] == pytest.approx(float(expected), abs=1e-5)
        # Hugging Face's last is after the final norm.
        expected = linear_cka(model_states[-1], control[-1], debiased=True)
        assert result.values(role, final_norm=True)[place] == pytest.approx(float(expected), abs=1e-5)


def kept_states(out, task, role):
    """``[layer]`` of ``[prompts width]`` that a run kept, after every block and the final norm."""
    store = RowStore(out / "rows" / task / role)
    return [store.take(store.index, [f"rows/{site}"])[f"rows/{site}"].double() for site in store.sites]


def test_the_null_compares_the_tuned_model_with_controls_of_other_tasks(result, out):
    for place, task in enumerate(result.tasks):
        tuned, other, own_control = (kept_states(out, task, role) for role in ("tuned", "other-1", "control"))
        expected = [float(linear_cka(*pair, debiased=True)) for pair in zip(tuned, other, strict=True)]
        between_controls = [float(linear_cka(*pair, debiased=True)) for pair in zip(own_control, other, strict=True)]
        assert result.curves().null[place] == pytest.approx(expected[:-1], abs=1e-6)
        assert np.abs(np.subtract(expected, between_controls)).max() > 1e-3  # so that the two are distinguished


@pytest.mark.slow
def test_another_tuned_model_has_another_null(result, base, tasks, out, tmp_path):
    """Also in the folder of a finished run, whose controls are the same."""
    names = [name for name in tiny.TASKS if name != "last"]
    controls = tuple(f"{name}={out / 'adapters' / f'control-{name}'}" for name in names)
    runs = [
        tiny.run(base, tasks, tmp_path / "run", experimental=str(out / "adapters" / tuned), controls=controls)
        for tuned in ("tuned", "without-held-out")
    ]
    one, two = (run.curves().null for run in runs)
    assert np.isfinite([one, two]).all()
    assert np.abs(one - two).max() > 1e-4


def test_hidden_states_of_a_finished_run_are_kept_if_asked_for_and_stay(result, base, tasks, out, tmp_path):
    shutil.copytree(out, tmp_path / "run", ignore=shutil.ignore_patterns("rows"))
    config = tiny.settings(tasks, svcca=True)
    inputs = read_inputs(str(base), config)
    (of_swap,) = (job for job in task_jobs(inputs, [], config.nulls) if job.task == "swap")
    of_all = model_jobs(inputs)[0]
    for keep_rows, kept in ((False, False), (True, True), (False, True)):
        resident = ResidentBase(str(base), replace(config, keep_rows=keep_rows), tmp_path / "run")
        measure.measure_task(resident, of_swap)
        measure_pooled(resident, of_all)
        for folder in ("swap/base", "swap/tuned", "+all/base"):
            assert (tmp_path / "run" / "rows" / folder).is_dir() == kept


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
    chance = float(result.of_model["base"]["task-purity"]["chance"])
    assert [f.note for f in result.findings if f.id == "C11"] == [f"purity by chance {chance:.2f}"]
    assert set(curves.covariates)
    assert all(len(v) == 5 for v in curves.covariates.values())
    for of in result.scores.values():
        assert 0 <= of["tuned"].exact.value <= 1
        assert of["control"].loss.value < of["base"].loss.value  # something was learnt


def test_gains_have_intervals_over_prompts(result, tmp_path, undrawn):
    tasks = result.tables["tasks"]
    assert (tasks["gain_low"] < tasks["gain"]).all()
    assert (tasks["gain"] < tasks["gain_high"]).all()
    wide = dict(zip(result.tasks, result.gain_ends(n_compared=4), strict=True))
    for row in tasks.itertuples():
        assert wide[row.task][0] < row.gain_low
        assert row.gain_high < wide[row.task][1]
    seen = tasks[~tasks["held_out"]].iloc[0]
    low, high = wide[seen["task"]]
    shown = {reading.what: reading.value for reading in result.readings}["Seen task that gains most"]
    assert shown.startswith(f"{seen['task']} {seen['gain']:z.2f} ({low:z.2f} to {high:z.2f}), ")
    assert any("interval of a task's gain is over prompts" in note for note in result.caveats)
    page = result.write(tmp_path).read_text()
    assert f"{seen['gain']:z.3f} ({seen['gain_low']:z.3f} to {seen['gain_high']:z.3f})" in page
    assert "Held out: last" in page
    assert len(list((tmp_path / "figures").glob("*.png"))) == 10


@pytest.mark.slow
@pytest.mark.parametrize("when", ["training", "measuring"])
def test_killed_and_resumed_to_the_same_bits(result, base, tasks, out, tmp_path, fork_server, when):
    process = fork_server.Process(target=tiny.killed_run, args=(base, tasks, tmp_path / "run", when))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    left = [path.name for path in (tmp_path / "run" / "adapters").iterdir() if (path / "tuning.json").exists()]
    assert (len(left) == 0) if when == "training" else (len(left) == 8)
    times = {name: (tmp_path / "run" / "adapters" / name / "tuning.json").stat().st_mtime_ns for name in left}
    again = tiny.run(base, tasks, tmp_path / "run", svcca=True, keep_rows=True)
    for name, time in times.items():  # what was trained is not trained again
        assert (tmp_path / "run" / "adapters" / name / "tuning.json").stat().st_mtime_ns == time
    for name in ("tuned", "without-held-out", "control-swap", "again-copy"):
        assert tuned_adapter_digest(tmp_path / "run" / "adapters" / name) == tuned_adapter_digest(
            out / "adapters" / name
        )
    assert other(bits(tmp_path / "run" / "results"), bits(out / "results")) == ""
    assert [c.verdict for c in again.findings] == [c.verdict for c in result.findings]


@pytest.mark.slow
def test_workers_change_no_bit(result, base, tasks, out, tmp_path, forked):
    tiny.run(base, tasks, tmp_path / "run", svcca=True, workers=2)
    assert other(bits(tmp_path / "run" / "results"), bits(out / "results")) == ""
    assert not (tmp_path / "run" / "rows" / "copy").exists()
    assert (out / "rows" / "copy" / "base").exists()


def poison(monkeypatch, *names):
    """Make these adapters NaN in their second step; return the names of all that take a step."""
    from mechclust.training.tuning.answer_trainer import AnswerTrainer

    whole = AnswerTrainer.training_step
    stepped = set()

    def poisoned(self, model, inputs, *args, **options):
        stepped.add(self._name)
        if self._name in names and self.state.global_step == 1:
            with torch.no_grad():
                for weight in model.parameters():
                    if weight.requires_grad:
                        weight.fill_(torch.nan)
        return whole(self, model, inputs, *args, **options)

    monkeypatch.setattr(AnswerTrainer, "training_step", poisoned)
    return stepped


def test_a_loss_that_is_not_finite_ends_one_adapter(base, tasks, tmp_path, monkeypatch, unpictured):
    """The others go on; what cannot be measured is left out, and said. The same call says so again, trains nothing and
    reads no text anew; another setting trains what was given up."""
    stepped = poison(monkeypatch, "control-swap", "without-held-out")
    run = tiny.run(base, tasks, tmp_path / "run", **SHORT)
    assert run.tasks == ["count", "first", "copy"]
    assert run.unmeasured == ["last"]
    reasons = {
        name: f"the loss of {name} is nan at step 2; lower --tuning.lr, or look for damaged examples"
        for name in ("without-held-out", "control-swap")
    }
    assert {model.name: why for model, why in run.failed.items()} == reasons
    assert f"control-swap: {reasons['control-swap']}" in run.notes
    note = f"without-held-out: {reasons['without-held-out']}; without this model last is not measured"
    assert note in run.notes
    assert (
        "Held out and not measured: last. Nothing is known about tasks that the model was not tuned on. The notes say "
        "why."
    ) in run.sentences

    assert stepped == {"tuned", "without-held-out", *(f"control-{task}" for task in tiny.TASKS)}
    stepped.clear()
    with monkeypatch.context() as patch:
        patch.setattr("mechclust.commands.mossa.readability.readability", None)
        again = tiny.run(base, tasks, tmp_path / "run", **SHORT)
    assert not stepped
    assert (again.tasks, again.failed, again.readability) == (run.tasks, run.failed, run.readability)
    assert again.notes == run.notes


def test_without_a_multi_task_model_there_is_nothing(base, tasks, tmp_path, monkeypatch):
    stepped = poison(monkeypatch, "tuned")
    message = (
        "the loss of tuned is nan at step 2; lower --tuning.lr, or look for damaged examples; without this model there "
        "is nothing to compare the others with"
    )
    few = {"only": ("copy", "count", "first"), "steps_per_task": 1, "ceilings": 0}
    for taken in (True, False):  # the same again, without training
        stepped.clear()
        assert refusal(tiny.run, base, tasks, tmp_path / "run", **few) == message
        assert bool(stepped) == taken


class TestRefusals:
    @pytest.mark.parametrize(
        ("fields", "message"),
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
            ({"bos": "yes"}, "no beginning-of-sequence token, so --bos yes has none to add; leave out --bos"),
        ],
    )
    def test_before_anything_is_loaded(self, base, tasks, tmp_path, fields, message):
        assert message in refusal(tiny.run, base, tasks, tmp_path / "run", **fields)
        assert not (tmp_path / "run" / "adapters").exists()

    def test_tasks_without_enough_prompts_are_left_out(self, base, tasks, tmp_path):
        """No control is trained that nothing could be measured with, and no model without the held-out tasks."""
        folder = shutil.copytree(tasks, tmp_path / "tasks")
        for name in ("copy", "last"):
            path = folder / f"{name}_test.jsonl"
            path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
        inputs = read_inputs(str(base), tiny.settings(folder, ceilings=0))
        assert {model.name for model in inputs.models} == {
            "base", "tuned", "control-count", "control-first", "control-swap",
        }  # fmt: skip
        assert [job.task for job in task_jobs(inputs, [], 0)] == ["count", "first", "swap"]
        notes = inputs.notes
        assert "No control is trained for copy and last, since nothing could be measured with it" in notes
        assert "No model is trained without the held-out tasks, since none of these has 4 test prompts" in notes
        assert any("fewer than 4 test prompts" in note and "copy 3" in note for note in notes)

    def test_another_run_in_the_folder(self, result, base, tasks, out, tmp_path):
        with pytest.raises(InputError, match="was trained with other settings; give the same, or another folder"):
            tiny.run(base, tasks, out, steps_per_task=4)
        other_base = tiny.write_base(tmp_path / "base", hidden_size=32)
        with pytest.raises(InputError, match="holds what was measured of the base model"):
            tiny.run(other_base, tasks, out)

    def test_other_settings_before_an_adapter_that_is_missing_is_trained(self, result, base, tasks, out, tmp_path):
        run = shutil.copytree(out, tmp_path / "run")
        missing = run / "adapters" / "control-copy"
        shutil.rmtree(missing)
        with pytest.raises(InputError, match=r"tuned in .* was trained with other settings"):
            tiny.run(base, tasks, run, steps_per_task=4)
        assert not missing.exists()


def test_prompts_that_are_all_alike_are_reported(result, base, out, tmp_path, undrawn, unpictured):
    """No CKA is defined, so that no layer has a median."""
    adapters = out / "adapters"
    given = {
        "experimental": str(adapters / "tuned"),
        "without_held_out": str(adapters / "without-held-out"),
        "controls": tuple(f"{name}={adapters / f'control-{name}'}" for name in tiny.TASKS),
    }
    tasks = tiny.write_tasks(tmp_path / "tasks")
    for path in tasks.glob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps({**line, "inputs": "copy a b"}) + "\n" for line in lines))
    alike = tiny.run(base, tasks, tmp_path / "out", nulls=0, n_answers=0, n_resamples=0, **given)
    assert "layers" not in alike.tables
    assert alike.write(tmp_path / "out").exists()
