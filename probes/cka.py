"""Similarity of two models, or of two layers of one model, on shared examples."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial, reduce
from itertools import combinations, product
from typing import Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from probes.engine.devices import check_device
from probes.engine.moments import moments_bytes
from probes.engine.pairwise import Compare, MeasuredValue, Pairwise
from probes.engine.readout import Readout, last_token
from probes.engine.result import ProbeResult
from probes.engine.rows_or_moments import FORMS, Form, RowsOrMoments
from probes.engine.sites import Sites, residual
from probes.functional.arrays import in_float64, row_matrix
from probes.functional.cka import (
    centred_and_compacted,
    cka_from_hsic,
    cka_halves_terms,
    cka_null_terms,
    cka_of_draws,
    linear_cka_terms,
)
from probes.functional.cross_moments import CrossMoments
from probes.functional.halves import check_n_halves
from probes.functional.hsic import HSIC, centred_kernel, hsic_between_units
from probes.functional.permutation_test import ROUNDING_TIE, permutation_p_value
from probes.functional.products import Precision, check_product_precision
from probes.functional.top_components import without_top_components
from probes.functional.units import FEWEST_ARRANGEMENTS, n_unit_pairings
from tasks import InputError
from tasks.settings import check_choice, check_count

_DEBIASED = {"cka": False, "debiased_cka": True}  # form of each measure
_MAX_ROUNDING = 1e-5  # largest error of float32 without a note
_INTERVAL = torch.tensor([0.025, 0.975], dtype=torch.float64)


class CKA(Pairwise, RowsOrMoments):
    """Linear centred kernel alignment (CKA) between two models layer by layer, or between all layers of one.

    ``run({"tuned": a, "base": b}, batches, CKA())`` compares each site of the first with its counterpart in the second.
    ``run(model, batches, CKA())`` compares every two sites of one model. Dimensions may differ.

    Measures, with axes (site, label), or (site, other_site, label) if every site is compared with every other:
        ``cka``: the biased form. Too high unless n >= 10 d, which the notes say.
        ``debiased_cka``: near 0 for unrelated representations. May be negative.
        ``n`` (label): number of examples. The dimensions are in ``metadata["d"]``.
        ``cka_low``, ``cka_high``, with ``n_resamples``: a 95% interval over examples, see ``functional.cka_resamples``.
        ``cka_null_low``, ``cka_null_high``, with ``n_permutations``: the central 95% for rows paired at random.
        ``cka_p_value``, with ``n_permutations``: the share of random pairings at least as high, counting the value
            itself. NaN with fewer than 20 different pairings.
        ``debiased_cka_low`` and so on: likewise for ``debiased_cka``.
        ``cka_halves``, ``debiased_cka_halves`` (site, label, half), with ``keep_halves``: each half-sample's value.
            ``metadata["n_units"]`` is the number of examples or units.

    Exact over all examples: batches are not averaged and values are not clamped. NaN comes with a note.

    Memory: as moments, ``dx dy`` float64 numbers per pair and class and ``d^2`` per site and class, independent of the
    number of examples. As rows, ``examples x sites x d``. ``memory`` gives the bytes.

    Source: Kornblith et al. 2019 (arXiv 1905.00414). Debiased: Nguyen et al. 2021 (arXiv 2010.15327). Between a tuned
    model and controls: Zhao, Ziser & Cohen 2024 (arXiv 2410.20008).

    Args:
        at: where to measure.
        readout: which position.
        label: also one value for each class of this label, with one value per example.
        pairs: ``"diagonal"``: each site of the first model with its counterpart in the second, if both have equal
            sites. ``"all"``: every site with every other.
        form: ``"moments"``, ``"rows"``, or ``"auto"``: rows as long as they take less memory (fewer examples than
            dimensions), then moments. Resamples, permutations and ``remove_top`` always need rows. The values are
            equal.
        precision: precision of the products of rows, nearly all of the work. ``"float32"`` is 1.2 to 1.8 times
            as fast on a CPU, and accurate to about 1e-7. A note says if the error may exceed 1e-5. A point near their
            mean is subtracted from the rows before they are rounded, and all sums are float64 either way.
        n_resamples: number of half-samples for the interval over examples (0: none).
        n_permutations: number of random pairings for the null (0: none).
        max_memory: limit on the state, in GiB. A batch that would exceed it is refused.
        device: where sums are computed, such as ``"cuda"``. By default the rows' device: the model's in ``run``, the
            CPU in ``run_stores`` and for kept rows.
        seed: for half-samples and pairings.
        remove_top: first remove this many of the largest principal components from each side, separately for each
            class. A few dimensions with huge values, common at last tokens, then no longer decide the result. It needs
            rows. Half-samples and pairings use the remaining components.
        units: a label that says which examples belong together, such as the template of prompts, because they are not
            independent. Half-samples are of units, and whole units are paired at random, each with one of as many
            examples. With fewer than 20 such pairings, p-values are NaN. ``debiased_cka`` leaves out pairs of one unit,
            which agree in both representations and would make it too high (``functional.hsic.hsic_between_units``).
        keep_halves: also return the values of half-samples. Comparisons with equal examples, units and seed share their
            halves, so ``functional.halves.interval_from_halves`` can give an interval of a difference.

    Raises:
        InputError: for three models or more, a label given per token, or too much memory.

    Example:
        >>> probe = CKA(label="task")
        >>> probe.memory([64] * 9, [64] * 9, classes=24) / 2**20  # MiB for 9 layers of two models
        22.1484375
    """

    def __init__(
        self,
        at: Sites = residual(),
        readout: Readout = last_token(),
        label: str | None = None,
        pairs: Literal["diagonal", "all"] = "diagonal",
        form: Form = "auto",
        precision: Precision = "float64",
        n_resamples: int = 0,
        n_permutations: int = 0,
        max_memory: float = 8.0,
        device: str | None = None,
        seed: int = 0,
        remove_top: int = 0,
        units: str | None = None,
        keep_halves: bool = False,
    ) -> None:
        super().__init__(at, readout, label, pairs, max_memory)
        check_choice(form=(form, FORMS))
        check_n_halves(n_resamples)
        check_count(n_permutations=(n_permutations, 0), seed=(seed, 0), remove_top=(remove_top, 0))
        if device is not None:
            check_device(device)
        self.form = form
        self.precision = check_product_precision(precision)
        self.n_resamples = n_resamples
        self.n_permutations = n_permutations
        self.device = device
        self.seed = seed
        self.remove_top = remove_top
        self.units = units
        self.keep_halves = keep_halves
        for name, value in self._settings_that_need_rows().items():
            if value and form == "moments":
                raise InputError(f"{name} is {value!r}, which needs the examples themselves; use form='rows' or 'auto'")

    # ---- state ----

    def _settings_that_need_rows(self) -> dict[str, object]:
        names = ("n_resamples", "n_permutations", "remove_top", "units")
        return {name: getattr(self, name) for name in names}

    @property
    def _needs_rows(self) -> bool:
        return self.form == "rows" or any(self._settings_that_need_rows().values())

    def memory(
        self, d: Sequence[int], other: Sequence[int] | None = None, *, classes: int = 1, n: int | None = None
    ) -> int:
        """Return the bytes of the state. ``compute`` temporarily needs more.

        Args:
            d: dimensions at each site of the (first) model.
            other: dimensions at each site of the second model.
            classes: classes of the label.
            n: number of examples, needed if rows are kept, which are taken to be float32. Without it, form ``"auto"``
                is taken to end with moments.
        """
        if n is None and self._needs_rows:
            raise InputError("form 'rows' keeps every example; give their number, memory(..., n=1000)")
        sites = [*d, *(other or ())]
        rows = math.inf if n is None or self.form == "moments" else 4 * n * sum(sites)
        if other is None:
            pairs = list(combinations(d, 2))
        elif self.pairs == "diagonal" and len(d) == len(other):
            pairs = list(zip(d, other, strict=True))
        else:
            pairs = list(product(d, other))
        moments = moments_bytes([*zip(sites, sites, strict=True), *pairs], classes)
        return int(rows if self._needs_rows else min(rows, moments))

    # ---- the result ----

    def compute(self) -> ProbeResult:
        """Return the result of all batches so far, leaving the state unchanged.

        Memory: the rows of one class at a time, in float64 with ``remove_top``, and one block of each site's kernel
        matrix (the whole matrices with ``units``). For half-samples and pairings, a pair's rows in float64.
        """
        rounding: dict[str, float] = {}
        metadata: dict[str, object] = {"remove_top": self.remove_top} if self.remove_top else {}
        metadata["form"] = "moments" if self._has_moments else "rows"
        metadata["precision"] = self.precision
        if self.n_resamples and self.keep_halves:
            metadata["n_units"] = self._n_units()
        return self._compared(
            self._measures(),
            partial(self._compare_in, rounding),
            partial(self._notes, rounding),
            n_halves=self.n_resamples if self.keep_halves else 0,
            **metadata,
        )

    def _n_units(self) -> dict[str, int]:
        """Return the number of units of each group, or of examples without units."""
        if self.units is None:
            return self._counts()
        return {group: len(torch.unique(self._units_of(group))) for group in self._counts()}

    def _measures(self) -> list[str]:
        measures = []
        for measure in _DEBIASED:
            measures.append(measure)
            if self.n_resamples:
                measures += [f"{measure}_low", f"{measure}_high"]
            if self.n_resamples and self.keep_halves:
                measures.append(f"{measure}_halves")
            if self.n_permutations:
                measures += [f"{measure}_null_low", f"{measure}_null_high", f"{measure}_p_value"]
        return measures

    def _compare_in(self, rounding: dict[str, float], group: str) -> Compare:
        return partial(self._compare, rounding, _Group(self, group))

    def _compare(self, rounding: dict[str, float], group: _Group, x: str, y: str) -> Iterator[MeasuredValue]:
        """Yield every measure of two sites, and note how far rounding may move the debiased form of a group."""
        why = group.no_top_components(x, y)
        if why:
            for measure in _DEBIASED:
                yield measure, math.nan, why
            return
        xx = group.hsic[x, x]
        yy = group.hsic[y, y]
        defined = {}
        for measure, debiased in _DEBIASED.items():
            value, why = cka_from_hsic(group.hsic[x, y], xx, yy, debiased=debiased)
            yield measure, value, why
            if not why:
                defined[measure] = value
        if "debiased_cka" in defined:
            rounding[group.name] = max(rounding.get(group.name, 0.0), xx.error, yy.error)
        if "cka" in defined and self.n_resamples:
            yield from self._interval(group, x, y, defined)
        if "cka" in defined and self.n_permutations:
            yield from self._null(group, x, y, defined)

    def _interval(self, group: _Group, x: str, y: str, values: Mapping[str, float]) -> Iterator[MeasuredValue]:
        """Yield the interval over examples of each measure with a value."""
        halves = [group.half_hsics(*pair) for pair in ((x, y), (x, x), (y, y))]
        for measure, value in values.items():
            of_halves = cka_of_draws(*halves, debiased=_DEBIASED[measure])
            low, high = (value + (of_halves - of_halves.mean()).quantile(_INTERVAL)).tolist()
            yield f"{measure}_low", low, ""
            yield f"{measure}_high", high, ""
            if self.keep_halves:
                yield f"{measure}_halves", of_halves, ""

    def _null(self, group: _Group, x: str, y: str, values: Mapping[str, float]) -> Iterator[MeasuredValue]:
        """Yield the interval by chance, and the p-value, of each measure with a value."""
        rows_x = row_matrix(group.rows[x], x)
        rows_y = row_matrix(group.rows[y], y)
        pairings = cka_null_terms(rows_x, rows_y, self.n_permutations, self.seed, self.precision, group.units)
        enough = n_unit_pairings(len(rows_x), group.units) >= FEWEST_ARRANGEMENTS
        tie = ROUNDING_TIE if self.precision == "float64" else _MAX_ROUNDING
        for measure, value in values.items():
            null = cka_of_draws(*pairings, debiased=_DEBIASED[measure])
            low, high = null.quantile(_INTERVAL).tolist()
            p_value = float(permutation_p_value(value, null, tie)) if enough else math.nan
            yield f"{measure}_null_low", low, ""
            yield f"{measure}_null_high", high, ""
            yield f"{measure}_p_value", p_value, ""

    # ---- notes ----

    def _notes(
        self, rounding: Mapping[str, float], n: Mapping[str, int], values: Mapping[str, Shaped[Tensor, "..."]]
    ) -> list[str]:
        notes = []
        largest = max(self._dims().values())
        small = self._small_groups(n, 10 * largest)
        if small:
            notes.append(f"cka is too high where n is below 10 d (d up to {largest}): label {small}; see debiased_cka")
        for measure in _DEBIASED:
            if self.n_resamples and bool((values[f"{measure}_low"].isnan() & ~values[measure].isnan()).any()):
                notes.append(f"{measure}_low and _high are NaN where half of the examples have no CKA")
        if self.n_permutations:
            notes += self._pairing_counts(n)
        if self.n_permutations or self.n_resamples:
            notes += self._repeats()
        return [*notes, *self._rounding_notes(rounding)]

    def _pairing_counts(self, n: Mapping[str, int]) -> list[str]:
        """Note the groups with too few different pairings for a p-value."""
        counts = {group: n_unit_pairings(size, self._units_of(group)) for group, size in n.items()}
        few = ", ".join(f"{group} ({count:g})" for group, count in counts.items() if count < FEWEST_ARRANGEMENTS)
        if not few:
            return []
        what = "examples" if self.units is None else f"units ({self.units!r}) of one size"
        return [
            f"p-values are NaN where there are fewer than {FEWEST_ARRANGEMENTS} pairings of {what}: label {few}; "
            "give more of them"
        ]

    def _rounding_notes(self, rounding: Mapping[str, float]) -> list[str]:
        large = [f"{group} ({error:.0e})" for group, error in rounding.items() if error > _MAX_ROUNDING]
        if self.precision == "float64" or not large:
            return []
        return [f"float32 may move debiased_cka by up to: label {', '.join(large)}; use precision='float64'"]


class _Group:
    """One group of a probe's examples.

    Attributes:
        units: the unit of each example, if the probe has units.
        undefined: why a site's top components cannot be removed, by site.
        rows: by site, without the top components if these are to be removed. Empty if the probe holds moments.
        hsic: HSIC of every pair of sites that the probe compares, and of each with itself.
    """

    def __init__(self, probe: CKA, name: str) -> None:
        self.probe = probe
        self.name = name
        self.units: Shaped[Tensor, "row"] | None = probe._units_of(name)
        self.undefined: dict[str, str] = {}
        self.rows: dict[str, Float[Tensor, "row _"]] = {}
        if probe._has_moments:
            self.hsic = self._hsic_of_moments()
        else:
            self.rows = {site: self._rows_of(site) for site in probe.site_names}
            self.hsic = self._hsic_of_rows()
        self._half_hsics: dict[tuple[str, str], list[HSIC]] = {}
        # rows of one pair: more would take as much memory as all rows
        self._compact = lru_cache(2)(partial(_compact_rows, self.rows))

    def no_top_components(self, x: str, y: str) -> str:
        """Return which side's top components cannot be removed and why, or ``""`` if they can or need not be."""
        for side, site in (("x", x), ("y", y)):
            if site in self.undefined:
                return f"{side}: {self.undefined[site]}"
        return ""

    def _rows_of(self, site: str) -> Float[Tensor, "row dim"]:
        rows = self.probe._rows_of(site, self.name)
        if not self.probe.remove_top:
            return rows
        rows, why = without_top_components(in_float64(rows), self.probe.remove_top)
        if why:
            self.undefined[site] = why
        return rows

    def _hsic_of_moments(self) -> dict[tuple[str, str], HSIC]:
        hsic = {}
        for x, y in self.probe._pairs():
            classes = (self.probe.moments[c].pair(x, y) for c in self.probe._classes_of(self.name))
            hsic[x, y] = reduce(CrossMoments.merge, classes).hsic(self.probe.precision)
        return hsic

    def _hsic_of_rows(self) -> dict[tuple[str, str], HSIC]:
        pairs = list(self.probe._pairs())
        if self.units is None:
            return linear_cka_terms(self.rows, pairs, self.probe.precision)
        kernels = {site: centred_kernel(rows, self.probe.precision) for site, rows in self.rows.items()}
        return {(x, y): hsic_between_units(kernels[x], kernels[y], self.units) for x, y in pairs}

    def half_hsics(self, x: str, y: str) -> list[HSIC]:
        """Return HSIC of each random half of the examples."""
        if (x, y) not in self._half_hsics:
            rows = (self._compact(x), self._compact(y))
            probe = self.probe
            self._half_hsics[x, y] = cka_halves_terms(*rows, probe.n_resamples, probe.seed, probe.precision, self.units)
        return self._half_hsics[x, y]


def _compact_rows(rows: Mapping[str, Float[Tensor, "row _"]], site: str) -> Float[Tensor, "row kept"]:
    return centred_and_compacted(row_matrix(rows[site], site))
