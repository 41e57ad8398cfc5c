"""The findings O1 to O7 of the method's origin: predictions, written before anything was run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from mechclust.report.findings import Finding, finding, with_severity
from mechclust.report.severity import Severity, severities_of
from mechclust.evidence.bounds import Bound, Verdict
from mechclust.studies.mossa.config import MossaConfig
from mechclust.studies.mossa.origin.results import OriginResults

# Only the paper's abstract was available. It gives no numbers and, for capacity and layers, no direction.
_ABSTRACT = "Zhao, Ziser & Cohen 2022, abstract"
_LEARNT = 0.8
_FIRST, _LAST = 0, -1


def origin_findings(config: MossaConfig, found: Sequence[OriginResults]) -> list[Finding]:
    """O1 to O7 with their severities. All are means over domains; slopes are per doubling of width or data."""
    findings = judge(config, found)
    tested = {c.id for c in findings if c.verdict != "not tested"}
    severities: dict[str, Severity] = {}
    for ids, null, what in _NULLS:
        if wanted := tested & ids:

            def drawn(rng: np.random.Generator, null: _Null = null, ids: set[str] = wanted) -> dict[str, Verdict]:
                return {c.id: c.verdict for c in judge(config, [null(m, rng) for m in found]) if c.id in ids}

            severities |= severities_of(drawn, what)
    return with_severity(findings, severities, Severity(None, 0, "not tested, so no null data were drawn"))


_Null = Callable[[OriginResults, np.random.Generator], OriginResults]
_NULLS: tuple[tuple[set[str], _Null, str], ...] = (
    ({"O1", "O2", "O4", "O7"}, lambda m, rng: m.reordered("widths", rng), "the widths of each seed interchanged"),
    ({"O6"}, lambda m, rng: m.reordered("sizes", rng), "the data sizes of each seed interchanged"),
    ({"O3", "O5"}, lambda m, rng: m.relabelled(rng), "controls assigned to domains at random"),
)


def judge(config: MossaConfig, found: Sequence[OriginResults]) -> list[Finding]:
    """O1 to O7 without their severities."""
    least = min(float(m.accuracy[m.at_reference].mean(axis=0).min()) for m in found)
    why_not = ""
    if config.test_findings and not least >= _LEARNT:
        why_not = f"at the reference, E or its controls answer {least:.2f} correctly; expected {_LEARNT}: not learnt"
    right = [np.mean([m.accuracy[m.widths].mean(axis=1)[:, model] for m in found], axis=0) for model in (0, 1)]
    note = "accuracy by width: E {}; controls {}".format(*(", ".join(f"{v:.2f}" for v in of) for of in right))
    judged = partial(finding, tested=config.test_findings and not why_not, why_not=why_not, chance="0", note=note)
    behind = [_slope(m, m.ceiling - m.own, "widths") for m in found] if config.origin.ceiling else []
    return [
        judged("O1", "E and C_i, last layer: SVCCA above randomly paired rows rises with width (per doubling)",
               f"{_ABSTRACT}; the direction is ours", [_slope(m, m.own - m.chance, "widths") for m in found],
               Bound(">", 0)),
        judged("O2", "width affects the last layer differently from the first: that slope is larger there",
               f"{_ABSTRACT}: capacity affects upper and lower layers differently; the direction is ours",
               [_steeper(m) for m in found], Bound(">", 0)),
        judged("O3", "E on domain i, last layer: more similar to C_i than to the other controls (SVCCA, difference)",
               f"{_ABSTRACT}: E is like its controls conjoined", [_excess(m, _LAST) for m in found], Bound(">", 0)),
        judged("O4", "that difference rises with width (per doubling)",
               f"{_ABSTRACT}: larger E are like their controls conjoined",
               [_slope(m, m.own - m.others, "widths") for m in found], Bound(">", 0)),
        judged("O5", "that difference is larger at the last layer than at the first", "ours",
               [_excess(m, _LAST) - _excess(m, _FIRST) for m in found], Bound(">", 0)),
        judged("O6", "E and C_i, last layer: SVCCA above randomly paired rows rises with the data (per doubling)",
               "ours; the paper varies the data, but its abstract gives no finding",
               [_slope(m, m.own - m.chance, "sizes") for m in found], Bound(">", 0)),
        judged("O7", "E falls less short of a second control as width grows: ceiling - SVCCA falls (per doubling)",
               f"{_ABSTRACT}: larger E are like their controls conjoined; the ceiling is ours", behind,
               Bound("<", 0)),
    ]  # fmt: skip


def _slope(m: OriginResults, measure: np.ndarray, along: str, layer: int = _LAST) -> float:
    """The mean over domains of a measure ``[cell domain layer]``."""
    return m.per_doubling(measure[:, :, layer].mean(axis=1), along)


def _steeper(m: OriginResults) -> float:
    above = m.own - m.chance
    return _slope(m, above, "widths") - _slope(m, above, "widths", _FIRST)


def _excess(m: OriginResults, layer: int) -> float:
    """At the reference: similarity with the domain's own control minus that with the others."""
    return float((m.own - m.others)[m.at_reference, :, layer].mean())
