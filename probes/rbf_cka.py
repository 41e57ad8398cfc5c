"""A second opinion beside CKA, which sees also what is not linear."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Literal

from torch import Tensor

from probes.functional.cka import cka_from_hsic
from probes.functional.rbf_cka import check_fraction, rbf_hsic, rbf_scale, rbf_undefined
from probes.pairwise import Pairwise
from probes.readout import Readout, last_token
from probes.result import ProbeResult
from probes.sites import Sites, residual


class RBFCKA(Pairwise):
    """CKA with Gaussian kernels, between two models or the layers of one: sees also what is not linear.

    Pairs are those of ``CKA``. The width of each kernel is a fraction of the median distance between the rows it is of.

    Measures, with axes (site, label) or, where every site is compared with every other, (site, other_site, label):
        ``rbf_cka``: the biased form, above 0 for unrelated rows, the more so the smaller ``fraction`` and ``n``.
        ``debiased_rbf_cka``: near 0 for unrelated rows; may be negative.
        ``n`` (label): number of examples.

    Exact over all examples, never clamped; NaN with a note.

    Memory: every example's row at every site in its own dtype, ``examples x sites x d``, and ``n^2 / 2`` float64
    numbers while a median is found. Cost: ``n^2 (dx + dy)`` a pair and class: minutes from about 10,000 rows on.

    Source: Kornblith et al. 2019 (arXiv 1905.00414), section 3; debiased as in ``CKA``.

    Args:
        at: where to measure.
        readout: which position.
        label: also one value for each class of this label, with one value per example.
        pairs: ``"diagonal"`` or ``"all"``, as in ``CKA``.
        fraction: of the median distance; above 0.
        max_memory: most GiB to hold; more is refused in the first batch that would need it.

    Raises:
        InputError: for three models or more, a label given per token, or too much memory.

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
    ) -> None:
        super().__init__(at, readout, label, pairs, max_memory)
        self.fraction = check_fraction(fraction)

    def _bytes(self, rows: Mapping[str, Tensor], n: int) -> int:
        return super()._bytes(rows, n) + 4 * n * n

    def compute(self) -> ProbeResult:
        forms = {"rbf_cka": False, "debiased_rbf_cka": True}

        @cache
        def scale(site: str, group: str) -> float:
            return rbf_scale(self._rows_of(site, group), self.fraction)

        def compare(x: str, y: str, group: str) -> Iterator[tuple[str, float, str]]:
            scales = scale(x, group), scale(y, group)
            undefined = rbf_undefined(*scales)
            terms = () if undefined else rbf_hsic(self._rows_of(x, group), self._rows_of(y, group), *scales)
            for measure, debiased in forms.items():
                value, why = undefined or cka_from_hsic(*terms, debiased=debiased)
                yield measure, value, why

        return self._compared(list(forms), compare, lambda n, values: [])
