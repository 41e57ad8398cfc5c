"""Number of directions in which hidden states vary."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor

from probes.engine.devices import check_device
from probes.engine.readout import Readout, last_token
from probes.engine.result import ProbeResult
from probes.engine.rows_by_class import Undefined
from probes.engine.rows_or_moments import FORMS, Form, RowsOrMoments
from probes.engine.sites import Sites, residual
from probes.functional.cross_moments import CrossMoments
from probes.functional.n_dims import check_dims_variance, n_dims, n_dims_of_scatter
from tasks.settings import check_choice


class NDims(RowsOrMoments):
    """Number of principal directions that hold a share of the variance, at each site of one model or several.

    Measures:
        ``n_dims`` (site, label): never more than n - 1, so only values of equal n compare. The notes say if that is
            below the dimensions.
        ``n`` (label): number of examples.

    Memory: as moments, ``d^2`` float64 numbers per site and class, independent of the number of examples. As rows,
    every example's row at every site in its own dtype, ``examples x sites x d``. At the end, one site at a time is also
    held in float64, which ``max_memory`` counts.

    Numerics: directions that hold less than 1e-12 of the variance together do not count. A moment is a square, so
    directions with less than about ``d x 2e-16`` of the variance are lost in it. Squares of rows below 1e-150 or above
    1e150 leave the range of float64. If this makes the number doubtful, a note says so, and ``form="rows"`` settles it.
    Otherwise the two forms agree.

    Cost: ``n d^2`` for the moments of a site, and its eigenvalues, about ``10 d^3``.

    Source: Zhao, Ziser & Cohen 2024 (arXiv 2410.20008), with 99%.

    Args:
        at: where to measure.
        readout: which position.
        label: also one value for each class of this label, with one value per example.
        variance: the share, above 0 and at most 1.
        form: ``"moments"``, ``"rows"``, or ``"auto"``: rows as long as they take less memory, then moments.
        max_memory: limit on the state, in GiB. A batch that would exceed it is refused.
        device: where sums are computed, such as ``"cuda"``, as in ``CKA``.

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
        form: Form = "auto",
        max_memory: float = 8.0,
        device: str | None = None,
    ) -> None:
        super().__init__(at, readout, label, max_memory)
        check_choice(form=(form, FORMS))
        if device is not None:
            check_device(device)
        self.variance = check_dims_variance(variance)
        self.form = form
        self.device = device

    def memory(self, d: Sequence[int], n: int) -> int:
        """Return the bytes for ``n`` examples kept as float32 rows, with the copies of one site's rows.

        Args:
            d: dimensions at each site of all models.
            n: number of examples.

        Example:
            >>> NDims().memory([64] * 9, 1000) / 2**20  # MiB
            3.267578125
        """
        return 4 * n * sum(d) + _copies(n, max(d))

    def _bytes(self, rows: Mapping[str, Float[Tensor, "batch _"]], n: int) -> int:
        """Return the bytes of ``n`` examples' rows and of the copies of one site's rows."""
        return super()._bytes(rows, n) + _copies(n, max(x.shape[1] for x in rows.values()))

    def _moments_of(self, rows: Mapping[str, Float[Tensor, "batch _"]], classes: int) -> int:
        """Return the bytes of the moments and of the copies of one site's moments."""
        return super()._moments_of(rows, classes) + 32 * max(x.shape[1] for x in rows.values()) ** 2

    def compute(self) -> ProbeResult:
        """Return the number of directions at each site, by class. Does not change the state."""
        n = self._counts()
        d = self._dims()
        undefined = Undefined()
        values = torch.empty(len(d), len(n), dtype=torch.float64)
        doubtful: dict[str, None] = {}
        for i, site in enumerate(d):
            for k, group in enumerate(n):
                value, sure = self._value(site, group)
                values[i, k] = value
                if math.isnan(value):
                    undefined.setdefault((site, "all examples are the same"), {})[group] = None
                elif not sure:
                    doubtful[group] = None
        notes = self._undefined_notes(undefined)
        largest = max(d.values())
        few = self._small_groups(n, largest + 1)
        if few:
            notes.append(f"n_dims is at most n - 1, below d (up to {largest}): label {few}; compare at equal n")
        if doubtful:
            notes.append(
                f"moments leave n_dims in doubt, within rounding of the share {self.variance:g} (label "
                f"{', '.join(doubtful)}); form='rows' settles it"
            )
        return self.result(
            {"n_dims": values, "n": torch.tensor(list(n.values()))},
            {"n_dims": ("site", "label"), "n": ("label",)},
            {"label": list(n)},
            metadata={"d": d, "form": "moments" if self._has_moments else "rows"},
            notes=notes,
        )

    def _value(self, site: str, group: str) -> tuple[float, bool]:
        """Return the number, and whether rounding leaves no doubt of it."""
        if not self._has_moments:
            return n_dims(self._rows_of(site, group), variance=self.variance), True
        classes = (self.moments[c].pair(site, site) for c in self._classes_of(group))
        return n_dims_of_scatter(reduce(CrossMoments.merge, classes).centred().product, self.variance)


def _copies(n: int, d: int) -> int:
    """Return the bytes of a site's rows in float64, twice, and of the matrix of their products."""
    return 16 * n * d + 24 * min(n, d) ** 2
