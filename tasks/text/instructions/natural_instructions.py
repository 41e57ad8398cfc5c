"""Tasks of natural-instructions: one JSON file per task, with its definition and instances."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.errors import InputError
from tasks.text.files import read_text
from tasks.text.instructions.assemble import assemble
from tasks.text.instructions.clusters import find_clusters
from tasks.text.instructions.collection import Example, TaskCollection, check_names
from tasks.text.instructions.layout import entries_of
from tasks.text.instructions.records import checked_text
from tasks.text.instructions.splits import Split
from tasks.text.json_lines import check_field, parse_object
from tasks.text.visible import quoted

FORM = "{definition}\n\nInput: {input}\nOutput:"
"""How a prompt of natural-instructions is put together."""

_NAME = re.compile(r"task\d+_.*\.json")


def read_natural_instructions(
    folder: str | Path,
    *,
    clusters: str | Path | None = None,
    tasks: Sequence[str] = (),
    held_out: Sequence[str] | None = None,
) -> TaskCollection:
    r"""Read the ``task*_*.json`` files of a folder, such as ``tasks`` of the natural-instructions repository.

    A task is called as its file. A prompt is the first definition and an instance's input, as
    ``"{definition}\n\nInput: {input}\nOutput:"``; the answer is the first of the instance's outputs. A task's cluster
    is its first category, unless there is a ``clusters.toml``. The files know no splits: ``split_of`` makes them.

    Source of the format: Wang et al., arXiv 2204.07705.

    Args:
        folder: of the files.
        clusters: a file of clusters and held-out tasks; ``None``: ``clusters.toml`` in the folder, if there is one.
        tasks: to take, such as ``"task001_quoref_question_generation"``; no other file is read. None: all.
        held_out: tasks that the multi-task model is not trained on, instead of those of the file of clusters.

    Raises:
        InputError: with file and instance for what is missing, empty or no text; for names that are not there, and
            held-out tasks that leave nothing of their cluster.

    Example:
        >>> import json, tempfile
        >>> task = {
        ...     "Definition": ["Say how many words there are."],
        ...     "Categories": ["Counting"],
        ...     "Instances": [{"input": "word" + n * " word", "output": [str(n + 1)]} for n in range(30)],
        ... }
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = (Path(folder) / "task001_count_words.json").write_text(json.dumps(task))
        ...     found = read_natural_instructions(folder)
        >>> print(found.clusters, repr(found.tasks[0].train[0].prompt))
        {'Counting': ['task001_count_words']} 'Say how many words there are.\n\nInput: word\nOutput:'
    """
    folder = Path(folder)
    files = {path.name.removesuffix(".json"): path for path in _files(folder)}
    file = find_clusters(folder, clusters)
    check_names(tasks, list(files), f"{str(folder)!r}: no task is called")
    examples: dict[str, dict[Split | None, list[Example]]] = {}
    categories: dict[str, str | None] = {}
    for name in sorted(tasks) if tasks else files:
        examples[name] = {None: []}
        categories[name], examples[name][None] = _read(files[name])
    return assemble(
        examples,
        source=str(folder),
        known=list(files),
        file=file,
        clusters=("the tasks' first categories", lambda name: categories[name]),
        held_out=held_out,
    )


def _files(folder: Path) -> list[Path]:
    entries = entries_of(folder, "task*_*.json files")
    found = [path for path in entries if _NAME.fullmatch(path.name) and path.is_file()]
    if not found:
        inside = (folder / "tasks").is_dir()
        way_out = f"give {str(folder / 'tasks')!r}" if inside else "give the folder tasks of natural-instructions"
        raise InputError(f"the folder {str(folder)!r} has no task*_*.json file; {way_out}")
    return found


def _read(path: Path) -> tuple[str | None, list[Example]]:
    expected = '"Definition" and "Instances"'
    record = parse_object(read_text(path, "a JSON file", called="task file"), str(path), expected)
    for field in ("Definition", "Instances"):
        check_field(record, field, str(path))
    definition = checked_text(_first(record["Definition"]), "definition", str(path)).strip()
    category = _first(record.get("Categories"))
    if category is not None:
        category = checked_text(category, "category", str(path))
    instances = record["Instances"]
    if not isinstance(instances, list) or not instances:
        raise InputError(f'{path}: "Instances" is {quoted(instances)}; expected a list of objects, at least one')
    examples = []
    for number, instance in enumerate(instances, start=1):
        where = f"{path}, instance {number}"
        if not isinstance(instance, dict):
            raise InputError(f'{where} is {quoted(instance)}; expected an object with "input" and "output"')
        for field in ("input", "output"):
            check_field(instance, field, where)
        given = checked_text(instance["input"], "input", where)
        answer = checked_text(_first(instance["output"]), "output", where)
        examples.append(Example(FORM.format(definition=definition, input=given), answer, where))
    return category, examples


def _first(value: Any) -> Any:
    return (value[0] if value else None) if isinstance(value, list) else value
