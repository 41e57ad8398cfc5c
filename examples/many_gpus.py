"""One measurement shared by several workers, each with a copy of the model: the same numbers as from one process.

Here the workers are two processes on this machine. With `python many_gpus.py ray` they run on a Ray cluster, with one
GPU each: the cluster that RAY_ADDRESS names, or just this machine. After an interruption, the same command resumes
where it stopped.
"""

import sys

import torch

from mechclust import Ray, build_model, model_for, run_sharded
from probes import CKA, NDims, residual, run
from tasks import InstructionFollowing

TASK = InstructionFollowing(n_tasks=8, variants=60, n_eval=400)


def load():
    """Called once by every worker; for your own model: load_pretrained(name, device="cuda")."""
    return build_model(model_for(TASK, n_layers=3, d_model=64, init_std=0.2))


if __name__ == "__main__":  # the workers import this file too
    on = {"engine": Ray(gpus_per_job=1)} if "ray" in sys.argv else {"workers": 2}
    probes = [CKA(residual([0, 1, 2]), form="moments"), NDims(residual([0, 1, 2]))]
    batches = list(TASK.batches("validation_subset", batch_size=50))
    found = run_sharded(load, batches, probes, shard_examples=100, out="runs/many_gpus", **on)

    whole = run(load(), batches, [probe.clone() for probe in probes])
    for measure, result, expected in zip(("debiased_cka", "n_dims"), found, whole, strict=True):
        print(result.to_dataframe().query("measure == @measure").round(3).to_string())
        same = torch.allclose(result[measure], expected[measure], rtol=1e-9, equal_nan=True)
        print(f"{result.metadata['examples']}: the same as from one process: {same}\n")
