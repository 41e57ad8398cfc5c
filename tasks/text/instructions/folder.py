"""A folder of instruction tasks, in the form of the common FLAN export."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from tasks.errors import InputError
from tasks.text.instructions.assemble import assemble
from tasks.text.instructions.clusters import find_clusters
from tasks.text.instructions.collection import Example, TaskCollection, check_names
from tasks.text.instructions.flan2021 import flan2021_cluster
from tasks.text.instructions.layout import TaskFile, task_files
from tasks.text.instructions.records import Fields, read_examples
from tasks.text.instructions.splits import Split
from tasks.text.visible import quoted


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
    have no such field. If a task has no test split, ``split_of`` cuts one from its training examples, and also a
    validation split if there is none.

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
    files, notes = task_files(folder)
    file = find_clusters(folder, clusters)
    check_names(tasks, tasks, "tasks:")
    examples, origins = _gather(files, Fields(prompt_field, answer_field, task_field, unit_field), tasks)
    known = sorted(examples)
    check_names(tasks, known, f"{str(folder)!r}: no task is called")
    chosen = {name: examples[name] for name in known if not tasks or name in tasks}
    for name, by_split in chosen.items():
        _check_splits(name, {split: origins[name, split] for split in by_split})
    return assemble(
        chosen,
        source=str(folder),
        known=known,
        file=file,
        clusters_text="those of FLAN 2021, by the tasks' names",
        cluster_of=flan2021_cluster,
        held_out=held_out,
        notes=notes,
    )


def _gather(
    files: Sequence[TaskFile], fields: Fields, chosen: Collection[str]
) -> tuple[dict[str, dict[Split | None, list[Example]]], dict[tuple[str, Split | None], str]]:
    """Return examples by task and split, of chosen tasks only, and the file of each task and split."""
    examples: dict[str, dict[Split | None, list[Example]]] = {}
    origins: dict[tuple[str, Split | None], str] = {}
    for file in files:
        for task_in_line, example in read_examples(file.path, fields):
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
