"""Keep the sequences that a sandbox follows through training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int


@dataclass(frozen=True, eq=False)
class FollowedSequences:
    """Sequences followed through training.

    Attributes:
        tokens: indices into ``token_names``, or -1 at padding.
        token_names: readable names of the tokens.
        answers: the right answer, as an index into ``SandboxRun.answers``. ``None`` if unknown.
        clusters: the cluster of equivalent sequences, as an index into ``cluster_names``.
        cluster_names: readable names of the clusters.
        cluster_answers: the answer of each cluster, whose colour its sequences share in shades. ``None`` if each
            cluster has another colour.
        notes: a readable note on each sequence, or empty.
    """

    tokens: Int[np.ndarray, "sequence pos"]
    token_names: Sequence[str]
    answers: Int[np.ndarray, "sequence"] | None
    clusters: Int[np.ndarray, "sequence"]
    cluster_names: Sequence[str]
    cluster_answers: Sequence[int] | None
    notes: Sequence[str] = ()
