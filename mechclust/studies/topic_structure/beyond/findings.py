"""Findings P9 to P15: what comes after the two stages, and what topics more like those of text change.

Predictions, written before any run on seeds 20 to 27. They are based on what one seed showed (100, exploration): the
published documents with SGD, Adam and the squared loss and, of the other documents, those with all changes at once
(Adam only). What single changes of the documents do (P14 to P14c) had not been seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Control, Finding, Part, mean_part
from mechclust.studies.topic_structure.arms import (
    CORRELATED,
    FEWER,
    INDEPENDENT,
    PUBLISHED,
    beyond_arm,
    beyond_documents,
)
from mechclust.studies.topic_structure.beyond.results import TOPICAL, BeyondRun, BeyondRuns
from mechclust.studies.topic_structure.config import TopicStructureConfig, not_tested_unless

OPTIMIZERS = ("SGD", "Adam")
_AFTER = "ours; Li, Li & Risteski's slides ask what follows the two stages"
_REAL = "ours; Li, Li & Risteski's slides ask what more realistic topics do"
_UNTRAINED = "the same networks before training"
_RATIO = "ratio of same-topic to different-topic attention"
_ABOVE = Bound(">", 0)
_LEAST_STEPS = 20_000

Runs = Sequence[BeyondRun]


def beyond_findings(config: TopicStructureConfig, runs: BeyondRuns) -> list[Finding]:
    """Return P9 to P15 of a run of E5."""
    reason = not_tested_unless(config.test_findings and config.beyond.steps >= _LEAST_STEPS)
    found = [*_published(config, runs), *_changed_documents(config, runs), _still_topical(config, runs)]
    return [replace(finding, not_tested=reason) for finding in found]


# ---- the published documents ----


def _published(config: TopicStructureConfig, runs: BeyondRuns) -> list[Finding]:
    entropy = [runs[beyond_arm(name)] for name in OPTIMIZERS]
    squared = [runs[beyond_arm(name, objective="squared")] for name in OPTIMIZERS]
    return [
        Finding(
            id="P9",
            statement="E5, published documents: attention scores first fall to effective rank 1, most of their "
            f"variance common to all queries, when attention is not topical ({_RATIO} below {TOPICAL:g}); later it is",
            source=_AFTER,
            parts=_rank_one_first(entropy),
            control=Control("the same documents with the squared loss", _rank_one_first(squared)),
            note=f"rank {np.mean([run.scores['rank'][0] for of in entropy for run in of]):.0f} before training",
        ),
        Finding(
            id="P10",
            statement="E5, published documents, at the end: topics explain more of the attention among all words than "
            "topics given to the words at random, and words of one topic attend to each other more (each minus the "
            "95th percentile of random topics)",
            source=_AFTER,
            parts=_beyond_random_topics(entropy, -1),
            control=Control(_UNTRAINED, _beyond_random_topics(entropy, 0)),
        ),
        *_once_topical(entropy, squared),
        Finding(
            id="P13",
            statement=f"E5, published documents, SGD (rate {config.beyond.sgd_rate:g}) with the squared loss: "
            f"attention is not topical at the end: distance of the {_RATIO} from 1",
            source=_AFTER,
            parts=_not_topical(squared[0]),
            control=Control("the same with cross-entropy", _not_topical(entropy[0])),
            shown="table",
        ),
    ]


def _once_topical(entropy: Sequence[Runs], squared: Sequence[Runs]) -> list[Finding]:
    control = "networks with the squared loss over the same steps"
    return [
        Finding(
            id="P11",
            statement="E5, published documents: once attention is topical, attention to the same word (in all places) "
            "grows faster than that to other words of the topic (logarithm of their ratio, rise to the end)",
            source=_AFTER,
            parts=_rise_of_own_word(entropy, entropy),
            control=Control(control, _rise_of_own_word(squared, entropy)),
            shown="table",
        ),
        Finding(
            id="P12",
            statement="E5, published documents: once attention is topical, the development loss goes on falling to "
            "the end",
            source=_AFTER,
            parts=_fall_of_loss(entropy, entropy),
            control=Control(control, _fall_of_loss(squared, entropy)),
        ),
    ]


def _rank_one_first(by_optimizer: Sequence[Runs]) -> tuple[Part, ...]:
    parts = []
    for name, of in zip(OPTIMIZERS, by_optimizer, strict=True):
        ranks = [run.scores["rank"][run.lowest] for run in of]
        common = [run.scores["common"][run.lowest] for run in of]
        parts += [
            mean_part(f"{name}, least rank", ranks, Bound("<=", 1.5)),
            mean_part(f"{name}, share common to all queries then", common, Bound(">=", 0.5)),
            mean_part(f"{name}, ratio then", [run.ratio[run.lowest] for run in of], Bound("<", TOPICAL)),
            mean_part(f"{name}, ratio at the end", [run.ratio[-1] for run in of], Bound(">=", TOPICAL)),
        ]
    return tuple(parts)


def _beyond_random_topics(by_optimizer: Sequence[Runs], step: int) -> tuple[Part, ...]:
    parts = []
    for name, of in zip(OPTIMIZERS, by_optimizer, strict=True):
        for measure in ("explained", "contrast"):
            excess = [run.table[measure][step] - run.table[f"{measure}_null"][step] for run in of]
            parts.append(mean_part(f"{name} {measure}", excess, _ABOVE))
    return tuple(parts)


def _rise_of_own_word(by_optimizer: Sequence[Runs], topical: Sequence[Runs]) -> tuple[Part, ...]:
    """Judge the rise from the step at which the networks ``topical`` of the same seeds become topical."""
    parts = []
    for name, of, others in zip(OPTIMIZERS, by_optimizer, topical, strict=True):
        rises = [np.log(run.own[-1] / run.own[other.topical]) for run, other in zip(of, others, strict=True)]
        parts.append(mean_part(name, rises, _ABOVE))
    return tuple(parts)


def _fall_of_loss(by_optimizer: Sequence[Runs], topical: Sequence[Runs]) -> tuple[Part, ...]:
    """Judge the fall from the step at which the networks ``topical`` of the same seeds become topical."""
    parts = []
    for name, of, others in zip(OPTIMIZERS, by_optimizer, topical, strict=True):
        falls = [run.dev[other.topical] - run.dev[-1] for run, other in zip(of, others, strict=True)]
        parts.append(mean_part(name, falls, _ABOVE))
    return tuple(parts)


def _not_topical(runs: Runs) -> tuple[Part, ...]:
    return (mean_part("", [abs(run.ratio[-1] - 1) for run in runs], Bound("<=", 0.1)),)


# ---- other documents ----


def _changed_documents(config: TopicStructureConfig, runs: BeyondRuns) -> list[Finding]:
    most = max(config.beyond.overlaps)
    found = []
    for id, kind, other, what in (
        ("P14", f"overlap {most}", FEWER, f"topics that share {most} words with the next one, instead of as many words "
         "in topics that do not overlap,"),
        ("P14b", "Zipf", PUBLISHED, "words with Zipf's frequencies, instead of equally frequent ones,"),
        ("P14c", CORRELATED, INDEPENDENT, "correlated topics, instead of independent ones,"),
    ):  # fmt: skip
        finding = Finding(
            id=id,
            statement=f"E5, cross-entropy: {what} lower the {_RATIO} at the end (fall of its logarithm)",
            source=_REAL,
            parts=_lower_ratio(runs, kind, other, -1),
            control=Control(_UNTRAINED, _lower_ratio(runs, kind, other, 0)),
            shown="page" if id == "P14" else "table",
            note="words of two topics count as same-topic with both, which by itself may bring the ratio closer to 1"
            if id == "P14"
            else "",
        )
        found.append(finding)
    return found


def _still_topical(config: TopicStructureConfig, runs: BeyondRuns) -> Finding:
    kinds = [kind for kind in beyond_documents(config) if kind not in (PUBLISHED, FEWER, INDEPENDENT)]
    return Finding(
        id="P15",
        statement=f"E5, cross-entropy: attention is topical with each kind of more realistic documents: {_RATIO} at "
        "the end",
        source=_REAL,
        parts=_lowest_ratio(runs, kinds, -1),
        control=Control(_UNTRAINED, _lowest_ratio(runs, kinds, 0)),
    )


def _ratios(runs: Runs, step: int) -> Float[np.ndarray, "seed"]:
    return np.array([run.ratio[step] for run in runs])


def _lower_ratio(runs: BeyondRuns, kind: str, other: str, step: int) -> tuple[Part, ...]:
    parts = []
    for name in OPTIMIZERS:
        changed = _ratios(runs[beyond_arm(name, kind)], step)
        unchanged = _ratios(runs[beyond_arm(name, other)], step)
        parts.append(mean_part(name, np.log(unchanged / changed), _ABOVE))
    return tuple(parts)


def _lowest_ratio(runs: BeyondRuns, kinds: Sequence[str], step: int) -> tuple[Part, ...]:
    parts = []
    for name in OPTIMIZERS:
        lowest = np.min([_ratios(runs[beyond_arm(name, kind)], step) for kind in kinds], axis=0)
        parts.append(mean_part(f"{name}, lowest of {len(kinds)}", lowest, Bound(">=", TOPICAL)))
    return tuple(parts)
