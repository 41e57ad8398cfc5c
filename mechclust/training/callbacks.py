"""Callbacks that measure or save a model at a run's checkpoints."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Int64
from torch import Tensor

from mechclust.models.saved_model import save_model
from mechclust.training.results_by_step import result_path
from mechclust.training.task_accuracy import accuracy
from probes import Probe, ProbeResult, run
from probes.engine.examples_digest import ExamplesDigest, token_digests
from probes.engine.fingerprint import fingerprint
from probes.engine.hooked_model import HookedModel
from probes.store.versions import package_versions
from tasks import Batch, Task


class Callback(Protocol):
    """Called before the update of each of ``TrainConfig.checkpoint_steps``, and after the last update.

    At step 0 the weights are the initial ones. After an interruption, calls since the last saved state are repeated. If
    a finished training is called again, its last call is, unless the callback is a ``FileCallback`` with its files.
    """

    def __call__(self, step: int, model: HookedModel) -> None:
        """Do something with the model as it is before ``step``."""


@runtime_checkable
class FileCallback(Callback, Protocol):
    """A callback that does nothing but write files: any that has ``paths``.

    ``train`` does not resume from a state if files of earlier steps are lost.
    """

    def paths(self, step: int) -> list[Path]:
        """Return the files that the callback writes at a checkpoint, or none."""


class ProbeCallback:
    """Runs probes at every checkpoint and keeps each result as a file.

    An existing file is replaced. ``train`` refuses results of other initial weights if step 0 is measured, so give each
    run a folder.

    Args:
        out: folder of the results, ``step-000100.{split}.{name}.safetensors``.
        batches: the examples to measure, by the name of the split.
        probes: by the name of the measurement. Each runs on every split. All probes of a split share its forward pass.
        at: only at these of ``TrainConfig.checkpoint_steps``. ``None``: at all.

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

    def __call__(self, step: int, model: HookedModel) -> None:
        """Measure the model, and save each result."""
        if not self.paths(step):
            return
        for split, batches in self.batches.items():
            results = run(model, batches, list(self.probes.values()))
            for name, result in zip(self.probes, results, strict=True):
                result.save(result_path(self.out, step, f"{split}.{name}"))

    def paths(self, step: int) -> list[Path]:
        """Return the files of the results at a checkpoint."""
        if self.at is not None and step not in self.at:
            return []
        return [result_path(self.out, step, f"{split}.{name}") for split in self.batches for name in self.probes]

    def settings(self) -> dict[str, str]:
        """Return what each result is measured with, by its name. ``train`` refuses to resume with anything else."""
        settings = {}
        for split, batches in self.batches.items():
            digests: dict[str, ExamplesDigest] = defaultdict(ExamplesDigest)
            for batch in batches:
                for part, values in _example_digests(batch).items():
                    digests[part].add_digests(batch.index.to(values.device), values)
            examples = ", ".join(f"{part} {digest.digest}" for part, digest in digests.items())
            for name, probe in self.probes.items():
                text = re.sub(r" at 0x[0-9a-f]+", "", repr(probe))  # addresses change from process to process
                settings[f"{split}.{name}"] = f"{text} on {examples}"
        return settings


def _example_digests(batch: Batch) -> dict[str, Int64[Tensor, "batch"]]:
    """Return a hash of each example's tokens, of each of its positions, and of each label. Padding does not matter."""
    digests = {"tokens": token_digests(batch)}
    for name, values in sorted(batch.positions.items()):
        from_first_token = values - batch.first_positions()
        digests[f"position {name}"] = token_digests(Batch(from_first_token[:, None]))
    for name, values in sorted(batch.labels.items()):
        of_tokens = values.ndim == 2
        label = Batch(values, batch.attention_mask) if of_tokens else Batch(values[:, None])
        digests[f"label {name}"] = token_digests(label)
    return digests


class AccuracyCallback:
    """Saves the task's accuracy on a split at every checkpoint, as a ``ProbeResult``. An existing file is replaced.

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

    def __call__(self, step: int, model: HookedModel) -> None:
        """Measure the accuracy before ``step``, and save it."""
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
        ).save(*self.paths(step))

    def paths(self, step: int) -> list[Path]:
        """Return the file of the result at a checkpoint."""
        return [result_path(self.out, step, f"{self.split}.accuracy")]

    def settings(self) -> dict[str, str]:
        """Return the task, by the result's name. ``train`` refuses to resume with another."""
        return {f"{self.split}.accuracy": json.dumps(self.task.to_config())}


class CheckpointCallback:
    """Saves the model at the given steps, some of ``TrainConfig.checkpoint_steps``, in ``out``.

    The files are called ``step-000100.safetensors``. An existing file is replaced.

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
        """Save the model if the step is one of ``at``."""
        for path in self.paths(step):
            save_model(model, path, step=step)

    def paths(self, step: int) -> list[Path]:
        """Return the file of the model, or none if it is not saved at this step."""
        return [self.out / f"step-{step:06d}.safetensors"] if step in self.at else []
