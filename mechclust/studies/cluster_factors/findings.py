"""The findings T2 to T24 with their controls, and the checks T1, T5 and T8.

Their bounds were written before the confirmatory seeds were run. Unless something else is said, a finding concerns the
states at ``x`` on held-out examples at the end of training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from mechclust.evidence import Bound, Control, EarlierRun, Finding, Part, Verdict, check_part, mean_part, share_part
from mechclust.report.growth import climbing, spearman
from mechclust.studies.cluster_factors.config import (
    CONSTANT,
    OVERLAPS,
    PRIVATE,
    PRIVATE_WIDE,
    PRIVATE_Y,
    SHARED,
    SHARED_WIDE,
    SHARED_Y,
    TWO,
    UNSEEN,
    ClusterFactorsConfig,
    overlap_arm,
    task_of,
)
from mechclust.studies.cluster_factors.results import Found, RunResults
from mechclust.studies.cluster_factors.swap import HALVES, KINDS, POSITIONS, RANDOM, TASK
from mechclust.studies.study import Job

_PAPER = "Wu & Varshney"
_BOUND_OURS = f"{_PAPER}; bound ours"
_UNTRAINED = "untrained networks"
_SHARED_OUTPUTS = "networks whose tasks share all outputs"
_TOO_SMALL = "this size of the study cannot test it"
_END, _START = -1, 0  # of the measured checkpoints
_ABOVE = Bound(">", 0)
_CHECKED = "now a check: it holds by construction"
_EARLIER: Mapping[str, tuple[Verdict, str]] = {
    "T1": ("holds", "20 tasks, lowest over arms"),
    "T2": ("undecided", "20 tasks, d 64, the last layer; with its severity"),
    "T4": ("undecided", "20 tasks, d 64"),
    "T5": ("holds", _CHECKED),
    "T6": ("undecided", "10 seeds, constant learning rate"),
    "T7": ("holds", "relabelled within the classes of x"),
    "T8": ("holds", _CHECKED),
    "T9": ("holds", "five outputs shared by all tasks"),
    "T10": ("undecided", "20 tasks, d 64, the last layer"),
}

Runs = Sequence[RunResults]


def findings_of(config: ClusterFactorsConfig, found: Found) -> list[Finding]:
    """Return T1 to T24 without T3; of these T1, T5 and T8 are checks."""
    findings = [
        *_of_two_outputs(config, found),
        *_of_overlap(config, found),
        *_of_shared_outputs(config, found),
        *_of_layers(config, found),
        *_of_swaps(config, found),
        *_of_other_arms(config, found),
        *_checks(config, found),
    ]
    judged = [_with_history(finding) for finding in findings]
    if not config.test_findings:
        judged = [replace(finding, not_tested=_TOO_SMALL) for finding in judged]
    return sorted(judged, key=lambda finding: int(finding.id[1:]))


def _with_history(finding: Finding) -> Finding:
    if finding.id not in _EARLIER:
        return finding
    verdict, changed = _EARLIER[finding.id]
    return replace(
        finding, history=(EarlierRun("task-clusters, paper, 2026-11-21, seeds 0 to 2", 3, verdict, changed),)
    )


# ---- findings ----


def _of_two_outputs(config: ClusterFactorsConfig, found: Found) -> list[Finding]:
    """Return T2 and T10."""
    last, shared = f"layer {config.n_layers}", _runs(found, SHARED)
    two, unseen = _runs(found, TWO), _runs(found, UNSEEN)
    return [
        Finding(
            id="T2",
            statement=f"two private outputs per task: {last} clusters by task (adjusted Rand index)",
            source=_BOUND_OURS,
            parts=_clusters(config, two, "x task"),
            control=Control(_SHARED_OUTPUTS, _clusters(config, shared, "x task")),
            not_tested=_needs(found, TWO),
        ),
        Finding(
            id="T10",
            statement=f"instructions never seen: {last} clusters by task (two private outputs; adjusted Rand index)",
            source=_BOUND_OURS,
            parts=_clusters(config, unseen, "x task"),
            control=Control(_SHARED_OUTPUTS, _clusters(config, shared, "x task")),
            shown="headline",
            not_tested=_needs(found, UNSEEN),
        ),
    ]


def _of_overlap(config: ClusterFactorsConfig, found: Found) -> list[Finding]:
    """Return T11 to T14, on networks whose tasks share none to all of their outputs."""
    last = f"layer {config.n_layers}"
    needs = _needs(found, *map(overlap_arm, OVERLAPS))
    return [
        Finding(
            id="T11",
            statement=f"the more the outputs of tasks overlap, the less {last} clusters by task (Spearman over six "
            "overlaps)",
            source="ours",
            parts=_falls_with_overlap(found, _END),
            control=Control(_UNTRAINED, _falls_with_overlap(found, _START)),
            shown="headline",
            not_tested=needs,
        ),
        Finding(
            id="T12",
            statement=f"{last} clusters by output at every overlap (adjusted Rand index)",
            source="ours",
            parts=_at_every_overlap(config, found, "x output", _END),
            control=Control(_UNTRAINED, _at_every_overlap(config, found, "x output", _START)),
            shown="table",
            not_tested=needs,
        ),
        Finding(
            id="T13",
            statement=f"at the end of the instruction, {last} clusters by task at every overlap (adjusted Rand index)",
            source="ours",
            parts=_at_every_overlap(config, found, "instruction task", _END),
            control=Control(
                f"{_UNTRAINED}, best layer", _best_layer_at_every_overlap(config, found, "instruction task")
            ),
            not_tested=needs,
        ),
        Finding(
            id="T14",
            statement=f"layer 1 clusters by x more than by output, and {last} the reverse (difference of adjusted Rand "
            "indices, mean over overlaps)",
            source="ours",
            parts=_from_input_to_output(config, found, _END),
            control=Control(_UNTRAINED, _from_input_to_output(config, found, _START)),
            shown="table",
            not_tested=needs,
        ),
    ]


def _of_shared_outputs(config: ClusterFactorsConfig, found: Found) -> list[Finding]:
    """Return T9, T20 and T24."""
    last, shared = f"layer {config.n_layers}", _runs(found, SHARED)
    return [
        Finding(
            id="T9",
            statement=f"all outputs shared: {last} clusters by output more than by task (difference of adjusted Rand "
            "indices)",
            source="ours",
            parts=_more_than(shared, "x output", "x task", _ABOVE, _END),
            control=Control(_UNTRAINED, _more_than(shared, "x output", "x task", _ABOVE, _START)),
            shown="headline",
        ),
        Finding(
            id="T20",
            statement=f"all outputs shared: a linear classifier reads the task from {last}, whose states do not "
            "cluster by it",
            source="ours",
            parts=_read_but_not_clustered(shared, _END),
            control=Control(_UNTRAINED, _read_but_not_clustered(shared, _START)),
            note="accuracy by chance: 0.1",
        ),
        Finding(
            id="T24",
            statement=f"all outputs shared: {last} clusters by output within tasks more than by task within outputs "
            "(difference of adjusted Rand indices)",
            source="ours",
            parts=_more_than(shared, "x output|task", "x task|output", Bound(">=", 0.2), _END),
            control=Control(_UNTRAINED, _more_than(shared, "x output|task", "x task|output", Bound(">=", 0.2), _START)),
            shown="table",
        ),
    ]


def _of_layers(config: ClusterFactorsConfig, found: Found) -> list[Finding]:
    """Return T4, T6, T7, T15, T16 and T23: where and when states cluster by task."""
    n, two, constant = config.n_layers, _runs(found, TWO), _runs(found, CONSTANT)
    private, shared = _runs(found, PRIVATE), _runs(found, SHARED)
    findings = [
        Finding(
            id="T4",
            statement=f"two private outputs per task: task-ARI rises with layer, 0 to {n}",
            source=_PAPER,
            parts=_climbs(two, _END),
            control=Control(_UNTRAINED, _climbs(two, _START)),
            not_tested=_needs(found, TWO),
        ),
        Finding(
            id="T6",
            statement=f"constant learning rate: training subset and validation agree at layer {n} (difference of "
            "task-ARI)",
            source=_PAPER,
            parts=_agree(constant),
            control=Control(_SHARED_OUTPUTS, _agree(shared)),
            not_tested=_needs(found, CONSTANT),
        ),
        Finding(
            id="T7",
            statement="before training, no layer clusters by task beyond what x explains (largest task-ARI minus its "
            "mean under relabelling within the classes of x)",
            source=_BOUND_OURS,
            parts=_beyond_input(private, _START),
            control=Control("trained networks", _beyond_input(private, _END)),
        ),
        Finding(
            id="T23",
            statement="a bag of symbols clusters by task: mean of the prompt's untrained embeddings (adjusted Rand "
            "index)",
            source="ours",
            parts=(mean_part("", [run.ari["mean task"][_START, 0] for run in private], Bound(">=", config.clear)),),
            control=Control(
                "untrained embedding of x",
                (mean_part("", [run.ari["x task"][_START, 0] for run in private], Bound(">=", config.clear)),),
            ),
        ),
        _migration(config, found, "T15", TWO, "two private outputs a task"),
        _migration(config, found, "T16", CONSTANT, "constant rate"),
    ]
    return [replace(finding, shown="table") for finding in findings]


def _migration(config: ClusterFactorsConfig, found: Found, id: str, arm: str, what: str) -> Finding:
    n, third = config.n_layers, _third(config)
    return Finding(
        id=id,
        statement=f"{what}: from step {config.early_step} to the end, task-ARI falls in layers 1 to {third} and rises "
        f"in layers {n + 1 - third} to {n}",
        source="ours",
        parts=_moves_up(config, _runs(found, arm)),
        control=Control(_SHARED_OUTPUTS, _moves_up(config, _runs(found, SHARED))),
        not_tested=_needs(found, arm),
    )


def _of_swaps(config: ClusterFactorsConfig, found: Found) -> list[Finding]:
    """Return T17 to T19: the difference between two tasks' mean states is added."""
    n, half = config.n_layers, config.n_layers // 2
    private, shared = _runs(found, PRIVATE), _runs(found, SHARED)
    return [
        Finding(
            id="T17",
            statement="private outputs: adding the difference between two tasks' mean states at x changes the answer "
            "to the other task's, more often than control directions of the same norm do (best layer of each; "
            "difference of shares)",
            source="ours",
            parts=_swap_gap(private, Bound(">=", 0.3), TASK, RANDOM, HALVES),
            control=Control(
                "difference between two halves of a task", _swap_gap(private, Bound(">=", 0.3), HALVES, RANDOM)
            ),
        ),
        Finding(
            id="T18",
            statement="all outputs shared: adding this difference rarely changes the answer to the other task's",
            source="ours",
            parts=_swap_gap(shared, Bound("<=", 0.1), TASK, RANDOM, HALVES),
            control=Control(
                "networks with private outputs", _swap_gap(private, Bound("<=", 0.1), TASK, RANDOM, HALVES)
            ),
            shown="table",
        ),
        Finding(
            id="T19",
            statement=f"private outputs: adding it works in layers {half + 1} to {n} rather than in 1 to {half} "
            "(difference of mean shares)",
            source="ours",
            parts=_swap_in_upper_half(config, private, TASK),
            control=Control("random directions", _swap_in_upper_half(config, private, RANDOM)),
            shown="table",
        ),
    ]


def _of_other_arms(config: ClusterFactorsConfig, found: Found) -> list[Finding]:
    """Return T21 and T22: another loss, another width."""
    last = f"layer {config.n_layers}"
    private_y, shared_y = _runs(found, PRIVATE_Y), _runs(found, SHARED_Y)
    private_wide, shared_wide = _runs(found, PRIVATE_WIDE), _runs(found, SHARED_WIDE)
    return [
        Finding(
            id="T21",
            statement=f"loss on y only: at the end of the instruction, {last} clusters by task with private outputs "
            "but not with shared ones, and with shared ones it clusters by output at x",
            source="ours",
            parts=_by_loss(config, private_y, shared_y, _END),
            control=Control(_UNTRAINED, _by_loss(config, private_y, shared_y, _START)),
            not_tested=_needs(found, PRIVATE_Y, SHARED_Y),
        ),
        Finding(
            id="T22",
            statement=f"twice the width: {last} clusters in the same way",
            source="ours",
            parts=_as_narrow(config, private_wide, shared_wide, _END),
            control=Control(_UNTRAINED, _as_narrow(config, private_wide, shared_wide, _START)),
            not_tested=_needs(found, PRIVATE_WIDE, SHARED_WIDE),
        ),
    ]


def _checks(config: ClusterFactorsConfig, found: Found) -> list[Finding]:
    by_seed = zip(*found.values(), strict=True)
    lowest = [min(run.accuracy[_END] for run in runs) for runs in by_seed]
    ranges = [np.ptp(run.ari["x task"][:, 0]) for run in found[PRIVATE]]
    guesses = [task_of(config, Job(PRIVATE, seed)).input_only_accuracy() for seed in config.seeds]
    n_tasks = min(config.task.n_eval_tasks, config.task.n_tasks)
    checks = [
        Finding(
            id="T1",
            statement="networks learn the tasks: validation accuracy at the end of training, lowest over arms",
            source="set-up",
            parts=(check_part("", lowest, Bound(">=", 0.95)),),
        ),
        Finding(
            id="T5",
            statement="layer 0 at x is the embedding of x: its partition never changes (range of task-ARI)",
            source=_PAPER,
            parts=(check_part("", ranges, Bound("<=", 0.01)),),
        ),
        Finding(
            id="T8",
            statement="x alone predicts the task little better than chance",
            source=f"{_PAPER}; bound ours (3 x chance)",
            parts=(check_part("", guesses, Bound("<=", 3 / n_tasks)),),
            note=f"chance: {1 / n_tasks:.3g}",
        ),
    ]
    return [replace(check, kind="check") for check in checks]


# ---- what is measured ----


def _runs(found: Found, arm: str) -> Runs:
    return found.get(arm, ())


def _needs(found: Found, *arms: str) -> str:
    """Return the reason why a finding is not tested of which an arm was not run."""
    lacking = [arm for arm in arms if arm not in found]
    return f"needs the arm {lacking[0]!r}" if lacking else ""


def _third(config: ClusterFactorsConfig) -> int:
    return max(1, config.n_layers // 3)


def _at_last_layer(runs: Runs, curve: str, step: int) -> list[float]:
    return [run.ari[curve][step, -1] for run in runs]


def _clusters(config: ClusterFactorsConfig, runs: Runs, curve: str) -> tuple[Part, ...]:
    return (mean_part("", _at_last_layer(runs, curve, _END), Bound(">=", config.clear)),)


def _more_than(runs: Runs, curve: str, other: str, bound: Bound, step: int) -> tuple[Part, ...]:
    """Judge by how much the last layer clusters by one label more than by another."""
    differences = [run.ari[curve][step, -1] - run.ari[other][step, -1] for run in runs]
    return (mean_part("", differences, bound),)


def _by_overlap(found: Found) -> list[tuple[RunResults, ...]]:
    """Return the runs of each seed, by overlap; nothing if an arm was not run."""
    return list(zip(*(_runs(found, overlap_arm(overlap)) for overlap in OVERLAPS), strict=False))


def _falls_with_overlap(found: Found, step: int) -> tuple[Part, ...]:
    by_seed = [np.array([run.ari["x task"][step, -1] for run in runs]) for runs in _by_overlap(found)]
    return (mean_part("", [spearman(np.array(OVERLAPS), curve) for curve in by_seed], Bound("<", -0.7)),)


def _at_every_overlap(config: ClusterFactorsConfig, found: Found, curve: str, step: int) -> tuple[Part, ...]:
    bound = Bound(">=", config.clear)
    return tuple(
        mean_part(f"overlap {overlap:g}", _at_last_layer(_runs(found, overlap_arm(overlap)), curve, step), bound)
        for overlap in OVERLAPS
    )


def _best_layer_at_every_overlap(config: ClusterFactorsConfig, found: Found, curve: str) -> tuple[Part, ...]:
    """Judge the layer of the untrained networks that clusters most."""
    parts = []
    for overlap in OVERLAPS:
        best = [run.ari[curve][_START].max() for run in _runs(found, overlap_arm(overlap))]
        parts.append(mean_part(f"overlap {overlap:g}", best, Bound(">=", config.clear)))
    return tuple(parts)


def _from_input_to_output(config: ClusterFactorsConfig, found: Found, step: int) -> tuple[Part, ...]:
    first, last = [], []
    for runs in _by_overlap(found):
        by_input = np.mean([run.ari["x input"][step] for run in runs], axis=0)
        by_output = np.mean([run.ari["x output"][step] for run in runs], axis=0)
        first.append(by_input[1] - by_output[1])
        last.append(by_output[-1] - by_input[-1])
    return (
        mean_part("layer 1: x - output", first, _ABOVE),
        mean_part(f"layer {config.n_layers}: output - x", last, _ABOVE),
    )


def _read_but_not_clustered(runs: Runs, step: int) -> tuple[Part, ...]:
    return (
        share_part("linear accuracy", [run.linear[step, -1] for run in runs], Bound(">=", 0.8)),
        mean_part("task-ARI", _at_last_layer(runs, "x task", step), Bound("<=", 0.3)),
    )


def _climbs(runs: Runs, step: int) -> tuple[Part, ...]:
    if not runs:
        return ()
    return climbing(np.array([run.ari["x task"][step] for run in runs]))


def _agree(runs: Runs) -> tuple[Part, ...]:
    differences = [abs(run.ari["x task"][_END, -1] - run.train_ari[-1]) for run in runs]
    return (mean_part("", differences, Bound("<=", 0.1)),)


def _beyond_input(runs: Runs, step: int) -> tuple[Part, ...]:
    largest = [(run.ari["x task"][step] - run.null["x task"][step, :, 2]).max() for run in runs]
    return (mean_part("", largest, Bound("<=", 0.1)),)


def _moves_up(config: ClusterFactorsConfig, runs: Runs) -> tuple[Part, ...]:
    """Judge whether task clusters leave the lowest third of the layers and appear in the highest."""
    third = _third(config)
    falls, rises = [], []
    for run in runs:
        change = run.ari["x task"][_END] - run.ari["x task"][run.at(config.early_step)]
        falls.append(-change[1 : third + 1].mean())
        rises.append(change[-third:].mean())
    return (
        mean_part("lowest layers fall", falls, _ABOVE),
        mean_part("highest layers rise", rises, _ABOVE),
    )


def _became(run: RunResults, kind: str) -> np.ndarray:
    """Return the share of answers that become the other task's, by layer from 1 on."""
    shares: np.ndarray = run.swapped["became"][POSITIONS.index("input"), KINDS.index(kind), 1:]
    return shares


def _swap_gap(runs: Runs, bound: Bound, kind: str, *others: str) -> tuple[Part, ...]:
    """Judge by how much one kind of direction changes more answers than the best of the others."""
    gaps = [_became(run, kind).max() - max(_became(run, other).max() for other in others) for run in runs]
    return (mean_part("", gaps, bound),)


def _swap_in_upper_half(config: ClusterFactorsConfig, runs: Runs, kind: str) -> tuple[Part, ...]:
    half = config.n_layers // 2
    differences = [_became(run, kind)[half:].mean() - _became(run, kind)[:half].mean() for run in runs]
    return (mean_part("", differences, Bound(">=", 0.2)),)


def _as_narrow(config: ClusterFactorsConfig, private: Runs, shared: Runs, step: int) -> tuple[Part, ...]:
    task = _at_last_layer(private, "instruction task", step)
    (output,) = _more_than(shared, "x output", "x task", _ABOVE, step)
    return (
        mean_part("private, end of the instruction: task", task, Bound(">=", config.clear)),
        replace(output, name="shared, x: output - task"),
    )


def _by_loss(config: ClusterFactorsConfig, private: Runs, shared: Runs, step: int) -> tuple[Part, ...]:
    shared_task = _at_last_layer(shared, "instruction task", step)
    below = mean_part("shared, end of the instruction: task", shared_task, Bound("<", config.clear))
    return (*_as_narrow(config, private, shared, step), below)
