"""The findings of MOSSA that the study and the command share: C2 to C6, C8, C9 and C11 to C20.

The study judges them over the seeds of networks trained from scratch, the command over the tasks of a real model. Each
states C7 in its own ``findings.py``, and the study's also has the check C1. The check C10 is in ``cka_forms``.

Two things are called controls. In statements, as in the paper, *the controls* are the models tuned on one task alone
(single-task models). In code, the ``control`` of a finding is a set of curves in which its statement should be false.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Control, Finding, Part, mean_part, resampled_part, share_part
from mechclust.evidence.finding import Shown
from mechclust.evidence.intervals import Interval
from mechclust.mossa import shuffled_curves as shuffled
from mechclust.mossa.correlations import (
    band_correlation,
    base_median_depth_correlation,
    base_spread_depth_correlation,
    correlation_interval,
    n_known,
)
from mechclust.mossa.gaps_and_spreads import (
    base_median_fall,
    base_spread_doubling,
    ceiling_gap_share,
    gap_after_first_third,
    last_layer_gap,
    least_upper_half_gap,
    middle_spread_ratio,
    own_control_advantage,
    second_eighth_gap,
    unseen_gap_deficit,
    unseen_spread_excess,
    unseen_upper_half_gap,
    upper_half_gap,
    upper_half_spread_ratio,
)
from mechclust.mossa.layer_groups import (
    has_all_layer_groups,
    shared_layers_end_distance,
    transition_layers_end_distance,
)
from mechclust.mossa.published import COLEMAN_LIAU, DATA_SIZE, FLESCH_KINCAID
from mechclust.mossa.shuffled_curves import FalseCurves
from mechclust.mossa.task_bootstrap import MOST_UNDEFINED, Statistic, task_bootstrap_ends
from mechclust.mossa.task_curves import LEAST_TASKS, TaskCurves, Which
from mechclust.report.text import list_text

_PAPER = "Zhao, Ziser & Cohen"
RESAMPLES = 1000
_LEAST_LAYERS = 8  # an eighth of the depth is then a layer
_LEAST_SEEDS = 3


@dataclass(frozen=True)
class CurveFindingPart:
    """A statistic of the curves and the bound that it must satisfy.

    Attributes:
        statistic: one number for ``TaskCurves``. For ``curves.resampled(n)``, an array of ``n``.
        bound: the bound that it must satisfy.
        name: the quantity, or ``""`` if the finding's statement says it.
        covariate: name of the covariate, if the statistic is a correlation with it over tasks.
    """

    statistic: Statistic
    bound: Bound
    name: str = ""
    covariate: str = ""


@dataclass(frozen=True, kw_only=True)
class CurveFinding:
    """A statement about the layers of a base and a tuned model, before any value.

    The curves are CKA with the single-task models. For C8 they are log2 of the dimensions, for C11 the share of nearest
    neighbours in the same cluster. Give ``curves.seen``. For C9, C18 and C19, which compare held-out tasks with seen
    ones, give all curves, for C14 ``curves.seen.with_ceiling``.

    Attributes:
        id: short name.
        statement: the claim in words.
        parts: all of these must hold. The first has the main value.
        control: the curves on which these parts are judged as well.
        source: where the claim comes from.
        paper: the paper's own value.
        shown: where a report shows it, as ``Finding.shown``.
        by_depth: whether it needs ``_LEAST_LAYERS`` layers, because it uses quarters or eighths of the depth, a
            correlation with depth, or layer groups.
        share: whether its values over seeds are shares.
        condition: required for the statistics to be defined, such as a transition. ``""`` if they always are. Seeds
            without it are left out, and at least ``_LEAST_SEEDS`` must remain.
    """

    id: str
    statement: str
    parts: tuple[CurveFindingPart, ...]
    control: FalseCurves
    source: str = _PAPER
    paper: float | None = None
    shown: Shown = "table"
    by_depth: bool = False
    share: bool = False
    condition: str = ""


def _tuned_as_base(curves: TaskCurves) -> TaskCurves:
    return replace(curves, base=curves.tuned)


def _positive_correlation(which: Which, covariate: str, start: float, end: float) -> CurveFindingPart:
    """Return the part that requires a positive ``band_correlation``."""
    statistic = partial(band_correlation, which=which, covariate=covariate, start=start, end=end)
    return CurveFindingPart(statistic, Bound(">", 0), covariate=covariate)


_SWAPPED = FalseCurves("base and tuned swapped for a random half of the tasks", shuffled.swapped_curves)
_TUNED = FalseCurves("the tuned model in place of the base", _tuned_as_base, random=False)
_LAYERS = FalseCurves("layers in one random order", shuffled.permuted_layers)
_HELD_OUT = FalseCurves("random seen tasks called held out", shuffled.held_out_shuffled_curves)
_EXCHANGED = FalseCurves(
    "single-task models of other tasks for a random half of the tasks", shuffled.control_shuffled_curves
)
OTHER_TASKS = FalseCurves("covariates of other tasks", shuffled.covariate_shuffled_curves)

_FINDINGS = (
    CurveFinding(
        id="C2",
        statement="the base model's median CKA with the controls falls with depth",
        parts=(
            CurveFindingPart(base_median_depth_correlation, Bound("<", -0.8), name="Spearman with depth"),
            CurveFindingPart(base_median_fall, Bound(">=", 0.2), name="first quarter of the layers - last"),
        ),
        control=_TUNED,
        paper=-0.94,
        shown="headline",
        by_depth=True,
    ),
    CurveFinding(
        id="C3",
        statement="in the base model, tasks come apart with depth (interquartile range of CKA over tasks)",
        parts=(
            CurveFindingPart(base_spread_depth_correlation, Bound(">", 0.5), name="Spearman with depth"),
            CurveFindingPart(base_spread_doubling, Bound(">=", 0), name="upper half - 2 x first layer"),
        ),
        control=_TUNED,
        paper=0.88,
        by_depth=True,
    ),
    CurveFinding(
        id="C4",
        statement="the tuned model is closer to the controls than the base on every layer of the upper half, by 0.2 "
        "at the last (difference of medians over tasks)",
        parts=(
            CurveFindingPart(last_layer_gap, Bound(">=", 0.2), name="last layer"),
            CurveFindingPart(least_upper_half_gap, Bound(">", 0), name="least of the upper half"),
        ),
        control=_SWAPPED,
        paper=0.378,
        shown="headline",
    ),
    CurveFinding(
        id="C5",
        statement="in the second eighth of the layers, the tuned model is farther from the controls than the base "
        "(tuned - base, difference of medians)",
        parts=(CurveFindingPart(second_eighth_gap, Bound("<", 0)),),
        control=_LAYERS,
        paper=-0.037,
        shown="page",
        by_depth=True,
    ),
    CurveFinding(
        id="C6",
        statement="in the tuned model, tasks agree from the second quarter of the layers on (ratio of interquartile "
        "ranges over tasks)",
        parts=(
            CurveFindingPart(middle_spread_ratio, Bound("<", 0.5), name="second quarter / second eighth"),
            CurveFindingPart(upper_half_spread_ratio, Bound("<", 0.5), name="upper half / that of the base"),
        ),
        control=_SWAPPED,
        paper=0.38,
        by_depth=True,
    ),
    CurveFinding(
        id="C8",
        statement="the tuned model needs more dimensions than the base after the first third of the layers (log2 of "
        "the ratio)",
        parts=(CurveFindingPart(gap_after_first_third, Bound(">", 0)),),
        control=_LAYERS,
        paper=1.07,
    ),
    CurveFinding(
        id="C9",
        statement="in the second quarter of the layers, the tuned model gains less on the base for held-out tasks "
        "than for seen ones (seen - held out)",
        parts=(CurveFindingPart(unseen_gap_deficit, Bound(">", 0)),),
        control=_HELD_OUT,
        paper=0.15,
        shown="page",
        by_depth=True,
    ),
    CurveFinding(
        id="C11",
        statement="in the upper half of the layers, nearest neighbours share the cluster more often in the tuned model "
        "than in the base (difference)",
        parts=(CurveFindingPart(upper_half_gap, Bound(">", 0)),),
        control=_LAYERS,
        shown="page",
    ),
    CurveFinding(
        id="C12",
        statement="if there is a transition, it begins and ends where the paper has it (distance in relative depth)",
        parts=(
            CurveFindingPart(shared_layers_end_distance, Bound("<=", 0.1), name="end of the shared layers from 9/32"),
            CurveFindingPart(transition_layers_end_distance, Bound("<=", 0.1), name="end of the transition from 15/32"),
        ),
        control=_LAYERS,
        paper=0.0,
        shown="page",
        by_depth=True,
        condition="transition",
    ),
    CurveFinding(
        id="C13",
        statement="the tuned model is more similar to a task's own control than to those of other tasks, upper half "
        "(difference)",
        parts=(CurveFindingPart(own_control_advantage, Bound(">", 0)),),
        control=_EXCHANGED,
        source="ours",
    ),
    CurveFinding(
        id="C14",
        statement="the tuned model covers at least half of the distance from the base to a second control of the task, "
        "upper half",
        parts=(CurveFindingPart(ceiling_gap_share, Bound(">=", 0.5)),),
        control=_SWAPPED,
        source="ours",
    ),
    CurveFinding(
        id="C15",
        statement=f"the tuned model's CKA rises with the {FLESCH_KINCAID} (correlation over tasks, as in layers 15 to "
        "29 of 32)",
        parts=(_positive_correlation("tuned", FLESCH_KINCAID, start=14 / 32, end=29 / 32),),
        control=OTHER_TASKS,
        paper=0.40,
    ),
    CurveFinding(
        id="C16",
        statement=f"the tuned model's CKA rises with the {COLEMAN_LIAU} (correlation over tasks, as in layers 15 to 23 "
        "of 32)",
        parts=(_positive_correlation("tuned", COLEMAN_LIAU, start=14 / 32, end=23 / 32),),
        control=OTHER_TASKS,
        paper=0.43,
    ),
    CurveFinding(
        id="C17",
        statement=f"the base model's CKA rises with the {DATA_SIZE} (correlation over tasks, first layer)",
        parts=(_positive_correlation("base", DATA_SIZE, start=0, end=0),),
        control=OTHER_TASKS,
        paper=0.46,
    ),
    CurveFinding(
        id="C18",
        statement="held-out tasks: in the upper half of the layers, the tuned model is closer to the controls than the "
        "base (difference of medians)",
        parts=(CurveFindingPart(unseen_upper_half_gap, Bound(">", 0)),),
        control=_SWAPPED,
        paper=0.18,
    ),
    CurveFinding(
        id="C19",
        statement="in the upper half of the layers of the tuned model, held-out tasks differ more than seen ones "
        "(difference of interquartile ranges)",
        parts=(CurveFindingPart(unseen_spread_excess, Bound(">", 0)),),
        control=_HELD_OUT,
        paper=0.45,
    ),
    CurveFinding(
        id="C20",
        statement="there are shared layers, a transition, and refinement above (1 if all three)",
        parts=(CurveFindingPart(has_all_layer_groups, Bound(">", 0.5)),),
        control=_LAYERS,
        source=f"{_PAPER}; bound ours",
        paper=1.0,
        shown="headline",
        by_depth=True,
        share=True,
    ),
)
CURVE_FINDINGS = {finding.id: finding for finding in _FINDINGS}


# ---- over seeds ----


def judge_curves_over_seeds(
    stated: CurveFinding,
    curves: Sequence[TaskCurves],
    *,
    control: tuple[str, Sequence[TaskCurves]] | None = None,
    not_tested: str = "",
    note: str = "",
) -> Finding:
    """Judge a finding by the mean of its numbers over seeds.

    Args:
        stated: the finding.
        curves: one for each seed.
        control: name and curves of a measured control, in place of ``stated.control``.
        not_tested: why it cannot be tested, or ``""``.
        note: for the reader.

    Example:
        >>> base = np.linspace(0.2, 0.4, 20)[:, None]
        >>> names = tuple(map(str, range(20)))
        >>> seen = np.zeros(20, dtype=bool)
        >>> curves = [
        ...     TaskCurves(
        ...         tasks=names, layers=("1",), base=base, tuned=base + gain, ceiling=None, null=None, held_out=seen,
        ...         clusters=(None,) * 20,
        ...     )
        ...     for gain in (0.38, 0.4, 0.42)
        ... ]
        >>> found = judge_curves_over_seeds(CURVE_FINDINGS["C4"], curves)
        >>> found.verdict, round(found.measured, 3), found.control.verdict
        ('holds', 0.4, 'does not hold')
    """
    why_not = not_tested or _few_layers(stated, curves[0]) or _few_seeds(stated, curves)
    if why_not:
        return _finding_from(stated, _parts_over_seeds(stated, []), None, "seeds", why_not, note)
    name, control_curves = control or _control_curves(stated.control, curves)
    parts = _parts_over_seeds(stated, curves)
    return _finding_from(stated, parts, Control(name, _parts_over_seeds(stated, control_curves)), "seeds", "", note)


def _control_curves(control: FalseCurves, curves: Sequence[TaskCurves]) -> tuple[str, Sequence[TaskCurves]]:
    """Return the name and the curves of a control."""
    name = f"{control.name}, the same in all seeds" if control.random else control.name
    return name, [control.change(one) for one in curves]


def _parts_over_seeds(stated: CurveFinding, curves: Sequence[TaskCurves]) -> tuple[Part, ...]:
    values = _values(stated, curves)
    if stated.condition:
        values = values[:, np.isfinite(values).all(axis=0)]
    part = share_part if stated.share else mean_part
    return tuple(part(spec.name, row, spec.bound) for spec, row in zip(stated.parts, values, strict=True))


def _values(stated: CurveFinding, curves: Sequence[TaskCurves]) -> Float[np.ndarray, "part seed"]:
    """Return the number of each part in each seed."""
    values = [[float(part.statistic(one)) for one in curves] for part in stated.parts]
    return np.array(values, dtype=float).reshape(len(stated.parts), len(curves))


def _few_seeds(stated: CurveFinding, curves: Sequence[TaskCurves]) -> str:
    if not stated.condition:
        return ""
    defined = int(np.isfinite(_values(stated, curves)).all(axis=0).sum())
    if defined >= _LEAST_SEEDS:
        return ""
    return f"defined in {defined} of {len(curves)} seeds; at least {_LEAST_SEEDS} are needed"


# ---- over tasks ----


def judge_curves_over_tasks(
    stated: CurveFinding,
    curves: TaskCurves,
    *,
    not_tested: str = "",
    note: str = "",
    seed: int = 0,
) -> Finding:
    """Judge a finding of one run by its interval over tasks: a bootstrap's, or Fisher's of a correlation over tasks.

    Args:
        stated: the finding.
        curves: of the tasks that the finding needs.
        not_tested: why it cannot be tested, or ``""``.
        note: for the reader.
        seed: for drawing tasks anew.
    """
    why_not = not_tested or _few_layers(stated, curves) or _undefined(stated, curves)
    if why_not:
        without_values = tuple(resampled_part(part.name, [], None, part.bound) for part in stated.parts)
        return _finding_from(stated, without_values, None, "tasks", why_not, note)
    parts, remarks = _parts_over_tasks(stated, curves, seed)
    control_parts, control_remarks = _parts_over_tasks(stated, stated.control.change(curves), seed)
    control = Control(stated.control.name, control_parts)
    remarks += [f"control: {remark}" for remark in control_remarks if remark]
    return _finding_from(stated, parts, control, "tasks", "", "; ".join(filter(None, [note, *remarks])))


def _parts_over_tasks(stated: CurveFinding, curves: TaskCurves, seed: int) -> tuple[tuple[Part, ...], list[str]]:
    """Return the parts with their intervals, and for each a remark on draws that are left out, or ``""``."""
    drawn = curves.resampled(RESAMPLES, seed)
    parts = []
    remarks = []
    for spec in stated.parts:
        value = float(spec.statistic(curves))
        if spec.covariate:
            n = n_known(curves, spec.covariate)
            few = n < LEAST_TASKS
            low, high = map(float, correlation_interval(value, n))
            undefined = 0.0
        else:
            few = curves.few
            over_draws = spec.statistic(drawn)
            low, high = map(float, task_bootstrap_ends(over_draws))
            undefined = float(np.isnan(over_draws).mean())
        part = resampled_part(spec.name, [value], None if few else (low, high), spec.bound)
        parts.append(part)
        remarks.append(_remark(spec.name or "the value", part.interval, undefined, few=few))
    return tuple(parts), remarks


def _remark(name: str, interval: Interval | None, undefined: float, *, few: bool) -> str:
    if few:
        return f"no interval of {name}: fewer than {LEAST_TASKS} tasks have the numbers it needs"
    if interval is None:
        return f"no interval of {name}: undefined in more than {MOST_UNDEFINED:.0%} of the draws of tasks"
    if undefined:
        return f"{undefined:.1%} of the draws of tasks leave {name} undefined and are left out of its interval"
    return ""


def _undefined(stated: CurveFinding, curves: TaskCurves) -> str:
    names = [part.name or "the value" for part in stated.parts if np.isnan(part.statistic(curves))]
    if not names:
        return ""
    if stated.condition and not curves.undefined_layers:
        return f"there is no {stated.condition}"
    return f"{list_text(names)} {'is' if len(names) == 1 else 'are'} undefined"


# ---- over seeds or tasks ----


def _few_layers(stated: CurveFinding, curves: TaskCurves) -> str:
    if stated.control is _LAYERS and curves.n_layers == 1:
        return "one layer has no other order"
    if not stated.by_depth or curves.n_layers >= _LEAST_LAYERS:
        return ""
    return f"{curves.n_layers} layers; expected at least {_LEAST_LAYERS}, or eighths of the depth mean little"


def _finding_from(
    stated: CurveFinding, parts: tuple[Part, ...], control: Control | None, unit: str, not_tested: str, note: str
) -> Finding:
    return Finding(
        id=stated.id,
        statement=stated.statement,
        source=stated.source,
        parts=parts,
        control=control,
        unit=unit,
        shown=stated.shown,
        paper=stated.paper,
        not_tested=not_tested,
        note=note,
    )
