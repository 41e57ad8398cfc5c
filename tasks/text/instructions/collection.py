"""Instruction tasks: prompts with their answers, in clusters, some of them held out of the multi-task model."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter

from tasks.errors import InputError, did_you_mean
from tasks.text.instructions.instruction_task import InstructionTask
from tasks.text.visible import quoted, shortened


@dataclass(frozen=True, repr=False)
class TaskCollection:
    """Instruction tasks, with notes from their reader.

    Attributes:
        tasks: in order of their names.
        source: their origin, for messages.
        notes: sentences on reading: rules that were applied, repeats, tasks that are too small.

    Raises:
        InputError: for no tasks, two of one name, one without training examples, and held-out tasks that leave no task,
            or no task of their cluster, for the multi-task model.

    Example:
        >>> from tasks.text.instructions.example import Example
        >>> examples = [Example(f"Sort: b a {i}", f"a b {i}") for i in range(4)]
        >>> tasks = TaskCollection(
        ...     [InstructionTask(name, "lists", name == "sort", examples, test=examples) for name in ("count", "sort")]
        ... )
        >>> tasks.clusters, [task.name for task in tasks.seen], tasks["sort"].held_out
        ({'lists': ['count', 'sort']}, ['count'], True)
    """

    tasks: Sequence[InstructionTask]
    source: str = "the tasks"
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.tasks:
            raise InputError(f"{self.source}: no tasks; give at least one")
        object.__setattr__(self, "tasks", tuple(sorted(self.tasks, key=attrgetter("name"))))
        for before, task in zip(self.tasks, self.tasks[1:], strict=False):
            if before.name == task.name:
                raise InputError(f"{self.source}: two tasks are called {quoted(task.name)}; rename one of them")
        for task in self.tasks:
            if not task.train:
                raise InputError(
                    f"{self.source}: the task {quoted(task.name)} has no training examples; add some, or leave it out"
                )
        self._check_held_out()

    def _check_held_out(self) -> None:
        seen_clusters = {task.cluster for task in self.seen}
        for task in self.held_out:
            if task.cluster is not None and task.cluster not in seen_clusters:
                others = [name for name in self.clusters[task.cluster] if name != task.name]
                rest = f"held out too: {_listed(others)}" if others else "it has no other"
                raise InputError(
                    f"{self.source}: the held-out task {quoted(task.name)} is the last of its cluster "
                    f"{quoted(task.cluster)} ({rest}); leave one task of the cluster to the multi-task model, or do "
                    "not hold this one out"
                )
        if not self.seen:
            raise InputError(f"{self.source}: all tasks are held out; leave at least one to the multi-task model")

    def __len__(self) -> int:
        return len(self.tasks)

    def __repr__(self) -> str:
        return f"TaskCollection({len(self)} tasks, {len(self.clusters)} clusters, from {quoted(self.source)})"

    def __iter__(self) -> Iterator[InstructionTask]:
        return iter(self.tasks)

    def __getitem__(self, name: str) -> InstructionTask:
        """Return the task called ``name``.

        Raises:
            InputError: if there is none, with the nearest name.
        """
        check_task_names([name], self.names, f"{self.source}: no task is called")
        return self.tasks[self.names.index(name)]

    @property
    def names(self) -> list[str]:
        """The names of all tasks, sorted."""
        return [task.name for task in self.tasks]

    @property
    def seen(self) -> list[InstructionTask]:
        """The tasks of the multi-task model."""
        return [task for task in self.tasks if not task.held_out]

    @property
    def held_out(self) -> list[InstructionTask]:
        """The tasks that the multi-task model is not trained on."""
        return [task for task in self.tasks if task.held_out]

    @cached_property
    def clusters(self) -> dict[str, list[str]]:
        """The names of each cluster's tasks, all sorted. Tasks of no cluster are left out."""
        names = sorted({task.cluster for task in self.tasks if task.cluster is not None})
        return {name: [task.name for task in self.tasks if task.cluster == name] for name in names}

    @property
    def too_few(self) -> list[str]:
        """The names of tasks with fewer test prompts than debiased CKA is defined on (4): they cannot be measured."""
        return [task.name for task in self.tasks if task.too_few]

    def hold_out(self, names: Collection[str]) -> TaskCollection:
        """Return a collection in which the named tasks are held out, and no others.

        Raises:
            InputError: for a name that no task has, and for tasks that leave no other task of their cluster.
        """
        check_task_names(names, self.names, f"{self.source}: no task to hold out is called")
        return replace(self, tasks=[replace(task, held_out=task.name in names) for task in self.tasks])


def check_task_names(names: Collection[str], known: Sequence[str], problem: str) -> None:
    """Refuse names that are not known.

    Args:
        names: to check.
        known: the names that exist.
        problem: the message's beginning, such as ``"no task is called"``.

    Raises:
        InputError: naming the first, some of the known names, and the nearest.
    """
    if isinstance(names, str):
        raise InputError(f"{problem} ...: the string {quoted(names)} was given; expected a list of names")
    for name in names:
        if name not in known:
            raise InputError(f"{problem} {quoted(name)} (there are {_listed(known)}){did_you_mean(str(name), known)}")


def _listed(names: Sequence[str], most: int = 12) -> str:
    shown = ", ".join(map(shortened, names[:most]))
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
