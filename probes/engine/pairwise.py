"""Base classes of probes of similarity: rows by class, pairs of sites, and results of every pair."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from probes.engine.hooked_model import Models
from probes.engine.probe import Probe
from probes.engine.readout import Readout, check_row_readout
from probes.engine.repeats import notes_on_repeats
from probes.engine.result import ProbeResult
from probes.engine.sites import Site, Sites, split_site
from probes.engine.state import Rows, Sum
from tasks import Batch, InputError
from tasks.errors import check_choice

_GIB = 2**30
Undefined: TypeAlias = dict[tuple[str, str], dict[str, None]]  # the groups without a value, by site and reason
SiteRows: TypeAlias = Mapping[str, Shaped[Tensor, "n _"]]
MeasuredValue: TypeAlias = tuple[str, float | Float[Tensor, "half"], str]  # measure, value, and why it is NaN
Compare: TypeAlias = Callable[[str, str, str], Iterable[MeasuredValue]]
Notes: TypeAlias = Callable[[Mapping[str, int], Mapping[str, Float[Tensor, "..."]]], list[str]]


class ByClass(Probe):
    """Base class that keeps every example's row at every site, and counts each class of ``label``.

    A *group* is ``"all"`` or the name of a class.

    Attributes:
        label: name of the label with the classes. ``None`` for the group of all examples only.
        max_memory: limit on the state, in GiB.
        units: name of the label whose classes are examples that belong together. ``None`` if examples are independent.
    """

    compares = True
    units: str | None = None
    rows = Rows()
    classes = Rows()
    seen = Sum(torch.int64)  # examples by class
    total = Sum(torch.int64)  # examples of all classes

    def __init__(self, at: Sites, readout: Readout, label: str | None, max_memory: float) -> None:
        super().__init__(at, check_row_readout(readout))
        self.label = label
        self.max_memory = max_memory

    def update(self, activations: Mapping[str, Shaped[Tensor, "batch ..."]], batch: Batch) -> None:
        """Add one batch to the state.

        Raises:
            InputError: if the state would exceed ``max_memory``, or a label is missing.
        """
        classes = torch.zeros_like(batch.index) if self.label is None else batch.label(self.label, per="example")
        rows = {site: x.flatten(1) for site, x in activations.items()}
        names, counts = torch.unique(classes, return_counts=True)
        n_by_class = {str(c): n for c, n in zip(names.tolist(), counts.tolist(), strict=True)}
        n_new = sum(c not in self.seen for c in n_by_class)
        self._check_memory(rows, self._n + len(batch), len(self.seen) + n_new)
        for c, n in n_by_class.items():
            self.seen.add(c, n)
        self.total.add("n", len(batch))
        if self.units is not None:
            self.classes.add("units", batch.index, batch.label(self.units, per="example"))
        self._keep(rows, batch.index, classes)

    def _keep(self, rows: SiteRows, index: Int[Tensor, "n"], classes: Int[Tensor, "n"]) -> None:
        self.classes.add("label", index, classes)
        for site, x in rows.items():
            self.rows.add(site, index, x)

    # ---- memory ----

    def _check_memory(self, rows: SiteRows, n: int, classes: int) -> None:
        """Refuse a batch that does not fit, before it is kept. ``n`` and ``classes`` include the batch."""
        self._check_rows(rows, n)

    def _check_rows(self, rows: SiteRows, n: int, *ways: str) -> None:
        what = f"rows: {n} examples so far at {sites_of(rows)}"
        self._refuse_above(self._bytes(rows, n), what, "give fewer examples", *ways)

    def _bytes(self, rows: SiteRows, n: int) -> int:
        """Return the bytes of the rows of ``n`` examples, and of the arrays that ``compute`` makes of them at once."""
        return n * sum(x.element_size() * x.shape[1] for x in rows.values())

    def _refuse_above(self, needed: int, what: str, *ways: str) -> None:
        if needed > self.max_memory * _GIB:
            raise InputError(
                f"{type(self).__name__} would keep {needed / _GIB:.3g} GiB of {what}; that is more than max_memory = "
                f"{self.max_memory:g}; measure fewer layers at a time (at=residual(layers=[...])), {', '.join(ways)}, "
                "or raise max_memory"
            )

    # ---- kept rows ----

    @property
    def _n(self) -> int:
        """Number of examples so far."""
        return int(self.total["n"]) if "n" in self.total else 0

    def _counts(self) -> dict[str, int]:
        """Return the number of examples of each group."""
        classes = {c: int(self.seen[c]) for c in sorted(self.seen, key=int)}
        return {"all": sum(classes.values()), **({} if self.label is None else classes)}

    def _rows_of(self, site: str, group: str) -> Shaped[Tensor, "n d"]:
        """Return the rows of a group at a site."""
        return self._examples_of(group, self.rows.get(site)[1])

    def _units_of(self, group: str) -> Int[Tensor, "n"] | None:
        """Return the unit of each example of a group, or ``None`` without units."""
        return None if self.units is None else self._examples_of(group, self.classes.get("units")[1])

    def _examples_of(self, group: str, values: Shaped[Tensor, "n ..."]) -> Shaped[Tensor, "_ ..."]:
        if group == "all":
            return values
        return values[self.classes.get("label")[1] == int(group)]

    def _repeats(self) -> list[str]:
        """Return a note on repeated states, unless ``units`` says which examples belong together."""
        return [] if self.units is not None else notes_on_repeats(self.rows, self.sites)

    def _dims(self) -> dict[str, int]:
        return {site: self.rows.get(site)[1].shape[1] for site in self.site_names}

    def _undefined_notes(self, undefined: Undefined) -> list[str]:
        return [
            f"{site}: {reason} (label {', '.join(groups)}), so its {type(self).__name__} is NaN there"
            for (site, reason), groups in undefined.items()
        ]


class Pairwise(ByClass):
    """Base class that compares pairs of sites, of two models or of one.

    Attributes:
        pairs: ``"all"``, or ``"diagonal"`` for each layer with its counterpart in the other model only.
    """

    def __init__(
        self,
        at: Sites,
        readout: Readout,
        label: str | None,
        pairs: Literal["diagonal", "all"],
        max_memory: float,
    ) -> None:
        super().__init__(at, readout, label, max_memory)
        check_choice(pairs=(pairs, ("diagonal", "all")))
        self.pairs = pairs

    def bind(self, model: Models) -> list[Site]:
        """Resolve the sites, and refuse more than two models.

        Raises:
            InputError: for another number of models than one or two, and as ``Probe.bind``.
        """
        if isinstance(model, Mapping) and len(model) != 2:
            raise InputError(
                f"{type(self).__name__} compares two models, but was given {len(model)} "
                f"({', '.join(map(repr, model))}); give two at a time, or one for its own layers"
            )
        return super().bind(model)

    @property
    def _models(self) -> list[str]:
        """Return the names of the two models, or none if only one was measured."""
        models = dict.fromkeys(split_site(name)[0] for name in self.site_names)
        return [model for model in models if model]

    def _sides(self) -> tuple[list[Site], list[Site]]:
        """Return the sites of the first model and of the second, or a single model's sites twice."""
        if not self._models:
            return self.sites, self.sites
        first, second = self._models
        return self._sites_of_model(first), self._sites_of_model(second)

    def _sites_of_model(self, model: str) -> list[Site]:
        return [site for site in self.sites if split_site(site.name)[0] == model]

    def _diagonal(self) -> bool:
        """Return whether only sites of equal hook names are compared."""
        first, second = ([Site(split_site(name)[1], layer) for name, layer in side] for side in self._sides())
        return self.pairs == "diagonal" and bool(self._models) and first == second

    def _pairs(self) -> Iterator[tuple[str, str]]:
        """Yield the names of sites to compare, and each site with itself."""
        yield from zip(self.site_names, self.site_names, strict=True)
        first, second = ([site.name for site in side] for side in self._sides())
        if self._diagonal():
            yield from zip(first, second, strict=True)
        elif self._models:
            yield from product(first, second)
        else:
            yield from combinations(first, 2)

    def _compared(
        self, measures: Sequence[str], compare: Compare, notes: Notes, *, n_halves: int = 0, **metadata: Any
    ) -> ProbeResult:
        """Return the result of every pair.

        Args:
            measures: names of the measures.
            compare: yields measure, value and reason, given two sites and a group. The reason is empty, or says why the
                value is NaN: ``"x: "`` or ``"y: "`` for the site that causes it, and a text. It is called group by
                group, so it may drop preparations of a finished group.
            notes: returns further notes, given the number of examples by group and the values.
            n_halves: values of a measure whose name ends in ``_halves``.
            metadata: metadata to add.
        """
        n = self._counts()
        values, undefined = self._values(measures, compare, list(n), n_halves)
        first, second = self._sides()
        coords = {"site": [split_site(site.name)[1] for site in first], "label": list(n)}
        axes: tuple[str, ...] = ("site", "label")
        if not self._diagonal():
            coords["other_site"] = [split_site(site.name)[1] for site in second]
            axes = ("site", "other_site", "label")
        if n_halves:
            coords["half"] = [str(half) for half in range(n_halves)]
        by_measure = {name: (*axes, "half") if name.endswith("_halves") else axes for name in measures}
        return self.result(
            {**values, "n": torch.tensor(list(n.values()))},
            {**by_measure, "n": ("label",)},
            coords,
            layers={split_site(site.name)[1]: site.layer for site in [*second, *first]},
            metadata={"d": self._dims(), "models": self._models, **metadata},
            notes=[*self._pairing_notes(), *self._undefined_notes(undefined), *notes(n, values)],
        )

    def _values(
        self, measures: Sequence[str], compare: Compare, groups: Sequence[str], n_halves: int
    ) -> tuple[dict[str, Float[Tensor, "site *other_site_label_half"]], Undefined]:
        """Return the values of each measure, and the groups without a value."""
        is_diagonal = self._diagonal()
        is_one_model = not self._models
        first, second = self._sides()
        shape = (len(first), len(groups)) if is_diagonal else (len(first), len(second), len(groups))
        values = {}
        for measure in measures:
            further = (n_halves,) if measure.endswith("_halves") else ()
            values[measure] = torch.full((*shape, *further), torch.nan, dtype=torch.float64)
        undefined: Undefined = {}
        for (k, group), (i, x), (j, y) in product(enumerate(groups), enumerate(first), enumerate(second)):
            if (is_diagonal and i != j) or (is_one_model and j < i):
                continue
            for measure, value, why_nan in compare(x.name, y.name, group):
                if why_nan:
                    side, _, reason = why_nan.partition(": ")
                    site = x if side == "x" else y
                    undefined.setdefault((site.name, reason), {})[group] = None
                values[measure][(i, k) if is_diagonal else (i, j, k)] = value
                if is_one_model:
                    values[measure][j, i, k] = value
        return values, undefined

    def _pairing_notes(self) -> list[str]:
        if not self._models or self.pairs == "all" or self._diagonal():
            return []
        sizes = " and ".join(f"{m!r} has {len(side)}" for m, side in zip(self._models, self._sides(), strict=True))
        return [f"the models do not have the same sites ({sizes}), so every site is compared with every other"]


def sites_of(rows: SiteRows) -> str:
    """Return a text on how many sites there are, and how wide they are."""
    return f"{len(rows)} sites of up to {max(x.shape[1] for x in rows.values())} dimensions"


def small_groups(n: Mapping[str, int], least: int) -> str:
    """Return the groups with fewer than ``least`` examples as a text, for a note. Empty if there are none."""
    return ", ".join(f"{group} (n = {count})" for group, count in n.items() if count < least)
