"""In how many directions do hidden states vary?"""

from __future__ import annotations

import torch

from probes.functional.n_dims import check_share, n_dims
from probes.pairwise import ByClass, Undefined, below
from probes.readout import Readout, last_token
from probes.result import ProbeResult
from probes.sites import Sites, residual


class NDims(ByClass):
    """How many principal directions hold a share of the variance at each site: one model's, or several models'.

    Measures:
        ``n_dims`` (site, label): never more than n - 1, so that only values of equal n compare; the notes say where
            that is below the dimensions.
        ``n`` (label): number of examples.

    Memory: every example's row at every site in its own dtype, ``examples x sites x d``. Cost: the singular values of
    a site and class, ``n d^2``.

    Source: Zhao, Ziser & Cohen 2024 (arXiv 2410.20008), with 99%.

    Args:
        at: where to measure.
        readout: which position.
        label: also one value for each class of this label, with one value per example.
        variance: the share, above 0 and at most 1.
        max_memory: most GiB to hold; more is refused in the first batch that would need it.

    Raises:
        InputError: for a label given per token, or too much memory.

    Example:
        >>> NDims(variance=0.9).variance
        0.9
    """

    def __init__(
        self,
        at: Sites = residual(),
        readout: Readout = last_token(),
        label: str | None = None,
        variance: float = 0.99,
        max_memory: float = 8.0,
    ) -> None:
        super().__init__(at, readout, label, max_memory)
        self.variance = check_share(variance)

    def compute(self) -> ProbeResult:
        n, d, undefined = self._counts(), self._dims(), Undefined()
        values = torch.empty(len(d), len(n), dtype=torch.float64)
        for i, site in enumerate(d):
            for k, group in enumerate(n):
                values[i, k] = n_dims(self._rows_of(site, group), variance=self.variance)
                if values[i, k].isnan():
                    undefined.setdefault((site, "all examples are the same"), {})[group] = None
        notes = self._undefined_notes(undefined)
        if few := below(n, max(d.values()) + 1):
            notes.append(f"n_dims is at most n - 1, below d (up to {max(d.values())}): label {few}; compare at equal n")
        return self.result(
            {"n_dims": values, "n": torch.tensor(list(n.values()))},
            {"n_dims": ("site", "label"), "n": ("label",)},
            {"label": list(n)},
            metadata={"d": d},
            notes=notes,
        )
