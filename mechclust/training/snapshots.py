"""Weights of an ensemble over training, on disk: readable one step and one member at a time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from mechclust.models.build import build_model
from mechclust.models.config import AnyConfig, config_from_dict
from mechclust.models.weights import set_weights
from probes.result import write_atomic
from tasks import InputError, Task

_FORMAT = "mechclust-snapshots-1"


class Snapshots:
    """What ``train_ensemble`` kept: weights of every member at every snapshot, and every training loss.

    Nothing is read before it is asked for. One file holds the snapshots of some steps, each weight as
    ``[snapshot member ...]``.

    Args:
        folder: the ``out`` of ``train_ensemble``.

    Attributes:
        steps: the steps of the snapshots, in order; 0 is before training.
        epochs: the same counted in passes through the training sequences.

    Raises:
        InputError: for a folder without snapshots, or with some missing; the message says which.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._files = {int(p.stem.removeprefix("snapshots-")): p for p in self.folder.glob("snapshots-*.safetensors")}
        if not self._files:
            raise InputError(f"{str(folder)!r} holds no snapshots; give the folder of an ensemble's training")
        self._header = _header(next(iter(self._files.values())))
        wanted = snapshot_steps(int(self._header["steps"]), int(self._header["every"]))
        self._place: dict[int, tuple[Path, int]] = {}
        for _, path in sorted(self._files.items()):
            for row, step in enumerate(json.loads(_header(path)["held"])):
                self._place[step] = (path, row)
        if missing := [step for step in wanted if step not in self._place]:
            raise InputError(
                f"{str(folder)!r} lacks the snapshots of {_spans(wanted, missing)} (of {wanted[-1]} steps); "
                "train it again with the same settings to make them"
            )
        self.steps: list[int] = wanted
        self.epochs: list[int] = [step // int(self._header["epoch_steps"]) for step in wanted]

    @cached_property
    def configs(self) -> list[AnyConfig]:
        """The members' model configurations, in order."""
        return [config_from_dict(record["model"]) for record in json.loads(self._header["members"])]

    @cached_property
    def tasks(self) -> list[Task]:
        """The members' tasks, in order."""
        return [Task.from_config(record["task"]) for record in json.loads(self._header["members"])]

    @property
    def backend(self) -> str:
        """What computed the gradients: ``"loop"``, ``"vmap"`` or ``"compiled"``."""
        return self._header["backend"]

    def __len__(self) -> int:
        return len(self.steps)

    def _where(self, step: int) -> tuple[Path, int]:
        if step not in self._place:
            near = min(self.steps, key=lambda known: abs(known - step))
            raise InputError(f"{str(self.folder)!r} has no snapshot of step {step}; the nearest is step {near}")
        return self._place[step]

    def _member(self, member: int) -> int:
        if not 0 <= member < len(self.configs):
            raise InputError(
                f"there is no member {member} in {str(self.folder)!r} (it has 0 to {len(self.configs) - 1})"
            )
        return member

    def at(self, step: int) -> dict[str, Tensor]:
        """Weights of all members at a step, ``[member ...]`` by name."""
        path, row = self._where(step)
        with safe_open(path, framework="pt") as file:
            return {name: file.get_slice(name)[row] for name in file.keys() if name != "losses"}  # noqa: SIM118

    def of(self, member: int, steps: Sequence[int] | None = None) -> dict[str, Tensor]:
        """Weights of one member at several steps (all by default), ``[snapshot ...]`` by name."""
        self._member(member)
        by_file: dict[Path, list[int]] = {}
        for step in self.steps if steps is None else steps:
            path, row = self._where(step)
            by_file.setdefault(path, []).append(row)
        parts = []
        for path, rows in by_file.items():
            with safe_open(path, framework="pt") as file:
                parts.append(
                    {name: file.get_slice(name)[:, member][rows] for name in file.keys() if name != "losses"}  # noqa: SIM118
                )
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def model(self, member: int, step: int | None = None) -> Any:
        """A member as it was at a step (the last by default), with hooks."""
        model = build_model(self.configs[self._member(member)])
        weights = self.at(self.steps[-1] if step is None else step)
        set_weights(model, {name: values[member] for name, values in weights.items()})
        return model

    def losses(self) -> Tensor:
        """``[steps member]`` training loss of every step's batch."""
        parts = []
        for _, path in sorted(self._files.items()):
            with safe_open(path, framework="pt") as file:
                parts.append(file.get_tensor("losses"))
        return torch.cat(parts)


def snapshot_steps(steps: int, every: int) -> list[int]:
    """Every ``every``-th step from 0, and the last."""
    return sorted({*range(0, steps, every), steps})


def backend_of(folder: Path) -> Any:
    """The backend of the snapshots in a folder where training was interrupted."""
    return _header(next(iter(sorted(folder.glob("snapshots-*.safetensors")))))["backend"]


class Segment:
    """The snapshots and losses between two saves, which make one file."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.losses: list[Tensor] = []
        self._steps: list[int] = []
        self._weights: list[dict[str, Tensor]] = []

    def keep(self, step: int, weights: Mapping[str, Tensor]) -> None:
        """Add a snapshot of ``weights [member ...]``."""
        self._steps.append(step)
        self._weights.append({name: values.detach().clone() for name, values in weights.items()})

    def write(self, folder: Path, header: Mapping[str, str]) -> None:
        """Write the file, atomically."""
        names = self._weights[0].keys() if self._weights else ()
        tensors = {name: torch.stack([kept[name] for kept in self._weights]).cpu() for name in names}
        tensors["losses"] = torch.stack(self.losses).cpu()
        record = {**header, "format": _FORMAT, "held": json.dumps(self._steps)}
        write_atomic(folder / f"snapshots-{self.start:08d}.safetensors", save(tensors, record))


def _header(path: Path) -> dict[str, str]:
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise InputError(f"{str(path)!r} cannot be read ({error}); remove it and train again") from None
    if header.get("format") != _FORMAT:
        raise InputError(f"{str(path)!r} is not a file of snapshots; remove it, or give another folder")
    return dict(header)


def _spans(wanted: Sequence[int], missing: Sequence[int]) -> str:
    """Missing steps as stretches: ``steps 640-1216, 6400``."""
    stretches = groupby(wanted, key=set(missing).__contains__)
    spans = [list(steps) for lost, steps in stretches if lost]
    texts = [str(span[0]) if len(span) == 1 else f"{span[0]}-{span[-1]}" for span in spans]
    return f"step{'s' if len(missing) > 1 else ''} {', '.join(texts[:6])}{' and more' if len(texts) > 6 else ''}"
