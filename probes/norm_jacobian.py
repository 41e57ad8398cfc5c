"""Sensitivity of norms to small changes of hidden states."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from probes.engine.probe import Probe
from probes.engine.readout import Readout, check_row_readout, last_token
from probes.engine.result import ProbeResult
from probes.engine.sites import Sites
from probes.engine.state import Rows
from probes.functional.norm_jacobian import norm_jacobian
from tasks import Batch


class NormJacobian(Probe):
    """Sensitivity of the norm after a site: small changes rotate small vectors far.

    Measures (axis site):
        ``smallest_norm``: the least Euclidean norm over examples, ``min |x|``.
        ``median_norm``: the median over examples.
        ``jacobian``: ``sqrt(d) / min |x|``, the largest operator norm over examples of the Jacobian of
            RMS norm without ``eps`` and gain (Odonnat, Bouaziz & Cabannes, arXiv 2410.24050). Infinite
            at 0. For LayerNorm, which subtracts the mean first, a lower bound if ``d`` is at least 3.

    Memory: two numbers per example and site.

    Args:
        at: sites in front of a norm, by name.
        readout: which position. By default the last token, or the only position of a model that has pooled its
            sequence.

    Example:
        >>> NormJacobian("blocks.1.hook_resid_mid").at
        'blocks.1.hook_resid_mid'
    """

    rows = Rows()

    def __init__(self, at: Sites = "blocks.0.hook_resid_mid", readout: Readout = last_token()) -> None:
        super().__init__(at, check_row_readout(readout))

    def update(self, activations: Mapping[str, Float[Tensor, "batch ..."]], batch: Batch) -> None:
        """Keep each example's norm, and the norm of the Jacobian there."""
        for site, activation in activations.items():
            x = activation.flatten(1).double()
            norms = torch.linalg.vector_norm(x, dim=-1)
            self.rows.add(site, batch.index, torch.stack([norms, norm_jacobian(x)], dim=1))

    def compute(self) -> ProbeResult:
        """Return the extremes over all examples so far."""
        kept = [self.rows.get(site)[1].numpy() for site in self.site_names]
        values = {
            "smallest_norm": [x[:, 0].min() for x in kept],
            "median_norm": [np.median(x[:, 0]) for x in kept],
            "jacobian": [x[:, 1].max() for x in kept],
        }
        zeros = [site for site, x in zip(self.site_names, kept, strict=True) if x[:, 0].min() == 0]
        return self.result(
            {name: torch.tensor(numbers, dtype=torch.float64) for name, numbers in values.items()},
            dict.fromkeys(values, ("site",)),
            metadata={"n": len(kept[0])},
            notes=[f"an activation at {site} is 0: the norm has no derivative there" for site in zeros],
        )
