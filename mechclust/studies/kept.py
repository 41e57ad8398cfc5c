"""Train models and compute results once, and again if they are missing, damaged, or of another model."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mechclust.models import build_model, model_for, read_saved_model_metadata, save_model
from mechclust.training import train
from mechclust.training.results_by_step import result_path
from probes import HookedModel, ProbeResult, load_result
from probes.store.safetensors_files import is_whole_file
from tasks import InputError, SkillSuite


def measure_once(path: Path, measure: Callable[[], ProbeResult], model: str | Mapping[str, str]) -> ProbeResult:
    """Return the result at ``path``.

    It is measured and saved there if it is missing, damaged, or of another model.

    Args:
        path: file of the result.
        measure: computes it.
        model: ``fingerprint`` of the model measured, or of several by name. It is kept in the metadata.

    Example:
        >>> import tempfile, torch
        >>> def measure():
        ...     print("measuring")
        ...     return ProbeResult("Demo", {"ari": torch.tensor(0.5)}, {"ari": ()}, {})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "ari.safetensors"
        ...     for _ in range(2):
        ...         print(float(measure_once(path, measure, "3fa")["ari"]))
        measuring
        0.5
        0.5
    """
    earlier = kept_result(path, model)
    if earlier is not None:
        return earlier
    measured = measure()
    result = replace(measured, metadata={**measured.metadata, "model": model})
    result.save(path)
    return result


def kept_result(path: Path, model: str | Mapping[str, str]) -> ProbeResult | None:
    """Return the result at ``path``, or ``None`` if it is missing or damaged, or (with a warning) of another model."""
    if not is_whole_file(path):
        return None
    result = load_result(path)
    if result.metadata.get("model") == model:
        return result
    warnings.warn(
        f"{str(path)!r} was measured on another model than the present one; it is measured again", stacklevel=2
    )
    return None


def check_there(out: Path, paths: Iterable[Path]) -> None:
    """Refuse a run with a missing file.

    Raises:
        InputError: naming the first file that is missing.
    """
    for path in paths:
        if not path.exists():
            raise InputError(f"{str(out)!r} lacks {path.relative_to(out)}; start the study again with the same --out")


def train_once(path: Path, train: Callable[[Path], tuple[HookedModel, int]], base: str | None = None) -> None:
    """Train a model and save it at ``path``, unless it is there already and was tuned from this base.

    Args:
        path: file of the model.
        train: trains it, with its state in a folder that it is given, and returns it with the number of its steps.
        base: ``fingerprint`` of the model that it is tuned from, or ``None`` if it is trained from scratch.
    """
    state = path.with_suffix("")
    if is_whole_file(path):
        if read_saved_model_metadata(path)["metadata"].get("base") == base:
            shutil.rmtree(state, ignore_errors=True)  # left by a run killed between saving and this
            return
        warnings.warn(
            f"{str(path)!r} was tuned from another base than the present one; it is trained again", stacklevel=2
        )
    model, steps = train(state)
    metadata = {} if base is None else {"base": base}
    save_model(model, path, steps=steps, **metadata)
    shutil.rmtree(state)


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
    stream = replace(suite, stream="pretraining")
    network = model_for(
        stream,
        seed=seed,
        n_layers=config.n_layers,
        d_model=config.d_model,
        n_heads=config.n_heads,
        init_std=config.d_model**-0.5 if config.init_std is None else config.init_std,
    )
    model = on_device(build_model(network), config.device)
    train(model, stream, config.pretraining, state, progress=True, name=name)
    return model, config.pretraining.steps


def load_there(out: Path, path: Path) -> ProbeResult:
    """Read a measurement of a run.

    Raises:
        InputError: naming the measurement that is missing.
    """
    check_there(out, [path])
    return load_result(path)


def load_steps_there(out: Path, folder: Path, name: str, steps: Iterable[int]) -> dict[int, ProbeResult]:
    """Read a measurement of a run's checkpoints, by step.

    Args:
        out: folder of the run.
        folder: folder of the measurements.
        name: name of the measurement.
        steps: the checkpoints.

    Raises:
        InputError: naming the first measurement that is missing.
    """
    return {step: load_there(out, result_path(folder, step, name)) for step in steps}
