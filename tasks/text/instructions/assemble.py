"""From the examples of each task to a collection: splits, clusters, held-out tasks, and notes on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tasks.text.instructions.clusters import ClusterFile, check_cluster_file
from tasks.text.instructions.collection import TaskCollection, check_task_names
from tasks.text.instructions.example import Example
from tasks.text.instructions.flan2021 import flan2021_cluster
from tasks.text.instructions.instruction_task import LEAST_TEST_PROMPTS, InstructionTask
from tasks.text.instructions.splits import SPLITS, TEST_SHARE, Split, with_test_split
from tasks.text.visible import shortened


def assemble(
    examples: Mapping[str, Mapping[Split | None, Sequence[Example]]],
    *,
    source: str,
    known: Sequence[str],
    file: ClusterFile | None,
    held_out: Sequence[str] | None,
    notes: Sequence[str] = (),
) -> TaskCollection:
    """Return a collection of tasks whose examples were read.

    Args:
        examples: examples of the chosen tasks, by split, or under ``None`` if the data have no splits.
        source: their origin, for messages.
        known: the names of all tasks in the data.
        file: the user's clusters and held-out tasks. Clusters of FLAN 2021 are used if it has none.
        held_out: tasks to hold out instead of the file's.
        notes: notes on reading the examples.

    Raises:
        InputError: for clusters and held-out tasks that do not fit, and tasks without training examples.
    """
    if file is not None:
        check_cluster_file(file, known)
    if held_out is None:
        held_out = [name for name in file.held_out if name in examples] if file else []
    check_task_names(held_out, sorted(examples), f"{source}: no task to hold out is called")
    clusters_text = "those of FLAN 2021, by the tasks' names"
    cluster_of: Callable[[str], str | None] = flan2021_cluster
    if file is not None and file.clusters:
        clusters_text = f"those of {str(file.path)!r}"
        cluster_of = file.clusters.get
    clusters = {name: cluster_of(name) for name in sorted(examples)}
    tasks = []
    cuts: dict[str, tuple[Split, ...]] = {}
    for name, cluster in clusters.items():
        splits, cuts[name] = with_test_split(examples[name])
        train, validation, test = (tuple(splits[split]) for split in SPLITS)
        tasks.append(InstructionTask(name, cluster, name in held_out, train, validation, test))
    all_notes = [*notes, _clusters_note(clusters, clusters_text), *_cut_notes(cuts), *_count_notes(tasks)]
    return TaskCollection(tasks, source, tuple(all_notes))


def _clusters_note(clusters: Mapping[str, str | None], clusters_text: str) -> str:
    without = [shortened(name) for name, cluster in clusters.items() if cluster is None]
    if len(without) == len(clusters):
        return "the tasks are in no clusters"
    note = f"clusters are {clusters_text}"
    return f"{note}; in none: {', '.join(without)}" if without else note


def _cut_notes(cuts: Mapping[str, tuple[Split, ...]]) -> list[str]:
    """Return a note for each combination of splits that were cut from the training examples."""
    notes = []
    for splits in sorted(set(cuts.values()) - {()}):
        names = ", ".join(shortened(name) for name in sorted(cuts) if cuts[name] == splits)
        each = " each" if len(splits) > 1 else ""
        notes.append(
            f"no test split is given: {' and '.join(splits)} split cut from the other examples by a hash of the "
            f"prompt's text, about {TEST_SHARE:.0%} of the prompts{each}: {names}"
        )
    return notes


def _count_notes(tasks: Sequence[InstructionTask]) -> list[str]:
    """Return notes on tasks with repeated prompts, test prompts that are trained on, or too few test prompts."""
    counts: dict[str, dict[str, int]] = {}
    for split in SPLITS:
        repeats = {task.name: _n_repeated(task, split) for task in tasks}
        counts[f"prompts that repeat another of the {split} split"] = _positive(repeats)
        if split != "train":
            trained_on = {task.name: len(_prompts(task, split) & _prompts(task, "train")) for task in tasks}
            counts[f"prompts of the {split} split that are in the train split too"] = _positive(trained_on)
    counts[
        f"fewer than {LEAST_TEST_PROMPTS} test prompts, on which debiased CKA is not defined, so that the task is left "
        "out of the measurement"
    ] = {task.name: len(task.test) for task in tasks if task.too_few}
    notes = []
    for text, by_task in counts.items():
        if by_task:
            notes.append(f"{text}: {', '.join(f'{shortened(name)} {n:,}' for name, n in by_task.items())}")
    return notes


def _positive(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: n for name, n in counts.items() if n > 0}


def _n_repeated(task: InstructionTask, split: Split) -> int:
    return len(getattr(task, split)) - len(_prompts(task, split))


def _prompts(task: InstructionTask, split: Split) -> set[str]:
    """Return the different prompts of a split."""
    return {example.prompt for example in getattr(task, split)}
