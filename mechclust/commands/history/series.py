"""The checkpoints of a training run, in order."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mechclust.commands.history.config import LEAST, HistoryConfig
from mechclust.models.resolved import ResolvedModel
from tasks import InputError
from tasks.text.visible import quoted


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint of a training run.

    Attributes:
        name: the revision, or the folder's name.
        step: the last number in the name; ``None`` if it has none.
        model: by name, with absolute paths.
    """

    name: str
    step: int | None
    model: ResolvedModel


def find_series(model: str | Path, config: HistoryConfig) -> list[Checkpoint]:
    """The checkpoints in the order of their steps, or in the given order if any name has no number.

    Args:
        model: a hub name, or a folder; without revisions and checkpoints, its ``checkpoint-*`` folders are used.
        config: with revisions or checkpoints.

    Raises:
        InputError: for fewer than two checkpoints, a missing folder, a folder that holds checkpoints instead of being
            one, revisions of a folder, a revision given twice, or two checkpoints of the same step.
    """
    local = Path(model).is_dir()
    if config.revisions:
        if local:
            raise InputError(
                f"{str(model)!r} is a folder, which has no revisions; give its checkpoints with --checkpoints, or a "
                "hub name"
            )
        found = [(revision, f"{model}@{revision}") for revision in config.revisions]
    else:
        given = _folders(config.checkpoints) if config.checkpoints else _own(Path(model))
        found = [(path.name, str(path)) for path in given]
    if len(found) < LEAST:
        what = "revision" if config.revisions else "checkpoint"
        raise InputError(f"a history has at least {LEAST} checkpoints, and {len(found)} {what} was found; give more")
    series = [Checkpoint(name, _step(name), config.resolve(source).portable) for name, source in found]
    _check_different(series)
    if all(each.step is not None for each in series):
        return sorted(series, key=lambda each: each.step or 0)
    return series


def _own(model: Path) -> list[Path]:
    """The checkpoints in a folder that the Trainer wrote."""
    if not model.is_dir():
        raise InputError(
            f"no checkpoints given, and no folder {str(model)!r}; give --revisions step0 step1000 ... of a model on "
            "the hub, or --checkpoints run/checkpoint-*"
        )
    if not (found := _checkpoints(model)):
        above = model.parent if model.name.startswith("checkpoint-") else Path("run")
        raise InputError(
            f"{str(model)!r} has no folders called checkpoint-*; give the folder in which the Trainer saved them, such "
            f"as {str(above)!r}, or the checkpoints themselves with --checkpoints"
        )
    return found


def _checkpoints(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob("checkpoint-*")) if path.is_dir()]


def _folders(given: Sequence[Path]) -> list[Path]:
    """Folders, including those that match a pattern which the shell did not expand."""
    found: list[Path] = []
    for path in given:
        if path.is_dir():
            if _checkpoints(path) and not (path / "config.json").exists():
                raise InputError(
                    f"{str(path)!r} holds checkpoints and is not one itself; give --checkpoints {path}/checkpoint-*"
                )
            found.append(path)
            continue
        matches = [Path(match) for match in sorted(glob.glob(str(path))) if Path(match).is_dir()]
        if not matches:
            raise InputError(f"no folder {str(path)!r}; give the folders of checkpoints, such as run/checkpoint-*")
        found += matches
    return found


def _step(name: str) -> int | None:
    numbers = re.findall(r"\d+", name)
    return int(numbers[-1]) if numbers else None


def _check_different(series: Sequence[Checkpoint]) -> None:
    seen: dict[str, str] = {}
    for each in series:
        if each.model.source in seen or each.name in seen.values():
            raise InputError(f"checkpoint {quoted(each.name)} is given twice; give each once, under a name of its own")
        seen[each.model.source] = each.name
    steps: dict[int, str] = {}
    for each in series:
        if each.step is not None and (other := steps.setdefault(each.step, each.name)) != each.name:
            raise InputError(
                f"checkpoints {quoted(other)} and {quoted(each.name)} are both of step {each.step}; give one per step"
            )
