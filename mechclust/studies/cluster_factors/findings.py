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

from mechclust.evidence import Bound, Control, EarlierRun, Finding, Part, Verdict, check_part, mean_part, share_part
from mechclust.report.growth import spearman
from mechclust.studies.cluster_factors.config import (
    ARMS,
    CONSTANT,
    OVERLAPS,
    PRIVATE,
    PRIVATE_WIDE,
    PRIVATE_Y,
    SHARED,
    SHARED_WIDE,
    SHARED_Y,
    TWO,
    ClusterFactorsConfig,
    overlap_arm,
    task_of,
)
from mechclust.studies.cluster_factors.results import Found, RunResults
from mechclust.studies.cluster_factors.swap import HALVES, KINDS, POSITIONS, RANDOM, TASK
from mechclust.studies.study import Job

_PAPER = "Wu & Varshney"
_TOO_SMALL = "this size of the study cannot test it"
_START = 0
_END = -1
_OVERLAP_ARMS = tuple(overlap_arm(overlap) for overlap in OVERLAPS)
_UNTRAINED = "untrained networks"
_WITH_SHARED_OUTPUTS = "networks whose tasks share all outputs"
_WITH_PRIVATE_OUTPUTS = "networks whose tasks have private outputs"
_CHECKED = "now a check: it holds by construction"
_EARLIER: Mapping[str, tuple[Verdict, str]] = {
    "T1": ("holds", "20 tasks, lowest over arms"),
    "T5": ("holds", _CHECKED),
    "T8": ("holds", _CHECKED),
    "T9": ("holds", "five outputs shared by all tasks"),
}

_ours = partial(Finding, source="ours")

Runs = Sequence[RunResults]


def findings_of(config: ClusterFactorsConfig, found: Found) -> list[Finding]:
    """Return the findings and the checks T1, T5 and T8. An arm that was not run has no values."""
    arms = {arm: found.get(arm, ()) for arm in ARMS}
    findings = [
        *_checks(config, arms),
        *_shared_outputs(config, arms),
        *_overlaps(config, arms),
        *_layers(config, arms),
        *_swapped_means(config, arms),
        *_losses_and_widths(config, arms),
        *_untrained(config, arms),
    ]
    if not config.test_findings:
        findings = [replace(finding, not_tested=_TOO_SMALL) for finding in findings]
    return [_with_history(finding) for finding in sorted(findings, key=lambda finding: int(finding.id[1:]))]


def _with_history(finding: Finding) -> Finding:
    if finding.id not in _EARLIER:
        return finding
    verdict, changed = _EARLIER[finding.id]
    earlier = EarlierRun("task-clusters, paper, 2026-11-21, seeds 0 to 2", 3, verdict, changed)
    return replace(finding, history=(earlier,))


def _missing(arms: Found, *needed: str) -> str:
    """Return why a finding cannot be tested if an arm that it needs was not run; else ``""``."""
    lacking = [arm for arm in needed if not arms[arm]]
    return f"needs the arm {lacking[0]!r}" if lacking else ""


# ---- findings ----


def _checks(config: ClusterFactorsConfig, arms: Found) -> list[Finding]:
    lowest = [min(run.accuracy[_END] for run in of_seed) for of_seed in zip(*filter(len, arms.values()), strict=True)]
    ranges = [np.ptp(run.ari["x task"][:, 0]) for run in arms[PRIVATE]]
    guesses = [task_of(config, Job(PRIVATE, seed)).input_only_accuracy() for seed in config.seeds]
    n_tasks = min(config.task.n_eval_tasks, config.task.n_tasks)
    return [
        Finding(
            id="T1",
            kind="check",
            statement="networks learn the tasks: validation accuracy at the end of training, lowest over arms",
            source="set-up",
            parts=(check_part("", lowest, Bound(">=", 0.95)),),
        ),
        Finding(
            id="T5",
            kind="check",
            statement="layer 0 at x is the embedding of x: its partition never changes (range of task-ARI)",
            source=_PAPER,
            parts=(check_part("", ranges, Bound("<=", 0.01)),),
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


def _shared_outputs(config: ClusterFactorsConfig, arms: Found) -> list[Finding]:
    n = config.n_layers
    return [
        _ours(
            id="T9",
            statement=f"all outputs shared: layer {n} clusters by output more than by task (difference of ARI)",
            parts=_by_output_rather_than_task(config, arms[SHARED]),
            control=Control(_WITH_PRIVATE_OUTPUTS, _by_output_rather_than_task(config, arms[PRIVATE])),
            shown="headline",
        ),
        _ours(
            id="T20",
            statement=f"all outputs shared: a linear classifier reads the task from layer {n}, whose states do not "
            "cluster by it",
            parts=_read_but_not_clustered(config, arms[SHARED], _END),
            control=Control(_UNTRAINED, _read_but_not_clustered(config, arms[SHARED], _START)),
            note=f"chance of the classifier: {1 / min(config.task.n_eval_tasks, config.task.n_tasks):.2g}",
        ),
        _ours(
            id="T24",
            statement=f"all outputs shared: layer {n} clusters by output within tasks more than by task within outputs "
            "(difference of ARI)",
            parts=_output_within_task(config, arms[SHARED], _END),
            control=Control(_UNTRAINED, _output_within_task(config, arms[SHARED], _START)),
            shown="table",
        ),
    ]


def _overlaps(config: ClusterFactorsConfig, arms: Found) -> list[Finding]:
    n = config.n_layers
    missing = _missing(arms, *_OVERLAP_ARMS)
    best_untrained = [_best_layer_at_start(arms[arm], "instruction task") for arm in _OVERLAP_ARMS]
    return [
        _ours(
            id="T11",
            statement=f"task-ARI of layer {n} falls as the outputs overlap more (Spearman over six overlaps)",
            parts=_falls_with_overlap(config, arms, _END),
            control=Control(_UNTRAINED, _falls_with_overlap(config, arms, _START)),
            shown="headline",
            not_tested=missing,
        ),
        _ours(
            id="T12",
            statement=f"layer {n} clusters by output at every overlap (ARI)",
            parts=_clear_at_every_overlap(config, _at_overlaps(config, arms, "x output", _END)),
            control=Control(
                _UNTRAINED, _clear_at_every_overlap(config, _at_overlaps(config, arms, "x output", _START))
            ),
            shown="table",
            not_tested=missing,
        ),
        _ours(
            id="T13",
            statement=f"at the end of the instruction, layer {n} clusters by task at every overlap (ARI)",
            parts=_clear_at_every_overlap(config, _at_overlaps(config, arms, "instruction task", _END)),
            control=Control(
                f"{_UNTRAINED}, the layer that clusters most", _clear_at_every_overlap(config, best_untrained)
            ),
            shown="headline",
            not_tested=missing,
        ),
    ]


def _layers(config: ClusterFactorsConfig, arms: Found) -> list[Finding]:
    n = config.n_layers
    third = _third(config)
    moves = (
        f"from step {config.early_step} to the end, task-ARI falls in layers 1 to {third} and rises in layers "
        f"{n + 1 - third} to {n}"
    )
    shared = Control(_WITH_SHARED_OUTPUTS, _moves_up(config, arms[SHARED]))
    return [
        _ours(
            id="T14",
            statement=f"layer 1 clusters by x more than by output, and layer {n} the reverse (difference of ARI, mean "
            "over overlaps)",
            parts=_input_then_output(config, arms, _END),
            control=Control(_UNTRAINED, _input_then_output(config, arms, _START)),
            shown="table",
            not_tested=_missing(arms, *_OVERLAP_ARMS),
        ),
        _ours(
            id="T15",
            statement=f"two private outputs per task: {moves}",
            parts=_moves_up(config, arms[TWO]),
            control=shared,
            shown="table",
            not_tested=_missing(arms, TWO),
        ),
        _ours(
            id="T16",
            statement=f"constant learning rate: {moves}",
            parts=_moves_up(config, arms[CONSTANT]),
            control=shared,
            shown="table",
            not_tested=_missing(arms, CONSTANT),
        ),
    ]


def _swapped_means(config: ClusterFactorsConfig, arms: Found) -> list[Finding]:
    half = config.n_layers // 2
    effective = Bound(">=", 0.3)
    rare = Bound("<=", 0.1)
    effect = {arm: _effect_of_swap(arms[arm]) for arm in (PRIVATE, SHARED)}
    return [
        _ours(
            id="T17",
            statement="private outputs: adding the difference between two tasks' mean states at x changes the answer "
            "to the other task's, more often than control directions of the same norm do (best layer of each)",
            parts=(mean_part("", effect[PRIVATE], effective),),
            control=Control(_WITH_SHARED_OUTPUTS, (mean_part("", effect[SHARED], effective),)),
        ),
        _ours(
            id="T18",
            statement="all outputs shared: adding this difference rarely changes the answer to the other task's",
            parts=(mean_part("", effect[SHARED], rare),),
            control=Control(_WITH_PRIVATE_OUTPUTS, (mean_part("", effect[PRIVATE], rare),)),
            shown="table",
        ),
        _ours(
            id="T19",
            statement=f"private outputs: adding it works in layers {half + 1} to {config.n_layers} rather than in 1 to "
            f"{half} (difference of means)",
            parts=_works_in_upper_layers(config, arms[PRIVATE], TASK),
            control=Control(
                "the difference of two halves of one task", _works_in_upper_layers(config, arms[PRIVATE], HALVES)
            ),
            shown="table",
        ),
    ]


def _losses_and_widths(config: ClusterFactorsConfig, arms: Found) -> list[Finding]:
    n = config.n_layers
    return [
        _ours(
            id="T21",
            statement=f"loss on y only: at the end of the instruction, layer {n} clusters by task with private outputs "
            "but not with shared ones, and with shared ones it clusters by output at x",
            parts=_task_only_with_private(config, arms[PRIVATE_Y], arms[SHARED_Y]),
            control=Control("loss on all tokens", _task_only_with_private(config, arms[PRIVATE], arms[SHARED])),
            not_tested=_missing(arms, PRIVATE_Y, SHARED_Y),
        ),
        _ours(
            id="T22",
            statement=f"twice the width: layer {n} clusters in the same way",
            parts=_task_then_output(config, arms[PRIVATE_WIDE], arms[SHARED_WIDE], _END),
            control=Control(_UNTRAINED, _task_then_output(config, arms[PRIVATE_WIDE], arms[SHARED_WIDE], _START)),
            not_tested=_missing(arms, PRIVATE_WIDE, SHARED_WIDE),
        ),
    ]


def _untrained(config: ClusterFactorsConfig, arms: Found) -> list[Finding]:
    return [
        _ours(
            id="T23",
            statement="a bag of symbols clusters by task: mean of the prompt's untrained embeddings (ARI)",
            parts=_embeddings_cluster(config, arms[PRIVATE], "mean task"),
            control=Control(
                "the last token of the instruction alone",
                _embeddings_cluster(config, arms[PRIVATE], "instruction task"),
            ),
            shown="table",
        ),
    ]


# ---- what is measured ----


def _values(runs: Runs, curve: str, layer: int, step: int) -> Float[np.ndarray, "seed"]:
    return np.array([run.ari[curve][step, layer] for run in runs])


def _at_overlaps(config: ClusterFactorsConfig, arms: Found, curve: str, step: int) -> list[Float[np.ndarray, "seed"]]:
    """Return the last layer's index for each overlap."""
    return [_values(arms[arm], curve, config.n_layers, step) for arm in _OVERLAP_ARMS]


def _best_layer_at_start(runs: Runs, curve: str) -> Float[np.ndarray, "seed"]:
    return np.array([run.ari[curve][_START].max() for run in runs])


def _by_output_rather_than_task(config: ClusterFactorsConfig, runs: Runs) -> tuple[Part, ...]:
    return (mean_part("", _output_minus_task(config, runs, _END), Bound(">", 0)),)


def _output_minus_task(config: ClusterFactorsConfig, runs: Runs, step: int) -> Float[np.ndarray, "seed"]:
    n = config.n_layers
    return _values(runs, "x output", n, step) - _values(runs, "x task", n, step)


def _read_but_not_clustered(config: ClusterFactorsConfig, runs: Runs, step: int) -> tuple[Part, ...]:
    n = config.n_layers
    return (
        share_part("linear accuracy", [run.linear[step, n] for run in runs], Bound(">=", 0.8)),
        mean_part("task-ARI", _values(runs, "x task", n, step), Bound("<=", 0.3)),
    )


def _output_within_task(config: ClusterFactorsConfig, runs: Runs, step: int) -> tuple[Part, ...]:
    n = config.n_layers
    differences = _values(runs, "x output|task", n, step) - _values(runs, "x task|output", n, step)
    return (mean_part("", differences, Bound(">=", 0.2)),)


def _falls_with_overlap(config: ClusterFactorsConfig, arms: Found, step: int) -> tuple[Part, ...]:
    by_overlap = _at_overlaps(config, arms, "x task", step)
    correlations = [spearman(np.array(OVERLAPS), np.array(of_seed)) for of_seed in zip(*by_overlap, strict=False)]
    return (mean_part("", correlations, Bound("<", -0.7)),)


def _clear_at_every_overlap(
    config: ClusterFactorsConfig, by_overlap: Sequence[Float[np.ndarray, "seed"]]
) -> tuple[Part, ...]:
    clear = Bound(">=", config.clear)
    named = zip(OVERLAPS, by_overlap, strict=True)
    return tuple(mean_part(f"overlap {overlap:g}", values, clear) for overlap, values in named)


def _input_then_output(config: ClusterFactorsConfig, arms: Found, step: int) -> tuple[Part, ...]:
    """Judge the difference between the indices for output and x, mean over overlaps, in the first and last layer."""
    runs_of_seeds = list(zip(*(arms[arm] for arm in _OVERLAP_ARMS), strict=False))
    first = [-_output_minus_input(runs, 1, step) for runs in runs_of_seeds]
    last = [_output_minus_input(runs, config.n_layers, step) for runs in runs_of_seeds]
    return (
        mean_part("layer 1: x - output", first, Bound(">", 0)),
        mean_part(f"layer {config.n_layers}: output - x", last, Bound(">", 0)),
    )


def _output_minus_input(runs: Runs, layer: int, step: int) -> float:
    return float(np.mean(_values(runs, "x output", layer, step) - _values(runs, "x input", layer, step)))


def _third(config: ClusterFactorsConfig) -> int:
    """Return how many of the layers 1 to n are a third of them, at least one."""
    return max(1, config.n_layers // 3)


def _moves_up(config: ClusterFactorsConfig, runs: Runs) -> tuple[Part, ...]:
    """Judge how the task-ARI of the lowest and the highest third of the layers changes from the early step on."""
    third = _third(config)
    changes = [run.ari["x task"][_END] - run.ari["x task"][run.at(config.early_step)] for run in runs]
    return (
        mean_part("lowest layers fall", [-change[1 : third + 1].mean() for change in changes], Bound(">", 0)),
        mean_part("highest layers rise", [change[-third:].mean() for change in changes], Bound(">", 0)),
    )


def _became(run: RunResults, kind: str) -> Float[np.ndarray, "layer"]:
    """Return the share of answers that become the other task's, by the layer at which a direction is added at x."""
    return run.swapped["became"][POSITIONS.index("input"), KINDS.index(kind), 1:]


def _effect_of_swap(runs: Runs) -> list[float]:
    """Return how much more often the tasks' difference works than both control directions, each in its best layer."""
    return [_became(run, TASK).max() - max(_became(run, RANDOM).max(), _became(run, HALVES).max()) for run in runs]


def _works_in_upper_layers(config: ClusterFactorsConfig, runs: Runs, kind: str) -> tuple[Part, ...]:
    half = config.n_layers // 2
    differences = [_became(run, kind)[half:].mean() - _became(run, kind)[:half].mean() for run in runs]
    return (mean_part("", differences, Bound(">=", 0.2)),)


def _task_then_output(config: ClusterFactorsConfig, private: Runs, shared: Runs, step: int) -> tuple[Part, ...]:
    at_instruction = _values(private, "instruction task", config.n_layers, step)
    return (
        mean_part("private, end of the instruction: task", at_instruction, Bound(">=", config.clear)),
        mean_part("shared, x: output - task", _output_minus_task(config, shared, step), Bound(">", 0)),
    )


def _task_only_with_private(config: ClusterFactorsConfig, private: Runs, shared: Runs) -> tuple[Part, ...]:
    at_instruction = _values(shared, "instruction task", config.n_layers, _END)
    return (
        *_task_then_output(config, private, shared, _END),
        mean_part("shared, end of the instruction: task", at_instruction, Bound("<", config.clear)),
    )


def _embeddings_cluster(config: ClusterFactorsConfig, runs: Runs, curve: str) -> tuple[Part, ...]:
    return (mean_part("", _values(runs, curve, 0, _START), Bound(">=", config.clear)),)
