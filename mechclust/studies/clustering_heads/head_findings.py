"""Do predictions follow a donor with a different sum? H7, on all solved networks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mechclust.report.draws import Data
from mechclust.report.findings import Parts
from mechclust.evidence.bounds import Bound, Verdict
from mechclust.studies.clustering_heads.predicted import Predicted
from mechclust.studies.clustering_heads.results import HeadsResults, TrainedNetwork


def donors_of(networks: Sequence[TrainedNetwork], partition: str, kind: str) -> list[float]:
    """Share of examples whose prediction follows the donor, by network."""
    return [float(n.donors.sel("follows", partition=partition, kind=kind)) for n in networks]


def head_findings(results: HeadsResults) -> list[Predicted]:
    """H7, H7b, H7c."""
    measured = [(n, n.donors) for n in results.solved]
    why = "" if measured else "no network is solved"

    def parts(data: Data) -> Parts:
        return [
            ("", data["follows"], Bound(">=", 0.95)),
            ("beyond random classes", data["follows"] - data["random"].mean(axis=1), Bound(">=", 0.2)),
        ]

    def random_classes(data: Data, rng: np.random.Generator) -> Data:
        return {**data, "follows": np.array([rng.choice(row) for row in data["random"]])}

    def nearly_all(data: Data, rng: np.random.Generator) -> Data:
        return {**data, "follows": 1 - 0.02 * rng.random(len(data["follows"]))}

    def finding(id: str, partition: str, what: str, predicted: Verdict, note: str) -> Predicted:
        data = {
            "follows": np.array(donors_of([n for n, _ in measured], partition, "centroid")),
            "random": np.array([d.sel("random_draws", partition=partition).numpy() for _, d in measured]),
        }
        return Predicted(
            id, f"all solved networks, detected or not: with the mean embedding of {what} of a donor with a different "
            "sum and answer, predictions become the donor's (share)", "ours", parts, random_classes,
            "classes of the same sizes drawn at random among inputs with the same answer, once per network",
            nearly_all, "98 to 100 in 100 follow", shares=("",), note=note if measured else "",
            predicted=predicted, data=data if measured else None, why_not=why,
            chance=f"random classes: {data['random'].mean():.2f}" if measured else None,
        )  # fmt: skip

    def accuracies(name: str) -> np.ndarray:
        return np.array([float(d.sel(name, partition="head")) for _, d in measured])

    sizes = [d.metadata["classes"][0] for _, d in measured]
    return [
        finding(
            "H7", "head", "the head's cluster", "holds",
            f"clusters per network: {min(sizes)} to {max(sizes)}" if sizes else "",
        ),
        finding("H7b", "sum", "the support's sum", "does not hold", ""),
        Predicted(
            "H7c", "all solved networks guess when given the mean embedding of a wrong cluster, drawn per cluster and "
            "seed (accuracy)", "ours", lambda data: [("", data["wrong"], Bound("<=", 0.6))],
            lambda data, rng: {**data, "wrong": rng.permutation(data["right"])},
            "networks that ignore it: their own accuracies", shares=True, chance="0.5 for p = 2", predicted="holds",
            data={"wrong": accuracies("wrong_accuracy"), "right": accuracies("accuracy")} if measured else None,
            why_not=why,
        ),
    ]  # fmt: skip
