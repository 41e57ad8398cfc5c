"""SVCCA, an alternative to CKA: correlation of two sites' principal directions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Literal

from jaxtyping import Float, Shaped
from torch import Tensor

from probes.engine.pairwise import Compare, MeasuredValue, Pairwise
from probes.engine.readout import Readout, last_token
from probes.engine.result import ProbeResult
from probes.engine.sites import Sites, residual
from probes.functional.n_dims import check_dims_variance
from probes.functional.svcca import svcca_basis, svcca_correlation


class SVCCA(Pairwise):
    """Mean canonical correlation of two sites' principal directions, between two models or the layers of one.

    Pairs are as in ``CKA``: ``run({"tuned": a, "base": b}, batches, SVCCA())``, or ``run(model, batches, SVCCA())``.

    Measures, with axes (site, label), or (site, other_site, label) if every site is compared with every other:
        ``svcca``: 1 if one side is a rotated, scaled or shifted copy of the other. Not near 0 for unrelated rows unless
            examples are many times the directions kept, which the notes say.
        ``n`` (label): number of examples.

    Memory: every example's row at every site in its own dtype, ``examples x sites x d``, and as much in float64 at the
    end. Cost: a singular value decomposition per site and class, ``n d^2``.

    Source: Raghu et al. 2017 (arXiv 1706.05806). Between language models: Zhao et al. 2022 (arXiv 2210.12553).

    Args:
        at: where to measure.
        readout: which position.
        label: also one value for each class of this label, with one value per example.
        pairs: ``"diagonal"`` or ``"all"``, as in ``CKA``.
        variance: share of the variance to keep on each side, above 0 and at most 1.
        max_memory: limit on the state, in GiB. A batch that would exceed it is refused.

    Raises:
        InputError: for three models or more, a label given per token, or too much memory.

    Example:
        >>> SVCCA(label="task")  # doctest: +ELLIPSIS
        SVCCA(at=residual(), readout=last_token(), label='task', pairs='diagonal', variance=0.99, max_memory=8.0)
    """

    def __init__(
        self,
        at: Sites = residual(),
        readout: Readout = last_token(),
        label: str | None = None,
        pairs: Literal["diagonal", "all"] = "diagonal",
        variance: float = 0.99,
        max_memory: float = 8.0,
    ) -> None:
        super().__init__(at, readout, label, pairs, max_memory)
        self.variance = check_dims_variance(variance)

    def _bytes(self, rows: Mapping[str, Float[Tensor, "batch _"]], n: int) -> int:
        """Return the bytes of ``n`` examples' rows, and as many float64 numbers."""
        return super()._bytes(rows, n) + 8 * n * sum(x.shape[1] for x in rows.values())

    def compute(self) -> ProbeResult:
        """Return the result of all batches so far. Does not change the state."""
        largest: dict[str, int] = {}
        return self._compared(["svcca"], partial(self._compare_in, largest), partial(_notes, largest))

    def _compare_in(self, largest: dict[str, int], group: str) -> Compare:
        """Find the directions of every site, and keep how many the largest site has."""
        bases = {site: svcca_basis(self._rows_of(site, group), self.variance) for site in self.site_names}
        largest[group] = max(basis.shape[1] for basis in bases.values())
        return partial(_compare, bases)


def _compare(bases: Mapping[str, Float[Tensor, "row _"]], x: str, y: str) -> Iterator[MeasuredValue]:
    """Yield the measure of two sites, with why it is NaN."""
    value, why = svcca_correlation(bases[x], bases[y])
    yield "svcca", value, why


def _notes(largest: Mapping[str, int], n: Mapping[str, int], values: Mapping[str, Shaped[Tensor, "..."]]) -> list[str]:
    """Note the results for which unrelated rows would give a large value."""
    few = [
        f"{group} (n = {count}, up to {largest[group]})" for group, count in n.items() if count < 10 * largest[group]
    ]
    reason = "svcca of unrelated rows is far from 0 where n is below 10 times the directions"
    return [f"{reason}: label {', '.join(few)}"] if few else []
