"""Measure a model in separate jobs and merge their files: bit-identical to measuring everything at once.

Jobs are separate processes here, as they would be on a cluster; they share only the folder runs/merge_jobs.
"""

from pathlib import Path

import torch

from mechclust import build_model, load_result, map_jobs, model_for
from probes import TaskClusterARI, residual, run
from tasks import InstructionFollowing

OUT = Path("runs/merge_jobs")
TASK = InstructionFollowing(n_tasks=8, variants=60, n_eval=400)
EXAMPLES = {"even batches": slice(0, None, 2), "odd batches": slice(1, None, 2)}
LAYERS = {"lower layers": [0, 1], "upper layers": [2, 3], "whole": None}


def measure(job: str) -> None:
    """One job: some of the examples at all layers, or all examples at some of the layers."""
    model = build_model(model_for(TASK, n_layers=3, d_model=64, init_std=0.2))  # for your own: load_model(path)
    batches = list(TASK.batches("validation_subset", batch_size=50))
    if job in EXAMPLES:
        probe = TaskClusterARI()
        run(model, batches[EXAMPLES[job]], probe)
        probe.save_state(OUT / f"{job}.safetensors")  # the probe's accumulated state
    else:
        result = run(model, batches, TaskClusterARI(at=residual(LAYERS[job])))
        result.save(OUT / f"{job}.safetensors")


if __name__ == "__main__":  # the jobs' processes import this file too
    map_jobs(measure, [*EXAMPLES, *LAYERS], workers=2)

    # Different examples: states are merged, and the numbers are computed from all examples together.
    probe, other = TaskClusterARI(), TaskClusterARI()
    probe.load_state(OUT / "even batches.safetensors")
    other.load_state(OUT / "odd batches.safetensors")
    probe.merge(other)
    # The same examples, different layers: results are merged.
    lower, upper, whole = (load_result(OUT / f"{job}.safetensors") for job in LAYERS)
    merged = {"examples": probe.compute(), "layers": lower.merge(upper)}

    print(whole.to_dataframe().pivot(index="layer", columns="measure", values="value").round(3).to_string())
    for what, result in merged.items():
        same = all(torch.equal(result[measure], whole[measure]) for measure in whole.values)
        print(f"{result.metadata['n']} examples from jobs with different {what}: bit-identical to the whole: {same}")
