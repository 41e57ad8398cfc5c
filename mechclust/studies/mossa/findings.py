"""The findings of the MOSSA study, judged over seeds, with bounds written before the confirmatory seeds were run.

C7 and the check C1 are stated here, all others in ``mechclust.mossa``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from mechclust.evidence import Bound, Finding, check_part
from mechclust.evidence.finding import finding_order
from mechclust.evidence.intervals import mean_with_interval
from mechclust.mossa.cka_forms import forms_agree
from mechclust.mossa.crossovers import crossing_text
from mechclust.mossa.curve_findings import (
    CURVE_FINDINGS,
    CurveFinding,
    CurveFindingPart,
    judge_curves_over_seeds,
)
from mechclust.mossa.shuffled_curves import FalseCurves, cluster_shuffled_curves
from mechclust.mossa.task_curves import ByLayer, TaskCurves
from mechclust.studies.mossa.config import MossaConfig
from mechclust.studies.mossa.results import SeedResults, boundaries_by_seed
from tasks.skills import OPERATIONS

_LEAST_SKILL = 0.05  # accuracy above chance on held-out tasks, from which on findings about them are tested
_NOT_ENCODED = "not encoded"
_TWO_ENCODED = (
    "two of six operations are encoded, the same in all seeds, so anything else that sets two operations apart would "
    "look the same; 8 of the 14 other pairs have one of them"
)


def _encoded_difference(curves: TaskCurves) -> float:
    """Return the mean gain of the tasks that pre-training did not encode, minus the others' mean gain."""
    not_encoded = curves.covariates[_NOT_ENCODED] > 0
    return float(curves.gain[not_encoded].mean() - curves.gain[~not_encoded].mean())


_C7 = CurveFinding(
    id="C7",
    statement="in the upper half of the layers, the tuned model gains more on the base for operations that "
    "pre-training did not encode (difference of means over seen tasks)",
    parts=(CurveFindingPart(_encoded_difference, Bound(">", 0)),),
    control=FalseCurves("other operations called encoded", cluster_shuffled_curves),
    shown="page",
)


def findings_of(config: MossaConfig, seeds: Sequence[SeedResults]) -> list[Finding]:
    """Return C1 to C12, C14 and C18 to C20. Of these, C1 and C10 are checks.

    Args:
        config: the run's configuration.
        seeds: the measurements, one for each seed.
    """
    curves = [_with_encoded(one) for one in seeds]
    findings = [
        *_of_seen_tasks(config, seeds, [one.seen for one in curves]),
        *_of_all_seen_together(seeds),
        *_of_held_out_tasks(seeds, curves),
        *_checks(config, seeds),
    ]
    return sorted(findings, key=finding_order)


def boundary_note(curves: Sequence[TaskCurves]) -> str:
    """Return the ends of the layer groups, in layers: means over seeds and their intervals."""
    ends, has_transition = boundaries_by_seed(curves)
    parts = [f"last shared layer {mean_with_interval(ends[:, 0], decimals=1)}"]
    if has_transition.any():
        parts.append(f"last layer of the transition {mean_with_interval(ends[has_transition, 1], decimals=1)}")
    count = int(has_transition.sum())
    return f"{', '.join(parts)}, of {curves[0].n_layers}; {count} of {len(ends)} seeds have a transition"


# ---- findings ----


def _of_seen_tasks(config: MossaConfig, seeds: Sequence[SeedResults], seen: Sequence[TaskCurves]) -> list[Finding]:
    """Return C2 to C7, C12, C14 and C20."""
    plain = [judge_curves_over_seeds(CURVE_FINDINGS[id], seen) for id in ("C2", "C3", "C5", "C6")]
    encoded = [one.curves.select(one.seen & one.encoded) for one in seeds]
    closer = judge_curves_over_seeds(
        CURVE_FINDINGS["C4"],
        seen,
        control=("tasks that pre-training had encoded", encoded),
        note="the control has little to gain, since its base is similar to the controls already",
    )
    gain = judge_curves_over_seeds(_C7, seen, note=_encoded_note(config))
    ends = boundary_note(seen)
    place = judge_curves_over_seeds(CURVE_FINDINGS["C12"], seen, note=ends)
    groups = judge_curves_over_seeds(CURVE_FINDINGS["C20"], seen, note=ends)
    has_ceiling = all(one.ceiling is not None for one in seen)
    no_ceiling = "" if has_ceiling else "no task has a second control"
    distance = judge_curves_over_seeds(CURVE_FINDINGS["C14"], seen, not_tested=no_ceiling)
    return [*plain, closer, gain, place, groups, distance]


def _encoded_note(config: MossaConfig) -> str:
    """Return the note on C7 that something else may set the encoded operations apart."""
    n = len(config.suite.encoded)
    if n == 2:
        return _TWO_ENCODED
    return (
        f"{n} of {len(OPERATIONS)} operations are encoded, the same in all seeds, so anything else that sets them "
        "apart would look the same"
    )


def _of_all_seen_together(seeds: Sequence[SeedResults]) -> list[Finding]:
    """Return C8 and C11, about one curve over all seen tasks."""
    dims = [_pooled(one, {model: np.log2(values) for model, values in one.dims.items()}) for one in seeds]
    purity = [_pooled(one, one.purity) for one in seeds]
    by_chance = f"purity by chance {seeds[0].purity_chance:.2f}"
    return [
        judge_curves_over_seeds(CURVE_FINDINGS["C8"], dims),
        judge_curves_over_seeds(CURVE_FINDINGS["C11"], purity, note=by_chance),
    ]


def _of_held_out_tasks(seeds: Sequence[SeedResults], curves: Sequence[TaskCurves]) -> list[Finding]:
    """Return C9, C18 and C19."""
    not_tested, note = _skill_to_explain(seeds)
    encoded = [one.curves.select(~one.seen & one.encoded) for one in seeds]
    layers = f"{note}; {_crossings(seeds)}" if note else ""
    return [
        judge_curves_over_seeds(CURVE_FINDINGS["C9"], curves, not_tested=not_tested, note=layers),
        judge_curves_over_seeds(
            CURVE_FINDINGS["C18"],
            curves,
            control=("held-out tasks of operations that pre-training had encoded", encoded),
            not_tested=not_tested,
            note=note,
        ),
        judge_curves_over_seeds(CURVE_FINDINGS["C19"], curves, not_tested=not_tested, note=note),
    ]


def _skill_to_explain(seeds: Sequence[SeedResults]) -> tuple[str, str]:
    """Return why findings about held-out tasks cannot be tested, or ``""`` and a note on the skill at these tasks."""
    if all(one.seen.all() for one in seeds):
        return "no controls of held-out tasks", ""
    above = float(np.mean([one.zero_shot for one in seeds]))
    if np.isnan(above):
        return "pre-training encoded the operations of all held-out tasks", ""
    skill = f"tuned answers held-out, not encoded tasks {above:.2f} above chance without their examples"
    if above >= _LEAST_SKILL:
        return "", skill
    return f"{skill}, tested only from {_LEAST_SKILL}: there is no skill to explain", ""


def _checks(config: MossaConfig, seeds: Sequence[SeedResults]) -> list[Finding]:
    differences = [
        float(np.max([np.abs(one.biased[model] - one.cka[model]) for model in one.cka]))  # NaN if one is
        for one in seeds
    ]
    return [
        Finding(
            id="C1",
            kind="check",
            statement="CKA(base, base) is 1, also when one side is rotated and scaled (largest distance, any layer)",
            source="definition",
            parts=(check_part("", [one.identity for one in seeds], Bound("<=", 1e-9)),),
        ),
        forms_agree(differences, config.suite.n_eval, config.d_model),
    ]


# ---- curves ----


def _with_encoded(seed: SeedResults) -> TaskCurves:
    return replace(seed.curves, covariates={_NOT_ENCODED: (~seed.encoded).astype(float)})


def _pooled(seed: SeedResults, measure: Mapping[str, ByLayer]) -> TaskCurves:
    """Return a measure of all seen tasks together, as curves of a single task."""
    return TaskCurves(
        tasks=("all",),
        layers=seed.curves.layers,
        base=measure["base"][None],
        tuned=measure["tuned"][None],
        ceiling=None,
        null=None,
        held_out=np.zeros(1, dtype=bool),
        clusters=(None,),
    )


def _crossings(seeds: Sequence[SeedResults]) -> str:
    curves = [one.curves for one in seeds]
    places = ", ".join(f"{crossing_text(one.unseen)} against {crossing_text(one.seen)}" for one in curves)
    return f"layer from which tuned stays above the base (held out against seen): {places}"
