"""What ``--controls`` names: single-task models with their tasks."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path


def task_and_model(control: str, tasks: Collection[str]) -> tuple[str, str]:
    """Task and model of a control: ``TASK=MODEL``, or a folder called as its task.

    Both may hold a ``=``: of several tasks that fit, the longest is meant.

    Example:
        >>> task_and_model("copa=models/a", ["copa"]), task_and_model("runs/lr=1e-3/copa", ["copa"])
        (('copa', 'models/a'), ('copa', 'runs/lr=1e-3/copa'))
    """
    places = [i for i, character in enumerate(control) if character == "=" and control[:i] in tasks]
    return (control[: places[-1]], control[places[-1] + 1 :]) if places else (Path(control).name, control)
