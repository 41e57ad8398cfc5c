"""CKA with Gaussian kernels, which also sees nonlinear similarity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from probes.engine.devices import check_device
from probes.engine.pairwise import Compare, MeasuredValue, Pairwise
from probes.engine.readout import Readout, last_token
from probes.engine.result import ProbeResult
from probes.engine.sites import Sites, residual
from probes.functional.rbf_cka import (
    GaussianKernel,
    ValueAndReason,
    check_rbf_fraction,
    gaussian_kernel_bytes,
    rbf_cka_of_kernels,
)


class RBFCKA(Pairwise):
    """CKA with Gaussian kernels, between two models or the layers of one: also sensitive to nonlinear similarity.

    Pairs are as in ``CKA``. Each kernel's width is a fraction of the median distance between its rows.

    Measures, with axes (site, label), or (site, other_site, label) if every site is compared with every other:
        ``rbf_cka``: the biased form, above 0 for unrelated rows, the more so the smaller ``fraction`` and ``n``.
        ``debiased_rbf_cka``: near 0 for unrelated rows. May be negative.
        ``n`` (label): number of examples.

    Exact over all examples, never clamped. NaN comes with a note.

    Memory: every example's row at every site in its own dtype, ``examples x sites x d``, one class's again for values
    by label, and blocks of kernel entries whatever the number of examples, some 300 MB at most. Cost: ``n^2 d`` per
    site and class, however many pairs it is in, and ``n^2`` per pair.

    Source: Kornblith et al. 2019 (arXiv 1905.00414), section 3. Debiased as in ``CKA``.

    Args:
        at: where to measure.
        readout: which position.
        label: also one value for each class of this label, with one value per example.
        pairs: ``"diagonal"`` or ``"all"``, as in ``CKA``.
        fraction: the kernel's width over the median distance, above 0.
        max_memory: limit on the state, in GiB. A batch that would exceed it is refused.
        device: where to compute, such as ``"cuda"``. The CPU if not given.

    Raises:
        InputError: for three models or more, a label given per token, an unavailable device, or too much memory.

    Example:
        >>> RBFCKA(fraction=1.0).fraction
        1.0
    """

    def __init__(
        self,
        at: Sites = residual(),
        readout: Readout = last_token(),
        label: str | None = None,
        pairs: Literal["diagonal", "all"] = "diagonal",
        fraction: float = 0.5,
        max_memory: float = 8.0,
        device: str | None = None,
    ) -> None:
        super().__init__(at, readout, label, pairs, max_memory)
        if device is not None:
            check_device(device)
        self.fraction = check_rbf_fraction(fraction)
        self.device = device

    def _bytes(self, rows: Mapping[str, Float[Tensor, "batch _"]], n: int) -> int:
        """Return the bytes of ``n`` examples' rows, and of the arrays computed from them at once."""
        return super()._bytes(rows, n) + gaussian_kernel_bytes(n, len(rows), max(x.shape[1] for x in rows.values()))

    def compute(self) -> ProbeResult:
        """Return the result of all batches so far. Does not change the state."""
        return self._compared(["rbf_cka", "debiased_rbf_cka"], self._compare_in)

    def _compare_in(self, group: str) -> Compare:
        kernels = {
            site: GaussianKernel(self._rows_of(site, group), self.fraction, self.device) for site in self.site_names
        }
        return partial(_measured, rbf_cka_of_kernels(kernels, list(dict.fromkeys(self._pairs()))))


def _measured(
    both_forms: Mapping[tuple[str, str], tuple[ValueAndReason, ValueAndReason]], x: str, y: str
) -> Iterator[MeasuredValue]:
    """Yield every measure of two sites, with why its value is NaN."""
    (biased, why_biased), (debiased, why_debiased) = both_forms[x, y]
    yield "rbf_cka", biased, why_biased
    yield "debiased_rbf_cka", debiased, why_debiased
