"""The findings O1 to O7 of the method's origin: predictions, written before anything was run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Finding
from mechclust.evidence.compared import compared
from mechclust.evidence.findings import TOO_SMALL
from mechclust.studies.mossa.config import MossaConfig
from mechclust.studies.mossa.origin.results import OriginResults, Sweep

# Only the paper's abstract was available. It gives no numbers and, for capacity and layers, no direction.
_ABSTRACT = "Zhao, Ziser & Cohen 2022, abstract"
_CONTROL = "the next domain's control in place of the domain's own"
_LEAST_ACCURACY = 0.8  # of E and its controls at the reference
_FIRST = 0
LAST = -1


@dataclass(frozen=True)
class _Prediction:
    """A number of one seed's results, with the bound on its mean over seeds."""

    id: str
    statement: str
    source: str
    measure: Callable[[OriginResults], float]
    bound: Bound = Bound(">", 0)


def origin_findings(config: MossaConfig, seeds: Sequence[OriginResults]) -> list[Finding]:
    """Return O1 to O7. All are means over domains, and slopes are per doubling of width or data."""
    not_tested = _untested(config, seeds)
    note = _accuracies(seeds)
    findings = []
    for prediction in _PREDICTIONS:
        measured = seeds if prediction.id != "O7" or config.origin.ceiling else []
        findings.append(
            compared(
                prediction.id,
                prediction.statement,
                {"": prediction.bound},
                [np.array([prediction.measure(one) for one in measured], dtype=float)],
                _CONTROL,
                [np.array([prediction.measure(one.next_controls()) for one in measured], dtype=float)],
                source=prediction.source,
                not_tested=not_tested,
                note=note,
            )
        )
    return findings


def _untested(config: MossaConfig, seeds: Sequence[OriginResults]) -> str:
    if not config.test_findings:
        return TOO_SMALL
    least = min(float(one.accuracy[one.at_reference].mean(axis=0).min()) for one in seeds)
    if least >= _LEAST_ACCURACY:
        return ""
    return f"at the reference, E or its controls answer {least:.2f} correctly; expected {_LEAST_ACCURACY}: not learnt"


def _accuracies(seeds: Sequence[OriginResults]) -> str:
    widths = list(seeds[0].along("widths"))
    by_width = np.mean([one.accuracy[widths].mean(axis=1) for one in seeds], axis=0)
    experimental = ", ".join(f"{accuracy:.2f}" for accuracy in by_width[:, 0])
    controls = ", ".join(f"{accuracy:.2f}" for accuracy in by_width[:, 1])
    return f"accuracy by width: E {experimental}; controls {controls}"


# ---- measures ----


def _rise_with_width(results: OriginResults) -> float:
    return _slope(results, results.own - results.chance, "widths", LAST)


def _rise_with_data(results: OriginResults) -> float:
    return _slope(results, results.own - results.chance, "sizes", LAST)


def _steeper_at_the_top(results: OriginResults) -> float:
    above_chance = results.own - results.chance
    return _slope(results, above_chance, "widths", LAST) - _slope(results, above_chance, "widths", _FIRST)


def _more_than_others(results: OriginResults) -> float:
    return _excess(results, LAST)


def _more_than_others_with_width(results: OriginResults) -> float:
    return _slope(results, results.own - results.others, "widths", LAST)


def _more_than_others_at_the_top(results: OriginResults) -> float:
    return _excess(results, LAST) - _excess(results, _FIRST)


def _shortfall_with_width(results: OriginResults) -> float:
    return _slope(results, results.ceiling - results.own, "widths", LAST)


def _slope(results: OriginResults, measure: Float[np.ndarray, "cell domain layer"], sweep: Sweep, layer: int) -> float:
    """Return the slope of the mean over domains, per doubling."""
    return results.per_doubling(measure[:, :, layer].mean(axis=1), sweep)


def _excess(results: OriginResults, layer: int) -> float:
    """Return, at the reference, the similarity with the domain's control minus the similarity with the others."""
    return float((results.own - results.others)[results.at_reference, :, layer].mean())


_PREDICTIONS = (
    _Prediction(
        "O1",
        "E and C_i, last layer: SVCCA above randomly paired rows rises with width (per doubling)",
        f"{_ABSTRACT}; the direction is ours",
        _rise_with_width,
    ),
    _Prediction(
        "O2",
        "width affects the last layer differently from the first: that slope is larger there",
        f"{_ABSTRACT}: capacity affects upper and lower layers differently; the direction is ours",
        _steeper_at_the_top,
    ),
    _Prediction(
        "O3",
        "E on domain i, last layer: more similar to C_i than to the other controls (SVCCA, difference)",
        f"{_ABSTRACT}: E is like its controls conjoined",
        _more_than_others,
    ),
    _Prediction(
        "O4",
        "that difference rises with width (per doubling)",
        f"{_ABSTRACT}: larger E are like their controls conjoined",
        _more_than_others_with_width,
    ),
    _Prediction(
        "O5", "that difference is larger at the last layer than at the first", "ours", _more_than_others_at_the_top
    ),
    _Prediction(
        "O6",
        "E and C_i, last layer: SVCCA above randomly paired rows rises with the data (per doubling)",
        "ours; the paper varies the data, but its abstract gives no finding",
        _rise_with_data,
    ),
    _Prediction(
        "O7",
        "E falls less short of a second control as width grows: ceiling - SVCCA falls (per doubling)",
        f"{_ABSTRACT}: larger E are like their controls conjoined; the ceiling is ours",
        _shortfall_with_width,
        Bound("<", 0),
    ),
)
