"""Findings P9 to P15: what comes after the two stages, and what topics more like those of text change.

Predictions, written before any run on seeds 20 to 27. They are based on what one seed showed (100, exploration): the
published documents with SGD, Adam and the squared loss and, of the other documents, those with all changes at once
(Adam only). What single changes of the documents do (P14 to P14c) had not been seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Finding
from mechclust.evidence.compared import compared
from mechclust.evidence.findings import untested_findings
from mechclust.studies.topic_structure.arms import (
    CORRELATED,
    FEWER,
    INDEPENDENT,
    OBJECTIVES,
    PUBLISHED,
    beyond_arm,
    beyond_documents,
)
from mechclust.studies.topic_structure.beyond.results import TOPICAL, BeyondRun, BeyondRuns
from mechclust.studies.topic_structure.config import TopicStructureConfig

OPTIMIZERS = ("SGD", "Adam")
_AFTER = "ours; Li, Li & Risteski's slides ask what follows the two stages"
_REAL = "ours; Li, Li & Risteski's slides ask what more realistic topics do"
_ABOVE = Bound(">", 0)
_TOPICAL = Bound(">=", TOPICAL)
_RATIO = "ratio of same-topic to different-topic attention"
_TOPIC_MEASURES = ("explained", "contrast")
_LEAST_STEPS = 20_000
_CROSS_ENTROPY, _SQUARED = OBJECTIVES
_END = -1
_START = 0
_BEFORE = "before training"
_SAME_STEPS = "squared loss, over the same steps"

_Seeds = Float[np.ndarray, "seed"]
_after = partial(compared, source=_AFTER)
_with_documents = partial(compared, source=_REAL)


def beyond_findings(config: TopicStructureConfig, runs: BeyondRuns) -> list[Finding]:
    """Return P9 to P15 of a run of E5."""
    findings = [
        _rank_one_first(runs),
        _beyond_random_topics(runs),
        *_once_topical(runs),
        *_less_topical(config, runs),
        _still_topical(config, runs),
    ]
    if config.beyond.steps >= _LEAST_STEPS:
        return findings
    return untested_findings(findings)


# ---- after the two stages, on the published documents ----


def _rank_one_first(runs: BeyondRuns) -> Finding:
    bounds = {
        "least rank": Bound("<=", 1.5),
        "share common to all queries then": Bound(">=", 0.5),
        "ratio then": Bound("<", TOPICAL),
        "ratio at the end": _TOPICAL,
    }
    before = [run.rank[_START] for run in (*runs[beyond_arm("SGD")], *runs[beyond_arm("Adam")])]
    return _after(
        "P9",
        f"E5, published documents: while attention is not topical (ratio below {TOPICAL:g}), its scores fall to "
        "effective rank 1, most of their variance common to all queries; later it is topical",
        {f"{name}, {measure}": bound for name, (measure, bound) in product(OPTIMIZERS, bounds.items())},
        _at_least_rank(runs, _CROSS_ENTROPY),
        "squared loss",
        _at_least_rank(runs, _SQUARED),
        note=f"rank before training: {np.mean(before):.0f}",
    )


def _at_least_rank(runs: BeyondRuns, objective: str) -> list[_Seeds]:
    """Return the measures of each optimiser's networks at the step with the least rank, and the ratio at the end."""
    values = []
    for name in OPTIMIZERS:
        measured = []
        for run in runs[beyond_arm(name, objective=objective)]:
            step = 1 + int(run.rank[1:].argmin())
            measured.append([run.rank[step], run.scores["common"][step], run.ratio[step], run.ratio[_END]])
        values += list(np.array(measured).T)
    return values


def _beyond_random_topics(runs: BeyondRuns) -> Finding:
    return _after(
        "P10",
        "E5, published documents, at the end: topics explain more of the attention among all words than random topics "
        "do, and words of one topic attend to each other more (each minus the 95th percentile of random topics)",
        {f"{name} {measure}": _ABOVE for name, measure in product(OPTIMIZERS, _TOPIC_MEASURES)},
        _above_random(runs, _END),
        _BEFORE,
        _above_random(runs, _START),
    )


def _above_random(runs: BeyondRuns, step: int) -> list[_Seeds]:
    values = []
    for name, measure in product(OPTIMIZERS, _TOPIC_MEASURES):
        tables = [run.table for run in runs[beyond_arm(name)]]
        values.append(np.array([table[measure][step] - table[f"{measure}_null"][step] for table in tables]))
    return values


def _once_topical(runs: BeyondRuns) -> list[Finding]:
    """Return P11 and P12: changes from the step at which cross-entropy makes attention topical to the end."""
    bounds = dict.fromkeys(OPTIMIZERS, _ABOVE)
    return [
        _after(
            "P11",
            "E5, published documents: once attention is topical, attention to the same word (in all places) grows "
            "faster than that to other words of the topic (logarithm of their ratio, rise to the end)",
            bounds,
            _changes(runs, _own_rise, _CROSS_ENTROPY),
            _SAME_STEPS,
            _changes(runs, _own_rise, _SQUARED),
            shown="table",
        ),
        _after(
            "P12",
            "E5, published documents: once attention is topical, the development loss goes on falling to the end",
            bounds,
            _changes(runs, _loss_fall, _CROSS_ENTROPY),
            _SAME_STEPS,
            _changes(runs, _loss_fall, _SQUARED),
            shown="table",
        ),
    ]


def _changes(runs: BeyondRuns, change: Callable[[BeyondRun, int], float], objective: str) -> list[_Seeds]:
    """Return a change by optimiser, from the step at which the network with cross-entropy and this seed is topical."""
    values = []
    for name in OPTIMIZERS:
        steps = [run.topical for run in runs[beyond_arm(name)]]
        measured = runs[beyond_arm(name, objective=objective)]
        values.append(np.array([change(run, step) for run, step in zip(measured, steps, strict=True)]))
    return values


def _own_rise(run: BeyondRun, step: int) -> float:
    """Return the rise of attention to the same word, in logarithms, from a step to the end."""
    return float(np.log(run.own[_END] / run.own[step]))


def _loss_fall(run: BeyondRun, step: int) -> float:
    """Return the fall of the development loss from a step to the end."""
    return float(run.dev[step] - run.dev[_END])


def _ratio(runs: BeyondRuns, arm: str, step: int) -> _Seeds:
    return np.array([run.ratio[step] for run in runs[arm]])


# ---- documents more like those of text ----


def _less_topical(config: TopicStructureConfig, runs: BeyondRuns) -> list[Finding]:
    """Return P14 to P14c."""
    most = max(config.beyond.overlaps)
    overlapping = (
        f"topics that share {most} words with the next one, instead of as many words in topics that do not overlap,"
    )
    note = "words of two topics count as same-topic with both, which by itself may bring the ratio closer to 1"
    zipf = "words with Zipf's frequencies, instead of equally frequent ones,"
    correlated = "correlated topics, instead of independent ones,"
    return [
        replace(_lowers_ratio(runs, "P14", f"overlap {most}", FEWER, overlapping), note=note),
        _lowers_ratio(runs, "P14b", "Zipf", PUBLISHED, zipf),
        _lowers_ratio(runs, "P14c", CORRELATED, INDEPENDENT, correlated),
    ]


def _lowers_ratio(runs: BeyondRuns, id: str, kind: str, other: str, what: str) -> Finding:
    return _with_documents(
        id,
        f"E5, cross-entropy: {what} lower the {_RATIO} at the end (fall of its logarithm)",
        dict.fromkeys(OPTIMIZERS, _ABOVE),
        _ratio_falls(runs, kind, other, _END),
        _BEFORE,
        _ratio_falls(runs, kind, other, _START),
        shown="table",
    )


def _ratio_falls(runs: BeyondRuns, kind: str, other: str, step: int) -> list[_Seeds]:
    falls = []
    for name in OPTIMIZERS:
        without = _ratio(runs, beyond_arm(name, other), step)
        changed = _ratio(runs, beyond_arm(name, kind), step)
        falls.append(np.log(without) - np.log(changed))
    return falls


def _still_topical(config: TopicStructureConfig, runs: BeyondRuns) -> Finding:
    kinds = [kind for kind in beyond_documents(config) if kind not in (PUBLISHED, FEWER, INDEPENDENT)]
    return _with_documents(
        "P15",
        "E5, cross-entropy: attention is topical with each kind of more realistic documents (ratio at the end)",
        {f"{name}, lowest of {len(kinds)}": _TOPICAL for name in OPTIMIZERS},
        _lowest_ratios(runs, kinds, _END),
        _BEFORE,
        _lowest_ratios(runs, kinds, _START),
    )


def _lowest_ratios(runs: BeyondRuns, kinds: Sequence[str], step: int) -> list[_Seeds]:
    lowest = []
    for name in OPTIMIZERS:
        ratios = np.array([_ratio(runs, beyond_arm(name, kind), step) for kind in kinds])
        lowest.append(ratios.min(axis=0))
    return lowest
