"""Second opinions beside CKA: other similarities, dimensions, neighbours.

A few shifted points can move CKA as one likes (Davari et al. 2022, arXiv 2210.16156): report one of these with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from typing import Literal

import torch
from torch import Tensor

from probes.functional.cka import cka_from_hsic
from probes.functional.similarity import (
    mean_correlation,
    n_dims,
    neighbour_purity,
    neighbour_purity_chance,
    positive,
    principal,
    rbf_hsic,
    rbf_scale,
    rbf_undefined,
    share,
)
from probes.pairwise import ByClass, Pairwise, Undefined, below
from probes.readout import Readout, last_token
from probes.result import ProbeResult
from probes.sites import Sites, residual
from tasks import InputError


class SVCCA(Pairwise):
    """Mean canonical correlation of two sites' principal directions, between two models or the layers of one.

    Pairs are those of ``CKA``: ``run({"tuned": a, "base": b}, batches, SVCCA())``, or ``run(model, batches, SVCCA())``.

    Measures, with axes (site, label) or, where every site is compared with every other, (site, other_site, label):
        ``svcca``: 1 where one side is a rotated, scaled or shifted copy of the other. Not near 0 for unrelated rows
            unless examples are many times the directions kept, which the notes say.
        ``n`` (label): number of examples.

    Memory: every example's row at every site in its own dtype, ``examples x sites x d``, and as much in float64 at the
    end. Cost: a singular value decomposition a site and class, ``n d^2``.

    Source: Raghu et al. 2017 (arXiv 1706.05806); between language models: Zhao et al. 2022 (arXiv 2210.12553).

    Args:
        at: where to measure.
        readout: which position.
        label: also one value for each class of this label, with one value per example.
        pairs: ``"diagonal"`` or ``"all"``, as in ``CKA``.
        variance: share of the variance to keep on each side, above 0 and at most 1.
        max_memory: most GiB to hold; more is refused in the first batch that would need it.

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
        self.variance = share(variance)

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
        self.fraction = positive(fraction)

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
        self.variance = share(variance)

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


class NeighbourPurity(ByClass):
    """Share of an example's nearest neighbours that are of its own class, at each site of one model or several.

    Measures:
        ``neighbour_purity`` (site): averaged over examples and their ``k`` nearest others (Euclidean distance).
        ``chance`` (): the same for neighbours drawn at random.

    Memory: every example's row at every site in its own dtype, ``examples x sites x d``. Cost: ``n^2 d`` a site.

    Args:
        at: where to measure.
        readout: which position.
        label: the classes, one value per example.
        k: neighbours, fewer than there are examples.
        max_memory: most GiB to hold; more is refused in the first batch that would need it.

    Raises:
        InputError: for a label with one class only or given per token, not more than ``k`` examples, or too much
            memory.

    Example:
        >>> NeighbourPurity(label="cluster").k
        10
    """

    label: str

    def __init__(
        self,
        at: Sites = residual(),
        readout: Readout = last_token(),
        label: str = "task",
        k: int = 10,
        max_memory: float = 8.0,
    ) -> None:
        super().__init__(at, readout, label, max_memory)
        if k < 1:
            raise InputError(f"k is {k}; expected at least 1")
        self.k = k

    def compute(self) -> ProbeResult:
        labels, n = self.classes.get("label")[1], self._counts()
        if len(n) < 3:  # "all" and one class
            raise InputError(f"label {self.label!r} has one class only; purity needs examples of at least 2 classes")
        found = [neighbour_purity(self._rows_of(site, "all"), labels, self.k) for site in self.site_names]
        return self.result(
            {
                "neighbour_purity": torch.tensor(found, dtype=torch.float64),
                "chance": torch.tensor(neighbour_purity_chance(labels), dtype=torch.float64),
            },
            {"neighbour_purity": ("site",), "chance": ()},
            metadata={"d": self._dims(), "n": n},
        )
