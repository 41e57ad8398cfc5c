"""Measurements of a run's checkpoints as files, by step."""

from __future__ import annotations

import re
from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from probes import ProbeResult, load_result


def result_paths_by_step(out: Path, name: str) -> list[tuple[int, Path]]:
    """Return the steps and files of the results called ``name``, in order."""
    pattern = re.compile(rf"step-(\d+)\.{re.escape(name)}\.safetensors")
    steps = []
    for path in Path(out).glob("step-*"):
        match = pattern.fullmatch(path.name)
        if match:
            steps.append((int(match[1]), path))
    return sorted(steps)


def result_path(out: Path, step: int, name: str) -> Path:
    """Return the path of a checkpoint's measurement."""
    return out / f"step-{step:06d}.{name}.safetensors"


def load_results_by_step(out: Path, name: str) -> dict[int, ProbeResult]:
    """Return the saved results called ``name``, by step."""
    return {step: load_result(path) for step, path in result_paths_by_step(out, name)}


def loss_result_by_step(losses: Float[Tensor, "step"]) -> ProbeResult:
    """Return the losses that ``train`` returned as a result with the axis step."""
    return ProbeResult("Loss", {"loss": losses}, {"loss": ("step",)}, {"step": [str(i) for i in range(len(losses))]})
