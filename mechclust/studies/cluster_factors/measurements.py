"""Everything that is measured on a network: probes, and the curves that they give."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from mechclust.studies.cluster_factors.config import ARMS, ClusterFactorsConfig
from probes import LinearDecodability, Probe, TaskClusterARI, mean, token_at

# Curve (position and label) -> the probe that measures it, and the label's name in the probe's result.
CURVES: Mapping[str, tuple[str, str]] = {
    "x task": ("x", "task"),
    "x output": ("x", "output"),
    "x input": ("x-input", "input"),
    "x task|output": ("x-task-given-output", "task"),
    "x output|task": ("x-output-given-task", "output"),
    "instruction task": ("instruction", "task"),
    "mean task": ("mean", "task"),
    "mean output": ("mean", "output"),
    "mean input": ("mean-input", "input"),
}


def probes_of(config: ClusterFactorsConfig, arm: str) -> dict[str, Probe]:
    """Return the probes that run at the measured checkpoints of an arm, by the names of their files.

    Null intervals follow from a formula if labels may be exchanged freely, and are drawn if only within classes.
    """
    x = token_at("input")
    end = token_at("instruction_end")
    drawn = partial(TaskClusterARI, n_init=config.n_init, n_permutations=config.n_permutations)
    by_formula = partial(TaskClusterARI, n_init=config.n_init, n_permutations=0)
    probes: dict[str, Probe] = {
        "x": drawn("task", readout=x, also=("output",), within="input"),
        "x-input": by_formula("input", readout=x),
        "x-linear": LinearDecodability("task", readout=x, n_shuffles=config.n_shuffles),
        "instruction": by_formula("task", readout=end),
        "mean": drawn("task", readout=mean(), also=("output",), within="input"),
        "mean-input": by_formula("input", readout=mean()),
    }
    fields = ARMS[arm].task
    if fields.get("overlap"):  # otherwise the output identifies the task
        probes["x-task-given-output"] = drawn("task", readout=x, given="output")
    if fields.get("n_outputs") != 1:
        probes["x-output-given-task"] = drawn("output", readout=x, given="task")
    return probes
