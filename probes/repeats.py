"""Notes on examples that repeat others, which are not independent."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Shaped
from torch import Tensor

from probes.functional.distances import first_alike


def repeats_note(rows: Mapping[str, Shaped[Tensor, "n ..."]], layers: Mapping[str, int]) -> str:
    """Return a note that counts examples whose states repeat those of another; empty if there are none.

    Layer 0, the embedding, does not count: any two prompts that end in one token have the same state there.
    """
    repeated = n_repeats(rows, layers)
    if not repeated:
        return ""
    n = len(next(iter(rows.values())))
    return (
        f"{repeated} of {n} examples repeat the states of another, but p-values and intervals take all as "
        "independent; give units, a label that says which examples belong together"
    )


def n_repeats(rows: Mapping[str, Shaped[Tensor, "n ..."]], layers: Mapping[str, int]) -> int:
    """Return how many examples repeat the states of another at every site above layer 0; 0 if there is no such site."""
    counts = [
        int((first_alike(x.flatten(1)) != torch.arange(len(x))).sum())
        for site, x in rows.items()
        if layers.get(site, 1) > 0
    ]
    return min(counts, default=0)
