"""The findings O1 to O7 of the method's origin: predictions, written before anything was run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Control, Finding, Part, mean_part
from mechclust.studies.mossa.config import MossaConfig
from mechclust.studies.mossa.origin.results import OriginResults

# Only the paper's abstract was available. It gives no numbers and, for capacity and layers, no direction.
_ABSTRACT = "Zhao, Ziser & Cohen 2022, abstract"
_CONTROL = "the next domain's control in place of the domain's own"
_LEARNT = 0.8
_FIRST, _LAST = 0, -1


@dataclass(frozen=True)
class _Prediction:
    """A number of one seed's results, with the bound on its mean over seeds."""

    id: str
    statement: str
    source: str
    measure: Callable[[OriginResults], float]
    bound: Bound = Bound(">", 0)


def origin_findings(config: MossaConfig, seeds: Sequence[OriginResults]) -> list[Finding]:
    """Return O1 to O7. All are means over domains; slopes are per doubling of width or data."""
    not_tested = _untested(config, seeds)
    note = _accuracies(seeds)
    findings = []
    for prediction in _PREDICTIONS:
        measured = seeds if prediction.id != "O7" or config.origin.ceiling else []
        findings.append(
            Finding(
                id=prediction.id,
                statement=prediction.statement,
                source=prediction.source,
                parts=_parts(prediction, measured),
                control=Control(_CONTROL, _parts(prediction, [one.next_controls() for one in measured])),
                not_tested=not_tested,
                note=note,
            )
        )
    return findings


def _parts(prediction: _Prediction, seeds: Sequence[OriginResults]) -> tuple[Part, ...]:
    return (mean_part("", [prediction.measure(one) for one in seeds], prediction.bound),)


def _untested(config: MossaConfig, seeds: Sequence[OriginResults]) -> str:
    if not config.test_findings:
        return "this size of the study cannot test it"
    least = min(float(one.accuracy[one.at_reference].mean(axis=0).min()) for one in seeds)
    if least >= _LEARNT:
        return ""
    return f"at the reference, E or its controls answer {least:.2f} correctly; expected {_LEARNT}: not learnt"


def _accuracies(seeds: Sequence[OriginResults]) -> str:
    by_width = np.mean([one.accuracy[one.widths].mean(axis=1) for one in seeds], axis=0)  # [width model]
    experimental, controls = (", ".join(f"{value:.2f}" for value in column) for column in by_width.T)
    return f"accuracy by width: E {experimental}; controls {controls}"


# ---- what is measured ----


def _rise_with_width(results: OriginResults) -> float:
    return _slope(results, results.own - results.chance, "widths", _LAST)


def _rise_with_data(results: OriginResults) -> float:
    return _slope(results, results.own - results.chance, "sizes", _LAST)


def _steeper_at_the_top(results: OriginResults) -> float:
    above_chance = results.own - results.chance
    return _slope(results, above_chance, "widths", _LAST) - _slope(results, above_chance, "widths", _FIRST)


def _more_than_others(results: OriginResults) -> float:
    return _excess(results, _LAST)


def _more_than_others_with_width(results: OriginResults) -> float:
    return _slope(results, results.own - results.others, "widths", _LAST)


def _more_than_others_at_the_top(results: OriginResults) -> float:
    return _excess(results, _LAST) - _excess(results, _FIRST)


def _shortfall_with_width(results: OriginResults) -> float:
    return _slope(results, results.ceiling - results.own, "widths", _LAST)


def _slope(results: OriginResults, measure: Float[np.ndarray, "cell domain layer"], along: str, layer: int) -> float:
    """Return the slope of the mean over domains, per doubling."""
    return results.per_doubling(measure[:, :, layer].mean(axis=1), along)


def _excess(results: OriginResults, layer: int) -> float:
    """Return, at the reference, the similarity with the domain's own control minus that with the others."""
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
