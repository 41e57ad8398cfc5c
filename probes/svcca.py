"""SVCCA, an alternative to CKA: correlation of two sites' principal directions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Literal

from jaxtyping import Float, Shaped
from torch import Tensor

from probes.engine.pairwise import Pairwise
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
        directions = _Directions(self)
        return self._compared(["svcca"], directions.compare, directions.notes)


class _Directions:
    """The principal directions of a probe's sites, of one group at a time.

    Attributes:
        largest: the most directions that any site has, by group.
    """

    def __init__(self, probe: SVCCA) -> None:
        self.probe = probe
        self.largest: dict[str, int] = {}
        self.basis = lru_cache(len(probe.sites))(self._basis)

    def _basis(self, site: str, group: str) -> Float[Tensor, "row kept"]:
        basis = svcca_basis(self.probe._rows_of(site, group), self.probe.variance)
        self.largest[group] = max(self.largest.get(group, 0), basis.shape[1])
        return basis

    def compare(self, x: str, y: str, group: str) -> Iterator[tuple[str, float, str]]:
        """Yield the measure of two sites, with why it is NaN."""
        value, why = svcca_correlation(self.basis(x, group), self.basis(y, group))
        yield "svcca", value, why

    def notes(self, n: Mapping[str, int], values: Mapping[str, Shaped[Tensor, "..."]]) -> list[str]:
        """Note the results for which unrelated rows would give a large value."""
        few = [
            f"{group} (n = {count}, up to {self.largest[group]})"
            for group, count in n.items()
            if count < 10 * self.largest[group]
        ]
        what = "svcca of unrelated rows is far from 0 where n is below 10 times the directions"
        return [f"{what}: label {', '.join(few)}"] if few else []
