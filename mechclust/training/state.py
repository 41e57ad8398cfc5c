"""Everything a training run needs to go on: weights, optimiser, step, losses. One safetensors file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from probes.files import read_safetensors, write_atomic
from tasks import InputError

_FORMAT = "mechclust-training-1"


def save_state(
    path: Path,
    weights: Mapping[str, Tensor],
    optimizer: torch.optim.Optimizer,
    step: int,
    losses: Tensor,
    run: dict[str, Any],
) -> None:
    """Write the state before ``step``, atomically. ``run`` says what run it belongs to."""
    tensors = {f"model/{k}": v.detach() for k, v in weights.items()}
    for i, values in optimizer.state_dict()["state"].items():
        tensors.update({f"optimizer/{i}/{k}": torch.as_tensor(v) for k, v in values.items()})
    tensors["losses"] = losses[:step]
    header = {"format": _FORMAT, "step": str(step), "run": json.dumps(run)}
    write_atomic(path, save({k: v.cpu().contiguous() for k, v in tensors.items()}, header))


def load_state(
    path: Path, optimizer: torch.optim.Optimizer, run: dict[str, Any]
) -> tuple[int, Tensor, dict[str, Tensor]]:
    """Put the saved state into the optimiser; returns the next step, the losses so far, and the weights.

    Raises:
        InputError: for a damaged file, or the state of a run with other settings.
    """
    tensors, header = read_safetensors(path)
    if header.get("format") != _FORMAT:
        raise InputError(f"{str(path)!r} is not a training state; remove it, or choose another output folder")
    saved = json.loads(header["run"])
    run = json.loads(json.dumps(run))
    if saved != run:
        pairs = [(s, k) for s in run for k in {**run[s], **saved.get(s, {})}]
        section, key = next((s, k) for s, k in pairs if saved.get(s, {}).get(k) != run[s].get(k))
        raise InputError(
            f"{str(path.parent)!r} holds a run with {section} {key} = {saved.get(section, {}).get(key)!r}, "
            f"not {run[section].get(key)!r}; choose another output folder, or the same settings to go on"
        )
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer/"):
            _, i, key = name.split("/")
            state.setdefault(int(i), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    weights = {k.removeprefix("model/"): v for k, v in tensors.items() if k.startswith("model/")}
    return int(header["step"]), tensors["losses"], weights
