"""The findings of a run on a real model: C2 to C11 as in the miniature study, and those that only a real run tests.

One run has one tuned model, so every interval is over tasks (bootstrap): it shows how much depends on which tasks
were measured, not what another seed of the tuning would give.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np

from mechclust.report import curve_statistics as of
from mechclust.report import shuffled_curves as shuffled
from mechclust.report.findings import Finding, finding
from mechclust.report.curve_findings import RESAMPLES, CurveFinding, Null, judged
from mechclust.report.layer_groups import crossover
from mechclust.report.planted_curves import planted
from mechclust.report.published_mossa import COLEMAN_LIAU, DATA_SIZE, FLESCH_KINCAID
from mechclust.report.severity import LEAST_DRAWS
from mechclust.report.task_curves import LEAST_TASKS, TaskCurves
from mechclust.evidence.bounds import Bound

_PAPER = "Zhao, Ziser & Cohen"
_LEAST_LAYERS = 8
GAIN = "share of answers told apart"

_SWAPPED = Null(nulls.swapped, "pre and tuned swapped at random by task")
_LAYERS = Null(nulls.permuted_layers, "layers in another order, the same for all tasks")
_HELD_OUT = Null(nulls.permuted_held_out, "other tasks called held out")
_COVARIATES = Null(nulls.permuted_covariates, "numbers of other tasks")
_CONTROLS = Null(nulls.exchanged_controls, "own control and others' swapped at random by task")
_BASE_WALK = Null(nulls.wandering, "pre a random walk over layers with the measured roughness")

_made = partial(CurveFinding, source=_PAPER, chance="0")


def findings_of(
    curves: TaskCurves,
    *,
    n: int,
    d: int,
    biased: Mapping[str, np.ndarray] | None = None,
    gains: np.ndarray | None = None,
    learnt: np.ndarray | None = None,
    task_dims: Mapping[str, np.ndarray] | None = None,
    purity: Mapping[str, np.ndarray] | None = None,
    purity_chance: float | None = None,
    resamples: int = RESAMPLES,
    draws: int = LEAST_DRAWS,
    seed: int = 0,
) -> list[Finding]:
    """C2 to C20 of a run.

    Args:
        curves: debiased CKA with the controls, of all tasks; with the covariates ``published.FLESCH_KINCAID``,
            ``COLEMAN_LIAU`` and ``DATA_SIZE`` where they are known.
        n: prompts of the task that has the fewest.
        d: width of the model.
        biased: ``"base"`` and ``"tuned"`` to ``[task layer]``, CKA in the biased form.
        gains: ``[task]`` share of pairs of prompts whose right answers the tuned model tells from the same two
            exchanged, - that of the base model.
        learnt: ``[task]`` whether the tuned model learnt it; held-out tasks that it did not learn are in no finding.
        task_dims: ``"base"`` and ``"tuned"`` to ``[task layer]``, dimensions for 99% of the variance by task.
        purity: ``"base"`` and ``"tuned"`` to ``[task layer]``, share of nearest neighbours in the task's cluster.
        purity_chance: by chance.
        resamples: how often tasks are drawn anew for an interval.
        draws: null draws behind every severity, and as many planted ones; 0: no severity.
        seed: for all draws.
    """
    if gains is not None:
        curves = replace(curves, covariates={**curves.covariates, GAIN: np.asarray(gains, dtype=float)})
    tests = [
        *_of_layers(curves),
        _of_gain(curves),
        _of_dims(_of_tasks(curves, task_dims, np.log2)),
        *_of_held_out(curves, learnt),
        _of_purity(_of_tasks(curves, purity), purity_chance),
        *_of_references(curves),
        *_of_covariates(curves),
    ]
    found = [*judged(tests, resamples=resamples, draws=draws, seed=seed), _forms(curves, biased, n, d)]
    return sorted(found, key=lambda c: int(c.id[1:]))


# ---- what is tested ----


def _of_layers(curves: TaskCurves) -> list[CurveFinding]:
    """C2 to C6, C12 and C20, of the seen tasks."""
    few = _few_tasks(curves)
    made = partial(_made, curves=curves.seen, why_not=few or _few_layers(curves), planted=planted)
    boundary = partial(of.boundary_distance, shared=9 / 32, transition=15 / 32)
    none = "" if np.isfinite(boundary(curves.seen)).all() else "there is no transition"
    return [
        made(
            "C2", "pre: median CKA with the controls falls with depth", null=_BASE_WALK, paper=-0.94,
            parts=(
                ("Spearman with depth", of.fall_with_depth, Bound("<", -0.8)),
                ("first quarter of the layers - last", of.fallen, Bound(">=", 0.2)),
            ),
        ),
        made(
            "C3", "pre: tasks come apart with depth (interquartile range)", null=_LAYERS, paper=0.88,
            parts=(
                ("Spearman with depth", of.widening_with_depth, Bound(">", 0.5)),
                ("upper half - 2 x first layer", of.widening, Bound(">=", 0)),
            ),
        ),
        made(
            "C4", "tuned > pre (medians) on every layer of the upper half; by .2 at the last", null=_SWAPPED,
            paper=0.378, why_not=few,
            parts=(
                ("last gap", of.last_gap, Bound(">=", 0.2)),
                ("least gap of the upper half", of.least_upper_gap, Bound(">", 0)),
            ),
        ),
        made(
            "C5", "tuned < pre in the second eighth of the layers (difference of medians, mean)", null=_SWAPPED,
            paper=-0.037, parts=(("", of.early_gap, Bound("<", 0)),),
        ),
        made(
            "C6", "tuned: tasks agree from the second quarter of the layers on (interquartile range)", null=_SWAPPED,
            paper=0.38, chance="1",
            parts=(
                ("second quarter, of the second eighth's", of.middle_narrowing, Bound("<", 0.5)),
                ("upper half, of pre's", of.relative_spread, Bound("<", 0.5)),
            ),
        ),
        made(
            "C12", "where there is a transition, it begins and ends where the paper has it (distance in relative "
            "depth)", null=_LAYERS, paper=0.0, chance=None, why_not=few or _few_layers(curves) or none,
            parts=(
                ("end of the shared layers from 9/32", lambda c: boundary(c)[0], Bound("<=", 0.1)),
                ("end of the transition from 15/32", lambda c: boundary(c)[1], Bound("<=", 0.1)),
            ),
        ),
        made(
            "C20", "there are shared layers, a transition, and refinement above (1: all three)",
            null=_LAYERS, paper=1.0, chance=None, source=f"{_PAPER}; the bound is ours",
            parts=(("", of.all_groups, Bound(">", 0.5)),),
        ),
    ]  # fmt: skip


def _of_gain(curves: TaskCurves) -> CurveFinding:
    return _made(
        "C7", "the gain (tuned - pre, upper half) is larger for tasks on which tuning separated more right answers "
        "from others (correlation over tasks)",
        parts=(("", partial(of.gain_correlation, covariate=GAIN), Bound(">", 0)),), null=_COVARIATES,
        curves=curves.seen, why_not=_few_tasks(curves) or _lacks(curves, GAIN),
    )  # fmt: skip


def _of_dims(dims: TaskCurves | None) -> CurveFinding:
    return _made(
        "C8", "tuned needs more dimensions than pre after the first third of the layers (log2 of the ratio, mean)",
        parts=(("", of.late_gap, Bound(">", 0)),), null=_SWAPPED, curves=dims,
        why_not=_few_tasks(dims) if dims else "dimensions were not measured", paper=1.07,
    )  # fmt: skip


def _of_held_out(curves: TaskCurves, learnt: np.ndarray | None) -> list[CurveFinding]:
    """C9, C18 and C19, of the held-out tasks that were learnt without their examples."""
    why_not = _few_tasks(curves) or _few_held_out(curves, learnt)
    if learnt is not None:
        curves = curves.select(~curves.held_out | learnt)
    depth = why_not or _few_layers(curves)
    made = partial(_made, curves=curves, planted=planted)
    return [
        made(
            "C9", "held-out tasks: tuned gains less on pre than for seen tasks in the second quarter of the layers "
            "(tuned - pre: seen - held out)", null=_HELD_OUT, why_not=depth, paper=0.15,
            parts=(("", of.smaller_gap, Bound(">", 0)),), note="" if depth else _crossings(curves),
        ),
        made(
            "C18", "held-out tasks: tuned > pre in the upper half (difference of medians, mean)", null=_SWAPPED,
            why_not=why_not, paper=0.18, parts=(("", lambda c: of.upper_gap(c.unseen), Bound(">", 0)),),
        ),
        made(
            "C19", "held-out tasks: tuned's interquartile range is wider than for seen tasks, upper half (difference)",
            null=_HELD_OUT, why_not=why_not, paper=0.45, parts=(("", of.wider_spread, Bound(">", 0)),),
        ),
    ]  # fmt: skip


def _of_purity(purity: TaskCurves | None, by_chance: float | None) -> CurveFinding:
    if purity is not None:  # tasks that are in no cluster have none
        purity = purity.select(np.isfinite(purity.base).all(axis=1) & np.isfinite(purity.tuned).all(axis=1))
    return _made(
        "C11", "nearest neighbours share the cluster more often in tuned, upper half (difference)",
        parts=(("", of.upper_gap, Bound(">", 0)),), null=_SWAPPED, curves=purity,
        why_not=_fewer(len(purity.tasks), "seen task", "in a cluster") if purity else "purity of clusters was not "
        "measured by task",
        chance="0" if by_chance is None else f"0; purity by chance {by_chance:.2f}",
    )  # fmt: skip


def _of_references(curves: TaskCurves) -> list[CurveFinding]:
    seen, few = curves.seen, _few_tasks(curves)
    made = partial(_made, source="ours", curves=seen)
    return [
        made(
            "C13", "tuned is more similar to a task's own control than to those of others, upper half (difference)",
            parts=(("", of.above_null, Bound(">", 0)),), null=_CONTROLS,
            why_not=few or ("controls of other tasks were not measured" if seen.null is None else ""),
        ),
        made(
            "C14", "tuned covers at least half the distance from pre to a second control of the task, upper half",
            parts=(("", of.way_to_ceiling, Bound(">=", 0.5)),), null=_SWAPPED, curves=seen.with_ceiling,
            why_not=few or _fewer(len(seen.with_ceiling.tasks), "seen task", "with a second control (--ceilings)"),
        ),
    ]  # fmt: skip


def _of_covariates(curves: TaskCurves) -> list[CurveFinding]:
    """Correlations at the paper's relative depths, with its signs."""
    layers = curves.n_layers
    upper, later = (slice(math.floor(14 / 32 * layers), math.ceil(end / 32 * layers)) for end in (29, 23))
    few = _few_tasks(curves)

    def made(
        id: str, covariate: str, which: Literal["base", "tuned"], band: slice, where: str, paper: float
    ) -> CurveFinding:
        statistic = partial(of.band_correlation, which=which, covariate=covariate, layers=band)
        model = {"base": "pre", "tuned": "tuned"}[which]
        return _made(
            id, f"{model}: CKA rises with the {covariate} (correlation over tasks, {where})", null=_COVARIATES,
            parts=(("", statistic, Bound(">", 0)),), curves=curves.seen, why_not=few or _lacks(curves, covariate),
            planted=planted, paper=paper,
        )  # fmt: skip

    return [
        made("C15", FLESCH_KINCAID, "tuned", upper, "as in layers 15 to 29 of 32", 0.40),
        made("C16", COLEMAN_LIAU, "tuned", later, "as in layers 15 to 23 of 32", 0.43),
        made("C17", DATA_SIZE, "base", slice(0, 1), "first layer", 0.46),
    ]


def _forms(curves: TaskCurves, biased: Mapping[str, np.ndarray] | None, n: int, d: int) -> Finding:
    """C10, a check."""
    tables = [] if biased is None else [np.abs(biased[k] - getattr(curves, k)) for k in ("base", "tuned")]
    known = [float(table[np.isfinite(table)].max()) for table in tables if np.isfinite(table).any()]
    few = f"{n:,} prompts for {d:,} dimensions; expected 10 per dimension" if n < 10 * d else ""
    return finding(
        "C10", f"biased and debiased CKA agree within .02 at n = {n}, d = {d} (largest difference)", "ours",
        [max(known)] if known else [], Bound("<=", 0.02), kind="check", tested=not few,
        why_not=few or ("" if known else "the biased form was not measured"),
    )  # fmt: skip


def _crossings(curves: TaskCurves) -> str:
    layers = [crossover(part.median("base"), part.median("tuned")) for part in (curves.unseen, curves.seen)]
    unseen, seen = ("never" if layer > curves.n_layers else str(layer) for layer in layers)
    return f"crossing at layer (held out against seen) {unseen} against {seen}; the paper's 13 and 9 are of 32 layers"


# ---- why a finding cannot be tested ----


def _fewer(count: int, what: str, which: str = "") -> str:
    """Than an interval over tasks needs."""
    if count >= LEAST_TASKS:
        return ""
    many = f"{count or 'no'} {what}{'s' * (count > 1)} {which}".rstrip()
    return f"{many}; expected at least {LEAST_TASKS}, or there is no interval over tasks"


def _few_tasks(curves: TaskCurves) -> str:
    return _fewer(int((~curves.held_out).sum()), "seen task")


def _few_layers(curves: TaskCurves) -> str:
    if curves.n_layers >= _LEAST_LAYERS:
        return ""
    return f"{curves.n_layers} layers; expected at least {_LEAST_LAYERS}, or eighths of the depth mean little"


def _few_held_out(curves: TaskCurves, learnt: np.ndarray | None) -> str:
    if learnt is None and curves.held_out.any():
        return "answers were not measured, so nothing says that a held-out task was learnt without its examples"
    known = curves.held_out if learnt is None else curves.held_out & learnt
    return _fewer(int(known.sum()), "held-out task", "learnt without its examples" if curves.held_out.any() else "")


def _lacks(curves: TaskCurves, covariate: str) -> str:
    values = np.asarray(curves.covariates.get(covariate, np.full(len(curves.tasks), np.nan)), dtype=float)
    known = values[~curves.held_out & np.isfinite(values)]
    if len(known) >= LEAST_TASKS and np.ptp(known) == 0:
        return f"the {covariate} is the same for all seen tasks ({known[0]:g})"
    return _fewer(len(known), "seen task", f"of which the {covariate} is known")


# ---- curves of other measures ----


def _of_tasks(
    curves: TaskCurves, tables: Mapping[str, np.ndarray] | None, change: Callable[[np.ndarray], np.ndarray] = np.asarray
) -> TaskCurves | None:
    """The seen tasks' curves of another measure."""
    if tables is None:
        return None
    base, tuned = (change(np.asarray(tables[which], dtype=float)) for which in ("base", "tuned"))
    return replace(curves, base=base, tuned=tuned, ceiling=None, null=None, dims={}).seen
