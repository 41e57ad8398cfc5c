"""The findings of the study, with bounds written before the confirmatory seeds were run.

Each is the same function of arrays ``[seed ...]``, applied to the measured data and to null draws in which it is false.
Unless stated otherwise, a finding concerns the states at ``x`` on held-out examples at the end of training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from mechclust.report.arm_findings import ArmFinding, arm_finding, gap, gathered, one
from mechclust.report.findings import Finding, EarlierRun, finding, with_severity
from mechclust.report.draws import (
    Data,
    as_shares,
    at_bound,
    exchanged,
    first_from_later,
    in_random_order,
    moved_to,
    one_column,
    one_of,
    random_walk,
    replaced,
)
from mechclust.report.findings import Parts
from mechclust.report.growth import climbing, rising, saturating, spearman
from mechclust.evidence.bounds import Bound
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
    measured_steps,
    overlap_arm,
    task_of,
)
from mechclust.studies.cluster_factors.results import Found, RunResults
from mechclust.studies.cluster_factors.swap import HALVES, KINDS, POSITIONS, RANDOM, TASK
from mechclust.studies.study import Job

_PAPER = "Wu & Varshney"
_CHECKED = "now a check: it holds by construction"
_EARLIER: Mapping[str, tuple[str, str]] = {
    "T1": ("holds", "20 tasks, lowest over arms"),
    "T2": ("undecided", "20 tasks, d 64, the last layer; with its severity"),
    "T3": ("undecided", "constant learning rate: a cosine schedule stops training by itself"),
    "T4": ("undecided", "20 tasks, d 64"),
    "T5": ("holds", _CHECKED),
    "T6": ("undecided", "10 seeds, constant learning rate"),
    "T7": ("holds", "relabelled within the classes of x"),
    "T8": ("holds", _CHECKED),
    "T9": ("holds", "five outputs shared by all tasks"),
    "T10": ("undecided", "20 tasks, d 64, the last layer"),
}


def findings_of(config: ClusterFactorsConfig, found: Found) -> list[Finding]:
    """T1 to T24; of these T5 and T8 are checks."""
    findings = [test.judged(found, tested=config.test_findings) for test in tests_of(config)]
    findings += _checks(config, found)
    return with_severity(_with_history(c) for c in sorted(findings, key=lambda c: int(c.id[1:])))


def _with_history(c: Finding) -> Finding:
    if c.id not in _EARLIER:
        return c
    verdict, changed = _EARLIER[c.id]
    earlier = EarlierRun("task-clusters, paper, 2026-11-21, seeds 0 to 2", 3, verdict, changed)  # type: ignore[arg-type]
    return replace(c, history=(earlier,))


def tests_of(config: ClusterFactorsConfig) -> list[ArmFinding[RunResults]]:
    """The findings, before any data."""
    n, half, third = config.n_layers, config.n_layers // 2, max(1, config.n_layers // 3)
    overlaps = tuple(map(overlap_arm, OVERLAPS))
    clear = Bound(">=", config.clear)

    def end(arm: str, curve: str, layer: int | slice = n) -> Callable[[Found], np.ndarray]:
        return lambda found: np.array([run.ari[curve][-1, layer] for run in found[arm]])

    def start(arm: str, curve: str) -> Callable[[Found], np.ndarray]:
        return lambda found: np.array([run.ari[curve][0, n] for run in found[arm]])

    def untrained_by_overlap(curve: str) -> Callable[[Found], np.ndarray]:
        """``[seed arm]`` before training, the layer with the most; layer 0 is the last token alone."""
        return lambda found: np.array([[run.ari[curve][0].max() for run in found[arm]] for arm in overlaps]).T

    def by_overlap(curve: str, step: int = -1) -> Callable[[Found], np.ndarray]:
        return lambda found: np.array([[run.ari[curve][step, n] for run in found[arm]] for arm in overlaps]).T

    def curve_of(arm: str) -> Callable[[Found], np.ndarray]:
        return lambda found: np.array([run.ari["x task"][:, n] for run in found[arm]])

    def thirds_at(arm: str, early: bool) -> Callable[[Found], np.ndarray]:
        """``[seed 2]`` mean task-ARI of the lowest and the highest third of the layers."""

        def get(found: Found) -> np.ndarray:
            at = [run.ari["x task"][run.at(config.early_step) if early else -1] for run in found[arm]]
            return np.array([[x[1 : third + 1].mean(), x[n + 1 - third :].mean()] for x in at])

        return get

    def migrates(data: Data) -> Parts:
        moved = data["end"] - data["early"]
        return [
            ("lowest layers fall", (-moved[:, 0]).tolist(), Bound(">", 0)),
            ("highest layers rise", moved[:, 1].tolist(), Bound(">", 0)),
        ]

    def swap(arm: str, *kinds: str) -> Callable[[Found], np.ndarray]:
        """``[seed]`` largest share over layers 1 to n, and over kinds."""
        where, which = POSITIONS.index("input"), [KINDS.index(kind) for kind in kinds]
        return lambda found: np.array([run.swapped["became"][where, which, 1:].max() for run in found[arm]])

    def swap_by_layer(found: Found) -> np.ndarray:
        where, kind = POSITIONS.index("input"), KINDS.index(TASK)
        return np.array([run.swapped["became"][where, kind, 1:] for run in found[PRIVATE]])

    def untrained(found: Found) -> np.ndarray:
        """``[seed step]`` the maximum over layers, minus its mean under relabelling within the classes of x."""
        return np.array([(run.ari["x task"] - run.null["x task"][..., 2]).max(-1) for run in found[PRIVATE]])

    test, steps = partial(arm_finding, source="ours"), np.array(measured_steps(config))
    of_shared = "values of networks whose tasks share all outputs, drawn with replacement"
    last = f"layer {n}"
    least_accuracy: Callable[[Found], np.ndarray] = lambda found: np.min(  # noqa: E731
        [[run.accuracy[-1] for run in runs] for runs in found.values()], axis=0
    )
    y_parts: Callable[[Data], Parts] = lambda data: [  # noqa: E731
        ("private, end of the instruction: task", data["task"].tolist(), clear),
        ("shared, x: output - task", (data["output"] - data["other"]).tolist(), Bound(">", 0)),
    ]
    return [
        test("T1", "validation accuracy at the end of training, lowest over arms", (), gathered(v=least_accuracy),
              one("v", Bound(">=", 0.95)), as_shares(at_bound("v", Bound(">=", 0.95)), "v"),
              "the measured spread about the bound", source="set-up", shares=True,
              planted=as_shares(moved_to(v=0.98), "v")),
        test("T2", f"two private outputs per task: {last} clusters by task (ARI)", (TWO, SHARED),
              gathered(v=end(TWO, "x task"), other=end(SHARED, "x task")), one("v", clear), replaced(v="other"),
              of_shared, source=f"{_PAPER}; bound ours", chance="0",
              planted=moved_to(v=0.7)),
        test("T3", f"constant learning rate: task-ARI of {last} rises with log step, then saturates (last third)",
              (CONSTANT,), gathered(curve=curve_of(CONSTANT)), lambda data: rising(steps, data["curve"]),
              random_walk("curve"), "random walks whose steps have the measured sizes", source=_PAPER,
              planted=moved_to(curve=saturating(steps))),
        test("T4", f"two private outputs per task: task-ARI rises with layer, 0 to {n}", (TWO,),
              gathered(layers=end(TWO, "x task", slice(None))), lambda data: climbing(data["layers"]),
              in_random_order("layers"), "layers in random order", source=_PAPER,
              planted=moved_to(layers=np.linspace(0.1, 0.8, n + 1))),
        test("T6", f"constant learning rate: training subset and validation agree at {last} (difference of task-ARI)",
              (CONSTANT,), gathered(v=lambda found: _agreement(found[CONSTANT], n)), one("v", Bound("<=", 0.1)),
              at_bound("v", Bound("<=", 0.1)), "the measured spread about the bound", source=_PAPER,
              planted=moved_to(v=0.03)),
        test("T7", "before training, no layer clusters by task beyond what x explains (largest task-ARI minus its "
              "mean under relabelling within the classes of x)", (PRIVATE,), gathered(above=untrained),
              lambda data: [("", data["above"][:, 0].tolist(), Bound("<=", 0.1))], first_from_later("above"),
              "the first checkpoint replaced by later ones drawn at random", source=f"{_PAPER}; bound ours", chance="0",
              planted=moved_to(above=0.03)),
        test("T9", f"all outputs shared: {last} clusters by output more than by task (difference of ARI)", (SHARED,),
              gathered(a=end(SHARED, "x output"), b=end(SHARED, "x task")), gap("a", "b", Bound(">", 0)),
              exchanged(("a", "b")), "both exchanged at random, seed by seed", chance="0",
              planted=moved_to(a=0.8, b=0.2)),
        test("T10", f"instructions never seen: {last} clusters by task (two private outputs)", (UNSEEN, SHARED),
              gathered(v=end(UNSEEN, "x task"), other=end(SHARED, "x task")), one("v", clear), replaced(v="other"),
              of_shared, source=f"{_PAPER}; bound ours", chance="0",
              planted=moved_to(v=0.7)),
        test("T11", f"task-ARI of {last} falls as the outputs overlap more (Spearman over six overlaps)", overlaps,
              gathered(v=by_overlap("x task")),
              lambda data: [("", [spearman(np.array(OVERLAPS), x) for x in data["v"]], Bound("<", -0.7))],
              in_random_order("v"), "overlaps in random order, seed by seed", chance="0",
              planted=moved_to(v=0.6 - 0.4 * np.array(OVERLAPS))),
        test("T12", f"{last} clusters by output at every overlap (lowest output-ARI of six overlaps)", overlaps,
              gathered(v=by_overlap("x output"), untrained=by_overlap("x output", step=0)),
              lambda data: [("", data["v"].min(1).tolist(), clear)], one_column("v", "untrained"),
              "of one overlap, drawn at random, the untrained networks",
              planted=moved_to(v=0.75)),
        test("T13", f"at the end of the instruction, {last} clusters by task at every overlap (lowest task-ARI)",
              overlaps, gathered(v=by_overlap("instruction task"), untrained=untrained_by_overlap("instruction task")),
              lambda data: [("", data["v"].min(1).tolist(), clear)], one_column("v", "untrained"),
              "of one overlap, drawn at random, that layer of the untrained networks which clusters by task most",
              planted=moved_to(v=0.8)),
        test("T14", f"layer 1 clusters by x more than by output, and {last} the reverse (difference of ARI, mean over "
              "overlaps)", overlaps,
              gathered(x=_over_layers(overlaps, "x input"), y=_over_layers(overlaps, "x output")),
              lambda data: [("layer 1: x - output", (data["x"] - data["y"])[:, 0].tolist(), Bound(">", 0)),
                            (f"{last}: output - x", (data["y"] - data["x"])[:, -1].tolist(), Bound(">", 0))],
              in_random_order("x", "y"), "layers in random order, seed by seed", chance="0",
              planted=moved_to(x=np.linspace(0.8, 0.2, n), y=np.linspace(0.2, 0.8, n))),
        *(
            test(id, f"{what}: from step {config.early_step} to the end, task-ARI falls in layers 1 to {third} and "
                  f"rises in layers {n + 1 - third} to {n}", (arm,),
                  gathered(early=thirds_at(arm, True), end=thirds_at(arm, False)), migrates,
                  exchanged(("early", "end")),
                  f"step {config.early_step} and the end exchanged at random, seed by seed",
                  planted=moved_to(early=np.array([0.45, 0.55]), end=np.array([0.35, 0.65])), chance="0")
            for id, arm, what in (("T15", TWO, "two private outputs a task"), ("T16", CONSTANT, "constant rate"))
        ),
        test("T17", "private outputs: adding the difference between two tasks' mean states at x changes the answer to "
              "the other task's, more often than control directions of the same norm do (best layer of each)",
              (PRIVATE,),
              gathered(a=swap(PRIVATE, TASK), b=swap(PRIVATE, RANDOM, HALVES)), gap("a", "b", Bound(">=", 0.3)),
              exchanged(("a", "b")), "both exchanged at random, seed by seed", chance="0",
              planted=moved_to(a=0.7, b=0.05)),
        test("T18", "all outputs shared: adding this difference rarely changes the answer to the other task's",
        (SHARED, PRIVATE),
              gathered(v=lambda found: swap(SHARED, TASK)(found) - swap(SHARED, RANDOM, HALVES)(found),
                       other=lambda found: swap(PRIVATE, TASK)(found) - swap(PRIVATE, RANDOM, HALVES)(found)),
              one("v", Bound("<=", 0.1)), replaced(v="other"),
              "values of networks whose tasks have private outputs, drawn with replacement", chance="0",
              planted=moved_to(v=0.0)),
        test("T19", f"private outputs: adding it works in layers {half + 1} to {n} rather than in 1 to {half} "
              "(difference of means)", (PRIVATE,), gathered(v=swap_by_layer),
              lambda data: [("", (data["v"][:, half:].mean(1) - data["v"][:, :half].mean(1)).tolist(),
                             Bound(">=", 0.2))],
              in_random_order("v"), "layers in random order, seed by seed", chance="0",
              planted=moved_to(v=np.linspace(0.0, 0.8, n))),
        test("T20", f"all outputs shared: a linear classifier reads the task from {last}, whose states do not cluster "
              "by it", (SHARED, TWO),
              gathered(linear=lambda found: np.array([run.linear[-1, n] for run in found[SHARED]]),
                       of_x=lambda found: np.array([run.linear[-1, 0] for run in found[SHARED]]),
                       ari=end(SHARED, "x task"), clustered=end(TWO, "x task")),
              lambda data: [("linear accuracy", data["linear"].tolist(), Bound(">=", 0.8)),
                            ("task-ARI", data["ari"].tolist(), Bound("<=", 0.3))],
              one_of(replaced(linear="of_x"), replaced(ari="clustered")),
              "layer 0, or networks whose tasks have two private outputs", chance="accuracy .1",
              shares=("linear accuracy",), planted=as_shares(moved_to(linear=0.95, ari=0.15), "linear")),
        test("T21", f"loss on y only: at the end of the instruction, {last} clusters by task with private outputs "
              "but not with shared ones, and with shared ones it clusters by output at x", (PRIVATE_Y, SHARED_Y),
              gathered(task=end(PRIVATE_Y, "instruction task"), shared=end(SHARED_Y, "instruction task"),
                       output=end(SHARED_Y, "x output"), other=end(SHARED_Y, "x task"),
                       untrained=start(PRIVATE_Y, "instruction task")),
              lambda data: [*y_parts(data), ("shared, end of the instruction: task", data["shared"].tolist(),
                                             Bound("<", config.clear))],
              one_of(replaced(task="untrained"), exchanged(("output", "other")), replaced(shared="task")),
              "untrained networks, output and task exchanged at random, or private outputs in place of shared ones",
              planted=moved_to(task=0.8, shared=0.2, output=0.8, other=0.2)),
        test("T22", f"twice the width: {last} clusters in the same way", (PRIVATE_WIDE, SHARED_WIDE),
              gathered(task=end(PRIVATE_WIDE, "instruction task"), output=end(SHARED_WIDE, "x output"),
                       other=end(SHARED_WIDE, "x task"),
                       untrained=start(PRIVATE_WIDE, "instruction task")),
              y_parts, one_of(replaced(task="untrained"), exchanged(("output", "other"))),
              "untrained networks, or output and task exchanged at random",
              planted=moved_to(task=0.8, output=0.8, other=0.2)),
        test("T23", "a bag of symbols clusters by task: mean of the prompt's untrained embeddings (ARI)",
              (PRIVATE,), gathered(v=lambda found: np.array([run.ari["mean task"][0, 0] for run in found[PRIVATE]])),
              one("v", clear), at_bound("v", clear), "the measured spread about the bound", chance="0",
              planted=moved_to(v=0.65)),
        test("T24", f"all outputs shared: {last} clusters by output within tasks more than by task within outputs "
              "(difference of ARI)", (SHARED,),
              gathered(a=end(SHARED, "x output|task"), b=end(SHARED, "x task|output")),
              gap("a", "b", Bound(">=", 0.2)), exchanged(("a", "b")), "both exchanged at random, seed by seed",
              chance="0",
              planted=moved_to(a=0.6, b=0.2)),
    ]  # fmt: skip


def _checks(config: ClusterFactorsConfig, found: Found) -> list[Finding]:
    flat = [float(np.ptp(run.ari["x task"][:, 0])) for run in found[PRIVATE]]
    guess = [task_of(config, Job(PRIVATE, seed)).input_only_accuracy() for seed in config.seeds]
    n_tasks = min(config.task.n_eval_tasks, config.task.n_tasks)
    return [
        finding("T5", "layer 0 at x is the embedding of x: its partition never changes (range of task-ARI)", _PAPER, flat,
              Bound("<=", 0.01), kind="check", tested=config.test_findings),
        finding("T8", "x alone predicts the task little better than chance", f"{_PAPER}; bound ours (3 x chance)", guess,
              Bound("<=", 3 / n_tasks), kind="check", tested=config.test_findings, chance=f"{1 / n_tasks:.3g}"),
    ]  # fmt: skip


def _over_layers(arms: Sequence[str], curve: str) -> Callable[[Found], np.ndarray]:
    """``[seed layer]`` at the end, layers 1 to n, mean over arms."""
    return lambda found: np.mean([[run.ari[curve][-1, 1:] for run in found[arm]] for arm in arms], axis=0)


def _agreement(runs: Sequence[RunResults], layer: int) -> np.ndarray:
    return np.array([abs(float(run.ari["x task"][-1, layer] - run.train_ari[layer])) for run in runs])
