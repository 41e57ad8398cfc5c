"""Measure a model in separate jobs and merge their files: equal, to the bit, to measuring all at once.

Each job is a process of its own here, as it would be on a cluster; all that jobs share is the folder runs/merge_jobs.
"""

from pathlib import Path

import torch

from mechclust import TrainConfig, build_model, load_model, load_result, model_for, save_model, train
from mechclust.execution import map_jobs
from probes import TaskClusterARI, residual, run
from tasks import InstructionFollowing

OUT = Path("runs/merge_jobs")
TASK = InstructionFollowing(n_tasks=8, variants=60, n_eval=400)
SITES = {"lower": residual([0, 1]), "upper": residual([2, 3])}


def measure_examples(job: int) -> None:
    """Half of the batches, at all layers: keep the probe's state."""
    model, probe = load_model(OUT / "model.safetensors"), TaskClusterARI(at=residual())
    run(model, list(TASK.batches("validation_subset", batch_size=50))[job::2], probe)
    probe.save_state(OUT / f"examples-{job}.safetensors")


def measure_layers(job: str) -> None:
    """All batches, at some layers or all: keep the result."""
    model, probe = load_model(OUT / "model.safetensors"), TaskClusterARI(at=SITES.get(job, residual()))
    run(model, TASK.batches("validation_subset", batch_size=50), probe).save(OUT / f"{job}.safetensors")


if __name__ == "__main__":  # the jobs' processes import this file, too
    model = build_model(model_for(TASK, n_layers=3, d_model=32))
    train(model, TASK, TrainConfig(steps=60, batch_size=64, lr=5e-3), progress=True)
    save_model(model, OUT / "model.safetensors")
    map_jobs(measure_examples, [0, 1], workers=2)
    map_jobs(measure_layers, ["lower", "upper", "whole"], workers=2)
    whole = load_result(OUT / "whole.safetensors")

    # Different examples: only the states can be merged, and the numbers are computed from all examples together.
    probe, other = TaskClusterARI(at=residual()), TaskClusterARI(at=residual())
    probe.load_state(OUT / "examples-0.safetensors")
    other.load_state(OUT / "examples-1.safetensors")
    probe.merge(other)
    states = probe.compute()
    # Different layers, the same examples: the results can be merged.
    layers = load_result(OUT / "lower.safetensors").merge(load_result(OUT / "upper.safetensors"))

    print(states.to_dataframe().pivot(index="layer", columns="measure", values="value").round(3).to_string())
    for name, merged in (("examples", states), ("layers", layers)):
        same = all(torch.equal(merged[measure], whole[measure]) for measure in whole.values)
        print(f"{merged.metadata['n']} examples; jobs of different {name}, merged, equal the whole to the bit: {same}")
