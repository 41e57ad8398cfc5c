"""Read ``--controls``: single-task models with their tasks."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path


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
