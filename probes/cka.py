"""How similar are two models, or two layers of one, on the same examples? (spec 2)"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, reduce
from itertools import combinations, product
from typing import Any, Literal

import torch
from torch import Tensor

from probes.functional.cka import HSIC, CrossMoments, cka_from_hsic, hsic_of_rows
from probes.functional.cka_intervals import cka_null, cka_resamples
from probes.moments import Moments
from probes.probe import Probe
from probes.readout import Readout, last_token, one_row
from probes.result import ProbeResult
from probes.sites import Site, Sites, residual
from probes.state import Rows, Sum
from tasks import Batch, InputError

_GIB = 2**30
_FORMS = {"cka": False, "debiased_cka": True}


class CKA(Probe):
    """Linear centred kernel alignment between two models layer by layer, or between all layers of one.

    ``run({"tuned": a, "base": b}, batches, CKA())`` compares each site of the first with the same site of the
    second; ``run(model, batches, CKA())`` every two sites of one model. Dimensions may differ.

    Measures, with axes (site, label) or, where every site is compared with every other, (site, other, label):
        ``cka``: the biased form; too high unless n >= 10 d, which the notes say.
        ``debiased_cka``: near 0 for unrelated representations; may be negative.
        ``n`` (label): number of examples. The dimensions stand in ``metadata["d"]``.
        With ``n_resamples``, ``cka_low`` and ``cka_high``: a 95% interval over examples, see
            ``functional.cka_resamples``. With ``n_permutations``, ``cka_null_low``, ``cka_null_high`` and
            ``cka_p_value``: central 95% for rows paired at random, and the share at least as high, counting the
            value itself. Likewise ``debiased_cka_low`` and so on.

    Exact over all examples, whatever the batches: never an average of batches, never clamped; NaN with a note.

    Memory: as moments, ``dx dy`` float64 numbers a pair and class and ``d^2`` a site and class, independent of the
    number of examples; as rows, ``examples x sites x d``. ``memory`` tells.

    Source: Kornblith et al. 2019 (arXiv 1905.00414); debiased: Nguyen et al. 2021 (arXiv 2010.15327); between a tuned
    model and controls: Zhao, Ziser & Cohen 2024 (arXiv 2410.20008).

    Args:
        at: where to measure.
        readout: which position.
        label: also one value for each class of this label, with one value per example.
        pairs: ``"diagonal"``: each site of the first model with the same one of the second, where both have the same
            sites. ``"all"``: every site with every other.
        form: ``"moments"``, ``"rows"``, or ``"auto"``: rows where resamples or permutations ask for them, moments
            otherwise. Rows take less where examples are fewer than dimensions. The values are the same.
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

    compares = True
    moments = Moments()
    rows = Rows()
    classes = Rows()
    seen = Sum(torch.int64)

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
        one_row(readout)
        if pairs not in ("diagonal", "all"):
            raise InputError(f"pairs is {pairs!r}; expected 'diagonal' or 'all'")
        if form not in ("auto", "moments", "rows"):
            raise InputError(f"form is {form!r}; expected 'auto', 'moments' or 'rows'")
        for name, value in (("n_resamples", n_resamples), ("n_permutations", n_permutations), ("seed", seed)):
            if value < 0:
                raise InputError(f"{name} is {value}; expected at least 0")
            if name != "seed" and value and form == "moments":
                raise InputError(f"{name} is {value}, which needs the examples themselves; take form='rows' or 'auto'")
        self.at, self.readout, self.label = at, readout, label
        self.pairs, self.form = pairs, form
        self.n_resamples, self.n_permutations, self.seed = n_resamples, n_permutations, seed
        self.max_memory = max_memory

    # ---- which pairs ----

    def bind(self, model: Any) -> list[Site]:
        """Also refuses more than two models."""
        if isinstance(model, Mapping) and len(model) != 2:
            raise InputError(
                f"CKA compares two models, and was given {len(model)} ({', '.join(map(repr, model))}); "
                "give two at a time, or one for its own layers"
            )
        return super().bind(model)

    @property
    def _models(self) -> list[str]:
        return list(dict.fromkeys(name.split("/")[0] for name in self.site_names if "/" in name))

    def _sides(self) -> tuple[list[Site], list[Site]]:
        """Sites of the first model and of the second, or twice those of the only one."""
        if not (models := self._models):
            return self.sites, self.sites
        first, second = ([s for s in self.sites if s.name.startswith(f"{m}/")] for m in models)
        return first, second

    def _diagonal(self) -> bool:
        first, second = ([(_hook(s.name), s.layer) for s in side] for side in self._sides())
        return self.pairs == "diagonal" and bool(self._models) and first == second

    def _pairs(self) -> Iterator[tuple[str, str]]:
        """Names of the sites to compare, and each with itself."""
        first, second = ([s.name for s in side] for side in self._sides())
        yield from zip(self.site_names, self.site_names, strict=True)
        if self._diagonal():
            yield from zip(first, second, strict=True)
        else:
            yield from product(first, second) if self._models else combinations(first, 2)

    # ---- what is kept ----

    @property
    def _keeps_rows(self) -> bool:
        return self.form == "rows" or (self.form == "auto" and bool(self.n_resamples or self.n_permutations))

    def memory(
        self, d: Sequence[int], other: Sequence[int] | None = None, *, classes: int = 1, n: int | None = None
    ) -> int:
        """Bytes of state.

        Args:
            d: dimensions at each site of the (first) model.
            other: of the second.
            classes: of the label.
            n: number of examples; needed where rows are kept. These are taken to be float32.
        """
        own = [*d, *(other or ())]
        if self._keeps_rows:
            if n is None:
                raise InputError("form 'rows' keeps every example; give their number, memory(..., n=1000)")
            return 4 * n * sum(own)
        if other is None:
            pairs = list(combinations(d, 2))
        elif self.pairs == "diagonal" and len(d) == len(other):
            pairs = list(zip(d, other, strict=True))
        else:
            pairs = list(product(d, other))
        numbers = sum(a * b + 3 * (a + b) for a, b in [*zip(own, own, strict=True), *pairs])
        return 8 * classes * numbers

    def _check_memory(self, rows: Mapping[str, Tensor], classes: list[int]) -> None:
        first, second = ([rows[s.name].shape[1] for s in side] for side in self._sides())
        other = second if self._models else None
        n = len(next(iter(rows.values()))) + (int(self.seen["examples"]) if "examples" in self.seen else 0)
        known = {key.rsplit("|", 1)[1] for key in self.moments} | set(map(str, classes))
        needed = self.memory(first, other, classes=len(known), n=n) / _GIB
        if needed <= self.max_memory:
            return
        d = f"{len(self.sites)} sites of up to {max(*first, *second)} dimensions"
        limit = (
            f"more than max_memory = {self.max_memory:g}; measure fewer layers at a time (at=residual(layers=[...]))"
        )
        if self._keeps_rows:
            raise InputError(
                f"CKA would keep {needed:.3g} GiB of rows: {n} examples so far at {d}; that is {limit}, "
                "give fewer examples, take form='moments', or raise max_memory"
            )
        row = 4 * (sum(first) + sum(other or ())) / 2**20
        raise InputError(
            f"CKA would keep {needed:.3g} GiB of moments for {d} and {len(known)} classes; that is {limit}, "
            f"take form='rows' ({row:.3g} MiB an example), or raise max_memory"
        )

    def update(self, activations: Mapping[str, Tensor], batch: Batch) -> None:
        classes = torch.zeros_like(batch.index) if self.label is None else batch.label(self.label)
        if classes.ndim != 1:
            raise InputError(f"label {self.label!r} is per token; CKA needs one value per example")
        rows = {site: x.flatten(1) for site, x in activations.items()}
        present = torch.unique(classes).tolist()
        self._check_memory(rows, present)
        self.seen.add("examples", len(batch))
        if self._keeps_rows:
            self.classes.add("label", batch.index, classes)
            for site, x in rows.items():
                self.rows.add(site, batch.index, x)
            return
        for c in present:
            part = {site: x[(classes == c).to(x.device)] for site, x in rows.items()}
            for one, other in self._pairs():
                self.moments.add(f"{one}|{other}|{c}", part[one], part[other].to(part[one].device))

    # ---- the result ----

    def compute(self) -> ProbeResult:
        groups, hsic, dims, rows_of = self._from_rows() if self._keeps_rows else self._from_moments()
        diagonal, (first, second) = self._diagonal(), self._sides()
        shape = (len(first), *(() if diagonal else (len(second),)), len(groups))
        values = {m + s: torch.full(shape, torch.nan, dtype=torch.float64) for m in _FORMS for s in self._suffixes()}
        undefined: dict[tuple[str, str], dict[str, None]] = {}
        for (i, x), (j, y), (k, group) in product(enumerate(first), enumerate(second), enumerate(groups)):
            if (diagonal and i != j) or (not self._models and j < i):
                continue
            terms = hsic(x.name, y.name, group), hsic(x.name, x.name, group), hsic(y.name, y.name, group)
            for measure, debiased in _FORMS.items():
                value, why = cka_from_hsic(*terms, debiased=debiased)
                if why:
                    side, _, reason = why.partition(": ")
                    undefined.setdefault(((x if side == "x" else y).name, reason), {})[group] = None
                    continue
                found = [value]
                if self.n_resamples or self.n_permutations:
                    found += self._intervals(value, rows_of(x.name, group), rows_of(y.name, group), debiased)
                for suffix, number in zip(self._suffixes(), found, strict=True):
                    values[measure + suffix][(i, k) if diagonal else (i, j, k)] = number
                    if not self._models:
                        values[measure + suffix][j, i, k] = number
        n = torch.tensor([hsic(first[0].name, first[0].name, group).n for group in groups])
        axes: dict[str, tuple[str, ...]] = dict.fromkeys(values, ("site", *(() if diagonal else ("other",)), "label"))
        names, others = ([_hook(site.name) for site in side] for side in (first, second))
        d = {site: dims(site) for site in self.site_names}
        result = self.result(
            {**values, "n": n},
            {**axes, "n": ("label",)},
            {"site": names, "label": groups, **({} if diagonal else {"other": others})},
            metadata={"d": d, "models": self._models, "form": "rows" if self._keeps_rows else "moments"},
            notes=self._notes(undefined, dict(zip(groups, n.tolist(), strict=True)), d, values),
        )
        return replace(result, layers={_hook(site.name): site.layer for site in [*second, *first]})

    def _suffixes(self) -> list[str]:
        intervals = ["_low", "_high"] if self.n_resamples else []
        return ["", *intervals, *(["_null_low", "_null_high", "_p_value"] if self.n_permutations else [])]

    def _intervals(self, value: float, x: Tensor, y: Tensor, debiased: bool) -> list[float]:
        found, ends = [], torch.tensor([0.025, 0.975], dtype=torch.float64)
        if self.n_resamples:
            spread = cka_resamples(x, y, self.n_resamples, debiased=debiased, seed=self.seed)
            found += (value + spread.quantile(ends)).tolist()
        if self.n_permutations:
            null = cka_null(x, y, self.n_permutations, debiased=debiased, seed=self.seed)
            found += [*null.quantile(ends).tolist(), (1 + int((null >= value).sum())) / (1 + self.n_permutations)]
        return found

    def _from_moments(self) -> _Terms:
        classes = sorted({int(key.rsplit("|", 1)[1]) for key in self.moments})

        @cache
        def hsic(x: str, y: str, group: str) -> HSIC:
            wanted = classes if group == "all" else [int(group)]
            parts = (self.moments[key] for c in wanted if (key := f"{x}|{y}|{c}") in self.moments)
            return reduce(CrossMoments.merge, parts).hsic()

        def dims(site: str) -> int:
            return len(self.moments[f"{site}|{site}|{classes[0]}"].x0)

        def rows_of(site: str, group: str) -> Tensor:
            raise AssertionError("moments are kept, and no rows")  # pragma: no cover - refused in __init__

        return self._groups(classes), hsic, dims, rows_of

    def _from_rows(self) -> _Terms:
        labels = self.classes.get("label")[1]

        def rows_of(site: str, group: str) -> Tensor:
            rows = self.rows.get(site)[1]
            return rows if group == "all" else rows[labels == int(group)]

        @cache
        def hsic(x: str, y: str, group: str) -> HSIC:
            one = rows_of(x, group)
            return hsic_of_rows(one, one if x == y else rows_of(y, group))

        return self._groups(torch.unique(labels).tolist()), hsic, lambda site: rows_of(site, "all").shape[1], rows_of

    def _groups(self, classes: list[int]) -> list[str]:
        return ["all"] if self.label is None else ["all", *map(str, classes)]

    def _notes(
        self,
        undefined: Mapping[tuple[str, str], Iterable[str]],
        n: Mapping[str, int],
        d: Mapping[str, int],
        values: Mapping[str, Tensor],
    ) -> list[str]:
        notes = []
        if self._models and self.pairs == "diagonal" and not self._diagonal():
            sizes = " and ".join(f"{m!r} has {len(side)}" for m, side in zip(self._models, self._sides(), strict=True))
            notes.append(f"the models do not have the same sites ({sizes}), so every site is compared with every other")
        for (site, reason), groups in undefined.items():
            notes.append(f"{site}: {reason} (label {', '.join(groups)}), so its CKA is NaN there")
        largest = max(d.values())
        if small := [f"{group} (n = {count})" for group, count in n.items() if count < 10 * largest]:
            notes.append(
                f"cka is too high where n is below 10 d (d up to {largest}): label {', '.join(small)}; see debiased_cka"
            )
        for measure in _FORMS:
            if self.n_resamples and bool((values[f"{measure}_low"].isnan() & ~values[measure].isnan()).any()):
                notes.append(f"{measure}_low and _high are NaN where half of the examples have no CKA")
        return notes


# groups, HSIC of two sites in a group, a site's dimensions, and its rows in a group
_Terms = tuple[list[str], Callable[[str, str, str], HSIC], Callable[[str], int], Callable[[str, str], Tensor]]


def _hook(site: str) -> str:
    """A site's name without that of its model."""
    return site.rsplit("/", 1)[-1]
