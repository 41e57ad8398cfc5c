"""Killed at any place, the same call ends with the same bits; what is damaged is made again."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mechclust.models import load_pretrained, set_adapter
from mechclust.training.tuning import TunedAdapter, adapter, checkpoints, tune_adapter, tuned_adapter_at
from mechclust.training.tuning.adapter import tuned_adapter_digest
from mechclust.training.tuning.checkpoints import newest_checkpoint
from tests.faults.process import python, run
from tests.mechclust.training.tuning.small import examples, language_model, settings

# 4 steps an epoch, of which the last is one batch of one example; 10 or 16 steps; checkpoints at every third.
BY_EPOCHS = settings(dropout=0.3, epochs=4, save_every=3)
BY_STEPS = settings(dropout=0.3, steps=10, save_every=3)


def tune(folder: Path, config: Any = BY_EPOCHS) -> TunedAdapter:
    return tune_adapter(language_model(), examples(), config, folder, base="b")


def stop(*args: Any, **options: Any) -> None:
    raise KeyboardInterrupt


def die(*args: Any, **options: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def at_step(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Before its last forward pass."""
    from mechclust.training.tuning.answer_trainer import AnswerTrainer

    known, seen = AnswerTrainer.training_step, []

    def training_step(self: Any, *args: Any, **options: Any) -> Any:
        seen.append(self.state.global_step + 1)
        return die() if seen.count(step) == (1 if step % 4 == 0 else 2) else known(self, *args, **options)

    monkeypatch.setattr(AnswerTrainer, "training_step", training_step)


def at_saving(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """When the checkpoint has its weights and not yet its optimiser."""
    from mechclust.training.tuning.answer_trainer import AnswerTrainer

    known = AnswerTrainer._save_optimizer_and_scheduler

    def save(self: Any, folder: str) -> None:
        assert (Path(folder) / "adapter_model.safetensors").exists()
        return die() if self.state.global_step == step else known(self, folder)

    monkeypatch.setattr(AnswerTrainer, "_save_optimizer_and_scheduler", save)


def at_file(monkeypatch: pytest.MonkeyPatch, module: Any, function: str, part: str) -> None:
    """Before a file of ours is written."""
    known = getattr(module, function)

    def write(path: Path, data: Any) -> None:
        return die() if part in str(path) else known(path, data)

    monkeypatch.setattr(module, function, write)


KILLS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], int | None]] = {
    "before a checkpoint": (lambda patch: at_step(patch, 2), None),
    "within an epoch": (lambda patch: at_step(patch, 8), 6),
    "after an epoch's end": (lambda patch: at_step(patch, 14), 12),
    "in the last step": (lambda patch: at_step(patch, 16), 15),
    "in a checkpoint's writing": (lambda patch: at_saving(patch, 9), 6),
    "in the first checkpoint's writing": (lambda patch: at_saving(patch, 3), None),
    "before a checkpoint's mark": (lambda patch: at_file(patch, checkpoints, "write_json", "checkpoint-9/"), 6),
    "in the last checkpoint's writing": (lambda patch: at_saving(patch, 16), 15),
    "after the end": (lambda patch: at_file(patch, adapter, "write_atomic", "adapter_model"), 16),
    "between the adapter's files": (lambda patch: at_file(patch, adapter, "write_atomic", "adapter_config"), 16),
    "before the record": (lambda patch: at_file(patch, adapter, "write_json", "tuning.json"), 16),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TunedAdapter]:
    folder = tmp_path_factory.mktemp("whole")
    return folder, tune(folder)


def same(folder: Path, found: TunedAdapter, whole: tuple[Path, TunedAdapter]) -> None:
    for name in ("adapter_model.safetensors", "adapter_config.json", "subject.json"):
        assert (folder / name).read_bytes() == (whole[0] / name).read_bytes()
    assert (found.steps, found.losses) == (whole[1].steps, whole[1].losses)
    assert not (folder / "checkpoints").exists()
    assert tuned_adapter_at(folder) == found


@pytest.mark.slow
@pytest.mark.parametrize("kill", KILLS)
def test_killed(kill: str, whole: tuple[Path, TunedAdapter], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare, last = KILLS[kill]
    folder = tmp_path / "a"

    def work() -> None:
        prepare(monkeypatch)  # in the forked process alone
        tune(folder)

    ended = run(python(work), tmp_path)
    assert ended.code == -signal.SIGKILL, ended.told
    assert tuned_adapter_at(folder) is None
    found = newest_checkpoint(folder / "checkpoints")
    assert (found and found[0]) == last
    left = [path.name for path in (folder / "checkpoints").glob("checkpoint-*")]
    assert len(left) <= 2  # what was not whole is gone
    assert last is None or f"checkpoint-{last}" in left
    same(folder, tune(folder), whole)


def test_killed_twice(whole: tuple[Path, TunedAdapter], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (5, 13):

        def work(step: int = step) -> None:
            at_step(monkeypatch, step)
            tune(tmp_path / "a")

        assert run(python(work), tmp_path).code == -signal.SIGKILL
    same(tmp_path / "a", tune(tmp_path / "a"), whole)


def test_killed_after_the_end_of_steps_that_are_no_whole_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hugging Face's Trainer, resumed there, would take an eleventh step."""
    expected = tune(tmp_path / "whole", BY_STEPS)

    def work() -> None:
        at_file(monkeypatch, adapter, "write_json", "tuning.json")
        tune(tmp_path / "a", BY_STEPS)

    assert run(python(work), tmp_path).code == -signal.SIGKILL
    found = tune(tmp_path / "a", BY_STEPS)
    assert (found.steps, found.losses, found.seconds) == (10, expected.losses, 0.0)
    assert tuned_adapter_digest(tmp_path / "a") == tuned_adapter_digest(tmp_path / "whole")


def test_a_finished_one_is_not_trained_again(whole: tuple[Path, TunedAdapter], tmp_path: Path) -> None:
    folder = shutil.copytree(whole[0], tmp_path / "a")
    (folder / "checkpoints").mkdir()  # of a process killed between the record and this
    times = {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if path.is_file()}
    same(folder, tune(folder), whole)
    assert times == {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_so_is_one_with_many_names_of_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 20 names peft saves the shorter ends that they share."""
    names = tuple(f"model.layers.{i}.self_attn.{kind}_proj" for i in range(5) for kind in "qkvo")
    model = language_model(num_hidden_layers=5)
    config = settings(modules=names, steps=1)
    tuned = tune_adapter(model, examples(), config, tmp_path, base="b")
    monkeypatch.setattr(adapter, "train_lora", stop)
    assert tune_adapter(model, examples(), config, tmp_path, base="b") == tuned
    set_adapter(load_pretrained(model), tmp_path)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "weights, a bit": ("adapter_model.safetensors", flip),
    "weights, cut off": ("adapter_model.safetensors", lambda path: os.truncate(path, 100)),
    "weights, gone": ("adapter_model.safetensors", Path.unlink),
    "configuration, no JSON": ("adapter_config.json", lambda path: os.truncate(path, 100)),
    "configuration, another rank": (
        "adapter_config.json",
        lambda path: path.write_text(path.read_text().replace('"r": 2', '"r": 4')),
    ),
    "configuration, gone": ("adapter_config.json", Path.unlink),
    "record, a bit": ("tuning.json", flip),
    "record, empty": ("tuning.json", lambda path: os.truncate(path, 0)),
    "record, no checksum": ("tuning.json", lambda path: path.write_text("{}")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_trained_again(
    damage: str, whole: tuple[Path, TunedAdapter], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(whole[0], tmp_path / "a")
    name, change = DAMAGES[damage]
    change(folder / name)
    assert tuned_adapter_at(folder) is None
    monkeypatch.setattr(adapter, "train_lora", stop)
    with pytest.raises(KeyboardInterrupt):
        tune(folder)


def test_training_again_replaces_all_that_is_damaged(whole: tuple[Path, TunedAdapter], tmp_path: Path) -> None:
    folder = shutil.copytree(whole[0], tmp_path / "a")
    for damage in ("weights, a bit", "configuration, another rank", "record, empty"):
        name, change = DAMAGES[damage]
        change(folder / name)
    same(folder, tune(folder), whole)


def test_a_damaged_checkpoint_is_not_taken(
    whole: tuple[Path, TunedAdapter], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that are others, of the same number: the checkpoint before it is taken."""

    def work() -> None:
        at_step(monkeypatch, 8)
        tune(tmp_path / "a")

    assert run(python(work), tmp_path).code == -signal.SIGKILL
    kept = tmp_path / "a" / "checkpoints"
    for name in ("optimizer.pt", "trainer_state.json", "adapter_model.safetensors", "whole.json"):
        damaged = shutil.copytree(kept, tmp_path / name)
        found = newest_checkpoint(damaged)
        assert found is not None
        assert found[0] == 6
        flip(damaged / "checkpoint-6" / name)
        found = newest_checkpoint(damaged)
        assert found is not None
        assert found[0] == 3
    flip(kept / "checkpoint-6" / "optimizer.pt")
    same(tmp_path / "a", tune(tmp_path / "a"), whole)


def test_checkpoints_of_what_is_not_known_are_not_taken(
    whole: tuple[Path, TunedAdapter], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> None:
        at_step(monkeypatch, 8)
        tune_adapter(language_model(seed=8), examples(), BY_EPOCHS, tmp_path / "a", base="another")

    assert run(python(work), tmp_path).code == -signal.SIGKILL
    flip(tmp_path / "a" / "subject.json")
    same(tmp_path / "a", tune(tmp_path / "a"), whole)
