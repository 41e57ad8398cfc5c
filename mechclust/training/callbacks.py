"""What to do at a run's checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mechclust.models.checkpoint import save_model
from probes import Probe, ProbeResult, load_result, run
from probes.hooks import HookedModel, device_of, evaluation_mode, forward
from tasks import Batch, Task


class ProbeCallback:
    """Runs probes at every checkpoint and keeps each result as a file.

    A file that exists is not measured again: after an interruption nothing is lost or redone.

    Args:
        out: folder of the results, ``step-000100.{name}.safetensors``.
        batches: what to measure on, by the name of the split.
        probes: by the name of the measurement; each runs on every split. All that share a split
            share its forward pass.
        at: only at these steps; ``None``: at every checkpoint.
    """

    def __init__(
        self,
        out: str | Path,
        batches: Mapping[str, Sequence[Batch]],
        probes: Mapping[str, Probe],
        at: Sequence[int] | None = None,
    ) -> None:
        self.out, self.batches, self.probes, self.at = Path(out), batches, probes, at

    def __call__(self, step: int, model: HookedModel) -> None:
        if self.at is not None and step not in self.at:
            return
        for split, batches in self.batches.items():
            paths = {name: result_path(self.out, step, f"{split}.{name}") for name in self.probes}
            missing = [name for name, path in paths.items() if not path.exists()]
            if missing:
                results = run(model, batches, [self.probes[name] for name in missing])
                for name, result in zip(missing, results, strict=True):
                    result.save(paths[name])


class AccuracyCallback:
    """Saves the task's accuracy on a split at every checkpoint, as a ``ProbeResult``.

    Args:
        out: folder of the results, ``step-000100.{split}.accuracy.safetensors``.
        task: whose accuracy.
        split: on which examples.
    """

    def __init__(self, out: str | Path, task: Task, split: str = "validation") -> None:
        self.out, self.task, self.split = Path(out), task, split

    def __call__(self, step: int, model: HookedModel) -> None:
        path = result_path(self.out, step, f"{self.split}.accuracy")
        if not path.exists():
            value, n = accuracy(model, self.task, self.split)
            result = ProbeResult(
                "Accuracy", {"accuracy": torch.tensor(value, dtype=torch.float64)}, {"accuracy": ()}, {}, {}, {"n": n}
            )
            result.save(path)


class CheckpointCallback:
    """Saves the model at the given steps as ``step-000100.safetensors`` in ``out``."""

    def __init__(self, out: str | Path, at: Sequence[int]) -> None:
        self.out, self.at = Path(out), at

    def __call__(self, step: int, model: HookedModel) -> None:
        path = self.out / f"step-{step:06d}.safetensors"
        if step in self.at and not path.exists():
            save_model(model, path, step=step)


def result_path(out: Path, step: int, name: str) -> Path:
    """Where a checkpoint's measurement stands."""
    return out / f"step-{step:06d}.{name}.safetensors"


def load_steps(out: Path, name: str) -> dict[int, ProbeResult]:
    """The saved results called ``name``, by step."""
    found = sorted(Path(out).glob(f"step-*.{name}.safetensors"))
    return {int(path.name[5:11]): load_result(path) for path in found}


def save_losses(losses: torch.Tensor, path: Path) -> None:
    """Write what ``train`` returned as a ``ProbeResult`` with the axis step."""
    steps = {"step": [str(i) for i in range(len(losses))]}
    ProbeResult("Loss", {"loss": losses}, {"loss": ("step",)}, steps).save(path)


def accuracy(model: HookedModel, task: Task, split: str, **which: Any) -> tuple[float, int]:
    """Share of right answers on a split, and the number of examples. ``which`` goes to ``task.batches``."""
    right, n = 0.0, 0
    score: Callable[[torch.Tensor, Batch], torch.Tensor] = task.accuracy
    with evaluation_mode(model), torch.inference_mode():
        for batch in task.batches(split, **which):
            moved = batch.to(device_of(model))
            right += float(score(forward(model, moved), moved).sum())
            n += len(batch)
    return right / n, n
