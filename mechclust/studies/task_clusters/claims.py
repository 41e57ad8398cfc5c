"""The claims T1 to T10 of the task-cluster study, with their bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from mechclust.report.claims import Claim, claim, with_severity
from mechclust.report.severity import Severity
from mechclust.report.verdicts import Bound
from mechclust.studies.study import Job
from mechclust.studies.task_clusters.config import TRAIN, VALIDATION, TaskClustersConfig, task_of
from mechclust.studies.task_clusters.results import RunResults, by_arm

_PAPER = "Wu & Varshney"


def claims_of(config: TaskClustersConfig, runs: Mapping[Job, RunResults]) -> list[Claim]:
    """The claims T1 to T10. Sites are layers 0 to n, then the final norm."""
    arms, n = by_arm(config, runs), config.n_layers
    judged = partial(claim, tested=config.test_claims)
    private, unseen = arms["private"], arms.get("instruction", [])
    ari = [run.ari[VALIDATION] for run in private]

    def top(run: RunResults) -> np.ndarray:  # the better of the two top layers, by final validation ARI
        curves = run.ari[VALIDATION]
        return curves[:, max((n - 1, n), key=lambda layer: curves[-1, layer])]

    def grows(of: Sequence[RunResults]) -> list[tuple[str, list[float], Bound]]:
        ends, starts = ([float(top(run)[at]) for run in of] for at in (-1, 0))
        growth = [end - 5 * start for end, start in zip(ends, starts, strict=True)]
        return [("end", ends, Bound(">=", 0.5)), ("end - 5 x start", growth, Bound(">=", 0))]

    rises = [_rho(run.steps, top(run)) for run in private]
    late = [_late_change(run.steps, top(run), config.training.steps) for run in private]
    by_layer = [_rho(np.arange(n + 1), x[-1, : n + 1]) for x in ari]
    climb = [float(x[-1, n] - x[-1, 1]) for x in ari]
    flat = [float(np.ptp(x[:, 0])) for x in ari]
    low = [float(x[:, 0].max()) for x in ari]
    agree = [abs(float(run.ari[VALIDATION][-1, n] - run.ari[TRAIN][-1, n])) for run in private]
    guess = [task_of(config, job).input_only_accuracy() for job in runs if job.arm == "private"]
    n_eval_tasks = min(config.task.n_eval_tasks, config.task.n_tasks)
    by_output = [float(run.output_ari[-1, n] - run.ari[VALIDATION][-1, n]) for run in arms.get("shared", [])]
    top_name, chance = f"layer {n - 1} or {n}, the better at the end", f"0; relabelled, 95% within {_band(private)}"
    found = [
        judged("T1", "validation accuracy at the end", "set-up", [float(run.accuracy[-1]) for run in private],
               Bound(">=", 0.95)),
        judged("T2", f"task-ARI of the top layer ({top_name}) is high and far above its start",
               f"{_PAPER}; bound ours", grows(private)[0][1], grows(private), chance=chance),
        judged("T3", "top-layer task-ARI rises with log step, then saturates (last third of training)", _PAPER, rises,
               [("Spearman", rises, Bound(">", 0.8)), ("late change", late, Bound("<", 0.1))]),
        judged("T4", f"task-ARI at the end rises with layer, 0 to {n}", _PAPER, by_layer,
               [("Spearman", by_layer, Bound(">", 0.8)), (f"layer {n} - layer 1", climb, Bound(">=", 0.2))]),
        judged("T5", "layer 0 (word embedding) stays flat and low over training", _PAPER, flat,
               [("range", flat, Bound("<=", 0.05)), ("maximum", low, Bound("<=", 0.15))],
               kind="check", note="one point per input token, fewer than clusters: the partition is the token itself"),
        judged("T6", f"training subset and validation agree at layer {n}, at the end", _PAPER, agree,
               Bound("<=", 0.1)),
        judged("T7", "before training no layer clusters by task (largest task-ARI)", _PAPER,
               [float(x[0].max()) for x in ari], Bound("<=", 0.1), chance=chance),
        judged("T8", "x alone predicts the task little better than chance", f"{_PAPER}; bound ours (3 x chance)", guess,
               Bound("<=", 3 / n_eval_tasks), kind="check", chance=f"{1 / n_eval_tasks:.3g}"),
        judged("T9", f"shared outputs: layer {n} clusters by output more than by task (difference of ARI)", "ours",
               by_output, Bound(">", 0)),
        judged("T10", f"instructions never seen cluster too ({top_name})", f"{_PAPER}; bound ours",
               grows(unseen)[0][1], grows(unseen), chance=chance),
    ]  # fmt: skip
    drawn = "not computed: the study cluster-factors asks these questions again, with null draws and fresh seeds"
    return with_severity(found, otherwise=Severity(None, 0, drawn))


def _rho(x: np.ndarray, y: np.ndarray) -> float:
    from scipy.stats import spearmanr

    return float(spearmanr(x, y).statistic) if np.ptp(y) > 0 else math.nan  # a flat curve has no rank


def _late_change(at: np.ndarray, values: np.ndarray, steps: int) -> float:
    """Change over the last third of training."""
    return abs(float(values[-1] - values[np.searchsorted(at, 2 * steps / 3)]))


def _band(runs: Sequence[RunResults]) -> str:
    low, high = (np.mean([run.null[..., i].mean() for run in runs]) for i in (0, 1))
    return f"{low:.3f} to {high:.3f}"
