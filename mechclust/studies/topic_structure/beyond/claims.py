"""Claims P9 to P15: what comes after the two stages, and what topics more like those of text change.

Predictions, written before any run on seeds 20 to 24. They are based on what one seed showed (100, exploration): the
published documents with SGD, Adam and the squared loss and, of the other documents, those with all changes at once
(Adam only). What single changes of the documents do (P14 to P14c) had not been seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mechclust.report.claims import Claim
from mechclust.report.draws import Data, exchanged, in_random_order, random_signs, replaced
from mechclust.report.findings import Finding, Parts
from mechclust.report.verdicts import Bound
from mechclust.studies.topic_structure.arms import CORRELATED, INDEPENDENT, PUBLISHED, beyond_arm, beyond_documents
from mechclust.studies.topic_structure.beyond.results import BeyondRun, BeyondRuns
from mechclust.studies.topic_structure.config import TopicStructureConfig

OPTIMIZERS = ("SGD", "Adam")
_ASKED = "ours; Li, Li & Risteski's slides ask what follows the two stages"
_ABOVE, _CLEAR = Bound(">", 0), Bound(">=", 1.2)
_LEAST_STEPS = 20_000


def beyond_claims(config: TopicStructureConfig, runs: BeyondRuns) -> list[Claim]:
    """P9 to P15 of a run of E5."""
    after, end = config.beyond.after, config.beyond.steps
    tested = config.test_claims and end >= _LEAST_STEPS

    def each(arm: str, measure: Callable[[BeyondRun], np.ndarray], step: int | None = None) -> np.ndarray:
        """``[seed]`` a measure at one step, or ``[seed step]`` at all."""
        return np.array([run.at(measure(run), step) if step is not None else measure(run) for run in runs[arm]])

    def pairs(arms: Mapping[str, Sequence[str]], *measures: tuple[str, Callable[[BeyondRun], np.ndarray], int]) -> Data:
        """For each optimiser, ``[seed]`` what is measured on its arms, by name."""
        return {
            f"{name} {of}": each(arm, measure, step)
            for name in OPTIMIZERS
            for arm, (of, measure, step) in zip(arms[name], measures, strict=True)
        }

    def both(*documents: str) -> dict[str, list[str]]:
        return {name: [beyond_arm(name, of) for of in documents] for name in OPTIMIZERS}

    def log_ratio(run: BeyondRun) -> np.ndarray:
        return np.log(run.ratio)

    def log_own(run: BeyondRun) -> np.ndarray:
        return np.log(run.own)

    published = {name: beyond_arm(name) for name in OPTIMIZERS}
    ranks = {f"{name} rank": each(arm, lambda run: run.scores["rank"])[:, 1:] for name, arm in published.items()}
    ratios = {f"{name} ratio": each(arm, lambda run: run.ratio)[:, 1:] for name, arm in published.items()}
    squared = {
        "ratio": each(beyond_arm("SGD", objective="squared"), lambda run: run.ratio, end),
        "cross-entropy": each(published["Adam"], lambda run: run.ratio, end),
    }
    kinds = list(beyond_documents(config))[1:]
    logs = {f"{name} {kind}": each(beyond_arm(name, kind), log_ratio, end) for name in OPTIMIZERS for kind in kinds}
    twice = both(PUBLISHED, PUBLISHED)
    found = [
        (_rank_one(), {**ranks, **ratios}),
        (
            _above(
                "P10", "E5, published documents, at the end: topics explain more of the attention among all words than "
                "topics given to the words at random (share of variance minus the 95th percentile of random topics)",
                "explained", "null", "the share and its 95th percentile under random topics", (0.02, 0.1),
            ),
            pairs(twice, ("explained", lambda run: run.table["explained"], end),
                  ("null", lambda run: run.table["null"], end)),
        ),
        (
            _above(
                "P11", f"E5, published documents: from step {after:,} on attention moves from the other words of the "
                "topic to the word itself: log of same-word over same-topic attention, rise to the end",
                "end", "before", "the two steps",
            ),
            pairs(twice, ("end", log_own, end), ("before", log_own, after)),
        ),
        (
            _above(
                "P12", f"E5, published documents: the development loss falls from step {after:,} to the end",
                "before", "end", "the two steps",
            ),
            pairs(twice, ("before", lambda run: run.dev, after), ("end", lambda run: run.dev, end)),
        ),
        (_not_topical(), squared),
        (_still_topical(kinds), logs),
    ]  # fmt: skip
    most = max(config.beyond.overlaps)
    for id, kind, other, what in (
        ("P14", f"overlap {most}", PUBLISHED, f"topics that share {most} words with the next one"),
        ("P14b", "Zipf", PUBLISHED, "words with Zipf's frequencies"),
        ("P14c", CORRELATED, INDEPENDENT, "correlated topics instead of independent ones"),
    ):
        statement = (
            f"E5, cross-entropy: {what} lower the ratio of same-topic to different-topic attention at the end (fall of "
            "its logarithm)"
        )
        finding = _above(id, statement, "without", "with", "networks with and without")
        found.append((finding, pairs(both(other, kind), ("without", log_ratio, end), ("with", log_ratio, end))))
    return sorted((finding.judged(data, tested=tested) for finding, data in found), key=_number)


def _number(c: Claim) -> tuple[int, str]:
    """P9 before P10, P14 before P14b."""
    digits = "".join(filter(str.isdigit, c.id))
    return int(digits), c.id


def _rank_one() -> Finding[Data]:
    def parts(data: Data) -> Parts:
        found = []
        for name in OPTIMIZERS:
            rank, ratio = data[f"{name} rank"], data[f"{name} ratio"]
            at = rank.argmin(axis=1)[:, None]
            found.append((f"{name}, least rank", rank.min(axis=1).tolist(), Bound("<=", 1.5)))
            found.append((f"{name}, ratio there", np.take_along_axis(ratio, at, 1)[:, 0].tolist(), Bound("<=", 1.2)))
        return found

    def planted(data: Data, rng: np.random.Generator) -> Data:
        new = dict(data)
        for name in OPTIMIZERS:
            shape = data[f"{name} rank"].shape
            new[f"{name} rank"] = np.linspace(1, 10, shape[1]) * rng.uniform(1, 1.2, shape)
            new[f"{name} ratio"] = np.linspace(1, 3, shape[1]) * rng.uniform(0.95, 1.05, shape)
        return new

    return Finding(
        "P9", "E5, published documents: attention scores pass through a state of effective rank 1 (all queries prefer "
        "the same keys) before attention is topical", _ASKED, parts,
        in_random_order(*(f"{name} rank" for name in OPTIMIZERS)),
        "in every network, the ranks given to the steps in another order", planted,
        "ranks that rise from 1 to 10, ratios that rise from 1 to 3", chance="rank 33 before training",
    )  # fmt: skip


def _above(
    id: str, statement: str, high: str, low: str, null: str, by: tuple[float, float] = (0.05, 0.5)
) -> Finding[Data]:
    """With both optimisers, one of two numbers per network is above the other."""

    def parts(data: Data) -> Parts:
        return [(name, (data[f"{name} {high}"] - data[f"{name} {low}"]).tolist(), _ABOVE) for name in OPTIMIZERS]

    def planted(data: Data, rng: np.random.Generator) -> Data:
        lows = {name: data[f"{name} {low}"] for name in OPTIMIZERS}
        return {**data, **{f"{name} {high}": x + rng.uniform(*by, len(x)) for name, x in lows.items()}}

    return Finding(
        id, statement, _ASKED, parts, exchanged(*((f"{name} {high}", f"{name} {low}") for name in OPTIMIZERS)),
        f"{null} exchanged at random, seed by seed", planted, f"differences of {by[0]:g} to {by[1]:g}", chance="0",
    )  # fmt: skip


def _not_topical() -> Finding[Data]:
    def parts(data: Data) -> Parts:
        return [("", np.abs(data["ratio"] - 1).tolist(), Bound("<=", 0.1))]

    return Finding(
        "P13", "E5, published documents, SGD with the squared loss: attention is not topical even at the end: distance "
        "of the ratio of same-topic to different-topic attention from 1", _ASKED, parts,
        replaced(ratio="cross-entropy"), "the ratios of networks trained with Adam and cross-entropy",
        lambda data, rng: {**data, "ratio": 1 + rng.uniform(-0.05, 0.05, len(data["ratio"]))},
        "ratios within .05 of 1", chance="0",
    )  # fmt: skip


def _still_topical(kinds: list[str]) -> Finding[Data]:
    names = [f"{name} {kind}" for name in OPTIMIZERS for kind in kinds]

    def parts(data: Data) -> Parts:
        return [
            (f"{name}, lowest of {len(kinds)}",
             np.exp(np.min([data[f"{name} {kind}"] for kind in kinds], axis=0)).tolist(), _CLEAR)
            for name in OPTIMIZERS
        ]  # fmt: skip

    def null(data: Data, rng: np.random.Generator) -> Data:
        for name in names:
            data = random_signs(name)(data, rng)
        return data

    return Finding(
        "P15", "E5, cross-entropy: attention is topical with each kind of more realistic documents, too: ratio of "
        "same-topic to different-topic attention at the end", _ASKED, parts, null,
        "same-topic and different-topic attention exchanged at random in every network",
        lambda data, rng: {name: rng.uniform(0.3, 1, len(data[name])) for name in names},
        "logarithms of the ratio from .3 to 1",
        chance="1",
    )  # fmt: skip
