"""Whether predictions follow a donor with a different sum, on all solved networks: H7."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Finding, Part, mean_part, share_part
from mechclust.studies.clustering_heads.controls import control_of
from mechclust.studies.clustering_heads.results import WEAK, HeadsResults


def head_findings(results: HeadsResults) -> list[Finding]:
    """Return H7 and H7b."""
    sizes = [network.donors.metadata["classes"][0] for network in results.solved]
    note = f"clusters per network: {min(sizes)} to {max(sizes)}" if sizes else ""
    return [
        _follow_the_donor("H7", results, "head", "the head's cluster", note),
        _follow_the_donor("H7b", results, "sum", "the support's sum", ""),
    ]


def _follow_the_donor(id: str, results: HeadsResults, partition: str, what: str, note: str) -> Finding:
    donors = [network.donors for network in results.solved]
    follows = np.array([float(found.sel("follows", partition=partition, kind="centroid")) for found in donors])
    draws = [found.sel("random_draws", partition=partition).numpy() for found in donors]
    random = np.array(draws) if donors else np.zeros((0, 1))
    random_classes = _follow(random[:, 0], random)
    return Finding(
        id=id,
        statement=f"solved networks: with the mean embedding of {what} of a donor with a different sum and answer, "
        "predictions become the donor's (share)",
        source="ours",
        parts=_follow(follows, random),
        control=control_of("one draw of random classes of the same sizes", random_classes),
        not_tested="" if donors else "no network is solved",
        note="; ".join(filter(None, [note, _in_weak_networks(results, partition)])),
    )


def _follow(follows: Float[np.ndarray, "network"], random: Float[np.ndarray, "network draw"]) -> tuple[Part, ...]:
    """Judge whether nearly all predictions follow, and more than with random classes."""
    return (
        share_part("", follows, Bound(">=", 0.95)),
        mean_part("beyond random classes", follows - random.mean(axis=1), Bound(">=", 0.2)),
    )


def _in_weak_networks(results: HeadsResults, partition: str) -> str:
    weak = [network.donors for network in results.networks.values() if network.accuracy <= WEAK]
    follows = np.array([float(found.sel("follows", partition=partition, kind="centroid")) for found in weak])
    known = follows[np.isfinite(follows)]  # networks that give every donor's answer already cannot follow
    return f"networks at {WEAK} or below: {known.mean():.2f} of predictions follow" if len(known) else ""
