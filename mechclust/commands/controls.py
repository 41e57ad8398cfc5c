"""Read ``--controls``: single-task models with their tasks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from tasks import InputError


def task_and_model(control: str, tasks: Collection[str]) -> tuple[str, str]:
    """Return task and model of a control: ``TASK=MODEL``, or a folder called as its task.

    Both may hold a ``=``. If several tasks fit, the longest is taken.

    Example:
        >>> task_and_model("copa=models/a", ["copa"]), task_and_model("runs/lr=1e-3/copa", ["copa"])
        (('copa', 'models/a'), ('copa', 'runs/lr=1e-3/copa'))
    """
    places = [i for i, character in enumerate(control) if character == "=" and control[:i] in tasks]
    if not places:
        return Path(control).name, control
    last = places[-1]
    return control[:last], control[last + 1 :]


def check_first_control(task: str, model: str, controls: Mapping[str, str]) -> None:
    """Refuse a second control of a task.

    Args:
        task: the task.
        model: its control.
        controls: models of the controls before, by task.
    """
    if task in controls:
        raise InputError(f"{controls[task]!r} and {model!r} are both controls of {task!r}; give one per task")
