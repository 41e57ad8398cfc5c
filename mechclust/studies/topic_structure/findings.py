"""The findings of the topic-structure study, with bounds written before the confirmatory seeds were run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Control, EarlierRun, Finding, Part, Verdict, Within, mean_part
from mechclust.studies.study import Job
from mechclust.studies.topic_structure.arms import documents_of
from mechclust.studies.topic_structure.config import LEAST_STEPS, TopicStructureConfig, not_tested_unless
from mechclust.studies.topic_structure.mixing_findings import mixing_findings
from mechclust.studies.topic_structure.optimum_findings import optimum_findings
from mechclust.studies.topic_structure.reading_findings import reading_findings
from mechclust.studies.topic_structure.results import ArmRuns, TrainedRun, block, effect_of
from mechclust.studies.topic_structure.stage_findings import stage_findings
from mechclust.studies.topic_structure.theory import theory_gap
from probes import ProbeResult

_SOURCE = "Li, Li & Risteski"
_UNTRAINED = "the same networks before training"
_KEPT = "its mean was within the bound, and its other parts were not kept"
# Findings of the first run by the finding that took their place, each with its old name where that is another's now.
_EARLIER: Mapping[str, Sequence[tuple[Verdict, str]]] = {
    "P1a": [("undecided", _KEPT)],
    "P1b": [("undecided", _KEPT)],
    "P2": [
        ("holds", "concerned block means, in which noise averages out"),
        ("does not hold", "the old P2b, of all entries, for 10,000 documents of 400 words only"),
    ],
    "P3": [
        ("undecided", f"{_KEPT}; now without the diagonal, and against the same network before training"),
        ("holds", "the old P3b, growth of the difference without the diagonal; now in standard deviations"),
    ],
    "P4": [
        ("undecided", f"{_KEPT}; compared near-zero SGD with default Adam, two factors at once; now a factorial"),
        ("does not hold", "the old P4b, near-zero SGD with cross-entropy only"),
    ],
    "P5": [
        ("does not hold", "tested the exact one-hot input at the end of 10,000 steps only; now all readings"),
        ("holds", "the old P5a, Adam rows only"),
        ("holds", "the old P5b, SGD rows with an input as long as a LayerNorm makes it"),
        ("does not hold", "the old P5c, frozen W_V"),
    ],
    "P6": [("undecided", _KEPT)],
}


def findings_of(config: TopicStructureConfig, runs: ArmRuns, minimisers: Sequence[ProbeResult]) -> list[Finding]:
    """Return P1 to P8, of which P2b and P2c are checks. The suite of ``mechclust topics`` judges P7."""
    found = [
        *_gaps(config, runs),
        *optimum_findings(config, runs, minimisers),
        *_everything_trained(config, runs),
        *stage_findings(config, runs),
        *reading_findings(config, runs),
        *mixing_findings(config, runs),
    ]
    return [_with_history(finding) for finding in sorted(found, key=lambda finding: finding.id)]


def _with_history(finding: Finding) -> Finding:
    earlier = _EARLIER.get(finding.id, ())
    runs = (EarlierRun("paper, 2026-11-21, seeds 0 to 4", 5, verdict, changed) for verdict, changed in earlier)
    return replace(finding, history=tuple(runs))


# ---- P1: the gap of the theory ----


def _gaps(config: TopicStructureConfig, runs: ArmRuns) -> list[Finding]:
    gap = theory_gap(documents_of(config, Job("E2", config.seeds[0])))
    found = []
    for id, arm, matrix, what in (
        ("P1a", "E1", "W_E^T W_E", "E1, embeddings trained with uniform attention"),
        ("P1b", "E2", "W_V", "E2, value matrix trained with uniform attention"),
    ):
        parts = _gap_parts(gap, runs[arm], matrix)
        finding = Finding(
            id=id,
            statement=f"{what}: same-topic minus different-topic entries of {matrix} are within 5% of the theory's "
            "1 / (v (1 - (1 - p_c) p_m)), and every same-topic block is above every different-topic one",
            source=f"{_SOURCE}, theorems",
            parts=parts,
            control=Control(_UNTRAINED, _gap_parts(gap, runs[arm], matrix, start=True)),
            shown="headline",
            paper=gap,
            not_tested=not_tested_unless(config.test_findings),
            note=f"{np.mean(parts[0].values) / gap - 1:+.1%} from theory, which assumes infinite documents",
        )
        found.append(finding)
    return found


def _gap_parts(gap: float, runs: Sequence[TrainedRun], matrix: str, start: bool = False) -> tuple[Part, ...]:
    separation = block(runs, "separation", matrix, start)
    return (
        mean_part("gap", block(runs, "gap", matrix, start), Within(0.95 * gap, 1.05 * gap)),
        mean_part("smallest same - largest other", separation, Bound(">", 0)),
    )


# ---- P3: everything trained ----


def _everything_trained(config: TopicStructureConfig, runs: ArmRuns) -> list[Finding]:
    names = [name for name in runs if name.startswith("E1b")]
    adam = [name for name in names if "Adam" in name]
    return [
        _rise_of("P3", "every optimiser and loss", config, runs, names, Bound(">", 0)),
        _rise_of("P3b", "every optimiser and loss: clearly visible", config, runs, names, Bound(">=", 0.5)),
        _rise_of("P3c", "the Adam rows: clearly visible", config, runs, adam, Bound(">=", 0.5)),
    ]


def _rise_of(
    id: str, what: str, config: TopicStructureConfig, runs: ArmRuns, names: Sequence[str], bound: Bound
) -> Finding:
    """Judge by how many standard deviations the blocks of ``W_E^T W_E`` rise, off the diagonal, in every arm."""
    before = np.array([effect_of(runs[name], start=True) for name in names])
    after = np.array([effect_of(runs[name]) for name in names])
    return Finding(
        id=id,
        statement=f"E1b, everything trained, {what}: off the diagonal, same-topic entries of W_E^T W_E exceed "
        f"different-topic ones by more standard deviations than before training (lowest of {len(names)})",
        source=_SOURCE,
        parts=_lowest_rise(before, after, bound),
        control=Control("the next seed's untrained network instead of the trained one",
                        _lowest_rise(before[:, :-1], before[:, 1:], bound)),
        shown="page" if id == "P3" else "table",
        not_tested=not_tested_unless(config.test_findings and config.steps >= LEAST_STEPS),
        note="" if id == "P3b" else "implied by P3b",
    )  # fmt: skip


def _lowest_rise(
    before: Float[np.ndarray, "arm seed"], after: Float[np.ndarray, "arm seed"], bound: Bound
) -> tuple[Part, ...]:
    return (mean_part("", (after - before).min(axis=0), bound),)
