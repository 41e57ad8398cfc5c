"""One adapter, trained by peft and Hugging Face's Trainer, and resumed to the bit after an interruption."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file

from mechclust.models.adapters import adapter_of
from mechclust.models.hugging_face_checkpoint import ADAPTER
from mechclust.models.instruction_format import FormattedExample
from mechclust.training.diverged import DivergedError
from mechclust.training.tuning.answers import check_answers_fit
from mechclust.training.tuning.checkpoints import newest_checkpoint
from mechclust.training.tuning.config import TuneConfig
from mechclust.training.tuning.lora import check_trainable, train_lora
from probes.store.digest import digest_of
from probes.store.files import read_json, write_atomic, write_errors, write_json
from probes.store.versions import package_versions
from tasks import InputError
from tasks.settings import settings_to_json

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_WEIGHTS = "adapter_model.safetensors"
_PACKAGES = ("accelerate", "peft", "transformers")  # whose versions are recorded besides our own
_SUBJECT = "subject.json"
_RECORD = "tuning.json"
_DIVERGED = "diverged.json"
_CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class TunedAdapter:
    """A trained adapter.

    Attributes:
        folder: its folder, as peft saves it.
        steps: optimiser steps.
        losses: ``(step, mean loss since the last)`` on the answers' tokens, in nats.
        examples: number of training examples.
        seconds: training time of the process that finished it, or 0 if that was killed before saving it.
    """

    folder: Path
    steps: int
    losses: tuple[tuple[int, float], ...]
    examples: int
    seconds: float


def tune_adapter(
    model: PreTrainedModel,
    examples: Sequence[FormattedExample],
    config: TuneConfig,
    folder: str | Path,
    *,
    base: str,
    name: str = "adapter",
    source: str | None = None,
    progress: bool = False,
) -> TunedAdapter:
    """Train an adapter on answers and keep it in ``folder``. A finished one is not trained again.

    Only the answers' tokens have a loss. After an interruption, even by ``kill -9``, repeating the call resumes from
    the last whole checkpoint and gives identical bits (on a CPU with as many threads). If training diverged,
    ``diverged.json`` is kept instead. Repeating the call then reports it without training, and a call with other
    settings starts again.

    Args:
        model: Hugging Face's causal language model, which is not changed, nor is the global random state.
        examples: see ``InstructionFormat.answered``.
        config: how to train.
        folder: gets the adapter as peft saves it, ``tuning.json`` and, until the end, ``checkpoints/``.
        base: fingerprint of the model, ``probes.engine.fingerprint.fingerprint``.
        name: its name in errors.
        source: name or folder of the model, for the adapter's configuration.
        progress: show the Trainer's bar.

    Raises:
        InputError: for no examples, examples that the model cannot read, layers that it does not have, a model that has
            an adapter in it, or missing libraries. Also for a folder that cannot be written, or holds an adapter with
            other settings or of another program. As ``DivergedError``, for a loss that is not finite, naming adapter
            and step.
    """
    folder = Path(folder)
    if not examples:
        raise InputError(f"{name} has no examples to train on; give some, or leave it out")
    subject = {"config": settings_to_json(config), "base": base, "data": _digest(examples)}
    finished = tuned_adapter_at(folder, subject, name)
    if finished is not None:
        shutil.rmtree(folder / _CHECKPOINTS, ignore_errors=True)  # of a run killed between saving and this
        return finished
    _check_divergence(folder, subject)
    _check_own(folder, name)
    _check(model, examples, config, name)
    _begin(folder, subject)
    try:
        checkpoint, seconds = _train(model, examples, config, folder / _CHECKPOINTS, name, source, progress)
    except DivergedError as error:
        _keep_divergence(folder, subject, error)
        raise
    logs = _keep(checkpoint, folder, config, source)
    record = {
        "steps": config.steps_for(len(examples)),
        "losses": [(int(log["step"]), float(log["loss"])) for log in logs if "loss" in log],
        "examples": len(examples),
        "seconds": seconds,
        "weights": tuned_adapter_digest(folder),
        "versions": package_versions() | {package: version(package) for package in _PACKAGES},
    }
    write_json(folder / _RECORD, {**subject, **record})
    shutil.rmtree(folder / _CHECKPOINTS, ignore_errors=True)
    return _tuned(folder, {**subject, **record})


def tuned_adapter_at(
    folder: str | Path, subject: dict[str, Any] | None = None, name: str = "adapter"
) -> TunedAdapter | None:
    """Return the finished adapter in a folder, or ``None`` if it is missing or damaged.

    Args:
        folder: of the adapter.
        subject: what it must have been trained with, of ``config``, ``base`` and ``data``.
        name: its name in errors.

    Raises:
        InputError: if it was, or is being, trained with another ``subject``.
    """
    folder = Path(folder)
    record = _read(folder / _RECORD)
    saved = _read(folder / _SUBJECT) or record
    if subject is not None and saved is not None:
        differences = {"base": "for another base", "data": "on other data", "config": "with other settings"}
        for key, difference in differences.items():
            if key in subject and saved.get(key) != subject[key]:
                raise InputError(
                    f"{name} in {str(folder)!r} was trained {difference}; give the same, or another folder with --out"
                )
    return _tuned(folder, record) if record is not None and _is_undamaged(folder, record) else None


def tuned_adapter_digest(folder: str | Path) -> str:
    """Return a digest that identifies an adapter's weights."""
    weights = load_file(Path(folder) / _WEIGHTS)
    return digest_of(chain.from_iterable(sorted(weights.items())))


def _check(model: PreTrainedModel, examples: Sequence[FormattedExample], config: TuneConfig, name: str) -> None:
    """Refuse a model, examples and settings with which training would fail."""
    present = adapter_of(model)
    if present is not None:
        raise InputError(f"the base of {name} has the adapter {present!r} in it; take it out with set_adapter first")
    steps = config.steps_for(len(examples))
    if config.warmup >= steps:
        raise InputError(
            f"tuning.warmup is {config.warmup}, and {name} is trained for {steps} steps; give fewer, or train for more"
        )
    check_answers_fit(model, examples, name)
    check_trainable(model, config, name)


def _check_own(folder: Path, name: str) -> None:
    """Refuse a folder with an adapter or checkpoints that another program wrote."""
    if any((folder / file).exists() for file in (_SUBJECT, _RECORD, _DIVERGED)):
        return
    for file in (ADAPTER, _WEIGHTS, _CHECKPOINTS):
        if (folder / file).exists():
            raise InputError(f"{str(folder)!r} holds a {file!r} that {name} would replace; give another folder")


def _begin(folder: Path, subject: dict[str, Any]) -> None:
    """Record the settings and inputs of the training. Without a record checkpoints are of no use."""
    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    (folder / _DIVERGED).unlink(missing_ok=True)
    if _read(folder / _SUBJECT) is None:
        shutil.rmtree(folder / _CHECKPOINTS, ignore_errors=True)
        write_json(folder / _SUBJECT, subject)


def _train(
    model: PreTrainedModel,
    examples: Sequence[FormattedExample],
    config: TuneConfig,
    checkpoints: Path,
    name: str,
    source: str | None,
    progress: bool,
) -> tuple[Path, float]:
    """Train to the last step, and return its checkpoint and the seconds that it took."""
    steps = config.steps_for(len(examples))
    seconds = 0.0
    last = newest_checkpoint(checkpoints)
    if last is None or last[0] < steps:  # Hugging Face's Trainer, resumed at its end, may take one step more
        resume = None if last is None else last[1]
        seconds = train_lora(model, examples, config, checkpoints, name, source, resume, progress)
        last = newest_checkpoint(checkpoints)
    if last is None or last[0] != steps:
        raise RuntimeError(f"Hugging Face's Trainer left no checkpoint of step {steps} of {name}")
    _, checkpoint = last
    _check_finite(checkpoint, steps, name)
    return checkpoint, seconds


def _check_divergence(folder: Path, subject: dict[str, Any]) -> None:
    """Refuse a training that diverged before."""
    record = _read(folder / _DIVERGED) or {}
    is_same = all(record.get(key) == value for key, value in subject.items())
    if is_same and "why" in record:
        raise DivergedError(str(record["why"]))


def _keep_divergence(folder: Path, subject: dict[str, Any], error: DivergedError) -> None:
    """Record that training diverged. Only other settings can help, which cannot use the other files here."""
    shutil.rmtree(folder / _CHECKPOINTS, ignore_errors=True)
    (folder / _SUBJECT).unlink(missing_ok=True)
    with suppress(InputError):  # without the record it would only be trained again
        write_json(folder / _DIVERGED, {**subject, "why": str(error)})


def _check_finite(checkpoint: Path, steps: int, name: str) -> None:
    """Refuse weights that are not finite: the loss does not show the outcome of the last step."""
    if not all(bool(weight.isfinite().all()) for weight in load_file(checkpoint / _WEIGHTS).values()):
        raise DivergedError(f"the weights of {name} are not finite after step {steps}; lower --tuning.lr")


def _keep(checkpoint: Path, folder: Path, config: TuneConfig, source: str | None) -> list[dict[str, Any]]:
    """Make the last checkpoint's adapter the folder's own, and return the Trainer's log."""
    saved = json.loads((checkpoint / ADAPTER).read_bytes())
    if source is not None:
        saved["base_model_name_or_path"] = source
    saved["target_modules"] = sorted(config.modules)  # of 20 names or more, peft saves ends that they share
    write_atomic(folder / _WEIGHTS, (checkpoint / _WEIGHTS).read_bytes())
    write_atomic(folder / ADAPTER, (json.dumps(saved, indent=2, sort_keys=True) + "\n").encode())
    return list(json.loads((checkpoint / "trainer_state.json").read_bytes())["log_history"])


def _is_undamaged(folder: Path, record: dict[str, Any]) -> bool:
    try:
        config = json.loads((folder / ADAPTER).read_bytes())
        settings = record["config"]
        saved = (config["peft_type"], config["r"], config["lora_alpha"], sorted(config["target_modules"]))
        wanted = ("LORA", settings["rank"], settings["alpha"], sorted(settings["modules"]))
        return bool(saved == wanted and tuned_adapter_digest(folder) == record["weights"])
    except Exception:  # a damaged file may raise anything
        return False


def _tuned(folder: Path, record: dict[str, Any]) -> TunedAdapter:
    losses = tuple((int(step), float(loss)) for step, loss in record["losses"])
    return TunedAdapter(
        folder=folder,
        steps=record["steps"],
        losses=losses,
        examples=record["examples"],
        seconds=record["seconds"],
    )


def _read(path: Path) -> dict[str, Any] | None:
    """Return a record, or ``None`` if it is missing or damaged."""
    try:
        record = read_json(path)
    except InputError:
        return None
    return record if isinstance(record, dict) else None


def _digest(examples: Sequence[FormattedExample]) -> str:
    lengths = torch.tensor([[len(example.tokens), example.start] for example in examples])
    tokens = list(chain.from_iterable(example.tokens for example in examples))
    return digest_of([lengths, torch.tensor(tokens)])
