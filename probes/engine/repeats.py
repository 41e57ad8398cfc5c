"""Notes on examples that repeat others, which are not independent."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from probes.functional.arrays import in_float64

_RELATIVE_TOLERANCE = 1e-5  # share of the largest number: float32 states of one prompt differ by less between batches
_ROWS_AT_ONCE = 4096
_AFTER_ATTENTION = ("attn.hook_z", "hook_attn_out", "hook_mlp_out")  # of blocks.0 too, whose number is 0


def notes_on_repeats(rows: Mapping[str, Shaped[Tensor, "n ..."]], layers: Mapping[str, int]) -> list[str]:
    """Return a note that counts examples whose states repeat another's, or none.

    Layer 0, the embedding, does not count: any two prompts that end in one token have equal states there. The outputs
    of the first block's parts do.
    """
    repeated = n_repeats(rows, layers)
    if not repeated:
        return []
    n = len(next(iter(rows.values())))
    return [
        f"{repeated} of {n} examples repeat the states of another, but p-values and intervals take all as "
        "independent; give units, a label that says which examples belong together"
    ]


def n_repeats(rows: Mapping[str, Shaped[Tensor, "n ..."]], layers: Mapping[str, int]) -> int:
    """Return how many examples repeat another's states at every site after attention (0 without such a site).

    States are compared up to rounding, because a prompt's states depend a little on its batch.
    """
    counted = [site for site in rows if layers.get(site, 1) > 0 or site.endswith(_AFTER_ATTENTION)]
    return min((_repeats(rows[site].flatten(1)) for site in counted), default=0)


def _repeats(x: Float[Tensor, "n d"]) -> int:
    """Return how many rows are next to an equal one when rows are sorted along a random direction."""
    draw = torch.Generator().manual_seed(0)
    direction = in_float64(torch.randn(x.shape[1], generator=draw).to(x.device))
    blocks = torch.split(x, _ROWS_AT_ONCE)
    places = torch.cat([in_float64(block) @ direction for block in blocks])  # in half precision, many would be equal
    order = places.argsort().to(x.device)
    repeats = 0
    for start in range(0, len(x) - 1, _ROWS_AT_ONCE):
        rows = x[order[start : start + _ROWS_AT_ONCE + 1]]
        distance = (rows[1:] - rows[:-1]).abs().amax(dim=1)
        repeats += int((distance <= _RELATIVE_TOLERANCE * rows.abs().max()).sum())
    return repeats
