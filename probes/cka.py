"""How similar are two models, or two layers of one, on the same examples?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, reduce
from itertools import combinations, product
from typing import Literal

import torch
from torch import Tensor

from probes.engine.hooks import check_device
from probes.engine.minibatches import MiniBatches
from probes.engine.moments import home_of
from probes.engine.pairwise import Pairwise, below
from probes.engine.probe import Probe
from probes.engine.readout import Readout, last_token
from probes.engine.result import ProbeResult
from probes.engine.rows_or_moments import FORMS, Form, RowsOrMoments, moments_bytes
from probes.engine.sites import Sites, residual
from probes.functional.cka import (
    HSIC,
    LEAST_DEBIASED,
    CrossMoments,
    centred,
    cka_from_hsic,
    compact,
    few_rows,
    float64,
    hsic_of_kernels,
    hsic_of_rows,
    kernel,
    matrix,
)
from probes.functional.cka_draws import deviations_of, halves_hsic, null_hsic, null_of
from probes.functional.products import ROUNDING, Precision, check_precision
from probes.functional.top_components import top_components, without_components
from probes.functional.unit_hsic import hsic_between_units
from probes.functional.units import FEWEST_ARRANGEMENTS, n_pairings
from tasks import InputError
from tasks.errors import check_at_least, check_choice

_FORMS = {"cka": False, "debiased_cka": True}
_ERROR = 1e-5  # that float32 may leave without a note


class CKA(Pairwise, RowsOrMoments):
    """Linear centred kernel alignment between two models layer by layer, or between all layers of one.

    ``run({"tuned": a, "base": b}, batches, CKA())`` compares each site of the first with the same site of the
    second; ``run(model, batches, CKA())`` every two sites of one model. Dimensions may differ.

    Measures, with axes (site, label) or, where every site is compared with every other, (site, other_site, label):
        ``cka``: the biased form; too high unless n >= 10 d, which the notes say.
        ``debiased_cka``: near 0 for unrelated representations; may be negative.
        ``minibatch_cka`` instead of these, with ``estimator="minibatch"``: an estimate of the debiased form.
        ``n`` (label): number of examples. The dimensions are in ``metadata["d"]``.
        With ``n_resamples``, ``cka_low`` and ``cka_high``: a 95% interval over examples, see
            ``functional.cka_resamples``. With ``n_permutations``, ``cka_null_low``, ``cka_null_high`` and
            ``cka_p_value``: central 95% for rows paired at random, and the share at least as high, counting the
            value itself; NaN with fewer than 20 different pairings. The same for ``debiased_cka_low`` and so on.

    Exact over all examples, whatever the batches: batches are not averaged unless asked for, and nothing is clamped;
    NaN with a note.

    Memory: as moments, ``dx dy`` float64 numbers per pair and class and ``d^2`` per site and class, independent of the
    number of examples; as rows, ``examples x sites x d``. ``memory`` gives the bytes.

    Source: Kornblith et al. 2019 (arXiv 1905.00414); debiased, and from mini-batches: Nguyen et al. 2021 (arXiv
    2010.15327); between a tuned model and controls: Zhao, Ziser & Cohen 2024 (arXiv 2410.20008).

    Args:
        at: where to measure.
        readout: which position.
        label: also one value for each class of this label, with one value per example.
        pairs: ``"diagonal"``: each site of the first model with the same one of the second, where both have the same
            sites. ``"all"``: every site with every other.
        form: ``"moments"``, ``"rows"``, or ``"auto"``: rows as long as they take less memory, as they do where examples
            are fewer than dimensions, then moments; always rows where resamples, permutations or ``remove_top`` ask
            for them. The values are the same.
        precision: precision of the products of rows, nearly all of the work. ``"float32"`` is two to three times as
            fast on a CPU, and accurate to about 1e-7; a note says where it may be off by more than 1e-5. A point near
            their mean is subtracted from the rows before they are rounded, and all sums are float64 either way.
        estimator: ``"exact"``, or ``"minibatch"``: every HSIC is HSIC_1 averaged over mini-batches of examples, by
            ``batch_rows x batch_rows`` matrices: for every layer with every other where they are wide. Each HSIC is
            without bias, their quotient up to the order of 1 / n. Which examples form a mini-batch depends on their
            index alone (a hash, among 64 mini-batches' worth of consecutive indices). If the index follows classes,
            the estimate is too high (.93 instead of .69 in one test): give examples an index in random order.
        batch_rows: rows of a mini-batch, at least 4.
        n_resamples: number of half-samples for the interval over examples; 0 for none.
        n_permutations: number of random pairings for the null; 0 for none.
        max_memory: most GiB of state; the first batch that would need more is refused.
        device: where sums are computed, such as ``"cuda"``; by default where the rows are: the model's device in
            ``run``, the CPU in ``run_stores`` and for rows that are kept.
        seed: for half-samples and pairings.
        remove_top: first remove this many of the largest principal components from each side, separately for each
            class. A few dimensions with huge values, common at last tokens, then no longer decide the result. It needs
            the examples themselves: rows. Half-samples and pairings use what is left.
        units: a label that says which examples belong together, such as the template of prompts, because they are not
            independent. Half-samples are of units, and whole units are paired at random, each with one of as many
            examples. With fewer than 20 such pairings, p-values are NaN. ``debiased_cka`` leaves out pairs of one unit,
            which agree in both representations and would make it too high (``functional.unit_hsic``).

    Raises:
        InputError: for three models or more, a label given per token, or too much memory.

    Example:
        >>> probe = CKA(label="task")
        >>> probe.memory([64] * 9, [64] * 9, classes=24) / 2**20  # MiB for 9 layers of two models
        22.1484375
    """

    batches = MiniBatches("batch_rows", "label")

    def __init__(
        self,
        at: Sites = residual(),
        readout: Readout = last_token(),
        label: str | None = None,
        pairs: Literal["diagonal", "all"] = "diagonal",
        form: Form = "auto",
        precision: Precision = "float64",
        estimator: Literal["exact", "minibatch"] = "exact",
        batch_rows: int = 256,
        n_resamples: int = 0,
        n_permutations: int = 0,
        max_memory: float = 8.0,
        device: str | None = None,
        seed: int = 0,
        remove_top: int = 0,
        units: str | None = None,
    ) -> None:
        super().__init__(at, readout, label, pairs, max_memory)
        check_choice(form=(form, FORMS), estimator=(estimator, ("exact", "minibatch")))
        check_at_least(n_resamples=(n_resamples, 0), n_permutations=(n_permutations, 0), seed=(seed, 0))
        check_at_least(batch_rows=(batch_rows, LEAST_DEBIASED), remove_top=(remove_top, 0))
        if remove_top and estimator == "minibatch":
            raise InputError(
                f"remove_top is {remove_top}, but mini-batches have no principal components of all examples; use "
                "estimator='exact'"
            )
        for name, value in (
            ("n_resamples", n_resamples),
            ("n_permutations", n_permutations),
            ("remove_top", remove_top),
            ("units", units),
        ):
            if value and form == "moments":
                raise InputError(f"{name} is {value!r}, which needs the examples themselves; use form='rows' or 'auto'")
            if value and estimator == "minibatch":
                raise InputError(
                    f"{name} is {value!r}, but mini-batches have no interval, null or units; use estimator='exact'"
                )
        if estimator == "minibatch" and form != "auto":
            raise InputError(f"form is {form!r}, which mini-batches do not have; leave it out or use estimator='exact'")
        self.form, self.n_resamples, self.n_permutations, self.seed = form, n_resamples, n_permutations, seed
        self.remove_top, self.units = remove_top, units
        self.precision, self.estimator, self.batch_rows = check_precision(precision), estimator, batch_rows
        if device is not None:
            check_device(device)
        self.device = device

    # ---- what is kept ----

    @property
    def _needs_rows(self) -> bool:
        asked = self.n_resamples or self.n_permutations or self.remove_top or self.units
        return self.form == "rows" or (self.form == "auto" and bool(asked))

    def memory(
        self, d: Sequence[int], other: Sequence[int] | None = None, *, classes: int = 1, n: int | None = None
    ) -> int:
        """Bytes of state. What is made of it for a while comes on top: see ``Moments`` and ``compute``.

        Args:
            d: dimensions at each site of the (first) model.
            other: of the second.
            classes: of the label.
            n: number of examples; needed where rows are kept. These are taken to be float32. Without it, form
                ``"auto"`` is taken to end with moments. Mini-batches may keep as many where examples come in another
                order than that of their index.
        """
        own = [*d, *(other or ())]
        only_rows = self._needs_rows or self.estimator == "minibatch"
        if n is None and only_rows:
            what = "form 'rows'" if self._needs_rows else "estimator 'minibatch'"
            raise InputError(f"{what} keeps every example; give their number, memory(..., n=1000)")
        rows = math.inf if n is None or self.form == "moments" else 4 * n * sum(own)
        if other is None:
            pairs = list(combinations(d, 2))
        elif self.pairs == "diagonal" and len(d) == len(other):
            pairs = list(zip(d, other, strict=True))
        else:
            pairs = list(product(d, other))
        moments = moments_bytes([*zip(own, own, strict=True), *pairs], classes)
        return int(rows if only_rows else min(rows, moments))

    def _check_memory(self, rows: Mapping[str, Tensor], n: int, classes: int) -> None:
        if self.estimator == "exact":
            return super()._check_memory(rows, n, classes)
        return self._check_rows(rows, self.batches.waiting + n - self._n, "give them in the order of their index")

    def _keep(self, rows: Mapping[str, Tensor], index: Tensor, classes: Tensor) -> None:
        if self.estimator == "exact":
            return super()._keep(rows, index, classes)
        return self.batches.add(rows, index, classes, precision=self.precision, device=self.device)

    def merge(self, other: Probe) -> None:
        super().merge(other)
        if self.estimator == "minibatch":
            self.batches.settle(self.precision, home_of(torch.empty(0), self.device))

    # ---- the result ----

    def compute(self) -> ProbeResult:
        """The result of all batches so far. Does not change the state.

        Memory: where rows are fewer than half of the dimensions, an n x n matrix for each site, of a class at a time;
        else a pair's rows in float64.
        """
        return self._by_minibatches() if self.estimator == "minibatch" else self._exact()

    def _exact(self) -> ProbeResult:
        @cache
        def top(site: str, group: str) -> tuple[Tensor, str]:
            return top_components(centred(float64(self._rows_of(site, group))), self.remove_top)

        def left(site: str, group: str) -> Tensor:
            rows = self._rows_of(site, group)
            return without_components(centred(float64(rows)), top(site, group)[0]) if self.remove_top else rows

        hsic = cache(self._hsic_of_moments if self._has_moments else self._hsic_of_rows(left))
        interval = self._intervals(left)
        errors: dict[str, float] = {}  # of the debiased form, by group

        def compare(x: str, y: str, group: str) -> Iterator[tuple[str, float, str]]:
            for side, site in (("x", x), ("y", y)) if self.remove_top else ():
                if why := top(site, group)[1]:
                    yield from ((measure, math.nan, f"{side}: {why}") for measure in _FORMS)
                    return
            terms = hsic(x, y, group), hsic(x, x, group), hsic(y, y, group)
            found = {measure: cka_from_hsic(*terms, debiased=debiased) for measure, debiased in _FORMS.items()}
            for measure, (value, why) in found.items():
                yield measure, value, why
            if not found["debiased_cka"][1]:
                errors[group] = max(errors.get(group, 0.0), *(own.error for own in terms[1:]))
            if self._suffixes() and not found["cka"][1]:
                yield from interval(x, y, group, {measure: value for measure, (value, why) in found.items() if not why})

        def notes(n: Mapping[str, int], values: Mapping[str, Tensor]) -> list[str]:
            return [*self._notes(n, values), *self._rounding_notes(errors)]

        measures = [measure + suffix for measure in _FORMS for suffix in ("", *self._suffixes())]
        kind: dict[str, object] = {"remove_top": self.remove_top} if self.remove_top else {}
        kind |= {"form": "moments" if self._has_moments else "rows", "precision": self.precision}
        return self._compared(measures, compare, notes, **kind)

    def _suffixes(self) -> list[str]:
        intervals = ["_low", "_high"] if self.n_resamples else []
        return [*intervals, *(["_null_low", "_null_high", "_p_value"] if self.n_permutations else [])]

    def _intervals(
        self, rows_of: Callable[[str, str], Tensor]
    ) -> Callable[[str, str, str, Mapping[str, float]], Iterator[tuple[str, float, str]]]:
        """Of two sites, a group and the measures' values to the measures of interval and null, for both forms from the
        same half-samples and pairings."""
        ends = torch.tensor([0.025, 0.975], dtype=torch.float64)

        def given(site: str, group: str) -> Tensor:
            return matrix(rows_of(site, group), site)

        @lru_cache(2)  # of a pair; more would take as much memory as all rows
        def rows(site: str, group: str) -> Tensor:
            return compact(given(site, group))

        @cache
        def halves(x: str, y: str, group: str) -> list[HSIC]:
            return halves_hsic(
                rows(x, group), rows(y, group), self.n_resamples, self.seed, self.precision, self._units_of(group)
            )

        def interval(x: str, y: str, group: str, values: Mapping[str, float]) -> Iterator[tuple[str, float, str]]:
            if self.n_resamples:
                terms = halves(x, y, group), halves(x, x, group), halves(y, y, group)
                for measure, value in values.items():
                    spread = value + deviations_of(*terms, debiased=_FORMS[measure]).quantile(ends)
                    yield from zip((f"{measure}_low", f"{measure}_high"), spread.tolist(), ("", ""), strict=True)
            if self.n_permutations:
                units = self._units_of(group)
                drawn = null_hsic(
                    given(x, group), given(y, group), self.n_permutations, self.seed, self.precision, units
                )
                few = n_pairings(drawn[1].n, units) < FEWEST_ARRANGEMENTS
                for measure, value in values.items():
                    null = null_of(*drawn, debiased=_FORMS[measure])
                    low, high = null.quantile(ends).tolist()
                    yield f"{measure}_null_low", low, ""
                    yield f"{measure}_null_high", high, ""
                    p = math.nan if few else (1 + int((null >= value).sum())) / (1 + self.n_permutations)
                    yield f"{measure}_p_value", p, ""

        return interval

    def _hsic_of_moments(self, x: str, y: str, group: str) -> HSIC:
        parts = (self.moments[c].pair(x, y) for c in self._classes_of(group))
        return reduce(CrossMoments.merge, parts).hsic(self.precision)

    def _hsic_of_rows(self, rows_of: Callable[[str, str], Tensor]) -> Callable[[str, str, str], HSIC]:
        @lru_cache(len(self.sites))  # those of one group
        def kernels(site: str, group: str) -> Tensor:
            return kernel(rows_of(site, group), self.precision)

        def hsic(x: str, y: str, group: str) -> HSIC:
            units = self._units_of(group)
            if units is not None:
                return hsic_between_units(kernels(x, group), kernels(y, group), units)
            one = rows_of(x, group)
            other = one if x == y else rows_of(y, group)
            if few_rows(one, other):
                return hsic_of_kernels(kernels(x, group), kernels(y, group))
            return hsic_of_rows(one, other, self.precision)

        return hsic

    def _by_minibatches(self) -> ProbeResult:
        sums = self.batches.totals(self.precision, home_of(torch.empty(0), self.device))
        place, counts = {site: i for i, site in enumerate(sorted(self.site_names))}, self._counts()
        used = {group: int(sums[f"{group}/n"]) if f"{group}/n" in sums else 0 for group in counts}

        def own(site: str, group: str) -> HSIC:
            i, n = place[site], used[group]
            debiased, terms = sums[f"{group}/hsic"][i, i] / n, sums[f"{group}/terms"][i] / n
            return HSIC(n, terms, debiased, terms, ROUNDING[self.precision])

        def compare(x: str, y: str, group: str) -> Iterator[tuple[str, float, str]]:
            if not used[group]:
                yield "minibatch_cka", math.nan, f"x: no mini-batch has {LEAST_DEBIASED} examples"
                return
            together = own(x, group)._replace(debiased=sums[f"{group}/hsic"][place[x], place[y]] / used[group])
            yield "minibatch_cka", *cka_from_hsic(together, own(x, group), own(y, group), debiased=True)

        def notes(n: Mapping[str, int], values: Mapping[str, Tensor]) -> list[str]:
            batches = {group: int(sums[f"{group}/batches"]) for group in n if used[group]}
            found = [
                "minibatch_cka is an estimate, from HSIC averaged over mini-batches drawn by a hash of the examples' "
                f"index: label {', '.join(f'{group} ({k})' for group, k in batches.items())}",
                f"mini-batches are drawn within spans of {self.batches.span} consecutive indices (64 batches' worth): "
                "where the index follows classes, minibatch_cka is too high (.93 for .69 was measured); give examples "
                "an index in random order",
            ]
            left = {group: n[group] - used[group] for group in n if used[group] < n[group]}
            if left:
                found.append(
                    f"fewer than {LEAST_DEBIASED} examples of a class in a span of {self.batches.span} indices are in "
                    f"no mini-batch: label {', '.join(f'{group} (n = {k})' for group, k in left.items())}"
                )
            return found

        kind = {"estimator": "minibatch", "batch_rows": self.batch_rows, "precision": self.precision}
        return self._compared(["minibatch_cka"], compare, notes, **kind)

    def _dims(self) -> dict[str, int]:
        return self.batches.dims if self.estimator == "minibatch" else super()._dims()

    def _notes(self, n: Mapping[str, int], values: Mapping[str, Tensor]) -> list[str]:
        notes, largest = [], max(self._dims().values())
        if small := below(n, 10 * largest):
            notes.append(f"cka is too high where n is below 10 d (d up to {largest}): label {small}; see debiased_cka")
        for measure in _FORMS:
            if self.n_resamples and bool((values[f"{measure}_low"].isnan() & ~values[measure].isnan()).any()):
                notes.append(f"{measure}_low and _high are NaN where half of the examples have no CKA")
        if self.n_permutations:
            notes += self._pairing_counts(n)
        if self.n_permutations or self.n_resamples:
            notes += self._repeats()
        return notes

    def _pairing_counts(self, n: Mapping[str, int]) -> list[str]:
        """Say for which groups there are too few different pairings for a p-value."""
        counts = {group: n_pairings(size, self._units_of(group)) for group, size in n.items()}
        few = ", ".join(f"{group} ({count:g})" for group, count in counts.items() if count < FEWEST_ARRANGEMENTS)
        if not few:
            return []
        what = "examples" if self.units is None else f"units ({self.units!r}) of one size"
        return [
            f"p-values are NaN where there are fewer than {FEWEST_ARRANGEMENTS} pairings of {what}: label {few}; "
            "give more of them"
        ]

    def _rounding_notes(self, errors: Mapping[str, float]) -> list[str]:
        few = [f"{group} ({error:.0e})" for group, error in errors.items() if error > _ERROR]
        if self.precision == "float64" or not few:
            return []
        return [f"float32 may move debiased_cka by up to: label {', '.join(few)}; use precision='float64'"]
