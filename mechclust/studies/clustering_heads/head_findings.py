"""Whether predictions follow a donor with a different sum, on all solved networks: H7."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Finding
from mechclust.evidence.compared import compared
from mechclust.studies.clustering_heads.claims import joined_notes
from mechclust.studies.clustering_heads.donors import CENTROID
from mechclust.studies.clustering_heads.results import WEAK, HeadsResults, TrainedNetwork


def head_findings(results: HeadsResults) -> list[Finding]:
    """Return H7 and H7b."""
    sizes = [network.donors.metadata["classes"][0] for network in results.solved]
    note = f"clusters per network: {min(sizes)} to {max(sizes)}" if sizes else ""
    return [
        _follow_the_donor("H7", results, "head", "the head's cluster", note),
        _follow_the_donor("H7b", results, "sum", "the support's sum", ""),
    ]


def _follow_the_donor(id: str, results: HeadsResults, partition: str, name: str, note: str) -> Finding:
    """Judge whether nearly all predictions follow, and more than with random classes."""
    follows = _follows(results.solved, partition)
    draws = [network.donors.sel("random_draws", partition=partition).numpy() for network in results.solved]
    random = np.array(draws) if draws else np.zeros((0, 1))
    one_draw = random[:, 0]
    chance = random.mean(axis=1)
    return compared(
        id,
        f"solved networks: with the mean embedding of {name} of a donor with a different sum and answer, "
        "predictions become the donor's (share)",
        {"": Bound(">=", 0.95), "beyond random classes": Bound(">=", 0.2)},
        [follows, follows - chance],
        "one draw of random classes of the same sizes",
        [one_draw, one_draw - chance],
        shares=[""],
        source="ours",
        not_tested="" if draws else "no network is solved",
        note=joined_notes(note, _in_weak_networks(results, partition)),
    )


def _follows(networks: Sequence[TrainedNetwork], partition: str) -> Float[np.ndarray, "network"]:
    """Return the share of predictions that follow the donor with the mean of its class."""
    shares = [float(network.donors.sel("follows", partition=partition, kind=CENTROID)) for network in networks]
    return np.array(shares)


def _in_weak_networks(results: HeadsResults, partition: str) -> str:
    follows = _follows(results.weak, partition)
    known = follows[np.isfinite(follows)]  # networks that give every donor's answer already cannot follow
    return f"networks at {WEAK} or below: {known.mean():.2f} of predictions follow" if len(known) else ""
