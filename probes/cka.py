"""How similar are two models, or two layers of one, on the same examples?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, reduce
from itertools import combinations, product
from typing import Literal

import torch
from torch import Tensor

from probes.functional.cka import HSIC, CrossMoments, cka_from_hsic, cka_null, cka_resamples, hsic_of_rows
from probes.moments import Moments
from probes.pairwise import Pairwise, below, sites_of
from probes.probe import Probe
from probes.readout import Readout, last_token
from probes.result import ProbeResult
from probes.sites import Sites, residual
from tasks import InputError
from tasks.errors import check_at_least, check_choice

_FORMS = {"cka": False, "debiased_cka": True}


class CKA(Pairwise):
    """Linear centred kernel alignment between two models layer by layer, or between all layers of one.

    ``run({"tuned": a, "base": b}, batches, CKA())`` compares each site of the first with the same site of the
    second; ``run(model, batches, CKA())`` every two sites of one model. Dimensions may differ.

    Measures, with axes (site, label) or, where every site is compared with every other, (site, other_site, label):
        ``cka``: the biased form; too high unless n >= 10 d, which the notes say.
        ``debiased_cka``: near 0 for unrelated representations; may be negative.
        ``n`` (label): number of examples. The dimensions stand in ``metadata["d"]``.
        With ``n_resamples``, ``cka_low`` and ``cka_high``: a 95% interval over examples, see
            ``functional.cka_resamples``. With ``n_permutations``, ``cka_null_low``, ``cka_null_high`` and
            ``cka_p_value``: central 95% for rows paired at random, and the share at least as high, counting the
            value itself. Likewise ``debiased_cka_low`` and so on.

    Exact over all examples, whatever the batches: never an average of batches, never clamped; NaN with a note.

    Memory: as moments, ``dx dy`` float64 numbers per pair and class and ``d^2`` per site and class, independent of the
    number of examples; as rows, ``examples x sites x d``. ``memory`` tells.

    Source: Kornblith et al. 2019 (arXiv 1905.00414); debiased: Nguyen et al. 2021 (arXiv 2010.15327); between a tuned
    model and controls: Zhao, Ziser & Cohen 2024 (arXiv 2410.20008).

    Args:
        at: where to measure.
        readout: which position.
        label: also one value for each class of this label, with one value per example.
        pairs: ``"diagonal"``: each site of the first model with the same one of the second, where both have the same
            sites. ``"all"``: every site with every other.
        form: ``"moments"``, ``"rows"``, or ``"auto"``: rows as long as they take less memory, as they do where examples
            are fewer than dimensions, then moments; always rows where resamples or permutations ask for them. The
            values are the same.
        n_resamples: half-samples behind the interval over examples; 0 for none.
        n_permutations: random pairings behind the null; 0 for none.
        max_memory: most GiB of state to hold; more is refused in the first batch that would need it.
        seed: of half-samples and pairings.

    Raises:
        InputError: for three models or more, a label given per token, or too much memory.

    Example:
        >>> probe = CKA(label="task")
        >>> probe.memory([64] * 9, [64] * 9, classes=24) / 2**20  # MiB for 9 layers of two models
        22.1484375
    """

    moments = Moments()

    def __init__(
        self,
        at: Sites = residual(),
        readout: Readout = last_token(),
        label: str | None = None,
        pairs: Literal["diagonal", "all"] = "diagonal",
        form: Literal["auto", "moments", "rows"] = "auto",
        n_resamples: int = 0,
        n_permutations: int = 0,
        max_memory: float = 8.0,
        seed: int = 0,
    ) -> None:
        super().__init__(at, readout, label, pairs, max_memory)
        check_choice(form=(form, ("auto", "moments", "rows")))
        check_at_least(n_resamples=(n_resamples, 0), n_permutations=(n_permutations, 0), seed=(seed, 0))
        for name, value in (("n_resamples", n_resamples), ("n_permutations", n_permutations)):
            if value and form == "moments":
                raise InputError(f"{name} is {value}, which needs the examples themselves; take form='rows' or 'auto'")
        self.form, self.n_resamples, self.n_permutations, self.seed = form, n_resamples, n_permutations, seed

    # ---- what is kept ----

    @property
    def _needs_rows(self) -> bool:
        return self.form == "rows" or (self.form == "auto" and bool(self.n_resamples or self.n_permutations))

    @property
    def _has_moments(self) -> bool:
        return self.form == "moments" or len(self.moments) > 0

    def memory(
        self, d: Sequence[int], other: Sequence[int] | None = None, *, classes: int = 1, n: int | None = None
    ) -> int:
        """Bytes of state.

        Args:
            d: dimensions at each site of the (first) model.
            other: of the second.
            classes: of the label.
            n: number of examples; needed where rows are kept. These are taken to be float32. Without it, form
                ``"auto"`` is taken to end with moments.
        """
        own = [*d, *(other or ())]
        if n is None and self._needs_rows:
            raise InputError("form 'rows' keeps every example; give their number, memory(..., n=1000)")
        rows = math.inf if n is None or self.form == "moments" else 4 * n * sum(own)
        return int(rows if self._needs_rows else min(rows, self._moments_bytes(d, other, classes)))

    def _moments_bytes(self, d: Sequence[int], other: Sequence[int] | None, classes: int) -> int:
        own = [*d, *(other or ())]
        if other is None:
            pairs = list(combinations(d, 2))
        elif self.pairs == "diagonal" and len(d) == len(other):
            pairs = list(zip(d, other, strict=True))
        else:
            pairs = list(product(d, other))
        numbers = sum(a * b + 3 * (a + b) for a, b in [*zip(own, own, strict=True), *pairs])
        return 8 * classes * numbers

    def _check_memory(self, rows: Mapping[str, Tensor], n: int, classes: int) -> None:
        if self._needs_rows:
            return self._check_rows(rows, n, "take form='moments'")
        needed = self._moments_of(rows, classes)
        if self.form == "auto" and not self._has_moments:
            needed = min(needed, self._bytes(rows, n))
        row = 4 * sum(x.shape[1] for x in rows.values()) / 2**20
        what = f"moments for {sites_of(rows)} and {classes} classes"
        return self._refuse_above(needed, what, f"take form='rows' ({row:.3g} MiB an example)")

    def _moments_of(self, rows: Mapping[str, Tensor], classes: int) -> int:
        first, second = ([rows[s.name].shape[1] for s in side] for side in self._sides())
        return self._moments_bytes(first, second if self._models else None, classes)

    def _keep(self, rows: Mapping[str, Tensor], index: Tensor, classes: Tensor) -> None:
        if self._has_moments:
            return self.moments.add(rows, classes, list(self._pairs()))
        super()._keep(rows, index, classes)
        n = sum(int(self.seen[c]) for c in self.seen)
        if not self._needs_rows and self._bytes(rows, n) > self._moments_of(rows, len(self.seen)):
            self._fold()
        return None

    def _fold(self) -> None:
        """From rows to moments."""
        rows = {site: self.rows.get(site)[1] for site in self.site_names}
        self.moments.add(rows, self.classes.get("label")[1], list(self._pairs()))
        for state in (self.rows, self.classes):
            state.load({})

    def merge(self, other: Probe) -> None:
        super().merge(other)
        if len(self.moments) and len(self.rows):
            self._fold()

    # ---- the result ----

    def compute(self) -> ProbeResult:
        hsic = cache(self._hsic_of_moments if self._has_moments else self._hsic_of_rows)

        def compare(x: str, y: str, group: str) -> Iterator[tuple[str, float, str]]:
            terms = hsic(x, y, group), hsic(x, x, group), hsic(y, y, group)
            for measure, debiased in _FORMS.items():
                value, why = cka_from_hsic(*terms, debiased=debiased)
                yield measure, value, why
                if not why and (self.n_resamples or self.n_permutations):
                    rows = self._rows_of(x, group), self._rows_of(y, group)
                    for suffix, end in zip(self._suffixes(), self._intervals(value, *rows, debiased), strict=True):
                        yield measure + suffix, end, ""

        measures = [measure + suffix for measure in _FORMS for suffix in ("", *self._suffixes())]
        return self._compared(measures, compare, self._notes, form="moments" if self._has_moments else "rows")

    def _suffixes(self) -> list[str]:
        intervals = ["_low", "_high"] if self.n_resamples else []
        return [*intervals, *(["_null_low", "_null_high", "_p_value"] if self.n_permutations else [])]

    def _intervals(self, value: float, x: Tensor, y: Tensor, debiased: bool) -> list[float]:
        found, ends = [], torch.tensor([0.025, 0.975], dtype=torch.float64)
        if self.n_resamples:
            spread = cka_resamples(x, y, self.n_resamples, debiased=debiased, seed=self.seed)
            found += (value + spread.quantile(ends)).tolist()
        if self.n_permutations:
            null = cka_null(x, y, self.n_permutations, debiased=debiased, seed=self.seed)
            found += [*null.quantile(ends).tolist(), (1 + int((null >= value).sum())) / (1 + self.n_permutations)]
        return found

    def _hsic_of_moments(self, x: str, y: str, group: str) -> HSIC:
        wanted = sorted(self.moments, key=int) if group == "all" else [group]
        return reduce(CrossMoments.merge, (self.moments[c].pair(x, y) for c in wanted)).hsic()

    def _hsic_of_rows(self, x: str, y: str, group: str) -> HSIC:
        one = self._rows_of(x, group)
        return hsic_of_rows(one, one if x == y else self._rows_of(y, group))

    def _dims(self) -> dict[str, int]:
        if not self._has_moments:
            return super()._dims()
        places = self.moments[next(iter(self.moments))].places
        return {site: places[site].stop - places[site].start for site in self.site_names}

    def _notes(self, n: Mapping[str, int], values: Mapping[str, Tensor]) -> list[str]:
        notes, largest = [], max(self._dims().values())
        if small := below(n, 10 * largest):
            notes.append(f"cka is too high where n is below 10 d (d up to {largest}): label {small}; see debiased_cka")
        for measure in _FORMS:
            if self.n_resamples and bool((values[f"{measure}_low"].isnan() & ~values[measure].isnan()).any()):
                notes.append(f"{measure}_low and _high are NaN where half of the examples have no CKA")
        return notes
