"""The unique optimum, entry by entry: findings P2 to P2c."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mechclust.report.findings import Finding, finding
from mechclust.report.draws import Data, spread_like
from mechclust.report.findings import Finding, Parts
from mechclust.evidence.bounds import Bound
from mechclust.studies.topic_structure.arms import DECAY, DECAYED, FREE
from mechclust.studies.topic_structure.config import TopicStructureConfig
from mechclust.studies.topic_structure.results import ArmRuns
from probes import ProbeResult

_THEOREM = "Li, Li & Risteski, theorem 2; finite documents ours"
_LEAST_STEPS = 4000  # training has converged by then


def optimum_findings(config: TopicStructureConfig, runs: ArmRuns, minimisers: Sequence[ProbeResult]) -> list[Finding]:
    """P2 to P2c. Bounds were written before any run on the seeds that they are judged by."""
    documents = np.array(config.optimum_documents, dtype=float)
    lengths = np.array(config.optimum_lengths, dtype=float)
    own, closed = (np.array([found[name].numpy() for found in minimisers]) for name in ("own", "distance"))
    limit = minimisers[0]["population"].numpy()
    enough = config.test_findings and len(documents) > 2 and len(lengths) > 2
    limits = ", ".join(f"{far:.3f} at {n:.0f} words" for n, far in zip(lengths, limit, strict=True))

    lowest, greatest, near = Bound(">=", -0.6), Bound("<=", -0.4), Bound("<=", 0.05)

    def root(data: Data) -> Parts:
        slopes = np.array([[_slope(documents, x) for x in of] for of in data["own"]])
        return [
            ("slope of the log distance, lowest", slopes.min(axis=1).tolist(), lowest),
            ("greatest", slopes.max(axis=1).tolist(), greatest),
        ]

    def planted(data: Data, rng: np.random.Generator) -> Data:
        shape = data["own"].shape
        return {**data, "own": documents**-0.5 * np.exp(rng.normal(0, 0.05, shape))}

    def one_bent(data: Data, rng: np.random.Generator) -> Data:
        slopes = np.full((data["own"].shape[1], 1), -0.5)
        slopes[int(rng.integers(len(slopes)))] = lowest.value - 1e-9 if rng.random() < 0.5 else greatest.value + 1e-9
        return {**data, "own": documents**slopes * np.exp(spread_like(np.log(data["own"]), rng))}

    decayed = [run.way for run in runs[DECAYED] if run.way is not None]
    ends = {name: [float(way[name][-1]) for way in decayed] for name in ("closed", "own", "other")}
    free = np.mean([float(run.end.sel("distance", matrix="W_V")) for run in runs[FREE]])
    found = [
        Finding(
            "P2", "E2, minimiser of N documents with weight decay: its entries approach those of the minimiser of all "
            f"documents as N^(-1/2), for each of {len(lengths)} document lengths", "ours", root,
            one_bent, "N^(-1/2) but for one length, drawn at random, whose slope is just outside a bound, with the "
            "measured spread", planted,
            "N^(-1/2) with 5% of noise on each distance", note=f"relative Frobenius distance; weight decay {DECAY:g}",
        ).judged({"own": own}, tested=enough),
        finding(
            "P2b", f"E2, minimiser of {documents[-1]:.0f} documents with weight decay: its entries approach the closed "
            "form as documents get longer", _THEOREM, closed[:, -1, -1].tolist(), [
                (f"distance at {lengths[-1]:.0f} words", closed[:, -1, -1].tolist(), near),
                ("slope of the log distance", [_slope(lengths, x[:, -1]) for x in closed], greatest),
            ], kind="check", tested=enough,
            note="a property of the theory but for the number of documents; for the minimiser of all documents: "
            f"{limits}. A selected position that shows its own word makes the word a better predictor of itself than "
            "of its topic, by order 1 / length; the variance that weight decay has to outweigh is of the same order",
        ),
        finding(
            "P2c", "E2 trained with weight decay: W_V ends at the minimiser of its own documents, all entries",
            "ours", ends["own"], near, kind="check",
            tested=config.test_findings and config.decay_steps >= _LEAST_STEPS,
            chance=f"{np.mean(ends['other']):.3f} from the minimiser of other documents",
            note=f"the loss is convex; from the closed form {np.mean(ends['closed']):.3f}, without weight decay "
            f"{free:.3f}",
        ),
    ]  # fmt: skip
    return found


def _slope(x: np.ndarray, y: np.ndarray) -> float:
    """Slope of log y over log x, by least squares."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
