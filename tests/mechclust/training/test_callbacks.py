"""What is kept at a run's checkpoints."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mechclust import TrainConfig, train
from mechclust.models import load_model, read_saved_model_metadata
from mechclust.training import AccuracyCallback, CheckpointCallback, ProbeCallback, accuracy, loop
from mechclust.training.results_by_step import load_results_by_step, result_path
from probes import NDims, ProbeResult, TaskClusterARI, load_result, run
from probes.engine.hooked_model import forward
from tasks import Batch, InputError
from tests.damage import WAYS

LISTED = loop._MAX_STEPS_LISTED
CLUSTERS = {"label": "task", "n_init": 1, "n_permutations": 9}


def test_probes_are_saved_by_step_split_and_name(task, model, tmp_path):
    batches = {split: list(task.batches(split)) for split in ("train_subset", "validation_subset")}
    measure = ProbeCallback(tmp_path, batches, {"dims": NDims(), "other": NDims()})
    measure(3, model)
    measure(20, model)
    names = [f"step-{s:06d}.{split}.{n}.safetensors" for s in (3, 20) for split in batches for n in ("dims", "other")]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(names)
    found = load_results_by_step(tmp_path, "validation_subset.dims")
    assert list(found) == [3, 20]
    expected = run(model, batches["validation_subset"], NDims())
    assert all(torch.equal(found[3][name], values) for name, values in expected.values.items())


def three(task, out):
    """One callback of each kind, all at step 1."""
    batches = {"validation_subset": list(task.batches("validation_subset"))}
    return [
        ProbeCallback(out, batches, {"dims": NDims()}),
        AccuracyCallback(out, task, "validation_subset"),
        CheckpointCallback(out, at=[1]),
    ]


@pytest.mark.parametrize("damage", WAYS)
@pytest.mark.parametrize("kind", [0, 1, 2])
def test_what_is_lost_or_damaged_is_made_again(task, model, tmp_path, kind, damage):
    three(task, tmp_path)[kind](1, model)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    damage(path)
    callback = three(task, tmp_path)[kind]
    assert callback.paths(1) == [path]
    callback(1, model)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_what_another_model_left_is_replaced(task, model, tiny_model, tmp_path, kind):
    three(task, tmp_path / "fresh")[kind](1, model)
    three(task, tmp_path / "used")[kind](1, tiny_model(seed=6))
    three(task, tmp_path / "used")[kind](1, model)
    (fresh,) = (tmp_path / "fresh").iterdir()
    (used,) = (tmp_path / "used").iterdir()
    assert used.read_bytes() == fresh.read_bytes()


def test_settings_are_of_the_probes_and_the_examples(task, tmp_path):
    (batch,) = task.batches("validation_subset")

    def settings(examples, **parameters):
        return ProbeCallback(tmp_path, {"all": examples}, {"dims": NDims(**parameters)}).settings()["all.dims"]

    whole = settings([batch], variance=0.5)
    assert settings(list(batch.split(7))[::-1], variance=0.5) == whole  # however they are batched
    assert settings([batch], variance=0.99) == whole.replace("0.5", "0.99") != whole
    assert settings([next(batch.split(7))], variance=0.5).startswith(whole.partition(" on tokens 12-")[0])
    assert settings([next(batch.split(7))], variance=0.5) != whole
    for field in ("positions", "labels"):
        for name, values in getattr(batch, field).items():
            moved = replace(batch, **{field: {**getattr(batch, field), name: values.roll(1)}})
            assert (settings([moved], variance=0.5) == whole) == torch.equal(values, values.roll(1))
    named = replace(batch, labels={f"{name}_": values for name, values in batch.labels.items()})
    assert settings([named], variance=0.5) != whole
    assert settings([batch, batch.select(batch.index[:0])], variance=0.5) == whole  # an empty batch adds nothing
    words = replace(batch, labels={"word": batch.tokens})  # one label per token
    moved = replace(words, labels={"word": batch.tokens.roll(1)})
    assert settings([moved], variance=0.5) != settings([words], variance=0.5)


def test_steps_of_seven_digits(tmp_path):
    for step in (999_999, 1_000_000):
        ProbeResult("X", {"x": torch.tensor(step)}, {"x": ()}, {}).save(result_path(tmp_path, step, "x"))
    assert {step: int(found["x"]) for step, found in load_results_by_step(tmp_path, "x").items()} == {
        999_999: 999_999,
        1_000_000: 1_000_000,
    }


def test_only_at_the_steps_asked_for(task, model, tmp_path):
    batches = {"validation_subset": list(task.batches("validation_subset"))}
    measure = ProbeCallback(tmp_path / "results", batches, {"dims": NDims()}, at=[4])
    save = CheckpointCallback(tmp_path / "models", at=[4])
    for step in (0, 4, 8):
        measure(step, model)
        save(step, model)
    assert [p.name for p in (tmp_path / "results").iterdir()] == ["step-000004.validation_subset.dims.safetensors"]
    assert [p.name for p in (tmp_path / "models").iterdir()] == ["step-000004.safetensors"]


def test_saved_models_say_their_step(model, batch, tmp_path):
    CheckpointCallback(tmp_path, at=[12])(12, model)
    path = tmp_path / "step-000012.safetensors"
    assert read_saved_model_metadata(path)["metadata"] == {"step": 12}
    assert torch.equal(load_model(path)(batch.tokens), model(batch.tokens))


@pytest.mark.parametrize("split", ["validation", "train_subset"])
def test_accuracy_is_the_share_of_right_answers(task, tiny_model, tmp_path, split):
    model = tiny_model()
    whole = Batch.concat(list(task.batches(split, 10_000)))
    with torch.no_grad():
        logits = forward(model, whole)
    guess = logits[torch.arange(len(whole)), whole.positions["input"]].argmax(dim=-1)
    value, n = accuracy(model, task, split)
    assert n == len(whole)
    assert value == pytest.approx(float((guess == whole.labels["output"]).double().mean()))
    AccuracyCallback(tmp_path, task, split)(5, model)
    result = load_result(tmp_path / f"step-000005.{split}.accuracy.safetensors")
    assert float(result["accuracy"]) == value
    assert result.metadata["n"] == n


def test_measuring_leaves_the_model_as_it_was(task, tiny_model, tmp_path):
    model = tiny_model().train()
    modes = [module.training for module in model.modules()]
    before = torch.get_rng_state()
    AccuracyCallback(tmp_path, task)(0, model)
    ProbeCallback(tmp_path, {"v": list(task.batches("validation_subset"))}, {"ari": TaskClusterARI(**CLUSTERS)})(
        0, model
    )
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(before, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("kind", ["CheckpointCallback", "ProbeCallback"])
def test_a_step_that_is_no_checkpoint_is_refused_before_training(kind, task, tiny_model, tmp_path):
    model = tiny_model()
    batches = {"validation_subset": list(task.batches("validation_subset"))}
    callback = {
        "CheckpointCallback": CheckpointCallback(tmp_path / "kept", at=(0, 10)),
        "ProbeCallback": ProbeCallback(tmp_path / "kept", batches, {"dims": NDims()}, at=(0, 10)),
    }[kind]
    message = (
        rf"{kind} is to \w+ at step 10, at which no callback runs; give some of TrainConfig.checkpoint_steps \(0, 1,"
    )
    with pytest.raises(InputError, match=message):
        train(model, task, TrainConfig(steps=40), callbacks=[callback])
    assert not (tmp_path / "kept").exists()
    train(model, task, TrainConfig(steps=10, batch_size=8, checkpoint_every=10), callbacks=[callback])
    assert any(path.name.startswith("step-000010") for path in (tmp_path / "kept").iterdir())
    for steps, listed in ((LISTED - 1, r"\)"), (LISTED, ", …\\)")):
        config = TrainConfig(steps=steps, checkpoint_every=1)
        last = min(steps, LISTED - 1)
        outside = CheckpointCallback(tmp_path / "kept", at=[999])
        with pytest.raises(InputError, match=rf"\(0, 1, .*{last - 1}, {last}{listed}, or set"):
            train(model, task, config, callbacks=[outside])
