"""Weights of an ensemble over training, on disk: readable one step and one member at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mechclust.models.build import build_model
from mechclust.models.config import AnyConfig, model_config_from_json
from mechclust.models.weights import get_weights, set_weights
from mechclust.training.member import member_width
from probes.engine.hooked_model import HookedModel
from probes.store.files import DamagedError
from probes.store.safetensors_files import check_safetensors, write_safetensors
from tasks import InputError, Task

_FORMAT = "mechclust-snapshots-2"
_TRAIN_AGAIN = "remove it and state.safetensors, and train again with the same settings"

_Headers: TypeAlias = dict[int, tuple[Path, dict[str, str]]]  # the files of a folder, by their first step


class Snapshots:
    """Weights of every member at every snapshot of ``train_ensemble``, and every training loss.

    Files are read when they are needed. One file holds the snapshots of some steps, each weight as
    ``[snapshot member ...]``. A file's checksum is verified the first time that part of it is needed, which costs
    reading all of it once.

    Args:
        folder: the ``out`` of ``train_ensemble``.

    Attributes:
        steps: the steps of the snapshots, in order. 0 is before training.
        epochs: these steps counted in passes through the training sequences.

    Raises:
        InputError: for a folder without snapshots, or with some missing: the message names the first. A damaged file
            is refused when part of it is needed.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._files = _files(self.folder)
        self._verified: set[Path] = set()
        if not self._files:
            raise InputError(f"{str(folder)!r} holds no snapshots; give the folder of an ensemble's training")
        self._first, self._header = next(iter(self._files.values()))
        check_snapshots(self.folder, self._header)
        n_steps = int(self._header["steps"])
        self.steps: list[int] = snapshot_steps(n_steps, int(self._header["every"]))
        self.epochs: list[int] = [step // int(self._header["epoch_steps"]) for step in self.steps]
        self._place: dict[int, tuple[Path, int]] = {}
        for path, header in self._files.values():
            for row, step in enumerate(json.loads(header["held"])):
                self._place[step] = (path, row)
        save_every = json.loads(self._header["training"])["save_every"]
        lost = [step for step in range(0, n_steps, save_every) if step not in self._files]
        if lost:
            # A training that was interrupted lacks the last ones, and its state is needed to make them.
            first = "remove state.safetensors there and " if lost[0] < max(self._files) else ""
            raise InputError(
                f"{str(self.folder)!r} lacks the snapshots that begin at step {lost[0]} (of {n_steps} steps), and "
                f"maybe later ones; {first}train it again with the same settings to make them"
            )

    @cached_property
    def configs(self) -> list[AnyConfig]:
        """The members' model configurations, in order."""
        self._check(self._first)
        return [model_config_from_json(record["model"]) for record in json.loads(self._header["members"])]

    @cached_property
    def tasks(self) -> list[Task]:
        """The members' tasks, in order."""
        self._check(self._first)
        return [Task.from_config(record["task"]) for record in json.loads(self._header["members"])]

    @property
    def backend(self) -> str:
        """The way in which gradients were computed: ``"loop"``, ``"vmap"`` or ``"compiled"``."""
        return self._header["backend"]

    def __len__(self) -> int:
        return len(self.steps)

    def _check(self, path: Path) -> None:
        """Verify a file's checksum, once, because all of it is read."""
        if path not in self._verified:
            _check(path)
            self._verified.add(path)

    @contextmanager
    def _open(self, path: Path) -> Iterator[Any]:
        self._check(path)
        try:
            with safe_open(path, framework="pt") as file:
                yield file
        except (SafetensorError, OSError) as error:
            raise _unreadable(path, error) from None

    def _where(self, step: int) -> tuple[Path, int]:
        if step not in self._place:
            distances = [abs(known - step) for known in self.steps]
            near = self.steps[distances.index(min(distances))]
            raise InputError(f"{str(self.folder)!r} has no snapshot of step {step}; the nearest is step {near}")
        return self._place[step]

    def _check_member(self, member: int) -> None:
        if not 0 <= member < len(self.configs):
            raise InputError(
                f"there is no member {member} in {str(self.folder)!r} (it has 0 to {len(self.configs) - 1})"
            )

    def at(self, step: int) -> dict[str, Float[Tensor, "member ..."]]:
        """Return the weights of all members at a step, by name. Narrow feed-forward layers end in zeros."""
        path, row = self._where(step)
        with self._open(path) as file:
            return {name: file.get_slice(name)[row] for name in file.keys() if name != "losses"}  # noqa: SIM118

    def of(self, member: int, steps: Sequence[int] | None = None) -> dict[str, Float[Tensor, "snapshot ..."]]:
        """Return the weights of one member at several steps (all by default), by name."""
        self._check_member(member)
        places = [self._where(step) for step in (self.steps if steps is None else steps)]
        if not places:
            raise InputError("there are no steps to read; give at least one, or None for all")
        by_file: dict[Path, dict[str, Float[Tensor, "snapshot ..."]]] = {}
        for path in dict.fromkeys(path for path, _ in places):
            with self._open(path) as file:
                by_file[path] = {name: file.get_slice(name)[:, member] for name in file.keys() if name != "losses"}  # noqa: SIM118
        first, _ = places[0]
        weights = {name: torch.stack([by_file[path][name][row] for path, row in places]) for name in by_file[first]}
        return self._narrowed(member, weights)

    def model(self, member: int, step: int | None = None) -> HookedModel:
        """Return a member as it was at a step (the last by default), with hooks, in evaluation mode."""
        self._check_member(member)
        model = build_model(self.configs[member])
        weights = self.at(self.steps[-1] if step is None else step)
        set_weights(model, self._narrowed(member, {name: values[member] for name, values in weights.items()}))
        return model.eval()

    def _narrowed(self, member: int, weights: dict[str, Float[Tensor, "..."]]) -> dict[str, Float[Tensor, "..."]]:
        """Return a member's weights without the zeros that fill up a narrow feed-forward layer.

        Their last axes are the parameters' axes. Others may come before them.
        """
        if len({member_width(config) for config in self.configs}) == 1:
            return weights
        like = get_weights(build_model(self.configs[member]))
        ends: dict[str, Any] = {name: (..., *map(slice, values.shape)) for name, values in like.items()}
        return {name: values[ends[name]] for name, values in weights.items()}

    def losses(self) -> Float[Tensor, "step member"]:
        """Return the training loss of every step's batch."""
        losses = torch.empty(int(self._header["steps"]), len(self.configs))
        for start, (path, _) in self._files.items():
            with self._open(path) as file:
                part = file.get_tensor("losses")
            losses[start : start + len(part)] = part
        return losses


def snapshot_steps(steps: int, every: int) -> list[int]:
    """Return every ``every``-th step from 0, and the last."""
    return sorted({*range(0, steps, every), steps})


def snapshots_backend(folder: Path) -> Any:
    """Return the backend of the snapshots in a folder where training was interrupted."""
    _, header = next(iter(_files(folder).values()))
    return header["backend"]


def lost_snapshots(folder: Path, step: int, every: int) -> list[Path]:
    """Return the missing files before ``step``, at one file per ``every`` steps, and read all others.

    Raises:
        InputError: for a damaged one.
    """
    for path, _ in _files(folder).values():
        _check(path)
    paths = [_file_of(folder, start) for start in range(0, step, every)]
    return [path for path in paths if not path.exists()]


def _file_of(folder: Path, start: int) -> Path:
    """Return the path of the snapshots from a step to the next save."""
    return folder / f"snapshots-{start:08d}.safetensors"


def check_snapshots(folder: Path, header: Mapping[str, str]) -> None:
    """Refuse files of another run, which would be taken for this one's."""
    for path, saved in _files(folder).values():
        if any(saved.get(key) != header.get(key) for key in ("members", "training", "steps", "every")):
            _check(path)
            raise InputError(f"{str(path)!r} is from a run with other settings; remove it, or choose another folder")


class SnapshotFile:
    """The snapshots and losses between two saves, which make one file."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.losses: list[Float[Tensor, "member"]] = []
        self._steps: list[int] = []
        self._weights: list[dict[str, Float[Tensor, "member ..."]]] = []

    def keep(self, step: int, weights: Mapping[str, Float[Tensor, "member ..."]]) -> None:
        """Add a snapshot."""
        self._steps.append(step)
        self._weights.append({name: values.detach().clone() for name, values in weights.items()})

    def write(self, folder: Path, header: Mapping[str, str]) -> None:
        """Write the file, atomically."""
        names = self._weights[0].keys() if self._weights else ()
        tensors = {name: torch.stack([kept[name] for kept in self._weights]) for name in names}
        tensors["losses"] = torch.stack(self.losses)
        record = {**header, "format": _FORMAT, "held": json.dumps(self._steps)}
        write_safetensors(_file_of(folder, self.start), tensors, record)

    @property
    def end(self) -> int:
        """The first step after it."""
        return self.start + len(self.losses)


def _files(folder: Path) -> _Headers:
    """Return the files of a folder and their headers, in order. Files of other names, such as copies, are not ours."""
    paths = {p.stem.removeprefix("snapshots-"): p for p in folder.glob("snapshots-*.safetensors")}
    starts = sorted(filter(str.isdecimal, paths), key=int)
    return {int(start): (paths[start], _header(paths[start])) for start in starts}


def _header(path: Path) -> dict[str, str]:
    try:
        with safe_open(path, framework="pt") as file:
            header: dict[str, str] = dict(file.metadata() or {})
            if header.get("format") != _FORMAT:
                raise InputError(f"{str(path)!r} is not a file of snapshots; remove it, or give another folder")
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from None
    try:
        numbers = [header["steps"], header["every"], header["epoch_steps"], *json.loads(header["held"])]
        for number in (*numbers, json.loads(header["training"])["save_every"]):
            int(number)
        return {**header, "members": header["members"], "backend": header["backend"]}
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        _check(path)
        raise _unreadable(path, error) from None


def _check(path: Path) -> None:
    """Refuse a file whose checksum does not match."""
    try:
        check_safetensors(path)
    except DamagedError:
        raise InputError(f"{str(path)!r} is damaged (its checksum does not match); {_TRAIN_AGAIN}") from None


def _unreadable(path: Path, error: Exception) -> InputError:
    return InputError(f"{str(path)!r} cannot be read ({error}); {_TRAIN_AGAIN}")
