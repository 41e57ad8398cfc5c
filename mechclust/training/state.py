"""The resumable state of a training run in one safetensors file: weights, optimiser, step and losses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from probes.store.safetensors_files import read_safetensors, write_safetensors
from tasks import InputError, Task

_FORMAT = "mechclust-training-2"
_BEGAN = ("model", "initial weights")  # section and key of the record

_Weights: TypeAlias = Mapping[str, Shaped[Tensor, "..."]]


class TrainingState(NamedTuple):
    """A saved state.

    Attributes:
        step: the next one.
        losses: of all steps before it.
        weights: by name.
        run: the record of its run, as it was saved.
    """

    step: int
    losses: Float[Tensor, "step"]
    weights: dict[str, Shaped[Tensor, "..."]]
    run: dict[str, Any]


def save_training_state(
    path: Path,
    weights: _Weights,
    optimizer: torch.optim.Optimizer,
    step: int,
    losses: Float[Tensor, "step"],
    run: dict[str, Any],
) -> None:
    """Write the state before ``step``, atomically, with the record of its run."""
    tensors = {f"model/{k}": v for k, v in weights.items()}
    for i, values in sorted(optimizer.state_dict()["state"].items()):  # in one order, also after a load
        tensors.update({f"optimizer/{i}/{k}": torch.as_tensor(v) for k, v in sorted(values.items())})
    tensors["losses"] = losses[:step]
    header = {"format": _FORMAT, "step": str(step), "run": json.dumps(run)}
    write_safetensors(path, tensors, header)


def load_training_state(
    path: Path,
    optimizer: torch.optim.Optimizer,
    run: dict[str, Any],
    model_weights: _Weights | None = None,
) -> TrainingState:
    """Put the saved state into the optimiser, and return it.

    Args:
        path: its file.
        optimizer: with the parameters that are trained.
        run: the record of the run that it has to belong to.
        model_weights: weights of the given model. If they equal the saved ones to the bit, it may have begun from other
            weights than those in ``run``, because it was trained already.

    Raises:
        InputError: for a damaged file, or the state of a run with other settings.
    """
    tensors, header = read_safetensors(path)
    if header.get("format") != _FORMAT:
        raise InputError(f"{str(path)!r} is not a training state; remove it, or choose another output folder")
    weights = {k.removeprefix("model/"): v for k, v in tensors.items() if k.startswith("model/")}
    saved = json.loads(header["run"])
    run = json.loads(json.dumps(run))
    if saved != run:
        _check(path.parent, saved, run, model_weights is not None and _equal(model_weights, weights))
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer/"):
            _, i, key = name.split("/")
            state.setdefault(int(i), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return TrainingState(int(header["step"]), tensors["losses"], weights, saved)


def task_of_state(path: Path) -> Task:
    """Return the task of the run that a state belongs to.

    Raises:
        InputError: for a file that is not a training state.
    """
    _, header = read_safetensors(path)
    if header.get("format") != _FORMAT:
        raise InputError(f"{str(path)!r} is not a training state; give the folder that `train` was given as `out`")
    return Task.from_config(json.loads(header["run"])["task"])


def check_state_files(state: Path, step: int, lost: Sequence[Path]) -> None:
    """Refuse a saved state if files of earlier steps are lost.

    Raises:
        InputError: naming the first of them.
    """
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise InputError(
            f"{str(state)!r} is of step {step}, but {str(lost[0])!r}{more} of earlier steps cannot be read; "
            "delete the state to train again"
        )


def _check(folder: Path, saved: dict[str, Any], run: dict[str, Any], trained: bool) -> None:
    """Refuse the state of a run with other settings, naming the first."""
    for section in {**run, **saved}:
        old = saved.get(section, {})
        new = run.get(section, {})
        for key in {**new, **old}:
            if old.get(key) == new.get(key) or ((section, key) == _BEGAN and trained):
                continue
            if section == "callbacks" and (key not in old or key not in new):
                continue  # a measurement that was added or left out; lost files are refused apart
            if (section, key) == _BEGAN:
                raise InputError(
                    f"{str(folder)!r} holds a run that began from other weights (fingerprint {old.get(key)}, not "
                    f"{new.get(key)}), or this model was trained already; build it again (build_model(config)) to "
                    "continue, or give another folder"
                )
            raise InputError(
                f"{str(folder)!r} holds a run with {section} {key} = {old.get(key)!r}, not {new.get(key)!r}; "
                "choose another output folder, or the same settings to continue"
            )


def _equal(given: _Weights, saved: _Weights) -> bool:
    return given.keys() == saved.keys() and all(torch.equal(given[name].detach().cpu(), x) for name, x in saved.items())
