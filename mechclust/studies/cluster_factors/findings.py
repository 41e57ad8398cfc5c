"""The findings of the study with their controls, and the checks T1, T5 and T8.

The study of task clusters tests T2, T4, T6, T7 and T10. Bounds were written before the confirmatory seeds were run.
Unless it says otherwise, a finding concerns the states at ``x`` on held-out examples at the end of training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Finding, check_part
from mechclust.evidence.compared import compared, compared_with_untrained
from mechclust.evidence.finding import finding_order
from mechclust.report.spearman import spearman_correlation
from mechclust.studies.cluster_factors.config import (
    ARMS,
    CONSTANT,
    OVERLAP_ARMS,
    OVERLAPS,
    PRIVATE,
    PRIVATE_WIDE,
    PRIVATE_Y,
    SHARED,
    SHARED_WIDE,
    SHARED_Y,
    TWO,
    ClusterFactorsConfig,
    measured_steps,
    task_of,
)
from mechclust.studies.cluster_factors.results import ArmResults, Results
from mechclust.studies.cluster_factors.swap import HALVES, KINDS, POSITIONS, RANDOM, TASK
from mechclust.studies.study import Job

_START = 0
_END = -1
_SHARED_NETWORKS = "networks whose tasks share all outputs"
_PRIVATE_NETWORKS = "networks whose tasks have private outputs"
_ARMS_NEEDED: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("T11", "T12", "T13", "T14"), OVERLAP_ARMS),
    "T15": (TWO,),
    "T16": (CONSTANT,),
    "T21": (PRIVATE_Y, SHARED_Y),
    "T22": (PRIVATE_WIDE, SHARED_WIDE),
}

_Seeds = Float[np.ndarray, "seed"]
_Curve = Float[np.ndarray, "seed step"]

_finding = partial(compared, source="ours", shown="table")  # of values and a control's values, by seed
_beyond_untrained = partial(compared_with_untrained, source="ours", shown="table")  # of the end and the start of curves


def findings_of(config: ClusterFactorsConfig, results: Results) -> list[Finding]:
    """Return the findings and the checks T1, T5 and T8. An arm that was not run has no values."""
    arms = dict.fromkeys(ARMS, _without_seeds(results[SHARED])) | dict(results)
    findings = [
        *_checks(config, results),
        *_shared_outputs(config, arms),
        *_overlaps(config, arms),
        *_layers(config, arms),
        *_swapped_means(config, arms),
        *_losses_and_widths(config, arms),
        _bag_of_symbols(config, arms[PRIVATE]),
    ]
    findings = [replace(finding, not_tested=_not_tested(config, finding.id)) for finding in findings]
    return sorted(findings, key=finding_order)


def _without_seeds(arm: ArmResults) -> ArmResults:
    """Return results of the same shape but without networks, for an arm that was not run."""
    return ArmResults(
        steps=arm.steps,
        ari={curve: values[:0] for curve, values in arm.ari.items()},
        null={curve: values[:0] for curve, values in arm.null.items()},
        linear=arm.linear[:0],
        accuracy=arm.accuracy[:0],
        became=arm.became[:0],
    )


def _not_tested(config: ClusterFactorsConfig, id: str) -> str:
    """Return why a run cannot test a finding, or ``""`` if it can."""
    for arm in _ARMS_NEEDED.get(id, ()):
        if arm not in config.arms:
            return f"needs the arm {arm!r}"
    return ""


def _checks(config: ClusterFactorsConfig, results: Results) -> list[Finding]:
    accuracies = [arm.accuracy[:, _END] for arm in results.values()]
    embedding = results[PRIVATE].ari["x task"][:, :, 0]
    guesses = [task_of(config, Job(PRIVATE, seed)).input_only_accuracy() for seed in config.seeds]
    n_tasks = _n_tasks(config)
    check = partial(Finding, kind="check")
    return [
        check(
            id="T1",
            statement="networks learn the tasks: validation accuracy at the end of training, lowest over arms",
            source="set-up",
            parts=(check_part("", np.min(accuracies, axis=0), Bound(">=", 0.95)),),
        ),
        check(
            id="T5",
            statement="layer 0 at x is the embedding of x: its partition never changes (range of task-ARI)",
            source="Wu & Varshney",
            parts=(check_part("", np.ptp(embedding, axis=1), Bound("<=", 0.01)),),
        ),
        check(
            id="T8",
            statement="the best guess of the task from x alone is right at most three times as often as chance",
            source="Wu & Varshney; bound ours (3 x chance)",
            parts=(check_part("", guesses, Bound("<=", 3 / n_tasks)),),
            note=f"chance: {1 / n_tasks:.3g}",
        ),
    ]


def _n_tasks(config: ClusterFactorsConfig) -> int:
    """Return the number of tasks among the measured examples."""
    return min(config.task.n_eval_tasks, config.task.n_tasks)


def _last_layer(arm: ArmResults, curve: str) -> _Curve:
    return arm.ari[curve][:, :, -1]


def _output_minus_task(arm: ArmResults) -> _Curve:
    return _last_layer(arm, "x output") - _last_layer(arm, "x task")


def _shared_outputs(config: ClusterFactorsConfig, arms: Results) -> list[Finding]:
    n = config.n_layers
    shared = arms[SHARED]
    within = _last_layer(shared, "x output|task") - _last_layer(shared, "x task|output")
    return [
        _finding(
            "T9",
            f"all outputs shared: layer {n} clusters by output more than by task (difference of ARI)",
            {"": Bound(">", 0)},
            [_output_minus_task(shared)[:, _END]],
            _PRIVATE_NETWORKS,
            [_output_minus_task(arms[PRIVATE])[:, _END]],
            shown="headline",
        ),
        _beyond_untrained(
            "T20",
            f"all outputs shared: a linear classifier reads the task from layer {n}, whose states do not cluster by it",
            {"linear accuracy": Bound(">=", 0.8), "task-ARI": Bound("<=", 0.3)},
            [shared.linear[:, :, -1], _last_layer(shared, "x task")],
            shares=["linear accuracy"],
            note=f"chance of the classifier: {1 / _n_tasks(config):.2g}",
            shown="page",
        ),
        _beyond_untrained(
            "T24",
            f"all outputs shared: layer {n} clusters by output within tasks more than by task within outputs "
            "(difference of ARI)",
            {"": Bound(">=", 0.2)},
            [within],
        ),
    ]


def _overlaps(config: ClusterFactorsConfig, arms: Results) -> list[Finding]:
    n = config.n_layers
    clear = {f"overlap {overlap:g}": Bound(">=", config.clear) for overlap in OVERLAPS}
    instruction = [arms[arm].ari["instruction task"] for arm in OVERLAP_ARMS]
    return [
        _beyond_untrained(
            "T11",
            f"task-ARI of layer {n} falls as the outputs overlap more (Spearman over six overlaps)",
            {"": Bound("<", -0.7)},
            [_correlation_with_overlap(arms)],
            shown="headline",
        ),
        _beyond_untrained(
            "T12",
            f"layer {n} clusters by output at every overlap (ARI)",
            clear,
            [_last_layer(arms[arm], "x output") for arm in OVERLAP_ARMS],
        ),
        _finding(
            "T13",
            f"at the end of the instruction, layer {n} clusters by task at every overlap (ARI)",
            clear,
            [index[:, _END, -1] for index in instruction],
            "untrained networks, the layer that clusters most",
            [index[:, _START].max(axis=1) for index in instruction],
            shown="headline",
        ),
    ]


def _by_overlap(arms: Results, curve: str) -> Float[np.ndarray, "overlap seed step layer"]:
    """Return a curve of the arms that differ in overlap, without seeds if one of them was not run."""
    curves = [arms[arm].ari[curve] for arm in OVERLAP_ARMS]
    n_seeds = min(map(len, curves))
    return np.stack([index[:n_seeds] for index in curves])


def _correlation_with_overlap(arms: Results) -> _Curve:
    """Return Spearman's correlation of overlap and task-ARI in the last layer, at the start and at the end."""
    overlaps = np.array(OVERLAPS)
    task = _by_overlap(arms, "x task")[..., -1]
    by_step = [[spearman_correlation(overlaps, ari) for ari in task[:, :, step].T] for step in (_START, _END)]
    return np.array(by_step).T


def _layers(config: ClusterFactorsConfig, arms: Results) -> list[Finding]:
    n = config.n_layers
    third = max(1, n // 3)
    moves = (
        f"from step {config.early_step} to the end, task-ARI falls in layers 1 to {third} and rises in layers "
        f"{n + 1 - third} to {n}"
    )
    rises = {"lowest layers fall": Bound(">", 0), "highest layers rise": Bound(">", 0)}
    two, constant, shared = (_falls_and_rises(config, arms[arm], third) for arm in (TWO, CONSTANT, SHARED))
    difference = (_by_overlap(arms, "x output") - _by_overlap(arms, "x input")).mean(axis=0)
    return [
        _beyond_untrained(
            "T14",
            f"layer 1 clusters by x more than by output, and layer {n} the reverse (difference of ARI, mean "
            "over overlaps)",
            {"layer 1: x - output": Bound(">", 0), f"layer {n}: output - x": Bound(">", 0)},
            [-difference[..., 1], difference[..., n]],
        ),
        _finding("T15", f"two private outputs per task: {moves}", rises, two, _SHARED_NETWORKS, shared),
        _finding("T16", f"constant learning rate: {moves}", rises, constant, _SHARED_NETWORKS, shared),
    ]


def _falls_and_rises(config: ClusterFactorsConfig, arm: ArmResults, third: int) -> list[_Seeds]:
    """Return how much task-ARI falls in the lowest layers and rises in the highest, from the early step on."""
    task = arm.ari["x task"]
    rise = task[:, _END] - task[:, measured_steps(config).index(config.early_step)]
    return [-rise[:, 1 : third + 1].mean(axis=1), rise[:, -third:].mean(axis=1)]


def _swapped_means(config: ClusterFactorsConfig, arms: Results) -> list[Finding]:
    half = config.n_layers // 2
    private = _effect_of_swap(arms[PRIVATE])
    shared = _effect_of_swap(arms[SHARED])
    return [
        _finding(
            "T17",
            "private outputs: adding the difference between two tasks' mean states at x changes the answer "
            "to the other task's, more often than control directions of the same norm do (best layer of each)",
            {"": Bound(">=", 0.3)},
            [private],
            _SHARED_NETWORKS,
            [shared],
            shown="page",
        ),
        _finding(
            "T18",
            "all outputs shared: adding this difference hardly changes the answer to the other task's more often than "
            "these control directions do",
            {"": Bound("<=", 0.1)},
            [shared],
            _PRIVATE_NETWORKS,
            [private],
            note=f"the share that changes: {_became(arms[SHARED], TASK).max(axis=1).mean():.3f}",
        ),
        _finding(
            "T19",
            f"private outputs: adding it works in layers {half + 1} to {config.n_layers} rather than in 1 to "
            f"{half} (difference of means)",
            {"": Bound(">=", 0.2)},
            [_upper_minus_lower(arms[PRIVATE], TASK)],
            "the difference of two halves of one task",
            [_upper_minus_lower(arms[PRIVATE], HALVES)],
        ),
    ]


def _became(arm: ArmResults, kind: str) -> Float[np.ndarray, "seed layer"]:
    """Return the share of answers that become the other task's if a direction is added at x in layers 1 to n."""
    return arm.became[:, POSITIONS.index("input"), KINDS.index(kind), 1:]


def _effect_of_swap(arm: ArmResults) -> _Seeds:
    """Return how much more often the tasks' difference works than both control directions, each in its best layer."""
    controls = np.maximum(_became(arm, RANDOM), _became(arm, HALVES))
    return _became(arm, TASK).max(axis=1) - controls.max(axis=1)


def _upper_minus_lower(arm: ArmResults, kind: str) -> _Seeds:
    became = _became(arm, kind)
    half = became.shape[1] // 2
    return became[:, half:].mean(axis=1) - became[:, :half].mean(axis=1)


def _losses_and_widths(config: ClusterFactorsConfig, arms: Results) -> list[Finding]:
    n = config.n_layers
    clusters = {
        "private, end of the instruction: task": Bound(">=", config.clear),
        "shared, x: output - task": Bound(">", 0),
    }
    unless_shared = {"shared, end of the instruction: task": Bound("<", config.clear)}
    return [
        _finding(
            "T21",
            f"loss on y only: at the end of the instruction, layer {n} clusters by task with private outputs "
            "but not with shared ones, and with shared ones it clusters by output at x",
            clusters | unless_shared,
            _instruction_and_x(arms[PRIVATE_Y], arms[SHARED_Y]),
            "loss on all tokens",
            _instruction_and_x(arms[PRIVATE], arms[SHARED]),
            shown="page",
        ),
        _beyond_untrained(
            "T22",
            f"twice the width: layer {n} clusters in the same way",
            clusters,
            [_last_layer(arms[PRIVATE_WIDE], "instruction task"), _output_minus_task(arms[SHARED_WIDE])],
            shown="page",
        ),
    ]


def _instruction_and_x(private: ArmResults, shared: ArmResults) -> list[_Seeds]:
    return [
        _last_layer(private, "instruction task")[:, _END],
        _output_minus_task(shared)[:, _END],
        _last_layer(shared, "instruction task")[:, _END],
    ]


def _bag_of_symbols(config: ClusterFactorsConfig, private: ArmResults) -> Finding:
    return _finding(
        "T23",
        "a bag of symbols clusters by task: mean of the prompt's untrained embeddings (ARI)",
        {"": Bound(">=", config.clear)},
        [private.ari["mean task"][:, _START, 0]],
        "the last token of the instruction alone",
        [private.ari["instruction task"][:, _START, 0]],
    )
