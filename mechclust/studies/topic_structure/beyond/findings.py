"""Findings P9 to P15: what comes after the two stages, and what topics more like those of text change.

Predictions, written before any run on seeds 20 to 27. They are based on what one seed showed (100, exploration): the
published documents with SGD, Adam and the squared loss and, of the other documents, those with all changes at once
(Adam only). What single changes of the documents do (P14 to P14c) had not been seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from mechclust.evidence import Bound, Control, Finding, Part, mean_part
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
_ABOVE, _TOPICAL = Bound(">", 0), Bound(">=", TOPICAL)
_RATIO = "ratio of same-topic to different-topic attention"
_LEAST_STEPS = 20_000
_CROSS_ENTROPY, _SQUARED = OBJECTIVES
_END, _START = -1, 0
_BEFORE, _OTHER_LOSS = "before training", "squared loss"
_SAME_STEPS = "squared loss, over the same steps"

_Change = Callable[[BeyondRun, int], float]


def beyond_findings(config: TopicStructureConfig, runs: BeyondRuns) -> list[Finding]:
    """Return P9 to P15 of a run of E5."""
    tested = config.test_findings and config.beyond.steps >= _LEAST_STEPS
    findings = [*_after_two_stages(runs), _not_topical(config, runs), *_documents(config, runs)]
    if tested:
        return findings
    return [replace(finding, not_tested="this size of the study cannot test it") for finding in findings]


def _after_two_stages(runs: BeyondRuns) -> list[Finding]:
    """Return P9 to P12, on the published documents."""
    before = np.mean([run.scores["rank"][_START] for name in OPTIMIZERS for run in runs[beyond_arm(name)]])
    return [
        Finding(
            id="P9",
            statement="E5, published documents: attention scores first fall to effective rank 1, most of their "
            f"variance common to all queries, when attention is not topical ({_RATIO} below {TOPICAL:g}); later it is",
            source=_AFTER,
            parts=_rank_one_first(runs, _CROSS_ENTROPY),
            control=Control(_OTHER_LOSS, _rank_one_first(runs, _SQUARED)),
            note=f"rank before training: {before:.0f}",
        ),
        Finding(
            id="P10",
            statement="E5, published documents, at the end: topics explain more of the attention among all words than "
            "topics given to the words at random, and words of one topic attend to each other more (each minus the "
            "95th percentile of random topics)",
            source=_AFTER,
            parts=_beyond_random_topics(runs, _END),
            control=Control(_BEFORE, _beyond_random_topics(runs, _START)),
        ),
        Finding(
            id="P11",
            statement="E5, published documents: once attention is topical, attention to the same word (in all places) "
            "grows faster than that to other words of the topic (logarithm of their ratio, rise to the end)",
            source=_AFTER,
            parts=_once_topical(runs, _own_rise, _CROSS_ENTROPY),
            control=Control(_SAME_STEPS, _once_topical(runs, _own_rise, _SQUARED)),
            shown="table",
        ),
        Finding(
            id="P12",
            statement="E5, published documents: once attention is topical, the development loss goes on falling to the "
            "end",
            source=_AFTER,
            parts=_once_topical(runs, _loss_fall, _CROSS_ENTROPY),
            control=Control(_SAME_STEPS, _once_topical(runs, _loss_fall, _SQUARED)),
        ),
    ]


def _not_topical(config: TopicStructureConfig, runs: BeyondRuns) -> Finding:
    return Finding(
        id="P13",
        statement=f"E5, published documents, SGD (rate {config.beyond.sgd_rate:g}) with the squared loss: attention is "
        f"not topical at the end: distance of the {_RATIO} from 1",
        source=_AFTER,
        parts=_near_one(runs[beyond_arm("SGD", objective=_SQUARED)]),
        control=Control(_CROSS_ENTROPY, _near_one(runs[beyond_arm("SGD")])),
        shown="table",
    )


def _documents(config: TopicStructureConfig, runs: BeyondRuns) -> list[Finding]:
    """Return P14 to P15: documents more like those of text."""
    most = max(config.beyond.overlaps)
    overlapping = (
        f"topics that share {most} words with the next one, instead of as many words in topics that do not overlap,"
    )
    note = "words of two topics count as same-topic with both, which by itself may bring the ratio closer to 1"
    zipf = "words with Zipf's frequencies, instead of equally frequent ones,"
    correlated = "correlated topics, instead of independent ones,"
    kinds = [kind for kind in beyond_documents(config) if kind not in (PUBLISHED, FEWER, INDEPENDENT)]
    return [
        replace(_lowers_ratio(runs, "P14", f"overlap {most}", FEWER, overlapping), shown="table", note=note),
        replace(_lowers_ratio(runs, "P14b", "Zipf", PUBLISHED, zipf), shown="table"),
        replace(_lowers_ratio(runs, "P14c", CORRELATED, INDEPENDENT, correlated), shown="table"),
        Finding(
            id="P15",
            statement="E5, cross-entropy: attention is topical with each kind of more realistic documents: "
            f"{_RATIO} at the end",
            source=_REAL,
            parts=_lowest_ratio(runs, kinds, _END),
            control=Control(_BEFORE, _lowest_ratio(runs, kinds, _START)),
        ),
    ]


def _lowers_ratio(runs: BeyondRuns, id: str, kind: str, other: str, what: str) -> Finding:
    return Finding(
        id=id,
        statement=f"E5, cross-entropy: {what} lower the {_RATIO} at the end (fall of its logarithm)",
        source=_REAL,
        parts=_ratio_fall(runs, kind, other, _END),
        control=Control(_BEFORE, _ratio_fall(runs, kind, other, _START)),
    )


# ---- what is measured ----


def _once_topical(runs: BeyondRuns, change: _Change, objective: str) -> tuple[Part, ...]:
    """Judge a change of the networks of each optimiser from the step at which cross-entropy makes attention topical."""
    parts = []
    for name in OPTIMIZERS:
        steps = [run.topical for run in runs[beyond_arm(name)]]
        pairs = zip(runs[beyond_arm(name, objective=objective)], steps, strict=True)
        parts.append(mean_part(name, [change(run, step) for run, step in pairs], _ABOVE))
    return tuple(parts)


def _own_rise(run: BeyondRun, step: int) -> float:
    """Return the rise of attention to the same word, in logarithms, from a step to the end."""
    return float(np.log(run.own[_END] / run.own[step]))


def _loss_fall(run: BeyondRun, step: int) -> float:
    """Return the fall of the development loss from a step to the end."""
    return float(run.dev[step] - run.dev[_END])


def _rank_one_first(runs: BeyondRuns, objective: str) -> tuple[Part, ...]:
    """Judge each optimiser's networks at the step with the least rank, and at the end."""
    parts = []
    for name in OPTIMIZERS:
        ranks, shares, ratios, ends = [], [], [], []
        for run in runs[beyond_arm(name, objective=objective)]:
            step = 1 + int(run.scores["rank"][1:].argmin())
            ranks.append(run.scores["rank"][step])
            shares.append(run.scores["common"][step])
            ratios.append(run.ratio[step])
            ends.append(run.ratio[_END])
        parts += [
            mean_part(f"{name}, least rank", ranks, Bound("<=", 1.5)),
            mean_part(f"{name}, share common to all queries then", shares, Bound(">=", 0.5)),
            mean_part(f"{name}, ratio then", ratios, Bound("<", TOPICAL)),
            mean_part(f"{name}, ratio at the end", ends, _TOPICAL),
        ]
    return tuple(parts)


def _beyond_random_topics(runs: BeyondRuns, step: int) -> tuple[Part, ...]:
    parts = []
    for name in OPTIMIZERS:
        for measure in ("explained", "contrast"):
            above = [run.table[measure][step] - run.table[f"{measure}_null"][step] for run in runs[beyond_arm(name)]]
            parts.append(mean_part(f"{name} {measure}", above, _ABOVE))
    return tuple(parts)


def _near_one(runs: Sequence[BeyondRun]) -> tuple[Part, ...]:
    return (mean_part("", [abs(run.ratio[_END] - 1) for run in runs], Bound("<=", 0.1)),)


def _ratio_fall(runs: BeyondRuns, kind: str, other: str, step: int) -> tuple[Part, ...]:
    parts = []
    for name in OPTIMIZERS:
        pairs = zip(runs[beyond_arm(name, other)], runs[beyond_arm(name, kind)], strict=True)
        falls = [np.log(without.ratio[step]) - np.log(changed.ratio[step]) for without, changed in pairs]
        parts.append(mean_part(name, falls, _ABOVE))
    return tuple(parts)


def _lowest_ratio(runs: BeyondRuns, kinds: Sequence[str], step: int) -> tuple[Part, ...]:
    parts = []
    for name in OPTIMIZERS:
        ratios = np.array([[run.ratio[step] for run in runs[beyond_arm(name, kind)]] for kind in kinds])
        parts.append(mean_part(f"{name}, lowest of {len(kinds)}", ratios.min(axis=0), _TOPICAL))
    return tuple(parts)
