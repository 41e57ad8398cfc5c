"""How attention depends on the number of topics: findings P6, P8 and P8b."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Control, Finding, Part, mean_part
from mechclust.studies.topic_structure.config import TopicStructureConfig, not_tested_unless
from mechclust.studies.topic_structure.results import THEORY_G, ArmRuns, mixing_values

_THEOREM = "Li, Li & Risteski, theorem"
_ABOVE = Bound(">", 0)
_SHUFFLED = "networks trained with other numbers of topics (one random order of the arms)"


def mixing_findings(config: TopicStructureConfig, runs: ArmRuns) -> list[Finding]:
    """Return P6 and P8, and P8b if some documents are of those for which the population optimum is known."""
    by_total = mixing_values(config, runs)
    totals = np.array(sorted(by_total))
    taus = np.array(config.topics_per_document)
    g = np.stack([by_total[total] for total in totals], axis=1)
    shuffled = _shuffled(g)
    known = [place for place, tau in enumerate(config.topics_per_document) if tau in THEORY_G]
    means = ", ".join(f"{mean:.2f} at {tau}" for tau, mean in zip(taus, g[:, 0].mean(axis=0), strict=True))
    note = f"g with {totals[0]} topics: {means}"
    not_tested = not_tested_unless(config.test_findings and len(totals) > 1)
    found = [
        Finding(
            id="P6",
            statement="E4a theory: g = ((v - 1) alpha + beta) / v rises with the number of topics in a document and "
            "with the number of all topics",
            source=_THEOREM,
            parts=_rising(g, totals),
            control=Control(_SHUFFLED, _rising(shuffled, totals)),
            shown="table",
            not_tested=not_tested,
            note=note,
        ),
        Finding(
            id="P8",
            statement="E4a theory, trained networks: g is between tau, the topics in a document, and T, all topics "
            "(theorem 3 with both constants 1)",
            source=f"{_THEOREM} 3; constants ours, true of the population optimum",
            parts=_between(g, totals, taus),
            control=Control(_SHUFFLED, _between(shuffled, totals, taus)),
            shown="table",
            not_tested=not_tested,
            note=f"{note}; g is 1 for uniform attention",
        ),
    ]
    if 10 in by_total and known:
        of_ten = list(totals).index(10)
        optimum = np.array([THEORY_G[int(taus[place])] for place in known])
        finding = Finding(
            id="P8b",
            statement="with T = 10, g is that of the population optimum: largest relative difference over tau",
            source="ours",
            parts=_at_optimum(g[:, of_ten, known], optimum),
            control=Control(_SHUFFLED, _at_optimum(shuffled[:, of_ten, known], optimum)),
            not_tested=not_tested_unless(config.test_findings and len(known) > 1),
        )
        found.append(finding)
    return found


def _shuffled(g: Float[np.ndarray, "seed total tau"]) -> Float[np.ndarray, "seed total tau"]:
    """Return the values of the arms in one random order, the same for all seeds."""
    by_arm = g.reshape(len(g), -1)
    order = np.random.default_rng(0).permutation(by_arm.shape[1])
    return by_arm[:, order].reshape(g.shape)


def _rising(g: Float[np.ndarray, "seed total tau"], totals: Sequence[int] | np.ndarray) -> tuple[Part, ...]:
    by_tau = np.diff(g, axis=2).min(axis=(1, 2)) if g.shape[2] > 1 else []
    parts = [mean_part("smallest rise from one tau to the next", by_tau, _ABOVE)]
    if len(totals) > 1:
        by_total = (g[:, -1] - g[:, 0]).min(axis=1)
        parts.append(mean_part(f"smallest rise from T = {totals[0]} to {totals[-1]}", by_total, _ABOVE))
    return tuple(parts)


def _between(g: Float[np.ndarray, "seed total tau"], totals: np.ndarray, taus: np.ndarray) -> tuple[Part, ...]:
    return (
        mean_part("g - tau, lowest", (g - taus).min(axis=(1, 2)), _ABOVE),
        mean_part("T - g, lowest", (totals[:, None] - g).min(axis=(1, 2)), _ABOVE),
    )


def _at_optimum(g: Float[np.ndarray, "seed tau"], optimum: Float[np.ndarray, "tau"]) -> tuple[Part, ...]:
    return (mean_part("", np.abs(g / optimum - 1).max(axis=1), Bound("<=", 0.1)),)
