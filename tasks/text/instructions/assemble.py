"""From the examples of each task to a collection: splits, clusters, held-out tasks, and notes on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tasks.text.instructions.clusters import ClusterFile, check_clusters
from tasks.text.instructions.collection import (
    LEAST_TEST_PROMPTS,
    Example,
    InstructionTask,
    TaskCollection,
    check_names,
)
from tasks.text.instructions.splits import SPLITS, TEST_SHARE, Split, with_test
from tasks.text.visible import short


def assemble(
    examples: Mapping[str, Mapping[Split | None, Sequence[Example]]],
    *,
    source: str,
    known: Sequence[str],
    file: ClusterFile | None,
    clusters: tuple[str, Callable[[str], str | None]],
    held_out: Sequence[str] | None,
    notes: Sequence[str] = (),
) -> TaskCollection:
    """A collection of tasks whose examples were read.

    Args:
        examples: of the chosen tasks, by split, or under ``None`` where the data say none.
        source: where they came from, for messages.
        known: the names of all tasks in the data.
        file: clusters and held-out tasks of the user's.
        clusters: where the file has none: what they are instead, in words, and a task's.
        held_out: tasks to hold out instead of the file's.
        notes: that there are already.

    Raises:
        InputError: for clusters and held-out tasks that do not fit, and tasks without training examples.
    """
    if file is not None:
        check_clusters(file, known)
    out = [name for name in (file.held_out if file else ()) if name in examples] if held_out is None else held_out
    check_names(out, sorted(examples), f"{source}: no task to hold out is called")
    notes = list(notes)
    if file is not None and file.clusters:
        cluster_of: Mapping[str, str | None] = {name: file.clusters.get(name) for name in examples}
        notes += _lone(cluster_of, f"clusters are those of {str(file.path)!r}")
    else:
        cluster_of = {name: clusters[1](name) for name in examples}
        notes += _lone(cluster_of, f"clusters are {clusters[0]}")
    tasks, cuts = [], {}
    for name in sorted(examples):
        split, cuts[name] = with_test(examples[name])
        cluster = cluster_of[name]
        tasks.append(
            InstructionTask(
                name, cluster, name in out, tuple(split["train"]), tuple(split["validation"]), tuple(split["test"])
            )
        )
    return TaskCollection(tasks, source, (*notes, *_cut(cuts), *_counts(tasks)))


def _lone(clusters: Mapping[str, str | None], what: str) -> list[str]:
    lone = sorted(name for name, cluster in clusters.items() if cluster is None)
    if len(lone) == len(clusters):
        return ["the tasks are in no clusters"]
    return [f"{what}; in none: {', '.join(map(short, lone))}" if lone else what]


def _cut(cuts: Mapping[str, tuple[Split, ...]]) -> list[str]:
    notes = []
    for parts in sorted(set(cuts.values()) - {()}):
        names = ", ".join(short(name) for name in sorted(cuts) if cuts[name] == parts)
        notes.append(
            f"no test split is given: {' and '.join(parts)} split cut from the other examples by a hash of the "
            f"prompt's text, about {TEST_SHARE:.0%} of the prompts{' each' if len(parts) > 1 else ''}: {names}"
        )
    return notes


def _counts(tasks: Sequence[InstructionTask]) -> list[str]:
    kinds: dict[str, Callable[[InstructionTask], int]] = {}
    for split in SPLITS:
        kinds[f"prompts that repeat another of the {split} split"] = partial(_repeated, split)
        if split != "train":
            kinds[f"prompts of the {split} split that are in the train split too"] = partial(_also_trained, split)
    notes = {what: [(task.name, n) for task in tasks if (n := count(task))] for what, count in kinds.items()}
    notes[
        f"fewer than {LEAST_TEST_PROMPTS} test prompts, on which debiased CKA is not defined, so that the task is left "
        "out of the measurement"
    ] = [(task.name, len(task.test)) for task in tasks if task.too_few]
    return [
        f"{what}: {', '.join(f'{short(name)} {n:,}' for name, n in counts)}" for what, counts in notes.items() if counts
    ]


def _prompts(task: InstructionTask, split: Split) -> list[str]:
    return [example.prompt for example in getattr(task, split)]


def _repeated(split: Split, task: InstructionTask) -> int:
    prompts = _prompts(task, split)
    return len(prompts) - len(set(prompts))


def _also_trained(split: Split, task: InstructionTask) -> int:
    return len(set(_prompts(task, split)) & set(_prompts(task, "train")))
