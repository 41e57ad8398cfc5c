"""The files of a folder that hold instruction tasks, and the task, split and shard in their names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tasks.errors import InputError
from tasks.text.instructions.splits import Split
from tasks.text.visible import quoted, shortened

_SUFFIXES = (".jsonl", ".parquet")
_SILENTLY_LEFT_OUT = (".md", ".toml", ".txt", "")
_SPLITS: dict[str, Split] = {
    "train": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
}
_NAME = re.compile(rf"(?:(?P<task>.+)[-_.])?(?P<split>{'|'.join(_SPLITS)})", re.IGNORECASE)
_WANTED = ".jsonl or .parquet files of prompts and answers"
_SHARD = re.compile(r"-\d+-of-\d+$")


@dataclass(frozen=True)
class TaskFile:
    """A file of prompts and answers.

    Attributes:
        path: path of the file.
        whole: the path without a shard's number, which the shards of one file have in common.
        task: the task in the name. ``None`` for ``train.jsonl``.
        split: the split in the name of the file or of its folder.
    """

    path: Path
    whole: str
    task: str | None
    split: Split | None


def task_files(folder: Path) -> tuple[list[TaskFile], list[str]]:
    """Return the files of a folder and of its sub-folders that are called as a split, and notes on the others.

    Raises:
        InputError: for a folder that is missing or has none.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     (Path(folder) / "dev").mkdir()
        ...     for name in ("copa_train.jsonl", "dev/copa.jsonl", "train-00000-of-00002.parquet", "notes.txt"):
        ...         (Path(folder) / name).touch()
        ...     files, notes = task_files(Path(folder))
        >>> [(file.task, file.split) for file in files], notes
        ([('copa', 'train'), (None, 'train'), ('copa', 'validation')], [])
    """
    entries = entries_of(folder, _WANTED)
    files = [_task_file(path, None) for path in entries if _holds_tasks(path)]
    left_out = []
    for sub_folder in filter(Path.is_dir, entries):
        inside = [path for path in entries_of(sub_folder, _WANTED) if _holds_tasks(path)]
        split = _SPLITS.get(sub_folder.name.lower())
        if split is not None:
            files += [_task_file(path, split) for path in inside]
        elif inside:
            left_out.append(sub_folder.name)
    if not files:
        raise InputError(f"the folder {str(folder)!r} has no {_WANTED} ({_contents(entries, left_out)})")
    notes = []
    if left_out:
        notes.append(f"sub-folders that are called as no split are left out: {_some(left_out)}")
    expected = (*_SUFFIXES, *_SILENTLY_LEFT_OUT)
    others = [path.name for path in entries if path.is_file() and path.suffix.lower() not in expected]
    if others:
        notes.append(f"files that are neither .jsonl nor .parquet are left out: {_some(others)}")
    return files, notes


def entries_of(folder: Path, wanted: str) -> list[Path]:
    """Return the files and folders in a folder, sorted, without hidden ones.

    Raises:
        InputError: for a folder that is missing, or that cannot be read.
    """
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except FileNotFoundError:
        raise InputError(f"no folder {str(folder)!r}; give the path of a folder with {wanted}") from None
    except NotADirectoryError:
        raise InputError(f"{str(folder)!r} is not a folder; give the path of a folder with {wanted}") from None
    except (OSError, ValueError) as error:  # a zero byte in the name
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read the folder {quoted(str(folder), 300)} ({reason}); give another") from None


def _holds_tasks(path: Path) -> bool:
    return path.suffix.lower() in _SUFFIXES and path.is_file()


def _task_file(path: Path, split_of_folder: Split | None) -> TaskFile:
    stem = _SHARD.sub("", path.stem)
    whole = str(path.with_name(stem + path.suffix))
    match = _NAME.fullmatch(stem)
    if match is None:
        return TaskFile(path, whole, stem, split_of_folder)
    split = _SPLITS[match["split"].lower()]
    if split_of_folder not in (None, split):
        raise InputError(
            f"{str(path)!r} is named as a {split} split, but its folder as the {split_of_folder} split; rename one of "
            "them"
        )
    return TaskFile(path, whole, match["task"], split)


def _contents(entries: list[Path], left_out: list[str]) -> str:
    """Describe a folder without the wanted files, for a message."""
    if any(re.fullmatch(r"task\d+_.*\.json", path.name) for path in entries):
        return "it has files of natural-instructions; read them with read_natural_instructions"
    if left_out:
        return f"its sub-folder {shortened(left_out[0])} has; give that one"
    return f"it holds {_some([path.name for path in entries])}" if entries else "it is empty"


def _some(names: list[str], most: int = 5) -> str:
    shown = list(map(shortened, names[:most]))
    return ", ".join([*shown, "..."] if len(names) > most else shown)
