"""The findings of the MOSSA study, with bounds written before the confirmatory seeds were run.

C2 to C9, C11, C12, C14, C18 and C19 are those of ``mechclust mossa`` on real models, judged over seeds instead of
tasks; layers are compared by relative depth. C1 and C10 are checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from mechclust.report import curve_statistics as of
from mechclust.report import shuffled_curves as shuffled
from mechclust.report.findings import Finding, finding
from mechclust.report.planted_curves import planted
from mechclust.report.seed_curve_findings import (
    SeedCurveFinding,
    SeedNull,
    each,
    judged_over_seeds,
    same_clusters,
)
from mechclust.report.severity import LEAST_DRAWS
from mechclust.report.task_curves import TaskCurves
from mechclust.evidence.bounds import Bound
from mechclust.evidence.intervals import mean_interval
from mechclust.studies.mossa.config import MossaConfig
from mechclust.studies.mossa.results import SeedResults, boundaries_by_seed

_PAPER = "Zhao, Ziser & Cohen"
_ABOVE_CHANCE = 0.05
_LEAST_LAYERS = 8
_LEAST_SEEDS = 3  # with a transition, from which on its place is tested
_NOT_ENCODED = "not encoded"

_SWAPPED = SeedNull(each(nulls.swapped), "pre and tuned swapped at random by task")
_LAYERS = SeedNull(each(nulls.permuted_layers), "layers in another order, the same for all tasks of a seed")
_BASE_WALK = SeedNull(each(nulls.wandering), "pre a random walk over layers with the measured roughness")
_HELD_OUT = SeedNull(each(nulls.permuted_held_out_within), "other tasks of the same operations called held out")
_CLUSTERS = SeedNull(
    partial(same_clusters, covariate=_NOT_ENCODED), "other operations called encoded, the same in all seeds"
)


def findings_of(config: MossaConfig, found: Sequence[SeedResults], *, draws: int = LEAST_DRAWS) -> list[Finding]:
    """C1 to C12, C14 and C18 to C20.

    Args:
        config: the run's configuration.
        found: its seeds.
        draws: number of null draws behind every severity, and of planted draws; 0: no severity.
    """
    curves = [_with_encoded(m) for m in found]
    tests = [
        *_of_layers(config, curves),
        _of_encoded(config, curves),
        _of_pooled(config, found, "dims"),
        *_of_held_out(config, found, curves),
        _of_pooled(config, found, "purity"),
        _of_ceiling(config, curves),
    ]
    findings = [*_checks(config, found), *judged_over_seeds(tests, draws=draws)]
    return sorted(findings, key=lambda c: int(c.id[1:]))


def boundary_note(curves: Sequence[TaskCurves]) -> str:
    """Where the layer groups end, in layers: means over seeds and their intervals."""
    ends, has = boundaries_by_seed(curves)
    parts = [f"last shared layer {_mean(ends[:, 0])}"]
    if has.any():
        parts.append(f"last layer of the transition {_mean(ends[has, 1])}")
    return f"{', '.join(parts)}, of {curves[0].n_layers}; {int(has.sum())} of {len(ends)} seeds have a transition"


# ---- what is tested ----


def _of_layers(config: MossaConfig, curves: Sequence[TaskCurves]) -> list[SeedCurveFinding]:
    """C2 to C6, C12 and C20, on the seen tasks."""
    seen = [one.seen for one in curves]
    why_not = _untested(config)
    made = partial(
        SeedCurveFinding, source=_PAPER, chance="0", curves=seen, why_not=why_not or _few_layers(config),
        planted=each(planted),
    )  # fmt: skip
    boundary = partial(of.boundary_distance, shared=9 / 32, transition=15 / 32)
    return [
        made(
            id="C2", statement="pre: median CKA with the controls falls with depth", null=_BASE_WALK, paper=-0.94,
            why_not=why_not,
            parts=(
                ("Spearman with depth", of.fall_with_depth, Bound("<", -0.8)),
                ("first quarter of the layers - last", of.fallen, Bound(">=", 0.2)),
            ),
        ),
        made(
            id="C3", statement="pre: tasks come apart with depth (interquartile range)", null=_LAYERS, paper=0.88,
            why_not=why_not,
            parts=(
                ("Spearman with depth", of.widening_with_depth, Bound(">", 0.5)),
                ("upper half - 2 x first layer", of.widening, Bound(">=", 0)),
            ),
        ),
        made(
            id="C4", statement="tuned > pre (medians) on every layer of the upper half; by .2 at the last",
            null=_SWAPPED, paper=0.378, why_not=why_not,
            parts=(
                ("last gap", of.last_gap, Bound(">=", 0.2)),
                ("least gap of the upper half", of.least_upper_gap, Bound(">", 0)),
            ),
        ),
        made(
            id="C5", statement="tuned < pre in the second eighth of the layers (difference of medians, mean)",
            null=_SWAPPED, paper=-0.037, parts=(("", of.early_gap, Bound("<", 0)),),
        ),
        made(
            id="C6", statement="tuned: tasks agree from the second quarter of the layers on (interquartile range)",
            null=_SWAPPED, paper=0.38, chance="1",
            parts=(
                ("second quarter, of the second eighth's", of.middle_narrowing, Bound("<", 0.5)),
                ("upper half, of pre's", of.relative_spread, Bound("<", 0.5)),
            ),
        ),
        made(
            id="C12", statement="where there is a transition, it begins and ends where the paper has it (distance in "
            "relative depth; rule changed after the runs of 2026-11-23)", null=_LAYERS, paper=0.0, chance=None,
            least_seeds=_LEAST_SEEDS,
            parts=(
                ("end of the shared layers from 9/32", lambda c: boundary(c)[0], Bound("<=", 0.1)),
                ("end of the transition from 15/32", lambda c: boundary(c)[1], Bound("<=", 0.1)),
            ),
            note=boundary_note(seen),
        ),
        made(
            id="C20", statement="there are shared layers, a transition, and refinement above (share of seeds with all "
            "three)", source=f"{_PAPER}; the bound is ours", null=_LAYERS, paper=1.0, chance=None, shares=True,
            parts=(("", of.all_groups, Bound(">", 0.5)),), note=boundary_note(seen),
        ),
    ]  # fmt: skip


def _of_encoded(config: MossaConfig, curves: Sequence[TaskCurves]) -> SeedCurveFinding:
    return SeedCurveFinding(
        "C7", "the gain (tuned - pre, upper half) is larger for operations that pre-training did not encode "
        "(difference of means over seen tasks)", _PAPER, (("", encoded_difference, Bound(">", 0)),), _CLUSTERS,
        [one.seen for one in curves], why_not=_untested(config), chance="0",
        note="two of six operations are encoded, the same in all seeds: anything else that sets two operations apart "
        "would look the same; the severity accounts for this",
    )  # fmt: skip


def encoded_difference(curves: TaskCurves) -> float:
    """Gain of the tasks that pre-training did not encode, minus that of the others, means over tasks."""
    other = np.asarray(curves.covariates[_NOT_ENCODED]) > 0
    return float(curves.gain[other].mean() - curves.gain[~other].mean())


def _of_pooled(config: MossaConfig, found: Sequence[SeedResults], measure: str) -> SeedCurveFinding:
    """C8 and C11: all seen tasks together, as curves of a single task."""
    dims = measure == "dims"
    curves = [_pooled(m, {k: np.log2(v) for k, v in m.dims.items()} if dims else m.purity) for m in found]
    made = partial(SeedCurveFinding, source=_PAPER, null=_SWAPPED, curves=curves, why_not=_untested(config))
    if dims:
        return made(
            "C8", "tuned needs more dimensions than pre after the first third of the layers (log2 of the ratio, mean)",
            parts=(("", of.late_gap, Bound(">", 0)),), paper=1.07, chance="0",
        )  # fmt: skip
    return made(
        "C11", "nearest neighbours share the cluster more often in tuned, upper half (difference)",
        parts=(("", of.upper_gap, Bound(">", 0)),), chance=f"0; purity by chance {found[0].purity_chance:.2f}",
    )  # fmt: skip


def _of_held_out(
    config: MossaConfig, found: Sequence[SeedResults], curves: Sequence[TaskCurves]
) -> list[SeedCurveFinding]:
    """C9, C18 and C19."""
    why_not, skill = _untested(config), ""
    if not why_not and not any(one.held_out.any() for one in curves):
        why_not = "no controls of held-out tasks"
    if not why_not:
        zero_shot = [m.zero_shot for m in found]
        skill = (
            f"tuned answers held-out, not encoded tasks {np.mean(zero_shot):.2f} above chance without their examples"
        )
        if not np.mean(zero_shot) >= _ABOVE_CHANCE:
            why_not = f"{skill}, tested only from {_ABOVE_CHANCE}: there is no skill to explain"
    made = partial(
        SeedCurveFinding, source=_PAPER, curves=curves, planted=each(planted), chance="0", note="" if why_not else skill
    )
    return [
        made(
            id="C9", statement="held-out tasks: tuned gains less on pre than for seen tasks in the second quarter of "
            "the layers (tuned - pre: seen - held out; called a later rise until 2026-11-24)", null=_HELD_OUT,
            why_not=why_not or _few_layers(config), paper=0.15, parts=(("", of.smaller_gap, Bound(">", 0)),),
            note="" if why_not else f"{skill}; layer from which tuned stays above pre (held out against seen): "
            f"{', '.join(f'{_at(m, ~m.seen)} against {_at(m, m.seen)}' for m in found)}",
        ),
        made(
            id="C18", statement="held-out tasks: tuned > pre in the upper half (difference of medians, mean)",
            null=_SWAPPED, why_not=why_not, paper=0.18,
            parts=(("", lambda c: of.upper_gap(c.unseen), Bound(">", 0)),),
        ),
        made(
            id="C19", statement="held-out tasks: tuned's interquartile range is wider than for seen tasks, upper half "
            "(difference)", null=_HELD_OUT, why_not=why_not, paper=0.45,
            parts=(("", of.wider_spread, Bound(">", 0)),),
        ),
    ]  # fmt: skip


def _of_ceiling(config: MossaConfig, curves: Sequence[TaskCurves]) -> SeedCurveFinding:
    measured = all(one.ceiling is not None for one in curves)
    return SeedCurveFinding(
        "C14", "tuned covers at least half the distance from pre to a second control of the task, upper half", "ours",
        (("", of.way_to_ceiling, Bound(">=", 0.5)),), _SWAPPED, [one.seen for one in curves],
        why_not=_untested(config) or ("" if measured else "no task has a second control"), chance="0",
    )  # fmt: skip


def _checks(config: MossaConfig, found: Sequence[SeedResults]) -> list[Finding]:
    deviation = [max(float(np.abs(m.biased[k] - m.cka[k]).max()) for k in m.cka) for m in found]
    n, d = config.suite.n_eval, config.d_model
    few = "" if n >= 10 * d else f"n is {n}, less than 10 d"
    return [
        finding("C1", "CKA(base, base) is 1, also when one side is rotated and scaled (largest distance, any layer)",
              "definition", [m.identity for m in found], Bound("<=", 1e-9), kind="check", tested=config.test_findings),
        finding("C10", f"biased and debiased CKA agree within .02 at n = {n}, d = {d} (largest difference)", "ours",
              deviation, Bound("<=", 0.02), kind="check", tested=config.test_findings and not few, why_not=few),
    ]  # fmt: skip


# ---- why a finding cannot be tested ----


def _untested(config: MossaConfig) -> str:
    return "" if config.test_findings else "this size of the study cannot test it"


def _few_layers(config: MossaConfig) -> str:
    if config.n_layers >= _LEAST_LAYERS:
        return ""
    return f"{config.n_layers} layers; expected at least {_LEAST_LAYERS}, or eighths of the depth mean little"


# ---- curves ----


def _with_encoded(m: SeedResults) -> TaskCurves:
    return replace(m.curves, covariates={_NOT_ENCODED: (~m.encoded).astype(float)})


def _pooled(m: SeedResults, tables: dict[str, np.ndarray]) -> TaskCurves:
    base, tuned = (np.asarray(tables[which], dtype=float)[None] for which in ("base", "tuned"))
    return TaskCurves(("all",), m.curves.layers, base, tuned, None, None, np.zeros(1, dtype=bool), (None,))


def _at(m: SeedResults, tasks: np.ndarray) -> str:
    layer = m.crossing(tasks)
    return "never" if layer > m.n_layers else str(layer)


def _mean(values: np.ndarray) -> str:
    span = mean_interval(values.tolist())
    return f"{values.mean():.1f}" + ("" if span is None else f" ({span[0]:.1f} to {span[1]:.1f})")
