"""The unique optimum, entry by entry: finding P2, and the checks P2b and P2c."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Control, Finding, Part, check_part, mean_part
from mechclust.studies.topic_structure.arms import DECAY, DECAYED, FREE
from mechclust.studies.topic_structure.config import TopicStructureConfig, not_tested_unless
from mechclust.studies.topic_structure.results import ArmRuns, block
from probes import ProbeResult

_THEOREM = "Li, Li & Risteski, theorem 2; finite documents ours"
_NEAR = Bound("<=", 0.05)
_FALLS = Bound("<=", -0.4)
_LEAST_STEPS = 4000  # training has converged by then


def optimum_findings(config: TopicStructureConfig, runs: ArmRuns, minimisers: Sequence[ProbeResult]) -> list[Finding]:
    """Return P2, P2b and P2c. Bounds were written before any run on the seeds that they are judged by."""
    documents = np.array(config.optimum_documents, dtype=float)
    from_population = np.array([found["own"].numpy() for found in minimisers])
    from_closed = np.array([found["distance"].numpy() for found in minimisers])
    enough = len(documents) > 2 and len(config.optimum_lengths) > 2
    not_tested = not_tested_unless(config.test_findings and enough)
    root = Finding(
        id="P2",
        statement="E2, minimiser of N documents with weight decay: its entries approach those of the minimiser of all "
        f"documents as N^(-1/2), for each of {len(config.optimum_lengths)} document lengths",
        source="ours",
        parts=_root(documents, from_population),
        control=Control("distance from the closed form, which only infinitely long documents reach",
                        _root(documents, from_closed)),
        not_tested=not_tested,
        note=f"relative Frobenius distance; weight decay {DECAY:g}",
    )  # fmt: skip
    return [
        root,
        _closed_form(config, from_closed[:, :, -1], minimisers[0]["population"].numpy(), not_tested),
        _own_minimiser(config, runs),
    ]


def _root(documents: np.ndarray, distances: Float[np.ndarray, "seed length document"]) -> tuple[Part, ...]:
    slopes = np.array([[_slope(documents, of_length) for of_length in of_seed] for of_seed in distances])
    return (
        mean_part("slope of the log distance, lowest", slopes.min(axis=1), Bound(">=", -0.6)),
        mean_part("greatest", slopes.max(axis=1), _FALLS),
    )


def _closed_form(
    config: TopicStructureConfig, distances: Float[np.ndarray, "seed length"], limit: np.ndarray, not_tested: str
) -> Finding:
    lengths = np.array(config.optimum_lengths, dtype=float)
    limits = ", ".join(f"{far:.3f} at {length:.0f} words" for length, far in zip(lengths, limit, strict=True))
    slopes = [_slope(lengths, of_seed) for of_seed in distances]
    return Finding(
        id="P2b",
        kind="check",
        statement=f"E2, minimiser of {config.optimum_documents[-1]} documents with weight decay: its entries approach "
        "the closed form as documents get longer",
        source=_THEOREM,
        parts=(
            check_part(f"distance at {lengths[-1]:.0f} words", distances[:, -1], _NEAR),
            check_part("slope of the log distance", slopes, _FALLS),
        ),
        not_tested=not_tested,
        note="a property of the theory but for the number of documents; for the minimiser of all documents: "
        f"{limits}. A selected position that shows its own word makes the word a better predictor of itself than "
        "of its topic, by order 1 / length; the variance that weight decay has to outweigh is of the same order",
    )


def _own_minimiser(config: TopicStructureConfig, runs: ArmRuns) -> Finding:
    ways = [run.way for run in runs[DECAYED] if run.way is not None]
    ends = {name: [float(way[name][-1]) for way in ways] for name in ("closed", "own", "other")}
    free = block(runs[FREE], "distance", "W_V").mean()
    return Finding(
        id="P2c",
        kind="check",
        statement="E2 trained with weight decay: W_V ends at the minimiser of its own documents, all entries",
        source="ours",
        parts=(check_part("", ends["own"], _NEAR),),
        not_tested=not_tested_unless(config.test_findings and config.decay_steps >= _LEAST_STEPS),
        note=f"the loss is convex; {np.mean(ends['other']):.3f} from the minimiser of other documents, "
        f"{np.mean(ends['closed']):.3f} from the closed form, without weight decay {free:.3f}",
    )


def _slope(x: np.ndarray, y: np.ndarray) -> float:
    """Return the slope of log y over log x, by least squares."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
