"""What the curriculum does, and how far apart its solution and that from scratch are: H5, H5b, H5c."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mechclust.report.draws import Data, as_shares, exchanged
from mechclust.report.findings import Parts
from mechclust.evidence.bounds import Bound
from mechclust.studies.clustering_heads.config import ClusteringHeadsConfig, Curriculum
from mechclust.studies.clustering_heads.interpolation import barrier
from mechclust.studies.clustering_heads.predicted import Predicted
from mechclust.studies.clustering_heads.results import HeadsResults
from probes import ProbeResult

_SECOND = "Odonnat et al., arXiv 2501.02362"


def curriculum_findings(config: ClusteringHeadsConfig, results: HeadsResults) -> list[Predicted]:
    """H5, H5b, H5c."""
    return [
        _generalises("H5", config.curriculum, results.curriculum, 0.992),
        _apart(config.curriculum, results.curriculum),
        _generalises("H5c", config.narrow_curriculum, results.narrow_curriculum, None),
    ]


def _generalises(id: str, c: Curriculum, results: Mapping[int, ProbeResult], paper: float | None) -> Predicted:
    found = list(results.values())

    def of(arm: str, split: str) -> np.ndarray:
        return np.array([float(r.sel("accuracy", arm=arm, split=split)) for r in found])

    def parts(data: Data) -> Parts:
        return [
            ("", data["test"], Bound(">=", 0.95)),
            ("scratch, test", data["scratch test"], Bound("<=", 0.35)),
            ("scratch, train", data["scratch train"], Bound(">=", 0.95)),
        ]

    def published(data: Data, rng: np.random.Generator) -> Data:
        n = len(data["test"])
        new = {"test": 0.992, "scratch test": 1 / c.p, "scratch train": 0.999}
        return {name: mean + rng.normal(0, 0.01, n) for name, mean in new.items()}

    first = [float(r.sel("first_accuracy", split="test")) for r in found]
    data = {
        "test": of("curriculum", "test"),
        "train": of("curriculum", "train"),
        "scratch test": of("scratch", "test"),
        "scratch train": of("scratch", "train"),
    }
    return Predicted(
        id, f"p = {c.p}, {c.d_model} dimensions: a network trained on p = 2 first generalises (test accuracy), one "
        "from scratch memorises", _SECOND, parts,
        exchanged(("test", "scratch test"), ("train", "scratch train")), "the two arms exchanged seed by seed",
        as_shares(published, "test", "scratch test", "scratch train"),
        "the published accuracies, with a standard deviation of .01", shares=True, paper=paper,
        predicted="does not hold", data=data,
        chance=f"{1 / c.p:g}", why_not="" if found else "the curriculum was not run",
        note=f"from scratch, test, by seed: {', '.join(f'{x:.2f}' for x in data['scratch test'])}; before, on p = 2: "
        f"{np.mean(first):.3f}" if found else "",
    )  # fmt: skip


def _apart(c: Curriculum, results: Mapping[int, ProbeResult]) -> Predicted:
    found = list(results.values())
    plain = [barrier(r["line"].numpy()) for r in found]
    data = {
        "between": np.array([min(barrier(r[name].numpy()) for name in ("line", "matched_line")) for r in found]),
        "own": np.array([max(barrier(line) for line in r["own_line"].numpy()) for r in found]),
    }

    def published(data: Data, rng: np.random.Generator) -> Data:
        return {**data, "between": 25 + rng.normal(0, 5, len(data["between"]))}

    matched = [barrier(r["matched_line"].numpy()) for r in found]
    return Predicted(
        "H5b", f"p = {c.p}, {c.d_model} dimensions: a loss barrier lies between the solution after p = 2 and that "
        "from scratch (nats above the worse end on the straight line, with or without matched neurons, whichever "
        "is lower, minus the larger barrier on the line from halfway to the end of either)",
        _SECOND, lambda data: [("", data["between"] - data["own"], Bound(">", 0))],
        exchanged(("between", "own")), "the line between solutions and the line of one run exchanged seed by seed",
        published, "a barrier of 25, the published one, with a standard deviation of 5", paper=25, chance="0",
        predicted="holds", data=data if found else None,
        why_not="" if found else "the curriculum was not run",
        note=f"means: {np.mean(plain):.1f} without matching, {np.mean(matched):.1f} with, "
        f"{np.mean(data['own']):.1f} from halfway to the end; the paper does not match neurons" if found else "",
    )  # fmt: skip
