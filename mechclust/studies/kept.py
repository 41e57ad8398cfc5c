"""Train models and compute results once, and again if they are missing or damaged."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mechclust.models import build_model, model_for, save_model
from mechclust.training import train
from mechclust.training.results_by_step import result_path
from probes import HookedModel, ProbeResult, load_result
from probes.store.safetensors_files import is_whole_file
from tasks import InputError, SkillSuite


def measure_once(path: Path, measure: Callable[[], ProbeResult]) -> ProbeResult:
    """Return the result saved at ``path``, or measure and save it if it is missing or damaged.

    Example:
        >>> import tempfile, torch
        >>> def measure():
        ...     print("measuring")
        ...     return ProbeResult("Demo", {"ari": torch.tensor(0.5)}, {"ari": ()}, {})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "ari.safetensors"
        ...     for _ in range(2):
        ...         print(float(measure_once(path, measure)["ari"]))
        measuring
        0.5
        0.5
    """
    if is_whole_file(path):
        return load_result(path)
    result = measure()
    result.save(path)
    return result


def train_once(path: Path, train_model: Callable[[Path], tuple[HookedModel, int]]) -> None:
    """Train a model and save it at ``path``, unless a whole file is there.

    Args:
        path: file of the model.
        train_model: given a folder, trains a model, resuming from the state that it saves in this folder. Returns the
            model and its number of steps. The folder is deleted once the model is saved.
    """
    state = path.with_suffix("")
    if not is_whole_file(path):
        model, steps = train_model(state)
        save_model(model, path, steps=steps)
    # also if a run was killed after saving the model, before deleting its state
    shutil.rmtree(state, ignore_errors=True)


def on_device(model: HookedModel, device: str) -> HookedModel:
    """Move a model to a device, unless that is the CPU: TransformerLens reports every move."""
    if device != "cpu":
        model.to(device)
    return model


def pretrain(config: Any, suite: SkillSuite, seed: int, name: str, state: Path) -> tuple[HookedModel, int]:
    """Train a new model on the pre-training stream of a suite of skills.

    Args:
        config: settings of a study, with ``n_layers``, ``d_model``, ``n_heads``, ``init_std``, ``device`` and
            ``pretraining``.
        suite: the skills.
        seed: seed of the initial weights.
        name: name of the job.
        state: folder of the training's state, from which an interrupted training resumes.

    Returns:
        The model and the number of its steps.
    """
    pretraining_task = replace(suite, stream="pretraining")
    init_std = config.d_model**-0.5 if config.init_std is None else config.init_std
    model_config = model_for(
        pretraining_task,
        seed=seed,
        n_layers=config.n_layers,
        d_model=config.d_model,
        n_heads=config.n_heads,
        init_std=init_std,
    )
    model = on_device(build_model(model_config), config.device)
    train(model, pretraining_task, config.pretraining, state, progress=True, name=name)
    return model, config.pretraining.steps


def require_files(out: Path, paths: Iterable[Path]) -> None:
    """Refuse a report if a file that it needs is missing.

    Args:
        out: folder of the study, named in the error.
        paths: files in ``out`` that the report needs.

    Raises:
        InputError: naming the first file that is missing.
    """
    for path in paths:
        if not path.exists():
            raise InputError(f"{str(out)!r} lacks {path.relative_to(out)}; start the study again with the same --out")


def load_required(out: Path, path: Path) -> ProbeResult:
    """Load a result that the report needs.

    Args:
        out: folder of the study, named in the error.
        path: file of the result, in ``out``.

    Raises:
        InputError: naming the file if it is missing.
    """
    require_files(out, [path])
    return load_result(path)


def load_required_by_step(out: Path, folder: Path, name: str, steps: Iterable[int]) -> dict[int, ProbeResult]:
    """Load a result of each checkpoint that the report needs, by step.

    Args:
        out: folder of the study, named in the error.
        folder: folder of the results, in ``out``.
        name: name of the result, such as ``"dev.attention"``.
        steps: steps of the checkpoints.

    Raises:
        InputError: naming the first file that is missing.
    """
    return {step: load_required(out, result_path(folder, step, name)) for step in steps}
