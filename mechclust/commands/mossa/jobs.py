"""Plan which models are measured on which prompts: a job for each task, and two for all tasks together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mechclust.commands.mossa.inputs import Inputs, cluster_of
from mechclust.commands.mossa.models import AGAIN, BASE, CONTROL, TUNED, UNSEEN, Model
from tasks.text.instructions import InstructionTask


@dataclass(frozen=True)
class TaskJob:
    """All measurements on one task's prompts.

    Attributes:
        task: name of the task.
        models: by role: ``base``, ``tuned``, ``control``, and if there are any, ``again``, ``other-1`` and so on, and
            ``all-tasks``. ``again`` is the control trained once more. ``other-1`` and so on are controls of other
            tasks, which are compared with ``tuned``, whereas all others are compared with ``control``. ``all-tasks``
            is, for a held-out task, the model that was trained on it too.
        numbers: numbers of the tasks.
    """

    task: str
    models: Mapping[str, Model]
    numbers: Mapping[str, int]

    @property
    def name(self) -> str:
        """Name in errors."""
        return self.task


@dataclass(frozen=True)
class ModelJob:
    """Measurements on the prompts of all seen tasks together.

    Attributes:
        model: the base or the tuned model.
        numbers: numbers of the tasks.
        clusters: number of each task's cluster, or ``n_clusters`` for a task in no cluster.
        n_clusters: number of clusters.
    """

    model: Model
    numbers: Mapping[str, int]
    clusters: Sequence[int]
    n_clusters: int

    @property
    def name(self) -> str:
        """Name in errors."""
        return f"{self.model.name}, all tasks"


def task_jobs(inputs: Inputs, missing: Sequence[Model], nulls: int) -> list[TaskJob]:
    """Return a job for each task that can be measured.

    Args:
        inputs: tasks and models of the run.
        missing: models whose training was given up.
        nulls: number of other tasks' controls to compare with.
    """
    models = {(model.kind, model.task): model for model in inputs.models if model not in missing}
    numbers = task_numbers(inputs)
    tasks = [task for task in inputs.measured if (CONTROL, task.name) in models]
    jobs = []
    for task in tasks:
        tuned = models.get((UNSEEN, "")) if task.held_out else models[TUNED, ""]
        if tuned is None:
            continue
        roles = {"base": models[BASE, ""], "tuned": tuned, "control": models[CONTROL, task.name]}
        if (AGAIN, task.name) in models:
            roles["again"] = models[AGAIN, task.name]
        if task.held_out:
            roles["all-tasks"] = models[TUNED, ""]
        for number, other in enumerate(other_tasks(task, tasks, nulls), start=1):
            roles[f"other-{number}"] = models[CONTROL, other.name]
        jobs.append(TaskJob(task.name, roles, numbers))
    return jobs


def other_tasks(task: InstructionTask, tasks: Sequence[InstructionTask], n: int) -> list[InstructionTask]:
    """Return ``n`` other tasks, of other clusters if there are enough.

    The tasks of a cluster take others in turn, so that each is taken about as often.
    """
    place = [each.name for each in tasks].index(task.name)
    following = [*tasks[place + 1 :], *tasks[:place]]
    cluster = cluster_of(task)
    same_cluster = [each.name for each in tasks if cluster is not None and cluster_of(each) == cluster]
    others = [each for each in following if each.name not in same_cluster]
    start = same_cluster.index(task.name) * n % len(others) if same_cluster and others else 0
    return [*others[start:], *others[:start], *(each for each in following if each.name in same_cluster)][:n]


def model_jobs(inputs: Inputs) -> list[ModelJob]:
    """Return the jobs on the prompts of all tasks, for the base and the tuned model."""
    numbers = task_numbers(inputs)
    names = inputs.clusters
    clusters = []
    for task in inputs.collection:
        cluster = cluster_of(task)
        clusters.append(len(names) if cluster is None else names.index(cluster))
    return [ModelJob(model, numbers, clusters, len(names)) for model in inputs.models if model.kind in (BASE, TUNED)]


def task_numbers(inputs: Inputs) -> dict[str, int]:
    """Return the number of each task in labels."""
    return {task.name: number for number, task in enumerate(inputs.collection)}
