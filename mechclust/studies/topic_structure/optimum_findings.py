"""The unique optimum, entry by entry: the checks P2b and P2c."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Finding, check_part
from mechclust.evidence.findings import TOO_SMALL
from mechclust.studies.topic_structure.arms import DECAYED, FREE, MAX_DECAY_RATE, decay_rate
from mechclust.studies.topic_structure.config import TopicStructureConfig
from mechclust.studies.topic_structure.results import ArmRuns, ways_of
from probes import ProbeResult

_LEAST_STEPS = 4000  # at the highest rate, training has converged by then
_LEAST_LENGTHS = 3
_LEAST_LENGTH = 6400  # words, of the longest documents
_LEAST_DOCUMENTS = 100_000  # with fewer, chance decides the distance
_NEAR = Bound("<=", 0.05)
_FALLS = Bound("<=", -0.4)

_Numbers = Float[np.ndarray, "n"]
_Distances = Float[np.ndarray, "seed length documents"]


def optimum_findings(config: TopicStructureConfig, runs: ArmRuns, minimisers: Sequence[ProbeResult]) -> list[Finding]:
    """Return P2b and P2c. Bounds were written before any run on the seeds that they are judged by."""
    from_closed_form = np.array([result["distance"].numpy() for result in minimisers])
    limit = minimisers[0]["population"].numpy()
    return [
        _longer_documents(config, from_closed_form, limit),
        _own_minimiser(config, runs),
    ]


def _longer_documents(
    config: TopicStructureConfig, from_closed_form: _Distances, limit: Float[np.ndarray, "length"]
) -> Finding:
    lengths = config.optimum_lengths
    limits = ", ".join(f"{far:.3f} at {length} words" for length, far in zip(lengths, limit, strict=True))
    most_documents = from_closed_form[:, :, -1]
    is_large = (
        len(lengths) >= _LEAST_LENGTHS
        and lengths[-1] >= _LEAST_LENGTH
        and config.optimum_documents[-1] >= _LEAST_DOCUMENTS
    )
    slopes = [_slope(np.array(lengths, dtype=float), curve) for curve in most_documents]
    return Finding(
        id="P2b",
        kind="check",
        statement=f"E2, minimiser of {config.optimum_documents[-1]} documents with weight decay: its entries approach "
        "the closed form as documents get longer",
        source="Li, Li & Risteski, theorem 2; finite documents ours",
        parts=(
            check_part(f"distance at {lengths[-1]} words", most_documents[:, -1], _NEAR),
            check_part("slope of the log distance", slopes, _FALLS),
        ),
        not_tested="" if is_large else TOO_SMALL,
        note="a property of the theory but for the number of documents; for the minimiser of all documents: "
        f"{limits}. A selected position that shows its own word makes the word a better predictor of itself than "
        "of its topic, by order 1 / length; the variance that weight decay has to outweigh is of the same order",
    )


def _own_minimiser(config: TopicStructureConfig, runs: ArmRuns) -> Finding:
    ends = {name: curves[:, -1] for name, curves in ways_of(runs[DECAYED]).items()}
    converges = config.decay_steps * decay_rate(config) >= _LEAST_STEPS * MAX_DECAY_RATE
    free = np.mean([float(run.end.sel("distance", matrix="W_V")) for run in runs[FREE]])
    return Finding(
        id="P2c",
        kind="check",
        statement="E2 trained with weight decay: W_V ends at the minimiser of its own documents, all entries",
        source="ours",
        parts=(check_part("", ends["own"], _NEAR),),
        not_tested="" if converges else TOO_SMALL,
        note=f"the loss is convex; from the minimiser of other documents {ends['other'].mean():.3f}, from the closed "
        f"form {ends['closed'].mean():.3f}, without weight decay {free:.3f}",
    )


def _slope(x: _Numbers, y: _Numbers) -> float:
    """Return the slope of log y over log x, by least squares."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
