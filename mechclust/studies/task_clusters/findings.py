"""The findings of the task-cluster study with their controls: T2 to T10, T25 and T26. T1, T5 and T8 are checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Control, Finding, check_part
from mechclust.evidence.compared import compared
from mechclust.evidence.finding import Shown, finding_order
from mechclust.evidence.random_order import random_order
from mechclust.report.rise import judge_rise_with_layer, judge_rise_with_step
from mechclust.studies.study import Job
from mechclust.studies.task_clusters.config import TaskClustersConfig, task_of
from mechclust.studies.task_clusters.results import RunResults, by_arm
from tasks.instructions import TRAIN_SUBSET, VALIDATION_SUBSET

_START = 0
_END = -1
_PAPER = "Wu & Varshney"

_Runs = Sequence[RunResults]
_Seeds = Float[np.ndarray, "seed"]


def findings_of(config: TaskClustersConfig, runs: Mapping[Job, RunResults]) -> list[Finding]:
    """Return the findings, and the checks T1, T5 and T8. Sites are layers 0 to n, then the final norm."""
    arms = by_arm(config, runs)
    private = arms["private"]
    shared = arms.get("shared", [])
    findings = [
        _top_layer_clusters(config, private, shared),
        *_growth(config, private),
        _subsets_agree(config, private),
        _starts_unclustered(private),
        _by_output(config, shared),
        *_other_arms(config, arms, shared),
        *_checks(config, private),
    ]
    return sorted(findings, key=finding_order)


# ---- the top layer ----


def _top_layer_clusters(config: TaskClustersConfig, private: _Runs, shared: _Runs) -> Finding:
    n = config.n_layers
    low, high, _ = np.mean([run.null[_END, n - 1 : n + 1] for run in private], axis=(0, 1))
    finding = _grows(
        config,
        "T2",
        f"the top layer (layer {n - 1} or {n}, the better at the end) clusters by task (ARI), and far more than at the "
        "start",
        private,
        shared,
    )
    chance = f"chance at the end: tasks relabelled within the classes of x, 95% within {low:.3f} to {high:.3f}"
    return replace(finding, note=f"{chance}; {finding.note}" if finding.note else chance)


def _other_arms(config: TaskClustersConfig, arms: Mapping[str, _Runs], shared: _Runs) -> list[Finding]:
    """Return T10, T25 and T26: as T2, on other data. T25 and T26 need arms that are not trained by default."""
    n = config.n_layers
    top = f"(layer {n - 1} or {n}, the better at the end)"
    statements = {
        "instruction": ("T10", f"instructions never seen cluster too {top}"),
        "five": ("T25", f"with five private outputs for each task, the top layer clusters by task too {top}"),
        "expressions": (
            "T26",
            f"with three regular expressions for each task, the top layer clusters by task too {top}",
        ),
    }
    findings = []
    for arm, (id, statement) in statements.items():
        if id != "T10" and arm not in arms:
            continue
        finding = _grows(config, id, statement, arms.get(arm, []), shared)
        shown: Shown = "headline" if id == "T10" else "page"
        findings.append(replace(finding, shown=shown, not_tested="" if arm in arms else f"needs the arm {arm!r}"))
    return findings


def _grows(config: TaskClustersConfig, id: str, statement: str, runs: _Runs, shared: _Runs) -> Finding:
    """Judge whether the top layer clusters by task at the end, and five times as much as at the start."""
    finding = compared(
        id,
        statement,
        {"end": Bound(">=", 0.5), "end - 5 x start": Bound(">=", 0)},
        _end_and_growth(config, runs),
        "networks whose tasks share all outputs",
        _end_and_growth(config, shared),
        source=f"{_PAPER}; bound ours",
        shown="headline",
    )
    return finding if shared else replace(finding, control=None, note="no control without the arm 'shared'")


def _end_and_growth(config: TaskClustersConfig, runs: _Runs) -> list[_Seeds]:
    curves = [_top(config, run) for run in runs]
    end = np.array([curve[_END] for curve in curves])
    start = np.array([curve[_START] for curve in curves])
    return [end, end - 5 * start]


def _top(config: TaskClustersConfig, run: RunResults) -> Float[np.ndarray, "checkpoint"]:
    """Return the task-ARI of the better of the two top layers, by its end."""
    last = run.ari[VALIDATION_SUBSET][:, config.n_layers]
    before_last = run.ari[VALIDATION_SUBSET][:, config.n_layers - 1]
    return last if last[_END] > before_last[_END] else before_last


# ---- over training and layers ----


def _growth(config: TaskClustersConfig, private: _Runs) -> list[Finding]:
    """Return T3 and T4."""
    steps = private[0].steps
    top = np.array([_top(config, run) for run in private])
    shuffled = random_order(len(steps))
    layers = np.array([run.ari[VALIDATION_SUBSET][:, : config.n_layers + 1] for run in private])
    return [
        Finding(
            id="T3",
            statement="the top layer's task-ARI rises with log step, then saturates (last third of training)",
            source=_PAPER,
            parts=judge_rise_with_step(steps, top),
            control=Control("checkpoints in one random order", judge_rise_with_step(steps, top[:, shuffled])),
            shown="table",
        ),
        Finding(
            id="T4",
            statement=f"task-ARI at the end rises with layer, 0 to {config.n_layers}",
            source=_PAPER,
            parts=judge_rise_with_layer(layers[:, _END]),
            control=Control("untrained networks", judge_rise_with_layer(layers[:, _START])),
        ),
    ]


def _subsets_agree(config: TaskClustersConfig, private: _Runs) -> Finding:
    n = config.n_layers
    return compared(
        "T6",
        f"training subset and validation agree at layer {n}, at the end (difference of task-ARI)",
        {"": Bound("<=", 0.1)},
        [_difference_of_subsets(config, private, _END)],
        "untrained networks",
        [_difference_of_subsets(config, private, _START)],
        source=_PAPER,
        shown="table",
    )


def _difference_of_subsets(config: TaskClustersConfig, runs: _Runs, step: int) -> _Seeds:
    n = config.n_layers
    return np.array([abs(run.ari[VALIDATION_SUBSET][step, n] - run.ari[TRAIN_SUBSET][step, n]) for run in runs])


def _starts_unclustered(private: _Runs) -> Finding:
    return compared(
        "T7",
        "before training, no layer clusters by task beyond what x explains (largest task-ARI minus its mean under "
        "relabelling within the classes of x)",
        {"": Bound("<=", 0.1)},
        [_beyond_input(private, _START)],
        "trained networks",
        [_beyond_input(private, _END)],
        source=f"{_PAPER}; bound ours",
        shown="table",
    )


def _beyond_input(runs: _Runs, step: int) -> _Seeds:
    return np.array([(run.ari[VALIDATION_SUBSET][step] - run.null[step, :, 2]).max() for run in runs])


def _by_output(config: TaskClustersConfig, shared: _Runs) -> Finding:
    return compared(
        "T9",
        f"shared outputs: layer {config.n_layers} clusters by output more than by task (difference of ARI)",
        {"": Bound(">", 0)},
        [_output_minus_task(config, shared, _END)],
        "untrained networks",
        [_output_minus_task(config, shared, _START)],
        source="ours",
        shown="table",
        not_tested="" if shared else "needs the arm 'shared'",
    )


def _output_minus_task(config: TaskClustersConfig, runs: _Runs, step: int) -> _Seeds:
    n = config.n_layers
    return np.array([run.output_ari[step, n] - run.ari[VALIDATION_SUBSET][step, n] for run in runs])


# ---- checks ----


def _checks(config: TaskClustersConfig, private: _Runs) -> list[Finding]:
    embedding = [run.ari[VALIDATION_SUBSET][:, 0] for run in private]
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
                check_part("range", [np.ptp(curve) for curve in embedding], Bound("<=", 0.05)),
                check_part("maximum", [curve.max() for curve in embedding], Bound("<=", 0.15)),
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
