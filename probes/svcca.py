"""A second opinion beside CKA: do two sites share their principal directions?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Literal

from torch import Tensor

from probes.engine.pairwise import Pairwise
from probes.engine.readout import Readout, last_token
from probes.engine.result import ProbeResult
from probes.engine.sites import Sites, residual
from probes.functional.n_dims import check_share
from probes.functional.svcca import mean_correlation, principal


class SVCCA(Pairwise):
    """Mean canonical correlation of two sites' principal directions, between two models or the layers of one.

    Pairs are those of ``CKA``: ``run({"tuned": a, "base": b}, batches, SVCCA())``, or ``run(model, batches, SVCCA())``.

    Measures, with axes (site, label) or, where every site is compared with every other, (site, other_site, label):
        ``svcca``: 1 where one side is a rotated, scaled or shifted copy of the other. Not near 0 for unrelated rows
            unless examples are many times the directions kept, which the notes say.
        ``n`` (label): number of examples.

    Memory: every example's row at every site in its own dtype, ``examples x sites x d``, and as much in float64 at the
    end. Cost: a singular value decomposition per site and class, ``n d^2``.

    Source: Raghu et al. 2017 (arXiv 1706.05806); between language models: Zhao et al. 2022 (arXiv 2210.12553).

    Args:
        at: where to measure.
        readout: which position.
        label: also one value for each class of this label, with one value per example.
        pairs: ``"diagonal"`` or ``"all"``, as in ``CKA``.
        variance: share of the variance to keep on each side, above 0 and at most 1.
        max_memory: most GiB of state; the first batch that would need more is refused.

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
        self.variance = check_share(variance)

    def _bytes(self, rows: Mapping[str, Tensor], n: int) -> int:
        return super()._bytes(rows, n) + 8 * n * sum(x.shape[1] for x in rows.values())

    def compute(self) -> ProbeResult:
        most: dict[str, int] = {}  # directions of any site, by group

        @lru_cache(len(self.sites))  # those of one group
        def basis(site: str, group: str) -> Tensor:
            found = principal(self._rows_of(site, group), self.variance)
            most[group] = max(most.get(group, 0), found.shape[1])
            return found

        def compare(x: str, y: str, group: str) -> Iterator[tuple[str, float, str]]:
            value, why = mean_correlation(basis(x, group), basis(y, group))
            yield "svcca", value, why

        def notes(n: Mapping[str, int], values: Mapping[str, Tensor]) -> list[str]:
            few = [
                f"{group} (n = {count}, up to {most[group]})" for group, count in n.items() if count < 10 * most[group]
            ]
            what = "svcca of unrelated rows is far from 0 where n is below 10 times the directions"
            return [f"{what}: label {', '.join(few)}"] if few else []

        return self._compared(["svcca"], compare, notes)
