"""What the runs of the task-cluster study measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mechclust.studies.kept import check_there
from mechclust.studies.study import Job
from mechclust.studies.task_clusters.config import TRAIN, VALIDATION, TaskClustersConfig, results_of
from mechclust.training import load_steps
from probes import load_result


@dataclass(frozen=True)
class RunResults:
    """What one run measured over training.

    Attributes:
        steps: ``[checkpoints]``.
        ari: split to ``[checkpoints sites]`` task-ARI. Sites are layers 0 to n, then the final norm.
        output_ari: the same against output labels, on the validation subset.
        null: ``[checkpoints sites 3]`` of the task-ARI when examples are relabelled within the classes of the input:
            lower and upper end of the central 95%, and the mean; validation.
        tsne: ``[sites]`` task-ARI after t-SNE at the end, validation; ``None`` when not measured.
        accuracy: ``[checkpoints]`` on the validation subset.
        loss: ``[steps]`` training loss in nats.
    """

    steps: np.ndarray
    ari: Mapping[str, np.ndarray]
    output_ari: np.ndarray
    null: np.ndarray
    tsne: np.ndarray | None
    accuracy: np.ndarray
    loss: np.ndarray


def load_results(config: TaskClustersConfig, out: Path, job: Job) -> RunResults:
    """Read a run's results.

    Raises:
        InputError: if a result is missing; the text names it.
    """
    check_there(out, results_of(config, job, out))
    folder = out / "results" / job.name
    found = {split: load_steps(folder, f"{split}.ari") for split in (TRAIN, VALIDATION)}

    def stack(split: str, measure: str, label: str) -> np.ndarray:
        return np.stack([r.sel(measure, label=label).numpy() for r in found[split].values()])

    tsne = load_steps(folder, f"{VALIDATION}.ari-tsne")
    accuracy = load_steps(folder, f"{VALIDATION}.accuracy")
    return RunResults(
        steps=np.array(list(found[VALIDATION])),
        ari={split: stack(split, "ari", "task") for split in found},
        output_ari=stack(VALIDATION, "ari", "output"),
        null=np.stack([stack(VALIDATION, end, "task") for end in ("null_low", "null_high", "null_mean")], axis=-1),
        tsne=tsne[config.training.steps].sel("ari", label="task").numpy() if tsne else None,
        accuracy=np.array([float(r["accuracy"]) for r in accuracy.values()]),
        loss=load_result(folder / "loss.safetensors")["loss"].numpy(),
    )


def by_arm(config: TaskClustersConfig, runs: Mapping[Job, RunResults]) -> dict[str, list[RunResults]]:
    """Each arm's runs, in the order of the seeds."""
    return {arm: [run for job, run in runs.items() if job.arm == arm] for arm in config.arms}


def headline(config: TaskClustersConfig, runs: Mapping[Job, RunResults]) -> list[str]:
    """Say how well clusters agree with the task at the top layer, after training, before it and by chance."""
    arms, top = by_arm(config, runs), config.n_layers
    private = [run.ari[VALIDATION][:, top] for run in arms["private"]]
    after = np.mean([curve[-1] for curve in private])
    before = np.mean([curve[0] for curve in private])
    chance = max(run.null[-1, top, 1] for run in arms["private"])
    sentences = [
        f"At layer {top}, the agreement of clusters of hidden states with the task is {after:z.2f} after training, "
        f"{before:z.2f} before, and at most {chance:z.2f} by chance (adjusted Rand index, mean over seeds)."
    ]
    if "shared" in arms:
        task = np.mean([run.ari[VALIDATION][-1, top] for run in arms["shared"]])
        output = np.mean([run.output_ari[-1, top] for run in arms["shared"]])
        sentences.append(
            f"If tasks share their outputs, the agreement is {task:z.2f} with the task and {output:z.2f} with the "
            "output."
        )
    return sentences
