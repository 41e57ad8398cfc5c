"""The claims C1 to C11 of the MOSSA study, with bounds written before the paper's size was run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from mechclust.report import curve_statistics as of
from mechclust.report.claims import Claim, claim, with_severity
from mechclust.report.verdicts import Bound
from mechclust.studies.mossa.config import MossaConfig
from mechclust.studies.mossa.results import SeedResults

_PAPER = "Zhao, Ziser & Cohen"
_ABOVE_CHANCE = 0.05


def claims_of(config: MossaConfig, found: Sequence[SeedResults]) -> list[Claim]:
    """C1 to C11."""
    judged = partial(claim, tested=config.test_claims)
    deviation = [max(float(np.abs(m.biased[k] - m.cka[k]).max()) for k in m.cka) for m in found]
    widening = [float(of.widening(m.curves.seen)) for m in found]
    last = [float(of.last_gap(m.curves.seen)) for m in found]
    above = [float(of.least_gap_after_shared(m.curves.seen)) for m in found]
    gains = [float(m.gain[m.seen & ~m.encoded].mean() - m.gain[m.seen & m.encoded].mean()) for m in found]
    dims = [of.dims_difference(m.curves.seen) for m in found]
    purer = [float((m.purity["tuned"] - m.purity["base"])[m.upper].mean()) for m in found]
    zero_shot = float(np.mean([_zero_shot(m) for m in found]))
    skilled = zero_shot >= _ABOVE_CHANCE
    explained = found if skilled or not config.test_claims else []  # without such skill the numbers mean nothing
    later = [float(m.crossing(~m.seen) - m.crossing(m.seen)) for m in explained]
    crossings = ", ".join(f"{_at(m, ~m.seen)} against {_at(m, m.seen)}" for m in found)
    ceiling = [float(1 - np.median(m.ceiling, axis=0).min()) for m in found if m.ceiling is not None]
    none = [float(not m.unseen_groups.transition) for m in explained]
    n, d = config.suite.n_eval, config.d_model
    groups = "; ".join(dict.fromkeys(str(m.groups) for m in found))
    judgements = [
        judged("C1", "CKA(base, base) is 1, also when one side is rotated and scaled (largest distance, any layer)",
               "definition", [m.identity for m in found], Bound("<=", 1e-9), kind="check"),
        judged("C2", "pre: median CKA with the controls falls with depth (Spearman)", _PAPER,
               [float(of.fall_with_depth(m.curves.seen)) for m in found], Bound("<", -0.8)),
        judged("C3", "pre: interquartile range over tasks, mean of the upper half, is at least twice the first layer's",
               _PAPER, widening, [("upper - 2 x first", widening, Bound(">=", 0))]),
        judged("C4", "tuned > pre (medians) on every layer after the shared ones; by .2 at the last", _PAPER, last,
               [("last gap", last, Bound(">=", 0.2)), ("least gap", above, Bound(">", 0))],
               paper=0.378, chance="0", note=f"{groups}; worst seed {min(above):.3g}"),
        judged("C5", "some early layer (lower half) has tuned < pre (the least median difference)", _PAPER,
               [float(of.early_dip(m.curves.seen)) for m in found], Bound("<", 0), paper=-0.044,
               chance=f"just below 0; two controls of a task differ by up to {max(ceiling):.3f}" if ceiling else None),
        judged("C6", "tuned interquartile range after the shared layers falls below half its value at their end",
               _PAPER, [float(of.narrowing(m.curves.seen)) for m in found], Bound("<", 0.5), paper=0.32),
        judged("C7", "the gain (tuned - pre, upper half) is larger for clusters that pre-training did not encode",
               _PAPER, gains, Bound(">", 0), chance="0"),
        judged("C8", "tuned needs at least as many dimensions as pre after the first third (least difference)", _PAPER,
               dims, Bound(">=", 0), chance="0", note=f"worst seed {min(dims):.3g}"),
        judged("C9", "held-out tasks: tuned crosses pre later than for seen tasks, and there is no transition", _PAPER,
               later, [("layers later", later, Bound(">", 0)), ("no transition", none, Bound(">=", 1))],
               tested=config.test_claims and skilled, paper=4,
               why_not="" if skilled else "tuned has no skill on held-out tasks that could be explained",
               note=f"crossing at layer (held out against seen) {crossings}; the paper's 4 are of 32 layers; accuracy "
               f"on held-out, not encoded skills is {zero_shot:.2f} above chance, tested from {_ABOVE_CHANCE} on"),
        judged("C10", f"biased and debiased CKA agree within .02 at n = {n}, d = {d} (largest difference)", "ours",
               deviation, Bound("<=", 0.02), kind="check", tested=config.test_claims and n >= 10 * d,
               why_not="" if n >= 10 * d else f"n is {n}, less than 10 d"),
        judged("C11", "nearest neighbours at ANS share the cluster more often in tuned, upper half (difference)",
               _PAPER, purer, Bound(">", 0), chance=f"0; purity by chance {found[0].purity_chance:.2f}"),
    ]  # fmt: skip
    return with_severity(judgements)


def _zero_shot(m: SeedResults) -> float:
    """How far the tuned model is above chance on held-out skills whose operation pre-training did not answer."""
    cells = ~m.seen & ~m.encoded
    return float((m.accuracy["tuned"] - m.chance)[cells].mean()) if cells.any() else math.nan


def _at(m: SeedResults, tasks: np.ndarray) -> str:
    layer = m.crossing(tasks)
    return "never" if layer > m.n_layers else str(layer)
