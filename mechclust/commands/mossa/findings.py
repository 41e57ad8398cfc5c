"""Judge the findings of a run on a real model over tasks.

One run has one tuned model, so every interval is over tasks. It shows the dependence on the measured tasks, not on the
seed of the tuning. C7 is stated here, all others in ``mechclust.mossa``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
from jaxtyping import Bool, Float

from mechclust.evidence import Bound, Finding
from mechclust.evidence.finding import finding_order
from mechclust.mossa.cka_forms import forms_agree
from mechclust.mossa.correlations import gain_correlation
from mechclust.mossa.crossovers import crossing_text
from mechclust.mossa.curve_findings import (
    CURVE_FINDINGS,
    OTHER_TASKS,
    CurveFinding,
    CurveFindingPart,
    judge_curves_over_tasks,
)
from mechclust.mossa.task_curves import LEAST_TASKS, TaskCurves
from mechclust.report.text import counted

GAIN = "share of answers told apart"

_C7 = CurveFinding(
    id="C7",
    statement="in the upper half of the layers, the tuned model gains more on the base for tasks on which tuning "
    "separated more right answers from others (correlation over tasks)",
    parts=(CurveFindingPart(partial(gain_correlation, covariate=GAIN), Bound(">", 0), covariate=GAIN),),
    control=OTHER_TASKS,
    shown="page",
)

TaskTables = Mapping[str, Float[np.ndarray, "task layer"]]


def findings_of(
    curves: TaskCurves,
    *,
    n: int,
    d: int,
    biased: TaskTables | None = None,
    gains: Float[np.ndarray, " task"] | None = None,
    learnt: Bool[np.ndarray, " task"] | None = None,
    task_dims: TaskTables | None = None,
    purity: TaskTables | None = None,
    purity_chance: float | None = None,
    seed: int = 0,
) -> list[Finding]:
    """Return C2 to C20 of a run, of which C10 is a check.

    Args:
        curves: debiased CKA with the controls, of all tasks, with the covariates ``published.FLESCH_KINCAID``,
            ``COLEMAN_LIAU`` and ``DATA_SIZE`` if they are known.
        n: prompts of the task that has the fewest.
        d: width of the model.
        biased: CKA in the biased form of ``"base"`` and ``"tuned"``.
        gains: share of pairs of prompts for which the tuned model prefers the right answers to the exchanged ones,
            minus the base model's share.
        learnt: whether the tuned model learnt the task. Held-out tasks that it did not learn are in no finding.
        task_dims: dimensions for 99% of the variance by task of ``"base"`` and ``"tuned"``.
        purity: share of nearest neighbours in the task's cluster of ``"base"`` and ``"tuned"``.
        purity_chance: purity by chance.
        seed: seed of the bootstrap over tasks, behind each interval.
    """
    if gains is not None:
        curves = replace(curves, covariates={**curves.covariates, GAIN: gains})
    judge = partial(judge_curves_over_tasks, seed=seed)
    findings = [
        *_of_seen_tasks(curves, judge),
        _of_dims(curves, task_dims, judge),
        *_of_held_out_tasks(curves, learnt, judge),
        _of_purity(curves, purity, purity_chance, judge),
        _forms(curves, biased, n, d),
    ]
    return sorted(findings, key=finding_order)


# ---- findings ----

_OF_SEEN_TASKS = ("C2", "C3", "C4", "C5", "C6", "C12", "C20")
_OF_COVARIATES = ("C15", "C16", "C17")
_Judge = partial[Finding]


def _of_seen_tasks(curves: TaskCurves, judge: _Judge) -> list[Finding]:
    """Return C2 to C7, C12 to C17 and C20."""
    seen = curves.seen
    few = _few_tasks(curves)
    findings = [judge(CURVE_FINDINGS[id], seen, not_tested=few) for id in _OF_SEEN_TASKS]
    no_null = "" if seen.has("null") else "controls of other tasks were not measured"
    findings.append(judge(CURVE_FINDINGS["C13"], seen, not_tested=few or no_null))
    doubled = seen.with_ceiling
    few_doubled = _fewer(len(doubled.tasks), "seen task", "with a second control (--ceilings)")
    findings.append(judge(CURVE_FINDINGS["C14"], doubled, not_tested=few or few_doubled))
    for stated in (_C7, *(CURVE_FINDINGS[id] for id in _OF_COVARIATES)):
        (part,) = stated.parts
        findings.append(judge(stated, seen, not_tested=few or _lacks(seen, part.covariate)))
    return findings


def _of_dims(curves: TaskCurves, dims: TaskTables | None, judge: _Judge) -> Finding:
    if dims is None:
        return judge(CURVE_FINDINGS["C8"], curves, not_tested="dimensions were not measured")
    seen = _seen_curves(curves, dims)
    log_dims = replace(seen, base=np.log2(seen.base), tuned=np.log2(seen.tuned))
    return judge(CURVE_FINDINGS["C8"], log_dims, not_tested=_few_tasks(curves))


def _of_held_out_tasks(curves: TaskCurves, learnt: Bool[np.ndarray, " task"] | None, judge: _Judge) -> list[Finding]:
    """Return C9, C18 and C19, of the held-out tasks that were learnt without their examples."""
    why_not = _few_tasks(curves) or _few_held_out(curves, learnt)
    if learnt is not None:
        curves = curves.select(~curves.held_out | learnt)
    crossings = "" if why_not else _crossings(curves)
    return [
        judge(CURVE_FINDINGS["C9"], curves, not_tested=why_not, note=crossings),
        judge(CURVE_FINDINGS["C18"], curves, not_tested=why_not),
        judge(CURVE_FINDINGS["C19"], curves, not_tested=why_not),
    ]


def _of_purity(curves: TaskCurves, purity: TaskTables | None, by_chance: float | None, judge: _Judge) -> Finding:
    if purity is None:
        return judge(CURVE_FINDINGS["C11"], curves, not_tested="purity of clusters was not measured by task")
    seen = _seen_curves(curves, purity)
    defined = np.isfinite(seen.base).all(axis=1) & np.isfinite(seen.tuned).all(axis=1)
    in_clusters = seen.select(defined)  # tasks that are in no cluster have no purity
    few = _fewer(len(in_clusters.tasks), "seen task", "in a cluster")
    note = "" if by_chance is None else f"purity by chance {by_chance:.2f}"
    return judge(CURVE_FINDINGS["C11"], in_clusters, not_tested=few, note=note)


def _forms(curves: TaskCurves, biased: TaskTables | None, n: int, d: int) -> Finding:
    """Return C10."""
    differences = np.zeros(0)
    if biased is not None:
        both = np.stack([biased["base"] - curves.base, biased["tuned"] - curves.tuned])
        differences = np.abs(both[np.isfinite(both)])
    if not len(differences):
        return forms_agree([], n, d, "the biased form was not measured")
    return forms_agree([differences.max()], n, d)


def _crossings(curves: TaskCurves) -> str:
    crossings = f"{crossing_text(curves.unseen)} against {crossing_text(curves.seen)}"
    return f"crossing at layer (held out against seen) {crossings}; the paper's 13 and 9 are of 32 layers"


def _seen_curves(curves: TaskCurves, tables: TaskTables) -> TaskCurves:
    """Return the seen tasks' curves of another measure."""
    return replace(curves, base=tables["base"], tuned=tables["tuned"], ceiling=None, null=None, dims={}).seen


# ---- why a finding cannot be tested ----


def _fewer(count: int, what: str, which: str = "") -> str:
    """Return why there are too few for an interval over tasks, or ``""`` if there are enough."""
    if count >= LEAST_TASKS:
        return ""
    tasks = counted(count, what) if count else f"no {what}"
    return f"{f'{tasks} {which}'.rstrip()}; expected at least {LEAST_TASKS}, or there is no interval over tasks"


def _few_tasks(curves: TaskCurves) -> str:
    return _fewer(int((~curves.held_out).sum()), "seen task")


def _few_held_out(curves: TaskCurves, learnt: Bool[np.ndarray, " task"] | None) -> str:
    if learnt is None and curves.held_out.any():
        return "no answers say whether a held-out task was learnt without its examples"
    known = curves.held_out if learnt is None else curves.held_out & learnt
    return _fewer(int(known.sum()), "held-out task", "learnt without its examples" if curves.held_out.any() else "")


def _lacks(seen: TaskCurves, covariate: str) -> str:
    values = seen.covariates.get(covariate, np.zeros(0))
    known = values[np.isfinite(values)]
    if len(known) >= LEAST_TASKS and np.ptp(known) == 0:
        return f"the {covariate} is the same for all seen tasks ({known[0]:g})"
    return _fewer(len(known), "seen task", f"of which the {covariate} is known")
