"""The findings of the topic-structure study with their controls.

Bounds were written before the confirmatory seeds were run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from operator import attrgetter

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Finding, TwoSidedBound
from mechclust.evidence.compared import compared
from mechclust.evidence.findings import TOO_SMALL
from mechclust.evidence.random_order import random_order
from mechclust.studies.study import Job
from mechclust.studies.topic_structure.arms import OBJECTIVES, documents_of, everything_arm
from mechclust.studies.topic_structure.attention_findings import attention_findings
from mechclust.studies.topic_structure.config import EVERYTHING_ROWS, LEAST_GROWTH, LEAST_STEPS, TopicStructureConfig
from mechclust.studies.topic_structure.labelling import RANDOM, RIGHT
from mechclust.studies.topic_structure.optimum_findings import optimum_findings
from mechclust.studies.topic_structure.results import (
    ArmRuns,
    TrainedRun,
    growth_of,
    mixing_values,
    theory_g,
    topic_block,
)
from mechclust.studies.topic_structure.stage_findings import stage_findings
from mechclust.studies.topic_structure.theory import theory_gap
from probes import ProbeResult

_SOURCE = "Li, Li & Risteski"
_ABOVE = Bound(">", 0)
_LONG = 20_000  # steps
_SHUFFLED = "arms in one random order"
_Seeds = Float[np.ndarray, "seed"]
_Mixing = Float[np.ndarray, "seed topics tau"]


def findings_of(config: TopicStructureConfig, runs: ArmRuns, minimisers: Sequence[ProbeResult]) -> list[Finding]:
    """Return P1a to P8b. Of these P2b and P2c are checks."""
    findings = [
        *_blocks(config, runs),
        *optimum_findings(config, runs, minimisers),
        _everything_trained(config, runs),
        *stage_findings(config, runs),
        *attention_findings(config, runs),
        *_mixing(config, runs),
    ]
    return sorted(findings, key=attrgetter("id"))


# ---- one matrix trained with uniform attention ----


def _blocks(config: TopicStructureConfig, runs: ArmRuns) -> list[Finding]:
    gap = theory_gap(documents_of(config, Job("E2", config.seeds[0])))
    embeddings = "E1, embeddings trained with uniform attention"
    values = "E2, value matrix trained with uniform attention"
    return [
        _near_theory("P1a", embeddings, runs["E1"], "W_E^T W_E", gap),
        replace(_near_theory("P1b", values, runs["E2"], "W_V", gap), shown="headline"),
    ]


def _near_theory(id: str, what: str, runs: Sequence[TrainedRun], matrix: str, gap: float) -> Finding:
    measures = ("gap", "separation")
    end = [topic_block(runs, measure, matrix) for measure in measures]
    start = [topic_block(runs, measure, matrix, start=True) for measure in measures]
    return compared(
        id,
        f"{what}: same-topic minus different-topic entries of {matrix} is within 5% of theory, and every same-topic "
        "block is above every other",
        {"gap": TwoSidedBound(0.95 * gap, 1.05 * gap), "smallest same - largest other": _ABOVE},
        end,
        "before training",
        start,
        source=f"{_SOURCE}, theorems",
        paper=gap,
        note=f"{end[0].mean() / gap - 1:+.1%} from theory, which assumes infinite documents",
    )


# ---- everything trained ----


def _everything_trained(config: TopicStructureConfig, runs: ArmRuns) -> Finding:
    """Return P3b. Bounds were written before any run on the seeds that it is judged by."""
    arms = {f"{row}, {loss}": runs[everything_arm(loss, row)] for loss, row in product(OBJECTIVES, EVERYTHING_ROWS)}
    return compared(
        "P3b",
        f"E1b, everything trained for {config.everything_steps:,} steps: off the diagonal, same-topic entries of "
        "W_E^T W_E exceed different-topic ones by at least half a standard deviation more than before training",
        dict.fromkeys(arms, Bound(">=", LEAST_GROWTH)),
        [growth_of(trained, RIGHT)[:, -1] for trained in arms.values()],
        "topics given to the words at random",
        [growth_of(trained, RANDOM)[:, -1] for trained in arms.values()],
        source=_SOURCE,
        shown="page",
        not_tested="" if config.everything_steps >= _LONG else TOO_SMALL,
    )


# ---- how many topics a document mixes ----


def _mixing(config: TopicStructureConfig, runs: ArmRuns) -> list[Finding]:
    """Return P6 and P8b. If the optimum is not known there is no P8b."""
    values = mixing_values(config, runs)
    totals = sorted(values)
    g = np.stack([values[total] for total in totals], axis=1)
    means = zip(config.topics_per_document, g[:, 0].mean(axis=0), strict=True)
    by_tau = [f"{mean:.2f} at {tau}" for tau, mean in means]
    note = f"g with {totals[0]} topics: {', '.join(by_tau)}"
    not_tested = "" if len(totals) > 1 else TOO_SMALL
    findings = [replace(_rising(g, totals), shown="table", note=note, not_tested=not_tested)]
    known = theory_g(config)
    optimum = {place: known[tau] for place, tau in enumerate(config.topics_per_document) if tau in known}
    if optimum:
        ten = totals.index(10)
        findings.append(_at_optimum(config, g[:, ten], _shuffled(g)[:, ten], optimum))
    return findings


def _shuffled(g: _Mixing) -> _Mixing:
    """Return the values with the numbers of topics exchanged among the arms, in the same way for all seeds."""
    by_arm = g.reshape(len(g), -1)
    return by_arm[:, random_order(by_arm.shape[1])].reshape(g.shape)


def _rising(g: _Mixing, totals: Sequence[int]) -> Finding:
    bounds = {"smallest rise from one tau to the next": _ABOVE}
    if len(totals) > 1:
        bounds[f"smallest rise from T = {totals[0]} to {totals[-1]}"] = _ABOVE
    return compared(
        "P6",
        "E4a theory: g = ((v - 1) alpha + beta) / v rises with the topics in a document and with their number",
        bounds,
        _rises(g),
        _SHUFFLED,
        _rises(_shuffled(g)),
        source=f"{_SOURCE}, theorem",
    )


def _rises(g: _Mixing) -> list[Float[np.ndarray, "_"]]:
    _, n_totals, n_taus = g.shape
    rises = [np.diff(g, axis=2).min(axis=(1, 2)) if n_taus > 1 else np.empty(0)]
    if n_totals > 1:
        rises.append((g[:, -1] - g[:, 0]).min(axis=1))
    return rises


def _at_optimum(
    config: TopicStructureConfig,
    g: Float[np.ndarray, "seed tau"],
    shuffled: Float[np.ndarray, "seed tau"],
    optimum: Mapping[int, float],
) -> Finding:
    """Judge g with ten topics beside its optimum, which is known at some places of the numbers in a document."""
    return compared(
        "P8b",
        "with T = 10, g is that of the population optimum: largest relative difference over tau",
        {"": Bound("<=", 0.1)},
        [_largest_difference(g, optimum)],
        _SHUFFLED,
        [_largest_difference(shuffled, optimum)],
        source="ours",
        shown="table",
        not_tested="" if len(optimum) > 1 and config.steps >= LEAST_STEPS else TOO_SMALL,
    )


def _largest_difference(g: Float[np.ndarray, "seed tau"], optimum: Mapping[int, float]) -> _Seeds:
    return np.abs(g[:, list(optimum)] / list(optimum.values()) - 1).max(axis=1)
