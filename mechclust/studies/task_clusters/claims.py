"""The claims T1 to T10 of the task-cluster study, with their bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from mechclust.report.arm_findings import ArmFinding, arm_finding, gap, gathered, one
from mechclust.report.claims import Claim, claim, with_severity
from mechclust.report.draws import (
    Data,
    as_shares,
    at_bound,
    exchanged,
    first_from_later,
    in_random_order,
    moved_to,
    random_walk,
    replaced,
)
from mechclust.report.findings import Parts
from mechclust.report.growth import climbing, rising, saturating
from mechclust.report.verdicts import Bound
from mechclust.studies.study import Job
from mechclust.studies.task_clusters.config import TRAIN, VALIDATION, TaskClustersConfig, task_of
from mechclust.studies.task_clusters.results import RunResults, by_arm

_PAPER = "Wu & Varshney"

Arms = Mapping[str, Sequence[RunResults]]


def claims_of(config: TaskClustersConfig, runs: Mapping[Job, RunResults]) -> list[Claim]:
    """T1 to T10; of these T5 and T8 are checks. Sites are layers 0 to n, then the final norm."""
    arms = by_arm(config, runs)
    claims = [*_checks(config, runs), *(test.judged(arms, tested=config.test_claims) for test in _tests(config, arms))]
    return list(with_severity(sorted(claims, key=lambda c: int(c.id[1:]))))


def _tests(config: TaskClustersConfig, arms: Arms) -> list[ArmFinding[RunResults]]:
    n, steps = config.n_layers, arms["private"][0].steps

    def of(arm: str, get: Callable[[RunResults], np.ndarray | float]) -> Callable[[Arms], np.ndarray]:
        return lambda arms: np.array([get(run) for run in arms[arm]])

    def top(run: RunResults) -> np.ndarray:
        """``[checkpoint]`` of the better of the two top layers, by final validation ARI."""
        curves = run.ari[VALIDATION]
        return curves[:, max((n - 1, n), key=lambda layer: curves[-1, layer])]

    def grows(data: Data) -> Parts:
        ends, starts = data["curve"][:, -1], data["curve"][:, 0]
        return [("end", ends.tolist(), Bound(">=", 0.5)), ("end - 5 x start", (ends - 5 * starts).tolist(),
                                                          Bound(">=", 0))]  # fmt: skip

    test = partial(arm_finding, source=_PAPER)
    accurate, agree = Bound(">=", 0.95), Bound("<=", 0.1)
    top_name, spread = f"layer {n - 1} or {n}, the better at the end", "the measured spread about the bound"
    chance = f"0; relabelled within the classes of x, 95% within {_band(arms['private'])}"
    of_shared = "values of networks whose tasks share all outputs, drawn with replacement"
    rise = moved_to(curve=saturating(steps) * np.linspace(0.4, 1, len(steps)))
    return [
        test("T1", "validation accuracy at the end", ("private",),
             gathered(v=of("private", lambda run: run.accuracy[-1])), one("v", accurate),
             as_shares(at_bound("v", accurate), "v"), spread, as_shares(moved_to(v=0.98), "v"), source="set-up",
             shares=True),
        test("T2", f"task-ARI of the top layer ({top_name}) is high and far above its start", ("private", "shared"),
             gathered(curve=of("private", top), other=of("shared", top)), grows, replaced(curve="other"), of_shared,
             rise, source=f"{_PAPER}; bound ours", chance=chance),
        test("T3", "top-layer task-ARI rises with log step, then saturates (last third of training)", ("private",),
             gathered(curve=of("private", top)), lambda data: rising(steps, data["curve"]), random_walk("curve"),
             "random walks whose steps have the measured sizes", moved_to(curve=saturating(steps))),
        test("T4", f"task-ARI at the end rises with layer, 0 to {n}", ("private",),
             gathered(layers=of("private", lambda run: run.ari[VALIDATION][-1, : n + 1])),
             lambda data: climbing(data["layers"]), in_random_order("layers"), "layers in random order",
             moved_to(layers=np.linspace(0.1, 0.8, n + 1))),
        test("T6", f"training subset and validation agree at layer {n}, at the end (difference of task-ARI)",
             ("private",),
             gathered(v=of("private", lambda run: abs(run.ari[VALIDATION][-1, n] - run.ari[TRAIN][-1, n]))),
             one("v", agree), at_bound("v", agree), spread, moved_to(v=0.03)),
        test("T7", "before training, no layer clusters by task beyond what x explains (largest task-ARI minus its mean "
             "under relabelling within the classes of x)", ("private",),
             gathered(above=of("private", lambda run: (run.ari[VALIDATION] - run.null[..., 2]).max(-1))),
             lambda data: [("", data["above"][:, 0].tolist(), Bound("<=", 0.1))], first_from_later("above"),
             "the first checkpoint replaced by later ones drawn at random", moved_to(above=0.03),
             source=f"{_PAPER}; bound ours", chance="0"),
        test("T9", f"shared outputs: layer {n} clusters by output more than by task (difference of ARI)", ("shared",),
             gathered(output=of("shared", lambda run: run.output_ari[-1, n]),
                      task=of("shared", lambda run: run.ari[VALIDATION][-1, n])),
             gap("output", "task", Bound(">", 0)),
             exchanged(("output", "task")), "both exchanged at random, seed by seed", moved_to(output=0.8, task=0.2),
             source="ours", chance="0"),
        test("T10", f"instructions never seen cluster too ({top_name})", ("instruction", "shared"),
             gathered(curve=of("instruction", top), other=of("shared", top)), grows, replaced(curve="other"), of_shared,
             rise, source=f"{_PAPER}; bound ours", chance=chance),
    ]  # fmt: skip


def _checks(config: TaskClustersConfig, runs: Mapping[Job, RunResults]) -> list[Claim]:
    judged = partial(claim, kind="check", tested=config.test_claims)
    ari = [run.ari[VALIDATION] for run in by_arm(config, runs)["private"]]
    flat, low = [float(np.ptp(x[:, 0])) for x in ari], [float(x[:, 0].max()) for x in ari]
    guess = [task_of(config, job).input_only_accuracy() for job in runs if job.arm == "private"]
    n_tasks = min(config.task.n_eval_tasks, config.task.n_tasks)
    return [
        judged("T5", "layer 0 (word embedding) stays flat and low over training", _PAPER, flat,
               [("range", flat, Bound("<=", 0.05)), ("maximum", low, Bound("<=", 0.15))],
               note="one point per input token, fewer than clusters: the partition is the token itself"),
        judged("T8", "x alone predicts the task little better than chance", f"{_PAPER}; bound ours (3 x chance)", guess,
               Bound("<=", 3 / n_tasks), chance=f"{1 / n_tasks:.3g}"),
    ]  # fmt: skip


def _band(runs: Sequence[RunResults]) -> str:
    low, high = (np.mean([run.null[..., i].mean() for run in runs]) for i in (0, 1))
    return f"{low:.3f} to {high:.3f}"
