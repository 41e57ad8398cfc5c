"""Reads the measurements of the induction-head study."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from mechclust.studies.induction_heads.config import ONE, SPLIT, TWO, InductionHeadsConfig
from mechclust.studies.kept import load_required, load_required_by_step
from mechclust.studies.study import Job
from probes import ProbeResult


@dataclass(frozen=True)
class RunResults:
    """Measurements of one run.

    Attributes:
        steps: of the checkpoints.
        loss: on repeated tokens of the next training batch at each checkpoint, which are new, in nats per token.
        induction: attention to the tokens after earlier occurrences, less chance.
        previous: attention to the previous token, less chance.
        alone: rise of the loss in nats if one head is ablated at the end.
        together: rise of the loss in nats if all heads of a layer are ablated at the end.
    """

    steps: Int[np.ndarray, "checkpoint"]
    loss: Float[np.ndarray, "checkpoint"]
    induction: Float[np.ndarray, "checkpoint layer head"]
    previous: Float[np.ndarray, "checkpoint layer head"]
    alone: Float[np.ndarray, "layer head"]
    together: Float[np.ndarray, "layer"]

    @property
    def top_induction(self) -> Float[np.ndarray, "checkpoint"]:
        """The highest induction score in the last layer."""
        return self.induction[:, -1].max(axis=-1)  # type: ignore[no-any-return]

    @property
    def top_previous(self) -> Float[np.ndarray, "checkpoint"]:
        """The highest previous-token score in the first layer."""
        return self.previous[:, 0].max(axis=-1)  # type: ignore[no-any-return]


def load_results(config: InductionHeadsConfig, out: Path, job: Job) -> RunResults:
    """Read a run's results.

    Raises:
        InputError: naming the result that is missing.
    """
    folder = out / "results" / job.name
    roles = load_required_by_step(out, folder, f"{SPLIT}.roles", config.training.checkpoint_steps)
    steps = np.array(list(roles))
    loss = load_required(out, folder / "loss.safetensors")["loss"].numpy()
    ablations = load_required(out, folder / "ablations.safetensors")
    return RunResults(
        steps=steps,
        loss=loss[np.minimum(steps, len(loss) - 1)],  # there is no batch after the last step
        induction=_scores(roles, "induction"),
        previous=_scores(roles, "previous"),
        alone=ablations["alone"].numpy(),
        together=ablations["together"].numpy(),
    )


def _scores(roles: Mapping[int, ProbeResult], role: str) -> Float[np.ndarray, "checkpoint layer head"]:
    return np.stack([result.sel("excess", role=role).numpy() for result in roles.values()])


def by_arm(runs: Mapping[Job, RunResults]) -> tuple[list[RunResults], list[RunResults]]:
    """Return the runs with two layers, and those with one, in the order of the seeds."""
    two = [run for job, run in runs.items() if job.arm == TWO]
    one = [run for job, run in runs.items() if job.arm == ONE]
    return two, one


def half_step(steps: Int[np.ndarray, "checkpoint"], curve: Float[np.ndarray, "checkpoint"]) -> float:
    """Return the step at which a curve is first half way from its start to its end, interpolated between checkpoints.

    NaN if the end is the start.

    Example:
        >>> half_step(np.array([0, 10, 20]), np.array([4.0, 3.0, 0.0]))
        13.333333333333334
    """
    if curve[-1] == curve[0]:
        return math.nan
    progress = (curve - curve[0]) / (curve[-1] - curve[0])
    after = int(np.argmax(progress >= 0.5))
    return float(np.interp(0.5, progress[after - 1 : after + 1], steps[after - 1 : after + 1]))
