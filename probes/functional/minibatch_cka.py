"""Linear CKA from HSIC averaged over mini-batches: an estimate, where all pairs of wide layers cost too much."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from probes.functional.cka import kernel
from probes.functional.products import Precision, float32_as_it_is

_BLOCK = 4096  # elements of kernels that are summed in float32


def minibatch_hsic(
    rows: Sequence[Float[Tensor, "n _"]], precision: Precision = "float64"
) -> tuple[Float[Tensor, "sites sites"], Float[Tensor, "sites"]]:
    """HSIC_1 of the linear kernels of every two sites for one mini-batch, and the size of what was added up for each
    site with itself.

    Source: Song et al. 2012, eq. 5; averaged over mini-batches: Nguyen et al. 2021 (arXiv 2010.15327), eq. 3.

    Args:
        rows: of each site, for the same examples, at least 4.
        precision: of the kernels and their products; sums are float64.
    """
    n = len(rows[0])
    kernels = torch.stack([kernel(x, precision).fill_diagonal_(0) for x in rows])
    sums = kernels.sum(2, dtype=torch.float64)
    flat, together = kernels.flatten(1), sums.new_zeros(len(rows), len(rows))
    with float32_as_it_is():
        for some in [flat] if precision == "float64" else torch.split(flat, _BLOCK, dim=1):
            together += some @ some.T
    whole = sums.sum(1)
    terms = [together, torch.outer(whole, whole) / ((n - 1) * (n - 2)), -2 / (n - 2) * sums @ sums.T]
    scale = n * (n - 3)
    return torch.stack(terms).sum(0) / scale, torch.stack([t.diagonal().abs() for t in terms]).sum(0) / scale
