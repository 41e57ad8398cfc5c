"""Tasks of natural-instructions: one JSON file per task, with its definition and instances."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.errors import InputError
from tasks.text.files import read_text
from tasks.text.instructions.assemble import assemble
from tasks.text.instructions.clusters import find_cluster_file
from tasks.text.instructions.collection import TaskCollection, check_task_names
from tasks.text.instructions.example import Example
from tasks.text.instructions.folder import task_folder_entries
from tasks.text.instructions.records import checked_record_text
from tasks.text.instructions.splits import Split
from tasks.text.json_lines import check_json_field, parse_object
from tasks.text.visible import quoted

_FORM = "{definition}\n\nInput: {input}\nOutput:"
"""The form of a prompt of natural-instructions."""

_NAME = re.compile(r"task\d+_.*\.json")


def read_natural_instructions(
    folder: str | Path,
    *,
    clusters: str | Path | None = None,
    tasks: Sequence[str] = (),
    held_out: Sequence[str] | None = None,
) -> TaskCollection:
    r"""Read the ``task*_*.json`` files of a folder, such as ``tasks`` of the natural-instructions repository.

    A task has the name of its file. A prompt is the first definition and an instance's input, as
    ``"{definition}\n\nInput: {input}\nOutput:"``. The answer is the first of the instance's outputs. A task's cluster
    is its first category, unless there is a ``clusters.toml``. The files have no splits: ``split_of_instruction`` makes
    them.

    Source of the format: Wang et al., arXiv 2204.07705.

    Args:
        folder: folder of the files.
        clusters: a file of clusters and held-out tasks. ``None``: ``clusters.toml`` in the folder, if there is one.
        tasks: tasks to take, such as ``"task001_quoref_question_generation"``. No other file is read. None: all.
        held_out: tasks that the multi-task model is not trained on, instead of the file's.

    Raises:
        InputError: with file and instance for a missing or empty value or one that is no text. Also for unknown names,
            and held-out tasks that leave no other task of their cluster.

    Example:
        >>> import json, tempfile
        >>> task = {
        ...     "Definition": ["Say how many words there are."],
        ...     "Categories": ["Counting"],
        ...     "Instances": [{"input": "word" + n * " word", "output": [str(n + 1)]} for n in range(30)],
        ... }
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = (Path(folder) / "task001_count_words.json").write_text(json.dumps(task))
        ...     tasks = read_natural_instructions(folder)
        >>> print(tasks.clusters, repr(tasks.tasks[0].train[0].prompt))
        {'Counting': ['task001_count_words']} 'Say how many words there are.\n\nInput: word\nOutput:'
    """
    folder = Path(folder)
    files = {path.name.removesuffix(".json"): path for path in _files(folder)}
    file = find_cluster_file(folder, clusters)
    check_task_names(tasks, list(files), f"{str(folder)!r}: no task is called")
    examples: dict[str, dict[Split | None, list[Example]]] = {}
    categories: dict[str, str | None] = {}
    for name in sorted(tasks) if tasks else files:
        categories[name], without_split = _read(files[name])
        examples[name] = {None: without_split}
    return assemble(
        examples,
        source=str(folder),
        known=list(files),
        file=file,
        clusters_text="the tasks' first categories",
        cluster_of=categories.get,
        held_out=held_out,
    )


def _files(folder: Path) -> list[Path]:
    entries = task_folder_entries(folder, "task*_*.json files")
    files = [path for path in entries if _NAME.fullmatch(path.name) and path.is_file()]
    if not files:
        tasks = folder / "tasks"
        way_out = f"give {str(tasks)!r}" if tasks.is_dir() else "give the folder tasks of natural-instructions"
        raise InputError(f"the folder {str(folder)!r} has no task*_*.json file; {way_out}")
    return files


def _read(path: Path) -> tuple[str | None, list[Example]]:
    """Return a task's category, and its examples."""
    expected = '"Definition" and "Instances"'
    record = parse_object(read_text(path, "a JSON file", called="task file"), str(path), expected)
    for field in ("Definition", "Instances"):
        check_json_field(record, field, str(path))
    definition = checked_record_text(_first(record["Definition"]), "definition", str(path)).strip()
    category = _first(record.get("Categories"))
    if category is not None:
        category = checked_record_text(category, "category", str(path))
    instances = record["Instances"]
    if not isinstance(instances, list) or not instances:
        raise InputError(f'{path}: "Instances" is {quoted(instances)}; expected a list of objects, at least one')
    examples = [
        _example(definition, instance, f"{path}, instance {number}")
        for number, instance in enumerate(instances, start=1)
    ]
    return category, examples


def _example(definition: str, instance: Any, where: str) -> Example:
    if not isinstance(instance, dict):
        raise InputError(f'{where} is {quoted(instance)}; expected an object with "input" and "output"')
    for field in ("input", "output"):
        check_json_field(instance, field, where)
    text = checked_record_text(instance["input"], "input", where)
    answer = checked_record_text(_first(instance["output"]), "output", where)
    return Example(_FORM.format(definition=definition, input=text), answer, where)


def _first(value: Any) -> Any:
    """Return the first entry of a list, ``None`` if it has none, and another value unchanged."""
    if not isinstance(value, list):
        return value
    return value[0] if value else None
