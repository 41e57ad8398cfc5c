"""Read which tasks belong together, and which the tuned model was not tuned on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tasks import InputError, LabelledPrompts
from tasks.text.instructions.clusters import check_cluster_file, read_cluster_file
from tasks.text.visible import quoted

_LABEL = "cluster"


@dataclass(frozen=True)
class ClustersOfTasks:
    """Clusters of tasks.

    Attributes:
        of_task: task to its cluster. Tasks in no cluster are missing.
        held_out: tasks that the tuned model was not tuned on.
    """

    of_task: Mapping[str, str] = field(default_factory=dict)
    held_out: tuple[str, ...] = ()

    @property
    def seen_tasks(self) -> dict[str, str]:
        """The tasks that are not held out, to their cluster."""
        return {task: cluster for task, cluster in self.of_task.items() if task not in self.held_out}


def find_task_clusters(path: Path | None, prompts: LabelledPrompts) -> ClustersOfTasks:
    """Read clusters from a file, or else from the prompts' label ``cluster``, if they have one.

    Raises:
        InputError: for a file that cannot be read, a task in two clusters, or a task without prompts.
    """
    tasks = prompts.classes["task"]
    if path is not None:
        file = read_cluster_file(path)
        check_cluster_file(file, tasks)
        if not file.clusters:
            raise InputError(
                f'{str(path)!r} has no clusters; give a table [clusters] with name = ["task", ...], or leave out '
                "--clusters"
            )
        return ClustersOfTasks({task: file.clusters[task] for task in tasks if task in file.clusters}, file.held_out)
    of_task: dict[str, str] = {}
    for task, cluster in zip(prompts.labels["task"], prompts.labels.get(_LABEL, ()), strict=False):
        if of_task.setdefault(task, cluster) != cluster:
            raise InputError(
                f"{prompts.source}: prompts of the task {quoted(task)} have the clusters {quoted(of_task[task])} and "
                f"{quoted(cluster)}; give every prompt of a task the same, or give clusters of tasks with --clusters"
            )
    return ClustersOfTasks({task: of_task[task] for task in tasks if task in of_task})
