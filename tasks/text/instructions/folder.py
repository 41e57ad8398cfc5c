"""A folder of instruction tasks, in the form of the common FLAN export: task, split and shard are in file names."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.errors import InputError
from tasks.text.instructions.assemble import assemble
from tasks.text.instructions.clusters import find_cluster_file
from tasks.text.instructions.collection import TaskCollection, check_task_names
from tasks.text.instructions.example import Example
from tasks.text.instructions.records import InstructionRecordFields, read_records
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


def read_task_folder(
    folder: str | Path,
    *,
    prompt_field: str = "inputs",
    answer_field: str = "targets",
    task_field: str = "task",
    unit_field: str = "",
    clusters: str | Path | None = None,
    tasks: Sequence[str] = (),
    held_out: Sequence[str] | None = None,
) -> TaskCollection:
    """Read JSONL and parquet files of prompts and answers.

    A file is called ``copa.jsonl``, or after its split too: ``copa_train.jsonl``, ``copa-test.parquet``,
    ``train.jsonl`` or ``test/copa.jsonl``. ``valid``, ``val`` and ``dev`` mean ``validation``. Shards
    (``train-00000-of-00002.parquet``) are one file. The task is in the task field, or in the file's name if the lines
    have no such field. If a task has no test split, ``split_of_instruction`` cuts one from its training examples, and
    also a validation split if there is none.

    Clusters and held-out tasks come from ``clusters.toml`` in the folder. Without it, clusters come from ``FLAN2021``
    if the names match, and no task is held out.

    Memory: all texts, and for a moment about three times the largest JSONL file.

    Args:
        folder: folder of the files. Sub-folders named after a split are read too.
        prompt_field: field with the prompt.
        answer_field: field with the answer.
        task_field: field with the task's name, if there is one. Empty: the task is in the file's name.
        unit_field: field that says which examples belong together, such as their template. Empty: none.
        clusters: a file of clusters and held-out tasks elsewhere.
        tasks: tasks to take (none: all).
        held_out: tasks that the multi-task model is not trained on, instead of the file's.

    Raises:
        InputError: with file and line for text that cannot be read as prompts and answers. Also for a task in two
            files, one without training examples, unknown names, and held-out tasks that leave no other task of their
            cluster.

    Example:
        >>> import json, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("copa_train.jsonl", "copa_test.jsonl", "piqa_train.jsonl", "piqa_test.jsonl"):
        ...         line = json.dumps({"inputs": f"A question of {name}?", "targets": "yes"})
        ...         _ = (Path(folder) / name).write_text(line)
        ...     tasks = read_task_folder(folder)
        >>> tasks.clusters, tasks["copa"].test[0].answer, tasks.too_few
        ({'commonsense': ['copa', 'piqa']}, 'yes', ['copa', 'piqa'])
    """
    folder = Path(folder)
    files, notes = _task_files(folder)
    file = find_cluster_file(folder, clusters)
    check_task_names(tasks, tasks, "tasks:")
    examples, origins = _gather(
        files, InstructionRecordFields(prompt_field, answer_field, task_field, unit_field), tasks
    )
    known = sorted(examples)
    check_task_names(tasks, known, f"{str(folder)!r}: no task is called")
    chosen = {name: examples[name] for name in known if not tasks or name in tasks}
    for name, by_split in chosen.items():
        _check_splits(name, {split: origins[name, split] for split in by_split})
    return assemble(
        chosen,
        source=str(folder),
        known=known,
        file=file,
        held_out=held_out,
        notes=notes,
    )


def _gather(
    files: Sequence[_TaskFile], fields: InstructionRecordFields, chosen: Collection[str]
) -> tuple[dict[str, dict[Split | None, list[Example]]], dict[tuple[str, Split | None], str]]:
    """Return examples by task and split, of chosen tasks only, and the file of each task and split."""
    examples: dict[str, dict[Split | None, list[Example]]] = {}
    origins: dict[tuple[str, Split | None], str] = {}
    for file in files:
        for task_in_line, example in read_records(file.path, fields):
            task = task_in_line or file.task
            if task is None:
                raise InputError(
                    f'{example.where} has no "{fields.task or "task"}", and {file.path.name!r} names a split but no '
                    "task; name the file after its task, or say which field has it: task_field (--task-field)"
                )
            origin = origins.setdefault((task, file.split), file.whole)
            if origin != file.whole:
                way_out = "rename one of them, or put both into one file"
                if task_in_line:
                    way_out += f'; if "{fields.task}" says something else, give task_field="" (--task-field "")'
                raise InputError(f"two tasks are called {quoted(task)}: {origin!r} and {example.where!r}; {way_out}")
            in_split = examples.setdefault(task, {}).setdefault(file.split, [])
            if not chosen or task in chosen:
                in_split.append(example)
    return examples, origins


def _check_splits(task: str, origins: dict[Split | None, str]) -> None:
    if None in origins and len(origins) > 1:
        split, other = next((split, origin) for split, origin in origins.items() if split is not None)
        raise InputError(
            f"the task {quoted(task)} has a {split} split ({other!r}) and a file with no split ({origins[None]!r}); "
            "name that one after its split too, such as copa_train.jsonl, or rename the other task"
        )
    if None not in origins and "train" not in origins:
        raise InputError(
            f"the task {quoted(task)} has no training examples, only {', '.join(map(repr, origins.values()))}; add a "
            "file of its train split, or leave the task out"
        )


@dataclass(frozen=True)
class _TaskFile:
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


def _task_files(folder: Path) -> tuple[list[_TaskFile], list[str]]:
    """Return the files of a folder and of its sub-folders that are called as a split, and notes on the others.

    Raises:
        InputError: for a folder that is missing or has none.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     (Path(folder) / "dev").mkdir()
        ...     for name in ("copa_train.jsonl", "dev/copa.jsonl", "train-00000-of-00002.parquet", "notes.txt"):
        ...         (Path(folder) / name).touch()
        ...     files, notes = _task_files(Path(folder))
        >>> [(file.task, file.split) for file in files], notes
        ([('copa', 'train'), (None, 'train'), ('copa', 'validation')], [])
    """
    entries = _entries(folder)
    files = [_task_file(path, None) for path in entries if _holds_tasks(path)]
    left_out = []
    for sub_folder in filter(Path.is_dir, entries):
        inside = [path for path in _entries(sub_folder) if _holds_tasks(path)]
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


def _entries(folder: Path) -> list[Path]:
    """Return the files and folders in a folder, sorted, without hidden ones.

    Raises:
        InputError: for a folder that is missing, or that cannot be read.
    """
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except FileNotFoundError:
        raise InputError(f"no folder {str(folder)!r}; give the path of a folder with {_WANTED}") from None
    except NotADirectoryError:
        raise InputError(f"{str(folder)!r} is not a folder; give the path of a folder with {_WANTED}") from None
    except (OSError, ValueError) as error:  # a zero byte in the name
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read the folder {quoted(str(folder), 300)} ({reason}); give another") from None


def _holds_tasks(path: Path) -> bool:
    return path.suffix.lower() in _SUFFIXES and path.is_file()


def _task_file(path: Path, split_of_folder: Split | None) -> _TaskFile:
    stem = _SHARD.sub("", path.stem)
    whole = str(path.with_name(stem + path.suffix))
    match = _NAME.fullmatch(stem)
    if match is None:
        return _TaskFile(path, whole, stem, split_of_folder)
    split = _SPLITS[match["split"].lower()]
    if split_of_folder not in (None, split):
        raise InputError(
            f"{str(path)!r} is named as a {split} split, but its folder as the {split_of_folder} split; rename one of "
            "them"
        )
    return _TaskFile(path, whole, match["task"], split)


def _contents(entries: list[Path], left_out: list[str]) -> str:
    """Describe a folder without the wanted files, for a message."""
    if left_out:
        return f"its sub-folder {shortened(left_out[0])} has; give that one"
    return f"it holds {_some([path.name for path in entries])}" if entries else "it is empty"


def _some(names: list[str], most: int = 5) -> str:
    shown = list(map(shortened, names[:most]))
    return ", ".join([*shown, "..."] if len(names) > most else shown)
