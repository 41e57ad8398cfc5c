"""Probes during one's own training: in a plain loop, and by the Trainer."""

from __future__ import annotations

import json
import math
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from mechclust import ModelConfig, build_model
from mechclust.training import ProbeHook
from probes import NDims, NeighbourPurity, ProbeResult, TaskClusterARI, last_token, load_result, run
from tasks import Batch, InputError, LabelledPrompts


@pytest.fixture
def batch():
    tokens = torch.arange(24).reshape(8, 3) % 9
    return Batch(tokens, labels={"task": torch.arange(8) % 2})


@pytest.fixture
def model():
    return build_model(ModelConfig(d_vocab=9, n_ctx=4, n_layers=1, d_model=8, n_heads=2))


def test_a_plain_loop(model, batch, tmp_path):
    logged = []
    probes = [TaskClusterARI(readout=last_token(), n_permutations=19, n_init=1), NDims(readout=last_token())]
    hook = ProbeHook(probes, [batch], every=2, log=logged.append, out=tmp_path)
    model.train()
    numbers = [hook(model, step) for step in range(5)]
    assert [bool(each) for each in numbers] == [True, False, True, False, True]
    assert [each["step"] for each in logged] == [0, 2, 4]
    assert "TaskClusterARI/ari/blocks.0.hook_resid_post" in numbers[0]
    assert model.training
    saved = load_result(tmp_path / "step-000002.TaskClusterARI.safetensors")
    assert saved["ari"].equal(hook.results[2][0]["ari"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"probes": []}, "no probes given; give one or several, such as CKA()"),
        ({"probes": NDims}, "NDims is a probe class; expected a probe: write NDims(), with its settings"),
        ({"every": 0}, "every is 0"),
        ({"every": 1.5}, "every is 1.5; expected an integer of at least 1"),
        ({"tokens_per_batch": 0}, "tokens_per_batch is 0; expected at least 1"),
        ({"probes": [NDims(), NDims()]}, "two probes are called NDims, and their numbers are logged by name"),
        ({"batches": iter([])}, "batches is an iterator, which is empty after the first measurement; give a list"),
    ],
)
def test_refusals(batch, given, said):
    with pytest.raises(InputError) as caught:
        ProbeHook(**({"probes": NDims(), "batches": [batch]} | given))
    assert said in str(caught.value)


def test_one_batch_is_measured_as_a_list_of_one(model, batch):
    single, several = (ProbeHook(NDims(readout=last_token()), given) for given in (batch, [batch]))
    assert single(model, 0) == several(model, 0) != {}


def test_a_loader_of_batches_leaves_the_random_state_alone(model, batch):
    loader = DataLoader(range(8), batch_size=8, shuffle=True, collate_fn=lambda rows: batch.select(torch.tensor(rows)))
    before = torch.get_rng_state()
    assert ProbeHook(NDims(readout=last_token()), loader)(model, 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_prompts_without_a_tokenizer(model):
    hook = ProbeHook(NDims(readout=last_token()), LabelledPrompts(["w1 w2"], {"task": ["a"]}))
    with pytest.raises(InputError) as caught:
        hook(model, 0)
    assert str(caught.value) == "prompts need a tokenizer, and there is none; give tokenizer="


def test_a_prompt_of_more_tokens_than_a_batch_usually_has(untrained_gpt2):
    model, tokenizer = untrained_gpt2()
    prompts = ["w1 w2 w3 w4", "w5 w6", "w7 w8"]
    for given in (prompts, LabelledPrompts(prompts, {"task": ["a", "b", "b"]})):
        small, large = (
            ProbeHook(NDims(readout=last_token()), given, tokenizer=tokenizer, tokens_per_batch=n) for n in (3, 4)
        )
        with pytest.raises(InputError, match="tokens_per_batch is 3, fewer than the 4 tokens of"):
            small(model, 0)
        assert large(model, 0)


def test_scalars_leave_out_heads_and_nan():
    from mechclust.training.probe_hook import _result_scalars

    values = {"a": torch.tensor([[1.0, 2.0], [3.0, torch.nan]]), "h": torch.ones(2, 3)}
    axes = {"a": ("site", "label"), "h": ("site", "head")}
    coords = {"site": ["x", "y"], "label": ["p", "q"], "head": ["0", "1", "2"]}
    found = _result_scalars(ProbeResult("P", values, axes, coords, {"x": 0, "y": 1}))
    assert found == {"P/a/x/p": 1.0, "P/a/x/q": 2.0, "P/a/y/p": 3.0}


ODD = "/first and/or second [of 2], größer: 50 %"


def measuring(prompts, tokenizer):
    """Callbacks with batches of two labels, one of an odd name, and with what the Trainer's tokenizer reads."""
    from mechclust.training.trainer_callback import MechclustCallback

    batches = [replace(b, labels={**b.labels, ODD: b.index % 2}) for b in prompts.batches(tokenizer)]
    clusters = TaskClusterARI(readout=last_token(), also=(ODD,), n_permutations=19, n_init=1)
    return (
        MechclustCallback(clusters, batches, every=12),
        MechclustCallback(NDims(readout=last_token()), ["w1 w2", "w3 w4", "w5 w6"], every=12),
        MechclustCallback(NeighbourPurity(readout=last_token(), label="task"), prompts, every=12),
    )


@pytest.fixture(scope="module")
def runs(untrained_gpt2, history_prompts, tmp_path_factory):
    """The same training with callbacks and without: the Trainer, its callbacks, its folder, and what was printed."""
    from transformers import TrainerCallback

    from tests.mechclust import trained

    class Told(TrainerCallback):
        """As Weights & Biases' callback, which is told of every log."""

        def on_log(self, args, state, control, logs=None, **kwargs):
            logged.append({**logs, "at": state.global_step})

    prompts, found, logged = LabelledPrompts.from_file(history_prompts), {}, []
    for name in ("added", "none"):
        model, tokenizer = untrained_gpt2()
        callbacks = measuring(prompts, tokenizer)
        folder = tmp_path_factory.mktemp(name)
        how = {"callbacks": [Told()], "add_to": callbacks, "report_to": ["tensorboard"]} if name == "added" else {}
        with (
            torch.random.fork_rng(devices=[]),
            pytest.MonkeyPatch.context() as patch,
            redirect_stdout(StringIO()) as printed,
        ):
            patch.setattr(trained, "STEPS", 24)
            found[name] = trained.train(model, tokenizer, folder, **how), callbacks, folder, printed.getvalue, logged
    return found


def test_the_trainers_log_has_the_numbers(runs):
    trainer, (callback, *_), folder, *_ = runs["added"]
    key = "TaskClusterARI/ari/blocks.1.hook_resid_post/task"
    logged = {entry["step"]: entry[key] for entry in trainer.state.log_history if key in entry}
    assert sorted(logged) == [0, 12, 24]
    assert logged[24] == pytest.approx(float(callback.hook.results[24][0].sel("ari", layer=2, label="task")))
    kept = json.loads((folder / "checkpoint-24" / "trainer_state.json").read_text())["log_history"]
    assert sum(key in entry for entry in kept) == 3


def test_the_numbers_are_those_of_the_checkpoint(runs, history_prompts):
    from mechclust import load_pretrained

    _, (callback, *_), folder, *_ = runs["added"]
    saved, prompts = load_pretrained(folder / "checkpoint-24"), LabelledPrompts.from_file(history_prompts)
    found = run(saved, measuring(prompts, saved.tokenizer)[0].hook.batches, callback.hook.probes[0])
    during = callback.hook.results[24][0]
    assert len({*during["ari"].flatten().tolist()}) > 1
    for measure in ("ari", "silhouette", "null_high", "p_value"):
        assert during[measure].flatten().tolist() == pytest.approx(found[measure].flatten().tolist(), abs=1e-5)


def on_the_board(folder):
    """Value by name and step, read by TensorBoard from the one file of events in a Trainer's folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (file,) = (folder / "runs").glob("*/events.out.tfevents.*")
    board = EventAccumulator(str(file)).Reload()
    return {(tag, event.step): event.value for tag in board.Tags()["scalars"] for event in board.Scalars(tag)}


def in_the_results(callback):
    """The same from the callback's results, in the board's single precision."""
    found = {}
    for step, (result,) in callback.hook.results.items():
        labels = result.coords["label"]
        for measure, values in result.values.items():
            for site, row in zip(result.coords["site"], values.tolist(), strict=True):
                for label, value in zip(labels, row, strict=True):
                    name = f"train/{result.probe}/{measure}/{site}" + (f"/{label}" if len(labels) > 1 else "")
                    if math.isfinite(value):
                        found[name, step] = float(np.float32(value))
    return found


def test_tensorboard_has_the_numbers(runs):
    trainer, (callback, *_), folder, *_ = runs["added"]
    board = on_the_board(folder)
    probes = {key: value for key, value in board.items() if key[0].startswith("train/TaskClusterARI/")}
    assert probes == in_the_results(callback)
    assert {step for _, step in probes} == {0, 12, 24}
    assert ("train/TaskClusterARI/p_value/blocks.1.hook_resid_post/task", 12) in probes
    assert (f"train/TaskClusterARI/ari/blocks.1.hook_resid_post/{ODD}", 24) in probes
    losses = {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}
    assert {step: value for (name, step), value in board.items() if name == "train/loss"} == pytest.approx(losses)


def test_other_callbacks_see_what_was_added_and_the_terminal_does_not(runs):
    *_, printed, logged = runs["added"]
    assert [entry["at"] for entry in logged if any(key.startswith("NDims/") for key in entry)] == [0, 12, 24]
    assert "'loss': " in printed()
    assert "NDims" not in printed()


def test_no_loss_of_the_trainer_is_lost(runs):
    """Step 24 is measured and logged."""
    losses = {
        name: {entry["step"]: entry["loss"] for entry in runs[name][0].state.log_history if "loss" in entry}
        for name in ("added", "none")
    }
    assert sorted(losses["none"]) == [8, 16, 24]
    assert losses["added"] == losses["none"]


def test_training_goes_on_to_the_same_bits(runs):
    weights = [dict(runs[name][0].model.named_parameters()) for name in ("added", "none")]
    for name, weight in weights[0].items():
        assert weight.equal(weights[1][name]), name


def test_texts_and_prompts_are_read_by_the_trainers_tokenizer(runs):
    _, (_, texts, prompts), *_ = runs["added"]
    assert sorted(texts.hook.results) == sorted(prompts.hook.results) == [0, 12, 24]


def test_a_callback_that_cannot_reach_the_loggers_is_refused(untrained_gpt2, tmp_path):
    from mechclust.training.trainer_callback import MechclustCallback
    from tests.mechclust.trained import train

    callback = MechclustCallback(NDims(readout=last_token()), ["w1 w2", "w3 w4", "w5 w6"])
    with pytest.raises(InputError, match=r"^leave MechclustCallback out of callbacks=.*call callback.add_to\("):
        train(*untrained_gpt2(), tmp_path, [callback])


def test_a_second_training_is_measured_too(model, batch):
    from mechclust.training.trainer_callback import MechclustCallback

    logged = []
    handler, control = SimpleNamespace(callbacks=[]), SimpleNamespace(should_log=False)
    trainer = SimpleNamespace(log=logged.append, add_callback=id, callback_handler=handler, control=control)
    callback = MechclustCallback(NDims(readout=last_token()), batch, every=5).add_to(trainer)
    for first in (0, 0, 5):  # the third resumes the second
        callback.on_train_begin(None, SimpleNamespace(global_step=first), None)
        state = SimpleNamespace(is_world_process_zero=True, global_step=first)
        callback.on_epoch_begin(None, state, None, model=model)
    assert len(logged) == 3
    assert sorted(callback.hook.results) == [0, 5]


def test_only_the_first_of_several_processes_measures(model, batch):
    from mechclust.training.trainer_callback import MechclustCallback

    callback = MechclustCallback(NDims(readout=last_token()), batch)
    state = SimpleNamespace(is_world_process_zero=False, global_step=0)
    callback.on_epoch_begin(None, state, None, model=model)
    callback.on_step_end(None, state, None, model=model)
    assert not callback.hook.results
