"""Callbacks that measure or save a model at a run's checkpoints."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from mechclust.models.config import config_of, model_config_to_json
from mechclust.models.saved_model import load_model, read_saved_model_metadata, save_model
from mechclust.models.weights import get_weights
from mechclust.training.results_by_step import result_path, result_paths_by_step
from mechclust.training.task_accuracy import accuracy
from probes import Probe, ProbeResult, load_result, run
from probes.engine.examples_digest import ExamplesDigest
from probes.engine.fingerprint import fingerprint
from probes.engine.hooked_model import HookedModel
from probes.engine.parameters import parameter_json
from probes.store.safetensors_files import is_whole_file
from probes.store.versions import package_versions
from tasks import Batch, InputError, Task

_WAY_OUT = "give another folder, or the same settings to continue"


class Callback(Protocol):
    """Called at ``TrainConfig.checkpoint_steps``, before the step's update, and after the last one.

    After an interruption the calls since the last saved state are repeated, with equal weights.
    """

    def __call__(self, step: int, model: HookedModel) -> None:
        """Do something with the model as it is before ``step``."""


@runtime_checkable
class FileCallback(Callback, Protocol):
    """A callback whose files outlive an interruption. ``train`` asks it before starting or resuming.

    If a file of an earlier step is lost, it is called again at every checkpoint up to that step. It recreates missing
    files, and refuses a model that did not make the existing files.
    """

    def lacks(self, step: int, model: HookedModel) -> list[Path]:
        """Return the files of a step that are missing or damaged.

        Args:
            step: a checkpoint, also one that is past.
            model: the model that is trained, as it is now.

        Raises:
            InputError: when the folder holds files that were made with other settings.
        """


class ProbeCallback:
    """Runs probes at every checkpoint and keeps each result as a file.

    An existing, undamaged file is not measured again, so an interruption loses and repeats no measurement. A file from
    another probe, other parameters, other examples or another model is refused. Versions of packages are not compared,
    so that a run can continue after an upgrade. Each result names its versions.

    Args:
        out: folder of the results, ``step-000100.{name}.safetensors``.
        batches: the examples to measure, by the name of the split.
        probes: by the name of the measurement. Each runs on every split. All probes of a split share its forward pass.
        at: only at these steps. ``None``: at every checkpoint.

    Raises:
        InputError: when called, for a folder with results of other settings.

    Example:
        >>> import tempfile
        >>> from mechclust import ModelConfig, build_model
        >>> from probes import NDims
        >>> model = build_model(ModelConfig(d_vocab=9, n_ctx=4, n_layers=1, d_model=8, n_heads=2))
        >>> batches = {"all": [Batch(torch.arange(24).reshape(6, 4) % 9)]}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ProbeCallback(folder, batches, {"dims": NDims(variance=0.5)})(0, model)
        ...     print([path.name for path in Path(folder).iterdir()])
        ['step-000000.all.dims.safetensors']
    """

    def __init__(
        self,
        out: str | Path,
        batches: Mapping[str, Sequence[Batch]],
        probes: Mapping[str, Probe],
        at: Sequence[int] | None = None,
    ) -> None:
        self.out = Path(out)
        self.batches = batches
        self.probes = probes
        self.at = at
        self._compared = False

    def __call__(self, step: int, model: HookedModel) -> None:
        """Measure the missing results of a step, and refuse results of another model."""
        self._compare_folder()
        for split, batches in self.batches.items():
            paths = self._paths(step, split)
            missing = []
            for name, path in paths.items():
                if is_whole_file(path):
                    _check_model(path, model)
                else:
                    missing.append(name)
            if missing:
                results = run(model, batches, [self.probes[name] for name in missing])
                for name, result in zip(missing, results, strict=True):
                    result.save(paths[name])

    def lacks(self, step: int, model: HookedModel) -> list[Path]:
        """Return the files of a step that are missing or damaged.

        Raises:
            InputError: when a file of any step was made with other settings, naming both values.
        """
        self._compare_folder()
        paths: list[Path] = []
        for split in self.batches:
            paths += self._paths(step, split).values()
        return [path for path in paths if not is_whole_file(path)]

    def _paths(self, step: int, split: str) -> dict[str, Path]:
        """Return the file of each probe's result, or none if the step is not measured."""
        if self.at is not None and step not in self.at:
            return {}
        return {name: result_path(self.out, step, f"{split}.{name}") for name in self.probes}

    def _compare_folder(self) -> None:
        """Refuse files of any step that another probe or other examples made. Done once, because reading takes time."""
        if self._compared:
            return
        for split, batches in self.batches.items():
            examples = ""
            for name, probe in self.probes.items():
                parameters = _texts({key: parameter_json(value) for key, value in probe.parameters().items()})
                for path, saved in _saved_results(self.out, f"{split}.{name}"):
                    examples = examples or _digest(batches)
                    _compare(path, {"probe": saved.probe}, {"probe": type(probe).__name__})
                    _compare(path, _texts(saved.metadata.get("parameters", parameters)), parameters)
                    _compare(path, {"examples": saved.metadata.get("examples")}, {"examples": examples})
        self._compared = True


class AccuracyCallback:
    """Saves the task's accuracy on a split at every checkpoint, as a ``ProbeResult``.

    An existing, undamaged file is not written again, and one from another task or model is refused.

    Args:
        out: folder of the results, ``step-000100.{split}.accuracy.safetensors``.
        task: the task with the examples.
        split: on which examples.

    Example:
        >>> import tempfile
        >>> from mechclust import model_for, build_model
        >>> from tasks import SkillSuite
        >>> suite = SkillSuite(n_eval=4)
        >>> model = build_model(model_for(suite, n_layers=1, d_model=8, n_heads=2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     AccuracyCallback(folder, suite)(0, model)
        ...     print([path.name for path in Path(folder).iterdir()])
        ['step-000000.validation.accuracy.safetensors']
    """

    def __init__(self, out: str | Path, task: Task, split: str = "validation") -> None:
        self.out = Path(out)
        self.task = task
        self.split = split
        self._compared = False

    def __call__(self, step: int, model: HookedModel) -> None:
        """Measure the accuracy before ``step``, or refuse a file of another model."""
        path = result_path(self.out, step, f"{self.split}.accuracy")
        if not self.lacks(step, model):
            _check_model(path, model)
            return
        value, n = accuracy(model, self.task, self.split)
        ProbeResult(
            "Accuracy",
            {"accuracy": torch.tensor(value, dtype=torch.float64)},
            {"accuracy": ()},
            {},
            metadata={
                "n": n,
                "task": self.task.to_config(),
                "model": fingerprint(model),
                "versions": package_versions(),
            },
        ).save(path)

    def lacks(self, step: int, model: HookedModel) -> list[Path]:
        """Return the file of a step if it is missing or damaged.

        Raises:
            InputError: when a file of any step is of another task, naming both values.
        """
        if not self._compared:
            for path, saved in _saved_results(self.out, f"{self.split}.accuracy"):
                _compare(path, saved.metadata.get("task", {}), json.loads(json.dumps(self.task.to_config())))
            self._compared = True
        path = result_path(self.out, step, f"{self.split}.accuracy")
        return [] if is_whole_file(path) else [path]


class CheckpointCallback:
    """Saves the model at the given steps, some of ``TrainConfig.checkpoint_steps``, in ``out``.

    The files are called ``step-000100.safetensors``. An existing, undamaged file is not written again, and one from
    another model is refused.

    Example:
        >>> import tempfile
        >>> from mechclust import ModelConfig, build_model
        >>> model = build_model(ModelConfig(d_vocab=9, n_ctx=4, n_layers=1, d_model=8, n_heads=2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     CheckpointCallback(folder, at=[0])(0, model)
        ...     print([path.name for path in Path(folder).iterdir()])
        ['step-000000.safetensors']
    """

    def __init__(self, out: str | Path, at: Sequence[int]) -> None:
        self.out = Path(out)
        self.at = at

    def __call__(self, step: int, model: HookedModel) -> None:
        """Save the model if the step is one of ``at``, or refuse a file of another model."""
        path = self._path(step)
        if self.lacks(step, model):
            save_model(model, path, step=step)
        elif step in self.at:
            saved = get_weights(load_model(path))
            if any(not torch.equal(saved[name].to(values), values) for name, values in get_weights(model).items()):
                raise InputError(
                    f"{str(path)!r} holds a model whose weights are not this run's at step {step} "
                    f"({_short(fingerprint(load_model(path)))}, not {_short(fingerprint(model))}); give another "
                    "folder, or delete it and run the same command again"
                )

    def lacks(self, step: int, model: HookedModel) -> list[Path]:
        """Return the file of a step if it is missing or damaged.

        Raises:
            InputError: when it holds a model of another configuration, naming both values.
        """
        path = self._path(step)
        if step not in self.at:
            return []
        if not is_whole_file(path):
            return [path]
        _compare(path, read_saved_model_metadata(path)["config"], model_config_to_json(config_of(model)))
        return []

    def _path(self, step: int) -> Path:
        return self.out / f"step-{step:06d}.safetensors"


def _saved_results(out: Path, name: str) -> Iterator[tuple[Path, ProbeResult]]:
    """Yield the undamaged results called ``name`` of a folder, of all steps."""
    for _, path in result_paths_by_step(out, name):
        if is_whole_file(path):
            yield path, load_result(path)


def _digest(batches: Sequence[Batch]) -> str:
    examples = ExamplesDigest()
    for batch in batches:
        examples.add(batch)
    return examples.digest


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Return values as text, without addresses in memory, which change from process to process."""
    return {name: re.sub(r" at 0x[0-9a-f]+", "", str(value)) for name, value in values.items()}


def _compare(path: Path, saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse a file that was made with another value of something."""
    for name, value in wanted.items():
        if saved.get(name) != value:
            raise InputError(f"{str(path)!r} was made with {name} = {saved.get(name)}, not {value}; {_WAY_OUT}")


def _check_model(path: Path, model: HookedModel) -> None:
    """Refuse a result of other weights: of another model, or of a training that went another way."""
    measured = str(load_result(path).metadata.get("model"))
    trained = fingerprint(model)
    if measured != trained:
        raise InputError(
            f"{str(path)!r} was measured on another model ({_short(measured)}, not {_short(trained)}); give another "
            f"folder, or delete {str(path.parent)!r} and run the same command again to measure it again"
        )


def _short(digest: str) -> str:
    return digest[:12]
