"""What is kept at a run's checkpoints."""

from __future__ import annotations

import pytest
import torch

from mechclust.models import load_model, read_metadata
from mechclust.training import AccuracyCallback, CheckpointCallback, ProbeCallback, accuracy
from mechclust.training.callbacks import load_steps, result_path
from probes import TaskClusterARI, load_result, run
from probes.hooks import forward
from tasks import Batch

PROBE = {"label": "task", "n_init": 1, "n_permutations": 9}


def test_probes_are_saved_by_step_split_and_name(task, model, tmp_path):
    batches = {split: list(task.batches(split)) for split in ("train_subset", "validation_subset")}
    measure = ProbeCallback(tmp_path, batches, {"ari": TaskClusterARI(**PROBE), "other": TaskClusterARI(**PROBE)})
    measure(3, model)
    measure(20, model)
    names = [f"step-{s:06d}.{split}.{n}.safetensors" for s in (3, 20) for split in batches for n in ("ari", "other")]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(names)
    found = load_steps(tmp_path, "validation_subset.ari")
    assert list(found) == [3, 20]
    expected = run(model, batches["validation_subset"], TaskClusterARI(**PROBE))
    assert torch.equal(found[3]["ari"], expected["ari"])


def test_what_is_there_is_not_measured_again(task, model, tmp_path):
    batches = {"validation_subset": list(task.batches("validation_subset"))}
    path = result_path(tmp_path, 1, "validation_subset.ari")
    path.write_bytes(b"there")
    ProbeCallback(tmp_path, batches, {"ari": TaskClusterARI(**PROBE)})(1, model)
    assert path.read_bytes() == b"there"
    path = result_path(tmp_path, 1, "validation_subset.accuracy")
    path.write_bytes(b"there")
    AccuracyCallback(tmp_path, task, "validation_subset")(1, model)
    assert path.read_bytes() == b"there"
    (tmp_path / "step-000001.safetensors").write_bytes(b"there")
    CheckpointCallback(tmp_path, at=[1])(1, model)
    assert (tmp_path / "step-000001.safetensors").read_bytes() == b"there"


def test_only_at_the_steps_asked_for(task, model, tmp_path):
    batches = {"validation_subset": list(task.batches("validation_subset"))}
    measure = ProbeCallback(tmp_path / "results", batches, {"ari": TaskClusterARI(**PROBE)}, at=[4])
    save = CheckpointCallback(tmp_path / "models", at=[4])
    for step in (0, 4, 8):
        measure(step, model)
        save(step, model)
    assert [p.name for p in (tmp_path / "results").iterdir()] == ["step-000004.validation_subset.ari.safetensors"]
    assert [p.name for p in (tmp_path / "models").iterdir()] == ["step-000004.safetensors"]


def test_saved_models_say_their_step(model, batch, tmp_path):
    CheckpointCallback(tmp_path, at=[12])(12, model)
    path = tmp_path / "step-000012.safetensors"
    assert read_metadata(path)["metadata"] == {"step": 12}
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
    ProbeCallback(tmp_path, {"v": list(task.batches("validation_subset"))}, {"ari": TaskClusterARI(**PROBE)})(0, model)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(before, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())
