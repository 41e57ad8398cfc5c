"""Find the models to compare: by name or in memory, with an adapter or without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mechclust.commands.compare.config import CompareConfig
from mechclust.commands.controls import check_first_control, task_and_model
from mechclust.commands.saved_rows import Checkpoint
from mechclust.models.resolved import ResolvedModel, resolve_model
from tasks import InputError


def find_checkpoints(
    base: Any, tuned: Any, config: CompareConfig, tasks: Sequence[str], tokenizer: Any = None
) -> list[Checkpoint]:
    """Return base, tuned, then controls.

    An adapter folder in the place of ``tuned`` or of a control is an adapter on ``base``. If ``base`` is one too, every
    folder is a separate model, with the base that it names.

    Args:
        base: see ``compare_models``.
        tuned: see ``compare_models``.
        config: gives the controls, the adapter on ``tuned``, devices and dtypes.
        tasks: of the prompts.
        tokenizer: of models in memory without one.

    Raises:
        InputError: for a control of a task that the prompts lack, two controls of one task, or two adapters on one
            model.
    """
    base = resolve_model(base)
    tuned = resolve_model(tuned)
    if config.adapter is not None and tuned.is_adapter:
        raise InputError(
            f"the tuned model {tuned.source!r} is an adapter, and --adapter gives {str(config.adapter)!r} too; give "
            "one of them"
        )
    device = config.tuned_device or config.device
    dtype = config.tuned_dtype or config.dtype
    tuned = config.resolve(_on_base(tuned, base))
    checkpoints = [
        Checkpoint("base", base, config.device, config.dtype, tokenizer=tokenizer),
        Checkpoint("tuned", tuned, device, dtype, tokenizer=tokenizer),
    ]
    for task, control in _controls(config.controls, tasks).items():
        model = _on_base(resolve_model(control), base)
        checkpoints.append(Checkpoint("control", model, device, dtype, task, tokenizer))
    return checkpoints


def _on_base(model: ResolvedModel, base: ResolvedModel) -> ResolvedModel:
    """Return the base with an adapter if the model is one and the base is not, or else the model itself."""
    return resolve_model(base, model.source) if model.is_adapter and not base.is_adapter else model


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
        check_first_control(task, model, models)
        models[task] = model
    return models
