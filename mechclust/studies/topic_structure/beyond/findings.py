"""Findings P9 to P15: what comes after the two stages, and what topics more like those of text change.

Predictions, written before any run on seeds 20 to 27. They are based on what one seed showed (100, exploration): the
published documents with SGD, Adam and the squared loss and, of the other documents, those with all changes at once
(Adam only). What single changes of the documents do (P14 to P14c) had not been seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mechclust.evidence import Finding
from mechclust.report.draws import Data, at_bound, exchanged, one_false, spread_like
from mechclust.report.findings import Finding, Parts
from mechclust.evidence.bounds import Bound
from mechclust.studies.topic_structure.arms import (
    CORRELATED,
    FEWER,
    INDEPENDENT,
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

_Measure = Callable[[BeyondRun], float]


def beyond_findings(config: TopicStructureConfig, runs: BeyondRuns) -> list[Finding]:
    """P9 to P15 of a run of E5."""
    tested = config.test_findings and config.beyond.steps >= _LEAST_STEPS

    def each(measures: Mapping[str, _Measure], *documents: str) -> Data:
        """``[seed]`` each measure of each optimiser's networks, on its own documents if several are given."""
        kinds = documents or (PUBLISHED,) * len(measures)
        return {
            f"{name} {what}": np.array([measure(run) for run in runs[beyond_arm(name, kind)]])
            for name in OPTIMIZERS
            for (what, measure), kind in zip(measures.items(), kinds, strict=True)
        }

    def end(curve: Callable[[BeyondRun], np.ndarray]) -> _Measure:
        return lambda run: float(curve(run)[-1])

    log_ratio = end(lambda run: np.log(run.ratio))
    curves: dict[str, np.ndarray] = {}
    for name in OPTIMIZERS:
        of = runs[beyond_arm(name)]
        curves |= {f"{name} {what}": np.stack([run.scores[what] for run in of]) for what in ("rank", "common")}
        curves[f"{name} ratio"] = np.stack([run.ratio for run in of])
    found = [
        (_rank_one(curves), curves),
        (
            _above(
                "P10", "E5, published documents, at the end: topics explain more of the attention among all words than "
                "topics given to the words at random, and words of one topic attend to each other more (each minus the "
                "95th percentile of random topics)", _AFTER,
                (("explained", "explained by chance"), ("contrast", "contrast by chance")),
                "the measures and their 95th percentiles under random topics",
            ),
            each({
                "explained": end(lambda run: run.table["explained"]),
                "explained by chance": end(lambda run: run.table["explained_null"]),
                "contrast": end(lambda run: run.table["contrast"]),
                "contrast by chance": end(lambda run: run.table["contrast_null"]),
            }),
        ),
        (
            _above(
                "P11", "E5, published documents: once attention is topical, attention to the same word (in all places) "
                "grows faster than that to other words of the topic (logarithm of their ratio, rise to the end)",
                _AFTER, (("end", "first"),), "the two steps",
            ),
            each({"end": end(lambda run: np.log(run.own)), "first": lambda run: run.since(np.log(run.own))}),
        ),
        (
            _above(
                "P12", "E5, published documents: once attention is topical, the development loss goes on falling to "
                "the end", _AFTER, (("first", "end"),), "the two steps",
            ),
            each({"first": lambda run: run.since(run.dev), "end": end(lambda run: run.dev)}),
        ),
        (
            _not_topical(config.beyond.sgd_rate),
            {"ratio": np.array([run.ratio[-1] for run in runs[beyond_arm("SGD", objective="squared")]])},
        ),
    ]  # fmt: skip
    most = max(config.beyond.overlaps)
    for id, kind, other, what in (
        ("P14", f"overlap {most}", FEWER, f"topics that share {most} words with the next one, instead of as many words "
         "in topics that do not overlap,"),
        ("P14b", "Zipf", PUBLISHED, "words with Zipf's frequencies, instead of equally frequent ones,"),
        ("P14c", CORRELATED, INDEPENDENT, "correlated topics, instead of independent ones,"),
    ):  # fmt: skip
        statement = f"E5, cross-entropy: {what} lower the {_RATIO} at the end (fall of its logarithm)"
        note = (
            "words of two topics count as same-topic with both, which by itself may bring the ratio closer to 1"
            if kind.startswith("overlap")
            else ""
        )
        finding = _above(id, statement, _REAL, (("without", "with"),), "networks with and without", note)
        found.append((finding, each({"without": log_ratio, "with": log_ratio}, other, kind)))
    kinds = [kind for kind in beyond_documents(config) if kind not in (PUBLISHED, FEWER, INDEPENDENT)]
    found.append((_still_topical(kinds), each(dict.fromkeys(kinds, end(lambda run: run.ratio)), *kinds)))
    return [finding.judged(data, tested=tested) for finding, data in found]


def _rank_one(curves: Data) -> Finding[Data]:
    before = np.mean([curves[f"{name} rank"][:, 0].mean() for name in OPTIMIZERS])

    bounds = {
        "least rank": Bound("<=", 1.5),
        "share common to all queries then": Bound(">=", 0.5),
        "ratio then": Bound("<", TOPICAL),
        "ratio at the end": _TOPICAL,
    }

    def read(data: Data) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for name in OPTIMIZERS:
            rank, common, ratio = (data[f"{name} {what}"] for what in ("rank", "common", "ratio"))
            seeds, at = np.arange(len(rank)), 1 + rank[:, 1:].argmin(axis=1)
            values = (rank[seeds, at], common[seeds, at], ratio[seeds, at], ratio[:, -1])
            found |= {f"{name}, {what}": x for what, x in zip(bounds, values, strict=True)}
        return found

    def parts(data: Data) -> Parts:
        return [(part, values.tolist(), bounds[part.partition(", ")[2]]) for part, values in read(data).items()]

    def one_outside(data: Data, rng: np.random.Generator) -> Data:
        new, part = planted(data, rng), [*read(data)][int(rng.integers(2 * len(bounds)))]
        name, _, what = part.partition(", ")
        moved = at_bound(part, bounds[what])(read(data), rng)[part]
        curve, step = {
            "least rank": ("rank", 1),
            "share common to all queries then": ("common", 1),
            "ratio then": ("ratio", 1),
            "ratio at the end": ("ratio", -1),
        }[what]
        new[f"{name} {curve}"][:, step] = moved
        return new

    def planted(data: Data, rng: np.random.Generator) -> dict[str, np.ndarray]:
        new = dict(data)
        for name in OPTIMIZERS:
            seeds, steps = data[f"{name} rank"].shape
            rank = np.concatenate([[30.0], np.linspace(1, 10, steps - 1)])
            common = np.concatenate([[0.01], np.linspace(0.9, 0.3, steps - 1)])
            for what, curve in (("rank", rank), ("common", common), ("ratio", 1 + 2 * np.linspace(0, 1, steps) ** 2)):
                new[f"{name} {what}"] = curve * rng.uniform(0.95, 1.05, (seeds, steps))
        return new

    return Finding(
        "P9", "E5, published documents: attention scores first fall to effective rank 1, most of their variance common "
        f"to all queries, when attention is not topical ({_RATIO} below {TOPICAL:g}); later it is", _AFTER, parts,
        one_outside, "these, but for one part, drawn at random, just outside its bound, with the measured spread",
        planted, "ranks that rise from 1 to 10, ratios that rise from 1 to 3",
        chance=f"rank {before:.0f} before training",
    )  # fmt: skip


def _above(
    id: str, statement: str, source: str, compared: Sequence[tuple[str, str]], null: str, note: str = ""
) -> Finding[Data]:
    """With both optimisers, one of two numbers per network is above the other, for each pair of names."""
    pairs = [(f"{name} {high}", f"{name} {low}") for name in OPTIMIZERS for high, low in compared]

    def parts(data: Data) -> Parts:
        names = [high if len(compared) > 1 else high.partition(" ")[0] for high, _ in pairs]
        return [(name, (data[a] - data[b]).tolist(), _ABOVE) for name, (a, b) in zip(names, pairs, strict=True)]

    def planted(data: Data, rng: np.random.Generator) -> Data:
        return {**data, **{high: data[low] + rng.uniform(0.05, 0.5, len(data[low])) for high, low in pairs}}

    def one_exchanged(data: Data, rng: np.random.Generator) -> Data:
        pair = pairs[int(rng.integers(len(pairs)))]
        drawn = exchanged(pair)(data, rng)
        return {**planted(data, rng), **{name: drawn[name] for name in pair}}

    return Finding(
        id, statement, source, parts, one_exchanged,
        f"these, but for one part, drawn at random: {null} exchanged at random, seed by seed", planted,
        "differences of .05 to .5", chance="0", note=note,
    )  # fmt: skip


def _not_topical(rate: float) -> Finding[Data]:
    bound = Bound("<=", 0.1)

    def parts(data: Data) -> Parts:
        return [("", np.abs(data["ratio"] - 1).tolist(), bound)]

    def at_far(data: Data, rng: np.random.Generator) -> Data:
        return {"ratio": 1 + bound.value + 1e-9 + spread_like(np.abs(data["ratio"] - 1), rng)}

    return Finding(
        "P13", f"E5, published documents, SGD (rate {rate:g}) with the squared loss: attention is not topical at the "
        f"end: distance of the {_RATIO} from 1", _AFTER, parts,
        at_far, "distances just outside the bound, with the measured spread",
        lambda data, rng: {**data, "ratio": 1 + rng.uniform(-0.05, 0.05, len(data["ratio"]))},
        "ratios within .05 of 1", chance="0",
    )  # fmt: skip


def _still_topical(kinds: Sequence[str]) -> Finding[Data]:
    names = [f"{name} {kind}" for name in OPTIMIZERS for kind in kinds]

    def parts(data: Data) -> Parts:
        return [
            (f"{name}, lowest of {len(kinds)}", np.min([data[f"{name} {kind}"] for kind in kinds], axis=0).tolist(),
             _TOPICAL)
            for name in OPTIMIZERS
        ]  # fmt: skip

    def planted(data: Data, rng: np.random.Generator) -> Data:
        return {name: rng.uniform(1.4, 3, len(data[name])) for name in names}

    return Finding(
        "P15", f"E5, cross-entropy: attention is topical with each kind of more realistic documents: {_RATIO} at the "
        "end", _REAL, parts, one_false(planted, {name: at_bound(name, _TOPICAL) for name in names}),
        "these, but for one optimiser and kind, drawn at random, just below the bound, with the measured spread",
        planted, "ratios from 1.4 to 3",
        chance="1",
    )  # fmt: skip
