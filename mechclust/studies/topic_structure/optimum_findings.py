"""The unique optimum, entry by entry: the finding P2, and the checks P2b and P2c."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Control, Finding, Part, check_part, mean_part
from mechclust.studies.topic_structure.arms import DECAY, DECAYED, FREE
from mechclust.studies.topic_structure.config import TopicStructureConfig
from mechclust.studies.topic_structure.results import ArmRuns
from probes import ProbeResult

_THEOREM = "Li, Li & Risteski, theorem 2; finite documents ours"
_LEAST_STEPS = 4000  # training has converged by then
_TOO_SMALL = "this size of the study cannot test it"
_NEAR, _FALLS = Bound("<=", 0.05), Bound("<=", -0.4)


def optimum_findings(config: TopicStructureConfig, runs: ArmRuns, minimisers: Sequence[ProbeResult]) -> list[Finding]:
    """Return P2 to P2c. Bounds were written before any run on the seeds that they are judged by."""
    documents = np.array(config.optimum_documents, dtype=float)
    lengths = np.array(config.optimum_lengths, dtype=float)
    own = np.array([found["own"].numpy() for found in minimisers])
    closed = np.array([found["distance"].numpy() for found in minimisers])
    enough = "" if len(documents) > 2 and len(lengths) > 2 else _TOO_SMALL
    return [
        Finding(
            id="P2",
            statement="E2, minimiser of N documents with weight decay: its entries approach those of the minimiser of "
            f"all documents as N^(-1/2), for each of {len(lengths)} document lengths (slope of the log distance)",
            source="ours",
            parts=_falls_as_root(documents, own),
            control=Control("distance from the closed form for endless documents", _falls_as_root(documents, closed)),
            shown="table",
            not_tested=enough,
            note=f"relative Frobenius distance; weight decay {DECAY:g}",
        ),
        _closed_form(documents, lengths, closed, minimisers[0]["population"].numpy(), enough),
        _own_minimiser(config, runs),
    ]


def _falls_as_root(
    documents: Float[np.ndarray, "documents"], distances: Float[np.ndarray, "seed length documents"]
) -> tuple[Part, ...]:
    slopes = np.array([[_slope(documents, curve) for curve in of_seed] for of_seed in distances])
    return (
        mean_part("slope of the log distance, lowest", slopes.min(axis=1), Bound(">=", -0.6)),
        mean_part("greatest", slopes.max(axis=1), _FALLS),
    )


def _closed_form(
    documents: Float[np.ndarray, "documents"],
    lengths: Float[np.ndarray, "length"],
    closed: Float[np.ndarray, "seed length documents"],
    limit: Float[np.ndarray, "length"],
    not_tested: str,
) -> Finding:
    limits = ", ".join(f"{far:.3f} at {n:.0f} words" for n, far in zip(lengths, limit, strict=True))
    slopes = [_slope(lengths, of_seed[:, -1]) for of_seed in closed]
    return Finding(
        id="P2b",
        kind="check",
        statement=f"E2, minimiser of {documents[-1]:.0f} documents with weight decay: its entries approach the closed "
        "form as documents get longer",
        source=_THEOREM,
        parts=(
            check_part(f"distance at {lengths[-1]:.0f} words", closed[:, -1, -1], _NEAR),
            check_part("slope of the log distance", slopes, _FALLS),
        ),
        not_tested=not_tested,
        note="a property of the theory but for the number of documents; for the minimiser of all documents: "
        f"{limits}. A selected position that shows its own word makes the word a better predictor of itself than "
        "of its topic, by order 1 / length; the variance that weight decay has to outweigh is of the same order",
    )


def _own_minimiser(config: TopicStructureConfig, runs: ArmRuns) -> Finding:
    ways = [run.way for run in runs[DECAYED] if run.way is not None]
    own, other, closed = ([float(way[name][-1]) for way in ways] for name in ("own", "other", "closed"))
    free = np.mean([float(run.end.sel("distance", matrix="W_V")) for run in runs[FREE]])
    return Finding(
        id="P2c",
        kind="check",
        statement="E2 trained with weight decay: W_V ends at the minimiser of its own documents, all entries",
        source="ours",
        parts=(check_part("", own, _NEAR),),
        not_tested="" if config.decay_steps >= _LEAST_STEPS else _TOO_SMALL,
        note=f"the loss is convex; from the minimiser of other documents {np.mean(other):.3f}, from the closed form "
        f"{np.mean(closed):.3f}, without weight decay {free:.3f}",
    )


def _slope(x: np.ndarray, y: np.ndarray) -> float:
    """Return the slope of log y over log x, by least squares."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
