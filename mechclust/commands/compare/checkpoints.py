"""Find the models to compare: by name or in memory, with an adapter or without."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mechclust.commands.compare.config import CompareConfig
from mechclust.commands.controls import task_and_model
from mechclust.commands.saved_rows import Checkpoint
from mechclust.models.adapters import is_adapter
from tasks import InputError


def find_checkpoints(
    base: Any, tuned: Any, config: CompareConfig, tasks: Sequence[str], tokenizer: Any = None
) -> list[Checkpoint]:
    """Return base, tuned, then controls.

    An adapter folder in the place of ``tuned`` or of a control is an adapter on ``base``; if ``base`` is one too,
    every folder is a model of its own, with the base that it names.

    Args:
        base: see ``compare_models``.
        tuned: see ``compare_models``.
        config: gives the controls, the adapter on ``tuned``, devices and dtypes.
        tasks: of the prompts.
        tokenizer: of models in memory without one.

    Raises:
        InputError: for controls of no task or of one twice, and for two adapters on one model.
    """
    if config.adapter is not None and _is_adapter(tuned):
        raise InputError(
            f"the tuned model {str(tuned)!r} is an adapter, and --adapter gives {str(config.adapter)!r} too; give one "
            "of them"
        )
    models: list[tuple[str, Any, str | None]] = [("base", base, None), ("tuned", tuned, None)]
    models += [("control", model, task) for task, model in _controls(config.controls, tasks).items()]
    checkpoints = []
    for role, model, task in models:
        adapter = str(config.adapter) if role == "tuned" and config.adapter is not None else None
        if _is_adapter(model) and not _is_adapter(base):
            adapter = str(model)
            model = base
        device = config.device
        dtype = config.dtype
        if role != "base":
            device = config.tuned_device or device
            dtype = config.tuned_dtype or dtype
        source = str(model) if isinstance(model, Path) else model
        checkpoints.append(Checkpoint(role, source, device, dtype, task, adapter, tokenizer))
    return checkpoints


def _is_adapter(model: Any) -> bool:
    return isinstance(model, (str, Path)) and is_adapter(model)


def _controls(controls: Sequence[str], tasks: Sequence[str]) -> dict[str, str]:
    """Return the controls by their tasks."""
    models: dict[str, str] = {}
    for control in controls:
        task, model = task_and_model(control, tasks)
        if task not in tasks:
            raise InputError(
                f"no task of the prompts for the control {control!r} (they have {', '.join(tasks)}); "
                "give TASK=MODEL, or a directory named after the task"
            )
        if task in models:
            raise InputError(f"{models[task]!r} and {model!r} are both controls of {task!r}; give one per task")
        models[task] = model
    return models
