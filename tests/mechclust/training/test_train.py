"""The training loop: what it computes, and that an interruption leaves no trace in it."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from mechclust.models.weights import get_weights, trainable_weights
from mechclust.training import AccuracyCallback, CheckpointCallback, ProbeCallback, TrainConfig, accuracy, loop, train
from probes import NDims
from probes.engine.hooked_model import forward
from probes.store.locks import locked_folder
from probes.store.safetensors_files import read_safetensors, write_safetensors
from probes.store.temporary_files import temporary_file_of
from tasks import InputError
from tests.damage import WAYS, truncate

CONFIG = TrainConfig(steps=8, batch_size=16, lr=1e-2, n_checkpoints=4, save_every=3)
AT_EVERY_STEP = replace(CONFIG, checkpoint_every=1)


class Stopped(Exception):
    pass


def stop_at(step):
    def callback(now, model):
        if now == step:
            raise Stopped

    return callback


def weights_of(model):
    return {k: v.detach().clone() for k, v in get_weights(model).items()}


def assert_identical(first, again):
    assert first.keys() == again.keys()
    assert [k for k in first if not torch.equal(first[k], again[k])] == []


@pytest.fixture(scope="module")
def tiny_model(tiny_model):
    """Builds a new model of one layer, if nothing else is said."""
    return partial(tiny_model, n_layers=1)


@pytest.fixture(scope="module")
def uninterrupted(task, tiny_model):
    """Final weights and losses of a run that nobody disturbed."""
    model = tiny_model()
    losses = train(model, task, CONFIG)
    return weights_of(model), losses


def needs_masks(attention, tl_major):
    if (attention, tl_major) == ("bidirectional", 3):
        pytest.skip("TransformerLens 3.9 ignores the mask of a bidirectional model, so padded batches are refused")


def test_progress_is_shown_on_request(task, tiny_model, capsys):
    train(tiny_model(), task, CONFIG)
    assert capsys.readouterr().err == ""
    train(tiny_model(), task, CONFIG, progress=True, name="one seed")
    assert "one seed" in capsys.readouterr().err


def test_progress_goes_on_where_training_does(task, tiny_model, tmp_path, capsys):
    with pytest.raises(Stopped):
        train(tiny_model(), task, AT_EVERY_STEP, tmp_path, [stop_at(7)])
    train(tiny_model(), task, AT_EVERY_STEP, tmp_path, progress=True)
    assert "8/8" in capsys.readouterr().err


class TestDivergence:
    """Training stops where its numbers are lost, and what was saved stays."""

    TOO_FAST = replace(CONFIG, lr=1e38, optimizer="sgd", schedule="constant", clip=None, save_every=1)

    def test_the_step_is_named(self, task, tiny_model):
        with pytest.raises(InputError, match=r"^training diverged: .* step [1-3]; give a smaller lr"):
            train(tiny_model(), task, replace(self.TOO_FAST, lr=1e6, steps=400))

    def test_what_a_callback_finds_is_blamed_on_the_rate(self, task, tiny_model):
        def find(step, model):
            if step > 0:
                raise InputError("NaN or infinity in the activations at 'embed' for example index 3; leave it out")

        with pytest.raises(InputError, match=r"^training diverged: NaN .* step \d+, with lr 0.\d+; give a smaller lr"):
            train(tiny_model(), task, replace(CONFIG, lr=0.1), callbacks=[find])

    @pytest.mark.parametrize(("error", "stop"), [("give more examples", True), ("NaN or infinity in 'embed'", False)])
    def test_no_other_error_of_a_callback_is(self, task, tiny_model, error, stop):
        def find(step, model):
            raise InputError(error)

        with pytest.raises(InputError, match=f"^{error}$"):
            train(tiny_model(), task, CONFIG, callbacks=[find], stop_if_diverged=stop)

    def test_it_goes_on_where_it_is_told_to(self, task, tiny_model):
        losses = train(tiny_model(), task, self.TOO_FAST, stop_if_diverged=False)
        assert len(losses) == self.TOO_FAST.steps
        assert not bool(losses[-1].isfinite())

    def test_weights_that_are_lost_are_neither_saved_nor_measured(self, task, tiny_model, tmp_path):
        measured = []

        def measure(step, model):
            measured.append(all(bool(w.isfinite().all()) for w in weights_of(model).values()))

        with pytest.raises(InputError, match="training diverged"):
            train(tiny_model(), task, replace(self.TOO_FAST, checkpoint_every=1), tmp_path, [measure])
        assert all(measured)
        state = tmp_path / "state.safetensors"
        assert not state.exists() or all(bool(x.isfinite().all()) for x in load_file(state).values())

    def test_what_was_saved_is_gone_on_from(self, task, tiny_model, tmp_path, uninterrupted):
        def spoil(step, model):
            if step == 7:
                next(iter(trainable_weights(model).values())).detach().fill_(float("nan"))

        with pytest.raises(InputError, match="the loss is nan at step 7"):
            train(tiny_model(), task, AT_EVERY_STEP, tmp_path, [spoil])
        assert read_safetensors(tmp_path / "state.safetensors")[1]["step"] == "6"
        model = tiny_model()
        losses = train(model, task, AT_EVERY_STEP, tmp_path)
        assert torch.equal(losses, uninterrupted[1])
        assert_identical(weights_of(model), uninterrupted[0])


class TestLoop:
    @pytest.mark.parametrize(("attention", "clip"), [("causal", 0.05), ("causal", None), ("bidirectional", 1.0)])
    def test_equals_the_plain_loop(self, task, tiny_model, attention, clip, tl_major):
        needs_masks(attention, tl_major)
        config = replace(CONFIG, weight_decay=0.1, betas=(0.8, 0.99), clip=clip)
        ours, theirs = (tiny_model(attention=attention, n_layers=2) for _ in range(2))
        losses = train(ours, task, config)

        optimizer = torch.optim.AdamW(
            theirs.parameters(), lr=config.lr, betas=config.betas, weight_decay=0.1, foreach=False
        )
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.steps)
        for step in range(config.steps):
            batch = task.train_batch(step, config.batch_size)
            logits = forward(theirs, batch)
            real = batch.loss_mask
            loss = torch.nn.functional.cross_entropy(logits[real], batch.targets[real])
            optimizer.zero_grad()
            loss.backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip)
            optimizer.step()
            schedule.step()
            torch.testing.assert_close(losses[step], loss.detach(), atol=1e-5, rtol=1e-5)
        expected = weights_of(theirs)
        for name, value in weights_of(ours).items():
            if name.endswith("b_K"):  # moves no loss, so its gradient is rounding, which Adam makes large
                continue
            torch.testing.assert_close(value, expected[name], atol=2e-4, rtol=1e-3)

    def test_layer_decay_scales_the_steps_of_lower_blocks(self, task, tiny_model):
        config = TrainConfig(
            steps=1, batch_size=8, lr=0.5, schedule="constant", optimizer="sgd", weight_decay=0.0, clip=None
        )
        before, moved = weights_of(tiny_model(n_layers=3)), {}
        for decay in (1.0, 0.5):
            train(model := tiny_model(n_layers=3), task, replace(config, layer_decay=decay))
            moved[decay] = {name: value - before[name] for name, value in weights_of(model).items()}
        shares = {"embed.": 0.125, "pos_embed.": 0.125, "blocks.0.": 0.25, "blocks.1.": 0.5, "blocks.2.": 1}
        for name, step in moved[1.0].items():
            share = next((s for start, s in shares.items() if name.startswith(start)), 1)
            torch.testing.assert_close(moved[0.5][name], share * step, atol=1e-7, rtol=1e-4)
        assert float(moved[1.0]["blocks.0.mlp.W_in"].abs().max()) > 1e-4
        train(model := tiny_model(n_layers=3), task, replace(config, layer_decay=0.5, freeze=("blocks.2",)))
        for name, value in weights_of(model).items():  # the last block's place is its own, also when it stays
            same = 0 if name.startswith("blocks.2.") else 1
            torch.testing.assert_close(value - before[name], same * moved[0.5][name], atol=1e-7, rtol=1e-4)

    def test_frozen_weights_stay_and_the_rest_trains_as_if_they_were_constants(self, task, tiny_model):
        config = replace(CONFIG, freeze=("embed", "pos_embed", "unembed.W_U"), clip=0.05)
        start = weights_of(model := tiny_model())
        train(model, task, config)
        constant = tiny_model()
        for name, parameter in trainable_weights(constant).items():
            parameter.requires_grad_(name.split(".")[0] not in ("embed", "pos_embed", "unembed"))
        train(constant, task, replace(config, freeze=()))
        assert_identical(weights_of(model), weights_of(constant))
        same = [name for name, value in weights_of(model).items() if torch.equal(value, start[name])]
        assert {"embed.W_E", "pos_embed.W_pos", "unembed.W_U"} <= set(same)
        assert "blocks.0.attn.W_Q" not in same
        assert all(parameter.requires_grad for parameter in trainable_weights(model).values())

    def test_refuses_to_freeze_what_is_not_there(self, task, tiny_model):
        with pytest.raises(
            InputError, match=r"freeze has 'emb', which is not a parameter or part of the model \(there are embed"
        ):
            train(tiny_model(), task, replace(CONFIG, freeze=("emb",)))

    def test_resumes_with_groups_and_frozen_weights(self, task, tiny_model, tmp_path):
        config = replace(AT_EVERY_STEP, layer_decay=0.5, freeze=("embed",), warmup=3)
        train(whole := tiny_model(n_layers=2), task, config)
        with pytest.raises(Stopped):
            train(tiny_model(n_layers=2), task, config, tmp_path, [stop_at(7)])
        train(again := tiny_model(n_layers=2), task, config, tmp_path)
        assert_identical(weights_of(whole), weights_of(again))

    def test_does_not_depend_on_callbacks_or_keeping_state(self, task, tiny_model, uninterrupted, tmp_path):
        model = tiny_model()
        losses = train(model, task, CONFIG, tmp_path, [lambda step, model: torch.randn(step + 1)])
        assert torch.equal(losses, uninterrupted[1])
        assert_identical(weights_of(model), uninterrupted[0])

    def test_leaves_the_global_random_state_alone(self, task, tiny_model):
        model, before = tiny_model(), torch.get_rng_state()
        train(model, task, replace(CONFIG, steps=2))
        assert torch.equal(before, torch.get_rng_state())


class TestCallbacks:
    def test_come_at_the_checkpoints_with_the_weights_of_then(self, task, tiny_model, uninterrupted):
        calls, snapshots = [], []

        def first(step, model):
            calls.append(("first", step))
            snapshots.append(weights_of(model))

        model = tiny_model()
        train(model, task, CONFIG, callbacks=[first, lambda step, model: calls.append(("second", step))])
        assert calls == [(name, step) for step in CONFIG.checkpoint_steps for name in ("first", "second")]
        assert_identical(snapshots[0], weights_of(tiny_model()))  # before any update
        assert_identical(snapshots[-1], uninterrupted[0])  # after the last one
        assert all(not torch.equal(a["embed.W_E"], b["embed.W_E"]) for a, b in pairwise(snapshots))

    def test_the_model_is_in_training_mode(self, task, tiny_model):
        model, modes = tiny_model().eval(), []
        train(model, task, replace(CONFIG, steps=2), callbacks=[lambda step, model: modes.append(model.training)])
        assert set(modes) == {True}


class TestResume:
    @pytest.mark.parametrize("step", [7, 2])  # after a saved state, and before there is any
    def test_ends_with_the_same_bits(self, task, tiny_model, tmp_path, step, uninterrupted):
        with pytest.raises(Stopped):
            train(tiny_model(), task, AT_EVERY_STEP, tmp_path, [stop_at(step)])
        assert (tmp_path / "state.safetensors").exists() == (step == 7)
        calls = []
        model = tiny_model()
        losses = train(model, task, AT_EVERY_STEP, tmp_path, [lambda step, model: calls.append(step)])
        assert torch.equal(losses, uninterrupted[1])
        assert_identical(weights_of(model), uninterrupted[0])
        assert calls == list(range(6 if step == 7 else 0, CONFIG.steps + 1))

    def test_of_a_finished_run_trains_no_more(self, task, tiny_model, tmp_path, uninterrupted):
        train(tiny_model(), task, CONFIG, tmp_path)
        state = (tmp_path / "state.safetensors").read_bytes()
        calls, model = [], tiny_model()
        losses = train(model, task, CONFIG, tmp_path, [lambda step, model: calls.append(step)])
        assert calls == [CONFIG.steps]
        assert torch.equal(losses, uninterrupted[1])
        assert_identical(weights_of(model), uninterrupted[0])
        assert (tmp_path / "state.safetensors").read_bytes() == state

    def test_only_the_state_is_written(self, task, tiny_model, tmp_path):
        train(tiny_model(), task, CONFIG, tmp_path / "run")
        assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [".mechclust.lock", "state.safetensors"]


def measuring(task, out):
    """Everything that a study keeps at its checkpoints."""
    batches = {"validation": list(task.batches("validation_subset"))}
    return [
        CheckpointCallback(out, [2, 8]),
        AccuracyCallback(out, task),
        ProbeCallback(out, batches, {"half": NDims(variance=0.5), "dims": NDims()}),
    ]


class TestLostFiles:
    """A finished training whose measurements are lost."""

    @pytest.fixture(scope="class")
    @classmethod
    def finished(cls, task, tiny_model, tmp_path_factory):
        out = tmp_path_factory.mktemp("finished")
        train(tiny_model(), task, CONFIG, out / "run", measuring(task, out / "results"))
        return out

    @pytest.fixture
    def copy(self, finished, tmp_path):
        return shutil.copytree(finished, tmp_path / "copy")

    def again(self, task, model, copy):
        return train(model, task, CONFIG, copy / "run", measuring(task, copy / "results"))

    def refused(self, task, model, copy):
        with pytest.raises(InputError) as refused:
            self.again(task, model, copy)
        return str(refused.value)

    @pytest.mark.slow
    @pytest.mark.parametrize("damage", WAYS)
    @pytest.mark.parametrize("name", ["validation.half", "validation.accuracy", ""])
    def test_of_an_earlier_step_it_is_refused(self, task, tiny_model, finished, copy, uninterrupted, name, damage):
        """Nothing is touched. Without the state, everything is made again."""
        path = copy / "results" / f"step-000002.{name}.safetensors".replace("..", ".")
        state = copy / "run" / "state.safetensors"
        damage(path)
        before = files(copy)
        assert self.refused(task, tiny_model(), copy).startswith(f"{str(state)!r} is of step 8, but {str(path)!r} of")
        assert files(copy) == before
        state.unlink()
        losses = self.again(task, model := tiny_model(), copy)
        assert torch.equal(losses, uninterrupted[1])
        assert_identical(weights_of(model), uninterrupted[0])
        assert files(copy) == files(finished)

    def test_several_at_once(self, task, tiny_model, copy):
        for path in (copy / "results").glob("step-000001.*"):
            path.unlink()
        assert "and 2 more of earlier steps" in self.refused(task, tiny_model(), copy)

    def test_of_an_interrupted_training(self, task, tiny_model, tmp_path):
        with pytest.raises(Stopped):
            train(tiny_model(), task, CONFIG, tmp_path / "run", [*measuring(task, tmp_path / "results"), stop_at(8)])
        (tmp_path / "results" / "step-000001.validation.half.safetensors").unlink()
        assert "step-000001.validation.half" in self.refused(task, tiny_model(), tmp_path)

    def test_of_ones_own_kind(self, task, tiny_model, tmp_path):
        """Files of any format are missed only if they are not there."""

        class Notes:
            steps = []

            def paths(self, step):
                return [tmp_path / f"{step}.txt"]

            def __call__(self, step, model):
                self.steps.append(step)
                self.paths(step)[0].write_text("a note")

        with pytest.raises(Stopped):
            train(tiny_model(), task, CONFIG, tmp_path / "run", [Notes(), stop_at(8)])
        train(tiny_model(), task, CONFIG, tmp_path / "run", [notes := Notes()])
        train(tiny_model(), task, CONFIG, tmp_path / "run", [notes])
        assert notes.steps.count(CONFIG.checkpoint_steps[0]) == notes.steps.count(1) == 1
        assert notes.steps.count(CONFIG.steps) == 2  # the interrupted call is repeated, the finished one is not
        (tmp_path / "1.txt").unlink()
        with pytest.raises(InputError, match=r"1\.txt' of earlier steps cannot be read"):
            train(tiny_model(), task, CONFIG, tmp_path / "run", [notes])

    def test_of_the_last_step_are_made_from_the_state(self, task, tiny_model, finished, copy):
        truncate(copy / "results" / "step-000008.validation.dims.safetensors")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.again(task, tiny_model(), copy)
        assert files(copy) == files(finished)

    @pytest.mark.parametrize("damage", WAYS[1:])
    def test_a_damaged_state_is_deleted_by_its_owner(self, task, tiny_model, finished, copy, damage):
        state = copy / "run" / "state.safetensors"
        damage(state)
        with pytest.raises(InputError, match=f"^{re.escape(repr(str(state)))}.*[;,] delete it and run the same"):
            self.again(task, tiny_model(), copy)
        state.unlink()
        self.again(task, tiny_model(), copy)
        assert files(copy) == files(finished)

    def test_without_a_folder(self, task, tiny_model, finished, copy):
        """Nothing is kept to go on from: training makes what is missing as it comes by."""
        truncate(copy / "results" / "step-000002.validation.half.safetensors")
        train(tiny_model(), task, CONFIG, callbacks=measuring(task, copy / "results"))
        assert files(copy) == files(finished)

    def test_both_of_two_callbacks_with_results_of_one_name_are_recorded(self, task, tiny_model, tmp_path):
        batches = {"v": list(task.batches("validation_subset"))}

        def go_on(*variances):
            probes = [{"dims": NDims(variance=variance)} for variance in variances]
            callbacks = [ProbeCallback(tmp_path / str(i), batches, probe) for i, probe in enumerate(probes)]
            train(tiny_model(), task, replace(CONFIG, steps=1), tmp_path / "run", callbacks)

        go_on(0.5, 0.9)
        for variances in ((0.6, 0.9), (0.5, 0.8)):
            with pytest.raises(InputError, match=r"holds a run with callbacks v\.dims = "):
                go_on(*variances)

    def test_other_probes_are_refused_before_work(self, task, tiny_model, copy):
        before = files(copy)
        batches = {"validation": list(task.batches("validation_subset"))}
        calls = []
        callbacks = [
            lambda step, model: calls.append(step),
            ProbeCallback(copy / "results", batches, {"dims": NDims(variance=0.7)}),
        ]
        with pytest.raises(InputError, match=r"holds a run with callbacks validation\.dims = .NDims\(.* not .NDims\("):
            train(tiny_model(), task, CONFIG, copy / "run", callbacks)
        assert calls == []
        assert files(copy) == before

    def test_a_finished_run_needs_no_probes_again(self, task, tiny_model, copy):
        times = {path: path.stat().st_mtime_ns for path in copy.rglob("*.safetensors")}
        train(model := tiny_model(), task, CONFIG, copy / "run")
        train(model, task, CONFIG, copy / "run", measuring(task, copy / "results"))
        assert {path: path.stat().st_mtime_ns for path in copy.rglob("*.safetensors")} == times  # nothing is written

    def test_results_of_a_run_from_other_weights_are_refused(self, task, tiny_model, copy):
        before = files(copy)
        with pytest.raises(InputError, match=r"step-000000.* was measured in a run that began from other weights"):
            train(tiny_model(seed=9), task, CONFIG, copy / "another run", measuring(task, copy / "results"))
        assert files(copy) == before


class TestTheSameModelAgain:
    """As when the cell of a notebook is run again."""

    def test_after_the_end(self, task, tiny_model, tmp_path, uninterrupted):
        train(model := tiny_model(), task, CONFIG, tmp_path)
        state = (tmp_path / "state.safetensors").read_bytes()
        losses = train(model, task, CONFIG, tmp_path)
        assert torch.equal(losses, uninterrupted[1])
        assert_identical(weights_of(model), uninterrupted[0])
        assert (tmp_path / "state.safetensors").read_bytes() == state

    def test_where_its_state_was_saved(self, task, tiny_model, tmp_path, uninterrupted):
        model = tiny_model()
        for step in (3, 6):
            with pytest.raises(Stopped):
                train(model, task, AT_EVERY_STEP, tmp_path, [stop_at(step)])
        train(model, task, AT_EVERY_STEP, tmp_path)
        assert_identical(weights_of(model), uninterrupted[0])
        train(again := tiny_model(), task, AT_EVERY_STEP, tmp_path)  # the folder still knows what it began from
        assert_identical(weights_of(again), uninterrupted[0])

    def test_between_two_saves(self, task, tiny_model, tmp_path):
        model = tiny_model()
        with pytest.raises(Stopped):
            train(model, task, AT_EVERY_STEP, tmp_path, [stop_at(7)])
        with pytest.raises(InputError) as refused:
            train(model, task, AT_EVERY_STEP, tmp_path)
        assert str(refused.value).endswith(
            "or this model was trained already; build it again (build_model(config)) to continue, or give "
            "another folder"
        )


def files(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*.safetensors")}


class TestLock:
    def test_one_training_in_a_folder(self, task, tiny_model, tmp_path, monkeypatch):
        monkeypatch.setattr(loop, "WAIT", 0.1)
        with locked_folder(tmp_path), pytest.raises(InputError) as refused:
            train(tiny_model(), task, CONFIG, tmp_path)
        assert str(refused.value) == (
            f"{str(tmp_path)!r} is in use by another process; wait until it is done, or give another folder"
        )
        train(tiny_model(), task, CONFIG, tmp_path)

    def test_leftovers_of_a_killed_owner_are_removed(self, task, tiny_model, tmp_path):
        dead = subprocess.Popen([sys.executable, "-c", ""])
        dead.wait()
        name = temporary_file_of(tmp_path / "state.safetensors").name.replace(str(os.getpid()), str(dead.pid))
        (tmp_path / "results").mkdir()
        for folder in (tmp_path, tmp_path / "results"):  # the second is of a callback
            (folder / name).write_bytes(b"half")
        train(tiny_model(), task, CONFIG, tmp_path)
        assert not [*tmp_path.rglob(".*.tmp")]


class TestRefusals:
    @pytest.fixture(scope="class")
    @classmethod
    def stopped(cls, task, tiny_model, tmp_path_factory):
        """A folder with a run that was stopped; read only."""
        out = tmp_path_factory.mktemp("stopped")
        with pytest.raises(Stopped):
            train(tiny_model(), task, AT_EVERY_STEP, out, [stop_at(7)])
        return out

    @pytest.fixture
    def held(self, stopped, tmp_path):
        """A copy of it."""
        return shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)

    @pytest.mark.parametrize(
        ("training", "of_task", "of_model", "difference"),
        [
            ({"lr": 0.5}, {}, {}, "training lr = 0.01, not 0.5"),
            ({"betas": (0.5, 0.9)}, {}, {}, r"training betas = [0.9, 0.999], not [0.5, 0.9]"),
            ({}, {"seed": 3}, {}, "task seed = 0, not 3"),
            ({}, {}, {"attention": "bidirectional"}, "model attention = 'causal', not 'bidirectional'"),
        ],
    )
    def test_other_settings_in_the_same_folder(self, task, tiny_model, held, training, of_task, of_model, difference):
        state = (held / "state.safetensors").read_bytes()
        config = replace(AT_EVERY_STEP, **training)
        with pytest.raises(InputError) as refused:
            train(tiny_model(**of_model), replace(task, **of_task), config, held)
        assert str(refused.value) == (
            f"{str(held)!r} holds a run with {difference}; choose another output folder, or the same settings "
            "to continue"
        )
        assert (held / "state.safetensors").read_bytes() == state

    def test_other_weights_to_begin_with(self, task, tiny_model, held):
        """They would be forgotten without a word."""
        tuned = tiny_model()
        with torch.no_grad():
            next(tuned.parameters()).add_(1)
        with pytest.raises(InputError, match=r"began from other weights \(fingerprint \w{32}, not \w{32}\), or"):
            train(tuned, task, AT_EVERY_STEP, held)

    def test_state_with_a_setting_that_we_do_not_know(self, task, tiny_model, held):
        """As a later version might leave it."""
        path = held / "state.safetensors"
        tensors, header = read_safetensors(path)
        run = json.loads(header["run"])
        run["training"]["momentum"] = 1
        write_safetensors(path, {name: x.clone() for name, x in tensors.items()}, {**header, "run": json.dumps(run)})
        with pytest.raises(InputError, match="holds a run with training momentum = 1"):
            train(tiny_model(), task, AT_EVERY_STEP, held)

    def test_truncated_state(self, task, tiny_model, held):
        path = held / "state.safetensors"
        path.write_bytes(path.read_bytes()[:-8])
        with pytest.raises(InputError) as refused:
            train(tiny_model(), task, AT_EVERY_STEP, held)
        assert str(refused.value).startswith(f"{str(path)!r} is truncated or not a safetensors file (")

    def test_a_file_that_is_no_state(self, task, tiny_model, tmp_path):
        path = tmp_path / "state.safetensors"
        save_file({"x": torch.zeros(1)}, path)
        with pytest.raises(InputError) as refused:
            train(tiny_model(), task, CONFIG, tmp_path)
        assert str(refused.value) == (
            f"{str(path)!r} is not a training state; remove it, or choose another output folder"
        )

    def test_a_model_that_we_did_not_build(self, task):
        with pytest.raises(InputError, match="a Linear that build_model did not build can be neither trained nor"):
            train(torch.nn.Linear(2, 2), task, CONFIG)


SCRIPT = """
import sys, time
import torch
from mechclust.models import build_model, model_for, save_model
from mechclust.training import AccuracyCallback, ProbeCallback, CheckpointCallback, TrainConfig, train
from probes import TaskClusterARI
from tasks import InstructionFollowing

out, pause = sys.argv[1], float(sys.argv[2])
torch.set_num_threads(1)
task = InstructionFollowing(n_tasks=3, variants=8, n_symbols=6, n_eval=20)
config = TrainConfig(steps=14, batch_size=16, lr=1e-2, n_checkpoints=14, save_every=2)
model = build_model(model_for(task, n_layers=2, d_model=16, n_heads=2))
measure = ProbeCallback(
    out + "/results",
    {"validation": list(task.batches("validation_subset"))},
    {"ari": TaskClusterARI(n_init=1, n_permutations=9)},
)
callbacks = [
    CheckpointCallback(out, config.checkpoint_steps),
    AccuracyCallback(out + "/results", task),
    measure,
    lambda step, model: time.sleep(pause),
]
train(model, task, config, out, callbacks)
save_model(model, out + "/final.safetensors")
"""


def artefacts(out):
    """What a run promises not to lose: everything finished but the state, which it replaces."""
    files = [p for p in out.rglob("*") if p.is_file() and not p.name.startswith(".") and p.name != "state.safetensors"]
    return {p.relative_to(out): p.read_bytes() for p in files}


@pytest.mark.slow
def test_kill_minus_9_leaves_no_trace(tmp_path, monkeypatch):
    script, killed, whole = tmp_path / "script.py", tmp_path / "killed", tmp_path / "whole"
    script.write_text(SCRIPT)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen([sys.executable, str(script), str(killed), "0.5"], env=environment)
    try:
        while not (killed / "state.safetensors").exists():
            assert process.poll() is None, "the run ended before it could be killed"
            time.sleep(0.005)
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL
    with safe_open(str(killed / "state.safetensors"), "pt") as file:
        assert 0 < int(file.metadata()["step"]) < 14
    kept = artefacts(killed)
    assert kept
    assert not (killed / "final.safetensors").exists()

    for out in (killed, whole):  # the same run to its end, and one that nobody killed
        monkeypatch.setattr(sys, "argv", [str(script), str(out), "0"])
        runpy.run_path(str(script), run_name="__main__")
    for name in ("final.safetensors", "state.safetensors", "step-000014.safetensors"):
        assert_identical(load_file(killed / name), load_file(whole / name))
    after = artefacts(killed)
    assert {k: after.get(k) for k in kept} == kept
    assert after.keys() == artefacts(whole).keys()
    for name in after:
        assert_identical(load_file(killed / name), load_file(whole / name))


class TestTaskThatDoesNotFit:
    @pytest.mark.parametrize(
        ("size", "sizes"), [("d_vocab", "tokens, but the model's d_vocab"), ("n_ctx", "tokens, but the model's n_ctx")]
    )
    def test_is_refused_before_training(self, task, tiny_model, size, sizes):
        model = tiny_model(**{size: getattr(task, size) - 1})
        before = weights_of(model)
        with pytest.raises(InputError, match=f"{sizes} is {getattr(task, size) - 1}; build the model with model_for"):
            train(model, task, CONFIG)
        assert_identical(before, weights_of(model))

    @pytest.mark.parametrize("size", ["d_vocab", "n_ctx"])
    def test_has_no_accuracy(self, task, tiny_model, size):
        model = tiny_model(**{size: 2})
        with pytest.raises(InputError, match=r"vocabulary of the model has 2|the model's context of 2"):
            accuracy(model, task, "validation")
