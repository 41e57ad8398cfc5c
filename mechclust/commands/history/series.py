"""The checkpoints of a training run, in order."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from mechclust.commands.history.config import MIN_CHECKPOINTS, HistoryConfig
from mechclust.models.resolved import ResolvedModel
from tasks import InputError
from tasks.text.visible import quoted

LAST_NAMES = ("final", "last")  # how the name of a checkpoint without a number ends that comes after all others
_NUMBER = r"(\d+(?:\.\d+)*)"
_STEP = re.compile(rf"(?<![a-z])(?:step|checkpoint|iter)[a-z]*[-_=]?{_NUMBER}", re.IGNORECASE)


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint of a training run.

    Attributes:
        name: the revision, or the folder's name.
        step: the number in the name, see ``step_of``, or ``None`` if it has none.
        model: by name, with absolute paths.
    """

    name: str
    step: int | None
    model: ResolvedModel


def find_series(model: str | Path, config: HistoryConfig) -> list[Checkpoint]:
    """Return the checkpoints in the order of their steps, with one called final or last, or main, after them.

    If no name has a number, they are in the given order.

    Args:
        model: a hub name, or a folder. Without revisions and checkpoints, its ``checkpoint-*`` folders are used.
        config: settings with revisions or checkpoints.

    Raises:
        InputError: for fewer than two checkpoints, a missing folder, or a folder that holds checkpoints instead of
            being one. Also for revisions of a folder, a revision given twice, two checkpoints with one step, one
            without a step beside others, or a step that is no whole number.
    """
    sources = _revisions(model, config) if config.revisions else _folders(Path(model), config)
    if len(sources) < MIN_CHECKPOINTS:
        kind = "revision" if config.revisions else "checkpoint"
        raise InputError(
            f"a history has at least {MIN_CHECKPOINTS} checkpoints, and {len(sources)} {kind} was found; give more"
        )
    series = [Checkpoint(name, step_of(name), config.resolve(source).portable) for name, source in sources]
    _check_different(series)
    unnumbered = [checkpoint for checkpoint in series if checkpoint.step is None]
    if len(unnumbered) == len(series):
        return series
    last = [checkpoint for checkpoint in unnumbered if _is_last(checkpoint.name)][:1]
    for checkpoint in unnumbered:
        if checkpoint not in last:
            raise InputError(f"no step in the name {quoted(checkpoint.name)}; leave this checkpoint out, or rename it")
    numbered = [checkpoint for checkpoint in series if checkpoint.step is not None]
    return sorted(numbered, key=attrgetter("step")) + last


def _is_last(name: str) -> bool:
    return name.endswith(LAST_NAMES) or name == "main"  # the finished model on the hub


def _revisions(model: str | Path, config: HistoryConfig) -> list[tuple[str, str]]:
    """Return names and sources of the given revisions."""
    if Path(model).is_dir():
        raise InputError(
            f"{str(model)!r} is a folder, which has no revisions; give its checkpoints with --checkpoints, or a hub "
            "name"
        )
    return [(revision, f"{model}@{revision}") for revision in config.revisions]


def _folders(model: Path, config: HistoryConfig) -> list[tuple[str, str]]:
    """Return names and paths of the given folders, or of the Trainer's."""
    folders = _given_folders(config.checkpoints) if config.checkpoints else _trainer_folders(model)
    return [(Path(os.path.abspath(path)).name, str(path)) for path in folders]


def _trainer_folders(model: Path) -> list[Path]:
    if not model.is_dir():
        raise InputError(
            f"no checkpoints given, and no folder {str(model)!r}; give --revisions step0 step1000 ... of a model on "
            "the hub, or --checkpoints run/checkpoint-*"
        )
    folders = _checkpoints_in(model)
    for path in sorted(model.glob("checkpoint-*")):
        if re.fullmatch(r"checkpoint-\d+", path.name) and not path.is_dir():
            raise InputError(f"{str(path)!r} is no folder, as a checkpoint is; remove it, or put the checkpoint there")
    if not folders:
        above = model.parent if model.name.startswith("checkpoint-") else Path("run")
        raise InputError(
            f"{str(model)!r} has no folders called checkpoint-*; give the folder in which the Trainer saved them, such "
            f"as {str(above)!r}, or the checkpoints themselves with --checkpoints"
        )
    return folders


def _checkpoints_in(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob("checkpoint-*")) if path.is_dir()]


def _given_folders(paths: Sequence[Path]) -> list[Path]:
    """Return the folders, including ones that match a pattern which the shell did not expand."""
    folders: list[Path] = []
    for path in paths:
        if not path.is_dir():
            folders += _matching(path)
        elif _checkpoints_in(path) and not (path / "config.json").exists():
            raise InputError(
                f"{str(path)!r} holds checkpoints and is not one itself; give --checkpoints {path}/checkpoint-*"
            )
        else:
            folders.append(path)
    return folders


def _matching(pattern: Path) -> list[Path]:
    folders = [Path(match) for match in sorted(glob.glob(str(pattern))) if Path(match).is_dir()]
    if not folders:
        raise InputError(f"no folder {str(pattern)!r}; give the folders of checkpoints, such as run/checkpoint-*")
    return folders


def step_of(name: str) -> int | None:
    """Return the last number after step, checkpoint or iter in a name, or the last whole one without such a word.

    Example:
        >>> step_of("step1000-tokens4B"), step_of("epoch-2"), step_of("v1.0"), step_of("best")
        (1000, 2, None, None)
    """
    numbers = _STEP.findall(name)
    if not numbers:
        numbers = re.findall(_NUMBER, name)
        return int(numbers[-1]) if numbers and numbers[-1].isdigit() else None
    if not numbers[-1].isdigit():
        raise InputError(
            f"the step {numbers[-1]} of {quoted(name)} is no whole number; leave this checkpoint out, or rename it"
        )
    return int(numbers[-1])


def _check_different(series: Sequence[Checkpoint]) -> None:
    sources: set[str] = set()
    names: set[str] = set()
    name_of_step: dict[int, str] = {}
    for checkpoint in series:
        name = checkpoint.name
        if checkpoint.model.source in sources or name in names:
            raise InputError(f"checkpoint {quoted(name)} is given twice; give each once, under a name of its own")
        sources.add(checkpoint.model.source)
        names.add(name)
        step = checkpoint.step
        if step is not None and step in name_of_step:
            first = quoted(name_of_step[step])
            raise InputError(f"checkpoints {first} and {quoted(name)} are both of step {step}; give one per step")
        if step is not None:
            name_of_step[step] = name
