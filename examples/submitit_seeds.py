"""Run the seeds of a study as a Slurm job array with submitit; without Slurm, on this machine: pip install submitit."""

from dataclasses import replace

import submitit

from mechclust import get_study, run_study


def run_seed(seed: int) -> int:
    """Return how many findings one seed has."""
    study = get_study("task-clusters")
    config = replace(study.preset("smoke"), seeds=(seed,))  # for results: "paper"
    return len(run_study(study, config, f"runs/seed-{seed}", workers=1).findings)


if __name__ == "__main__":
    executor = submitit.AutoExecutor(folder="runs/logs/%j")
    executor.update_parameters(timeout_min=240, slurm_gpus_per_node=1, slurm_array_parallelism=16)
    jobs = executor.map_array(run_seed, range(2))
    print("findings of each seed:", [job.result() for job in jobs])
