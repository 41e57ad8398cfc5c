"""The findings T2 to T10 of the task-cluster study with their controls, and the checks T1, T5 and T8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Control, Finding, Part, check_part, mean_part
from mechclust.report.growth import climbing, rising
from mechclust.studies.study import Job
from mechclust.studies.task_clusters.config import TRAIN, VALIDATION, TaskClustersConfig, task_of
from mechclust.studies.task_clusters.results import RunResults, by_arm

_PAPER = "Wu & Varshney"
_TOO_SMALL = "this size of the study cannot test it"

Runs = Sequence[RunResults]


def findings_of(config: TaskClustersConfig, runs: Mapping[Job, RunResults]) -> list[Finding]:
    """Return T1 to T10; of these T1, T5 and T8 are checks. Sites are layers 0 to n, then the final norm."""
    arms = by_arm(config, runs)
    findings = [
        *_of_private_outputs(config, arms["private"], arms.get("shared", [])),
        _by_output(config, arms.get("shared", [])),
        _unseen_instructions(config, arms.get("instruction", []), arms.get("shared", [])),
        *_checks(config, arms["private"]),
    ]
    if not config.test_findings:
        findings = [replace(finding, not_tested=_TOO_SMALL) for finding in findings]
    return sorted(findings, key=lambda finding: int(finding.id[1:]))


def _of_private_outputs(config: TaskClustersConfig, private: Runs, shared: Runs) -> list[Finding]:
    n = config.n_layers
    steps = private[0].steps
    top = np.array([_top(config, run) for run in private])
    shuffled = np.random.default_rng(0).permutation(len(steps))
    chance = f"chance: tasks relabelled within the classes of x, 95% within {_band(private)}"
    return [
        Finding(
            id="T2",
            statement=f"the top layer (layer {n - 1} or {n}, the better at the end) clusters by task (ARI), and far "
            "more than at the start",
            source=f"{_PAPER}; bound ours",
            parts=_grows(config, private),
            control=_shared_outputs(config, shared),
            shown="headline",
            note=chance,
        ),
        Finding(
            id="T3",
            statement="the top layer's task-ARI rises with log step, then saturates (last third of training)",
            source=_PAPER,
            parts=rising(steps, top),
            control=Control("checkpoints in one random order", rising(steps, top[:, shuffled])),
            shown="table",
        ),
        Finding(
            id="T4",
            statement=f"task-ARI at the end rises with layer, 0 to {n}",
            source=_PAPER,
            parts=climbing(_by_layer(config, private, -1)),
            control=Control("untrained networks", climbing(_by_layer(config, private, 0))),
        ),
        Finding(
            id="T6",
            statement=f"training subset and validation agree at layer {n}, at the end (difference of task-ARI)",
            source=_PAPER,
            parts=_agree(config, private, -1),
            control=Control("untrained networks", _agree(config, private, 0)),
            shown="table",
        ),
        Finding(
            id="T7",
            statement="before training, no layer clusters by task beyond what x explains (largest task-ARI minus its "
            "mean under relabelling within the classes of x)",
            source=f"{_PAPER}; bound ours",
            parts=_beyond_input(private, 0),
            control=Control("trained networks", _beyond_input(private, -1)),
            shown="table",
        ),
    ]


def _by_output(config: TaskClustersConfig, shared: Runs) -> Finding:
    n = config.n_layers

    def more_than_by_task(step: int) -> tuple[Part, ...]:
        differences = [run.output_ari[step, n] - run.ari[VALIDATION][step, n] for run in shared]
        return (mean_part("", differences, Bound(">", 0)),)

    return Finding(
        id="T9",
        statement=f"shared outputs: layer {n} clusters by output more than by task (difference of ARI)",
        source="ours",
        parts=more_than_by_task(-1),
        control=Control("untrained networks", more_than_by_task(0)),
        shown="table",
        not_tested="" if shared else "needs the arm 'shared'",
    )


def _unseen_instructions(config: TaskClustersConfig, unseen: Runs, shared: Runs) -> Finding:
    n = config.n_layers
    return Finding(
        id="T10",
        statement=f"instructions never seen cluster too (layer {n - 1} or {n}, the better at the end)",
        source=f"{_PAPER}; bound ours",
        parts=_grows(config, unseen),
        control=_shared_outputs(config, shared),
        shown="headline",
        not_tested="" if unseen else "needs the arm 'instruction'",
    )


def _checks(config: TaskClustersConfig, private: Runs) -> list[Finding]:
    of_input = [run.ari[VALIDATION][:, 0] for run in private]
    guesses = [task_of(config, Job("private", seed)).input_only_accuracy() for seed in config.seeds]
    n_tasks = min(config.task.n_eval_tasks, config.task.n_tasks)
    return [
        Finding(
            id="T1",
            kind="check",
            statement="networks learn the tasks: validation accuracy at the end",
            source="set-up",
            parts=(check_part("", [run.accuracy[-1] for run in private], Bound(">=", 0.95)),),
        ),
        Finding(
            id="T5",
            kind="check",
            statement="layer 0 (word embedding) stays flat and low over training",
            source=_PAPER,
            parts=(
                check_part("range", [np.ptp(curve) for curve in of_input], Bound("<=", 0.05)),
                check_part("maximum", [curve.max() for curve in of_input], Bound("<=", 0.15)),
            ),
            note="one point per input token, fewer than clusters: the partition is the token itself",
        ),
        Finding(
            id="T8",
            kind="check",
            statement="the best guess of the task from x alone is right at most three times as often as chance",
            source=f"{_PAPER}; bound ours (3 x chance)",
            parts=(check_part("", guesses, Bound("<=", 3 / n_tasks)),),
            note=f"chance: {1 / n_tasks:.3g}",
        ),
    ]


# ---- what is measured ----


def _top(config: TaskClustersConfig, run: RunResults) -> Float[np.ndarray, "checkpoint"]:
    """Return the task-ARI of the better of the two top layers, by its end."""
    n = config.n_layers
    curves = run.ari[VALIDATION]
    best = max((n - 1, n), key=lambda layer: curves[-1, layer])
    return curves[:, best]


def _by_layer(config: TaskClustersConfig, runs: Runs, step: int) -> Float[np.ndarray, "seed layer"]:
    return np.array([run.ari[VALIDATION][step, : config.n_layers + 1] for run in runs])


def _grows(config: TaskClustersConfig, runs: Runs) -> tuple[Part, ...]:
    """Judge whether the top layer clusters by task at the end, and five times as much as at the start."""
    curves = [_top(config, run) for run in runs]
    return (
        mean_part("end", [curve[-1] for curve in curves], Bound(">=", 0.5)),
        mean_part("end - 5 x start", [curve[-1] - 5 * curve[0] for curve in curves], Bound(">=", 0)),
    )


def _shared_outputs(config: TaskClustersConfig, shared: Runs) -> Control | None:
    return Control("networks whose tasks share all outputs", _grows(config, shared)) if shared else None


def _agree(config: TaskClustersConfig, runs: Runs, step: int) -> tuple[Part, ...]:
    n = config.n_layers
    differences = [abs(run.ari[VALIDATION][step, n] - run.ari[TRAIN][step, n]) for run in runs]
    return (mean_part("", differences, Bound("<=", 0.1)),)


def _beyond_input(runs: Runs, step: int) -> tuple[Part, ...]:
    largest = [(run.ari[VALIDATION][step] - run.null[step, :, 2]).max() for run in runs]
    return (mean_part("", largest, Bound("<=", 0.1)),)


def _band(runs: Runs) -> str:
    low, high = (np.mean([run.null[..., end].mean() for run in runs]) for end in (0, 1))
    return f"{low:.3f} to {high:.3f}"
