"""The unique optimum, entry by entry: claims P2 to P2c."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from mechclust.report.claims import Claim
from mechclust.report.draws import Data, moved_to, one_of, replaced
from mechclust.report.findings import Finding, Parts
from mechclust.report.verdicts import Bound
from mechclust.studies.topic_structure.arms import DECAY, DECAYED, FREE
from mechclust.studies.topic_structure.config import TopicStructureConfig
from mechclust.studies.topic_structure.results import ArmRuns
from probes import ProbeResult

_THEOREM = "Li, Li & Risteski, theorem 2; finite documents ours"
_LEAST_STEPS = 4000  # training has converged by then


def optimum_claims(config: TopicStructureConfig, runs: ArmRuns, minimisers: Sequence[ProbeResult]) -> list[Claim]:
    """P2 to P2c. Bounds were written before any run on the seeds that they are judged by."""
    documents = np.array(config.optimum_documents, dtype=float)
    lengths = np.array(config.optimum_lengths, dtype=float)
    own, closed = (np.array([found[name].numpy() for found in minimisers]) for name in ("own", "distance"))
    limit = minimisers[0]["population"].numpy()
    enough = config.test_claims and len(documents) > 2 and len(lengths) > 2
    limits = ", ".join(f"{far:.3f} at {n:.0f} words" for n, far in zip(lengths, limit, strict=True))

    lowest, greatest, near = Bound(">=", -0.6), Bound("<=", -0.4), Bound("<=", 0.05)

    def root(data: Data) -> Parts:
        slopes = np.array([[_slope(documents, x) for x in of] for of in data["own"]])
        return [
            ("slope of the log distance, lowest", slopes.min(axis=1).tolist(), lowest),
            ("greatest", slopes.max(axis=1).tolist(), greatest),
        ]

    def closer(data: Data) -> Parts:
        x = data["closed"]
        slopes = [_slope(lengths, of) for of in x]
        return [
            (f"distance at {lengths[-1]:.0f} words", x[:, -1].tolist(), near),
            ("slope of the log distance", slopes, greatest),
        ]

    def on_its_own(data: Data) -> Parts:
        return [("", data["own"].tolist(), near)]

    def planted(data: Data, rng: np.random.Generator) -> Data:
        shape = data["own"].shape
        return {**data, "own": documents**-0.5 * np.exp(rng.normal(0, 0.05, shape))}

    def one_bent(data: Data, rng: np.random.Generator) -> Data:
        slopes = np.full((data["own"].shape[1], 1), -0.5)
        slopes[int(rng.integers(len(slopes)))] = lowest.value - 1e-9 if rng.random() < 0.5 else greatest.value + 1e-9
        return _spread_about(documents**slopes, "own", data, rng)

    shrinking = 3 * lengths**-0.6
    far = shrinking / shrinking[-1] * (near.value + 1e-9)
    flat = near.value / 2 * (lengths / lengths[-1]) ** (greatest.value + 1e-9)

    decayed = [run.way for run in runs[DECAYED] if run.way is not None]
    ends = {name: np.array([float(way[name][-1]) for way in decayed]) for name in ("closed", "own", "other")}
    free = np.mean([float(run.end.sel("distance", matrix="W_V")) for run in runs[FREE]])
    found = [
        Finding(
            "P2", "E2, minimiser of N documents with weight decay: its entries approach those of the minimiser of all "
            f"documents as N^(-1/2), for each of {len(lengths)} document lengths", "ours", root,
            one_bent, "N^(-1/2) but for one length, drawn at random, whose slope is just outside a bound, with the "
            "measured spread", planted,
            "N^(-1/2) with 5% of noise on each distance", note=f"relative Frobenius distance; weight decay {DECAY:g}",
        ).judged({"own": own}, tested=enough),
        Finding(
            "P2b", f"E2, minimiser of {documents[-1]:.0f} documents with weight decay: its entries approach the closed "
            "form as documents get longer", _THEOREM, closer,
            one_of(*(partial(_spread_about, mean, "closed") for mean in (far, flat))),
            "distances that fall too slowly, or are too large for the longest documents, just outside the bound, with "
            "the measured spread",
            lambda data, rng: {"closed": shrinking * np.exp(rng.normal(0, 0.05, data["closed"].shape))},
            "length^-0.6 with 5% of noise on each distance",
            note=f"for the minimiser of all documents: {limits}. A selected position that shows its own word makes the "
            "word a better predictor of itself than of its topic, by order 1 / length, and the variance that weight "
            "decay has to outweigh is of the same order",
        ).judged({"closed": closed[:, :, -1]}, tested=enough),
        Finding(
            "P2c", "E2 trained with weight decay: W_V ends at the minimiser of its own documents, all entries",
            "ours", on_its_own, replaced(own="other"), "the distance to the minimiser of equally many other documents",
            lambda data, rng: {**data, "own": rng.uniform(0, 0.04, data["own"].shape)}, "distances from 0 to .04",
            chance=f"{ends['other'].mean():.3f} from the minimiser of other documents",
            note=f"from the closed form {ends['closed'].mean():.3f}, without weight decay {free:.3f}",
        ).judged(ends, tested=config.test_claims and config.decay_steps >= _LEAST_STEPS),
    ]  # fmt: skip
    return found


def _spread_about(mean: np.ndarray, name: str, data: Data, rng: np.random.Generator) -> Data:
    """Distances about a mean, with the measured spread of their logarithms over seeds."""
    logs = moved_to(**{name: np.log(mean)})({name: np.log(data[name])}, rng)[name]
    return {**data, name: np.exp(logs)}


def _slope(x: np.ndarray, y: np.ndarray) -> float:
    """Slope of log y over log x, by least squares."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
