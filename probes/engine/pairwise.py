"""What probes of similarity share: rows by class, which sites to pair, the result's shape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any, Literal

import torch
from torch import Tensor

from probes.engine.hooks import Models
from probes.engine.probe import Probe
from probes.engine.readout import Readout, check_row_readout
from probes.engine.repeats import repeats_note
from probes.engine.result import ProbeResult
from probes.engine.sites import Site, Sites, split_site
from probes.engine.state import Rows, Sum
from tasks import Batch, InputError
from tasks.errors import check_choice

_GIB = 2**30
Undefined = dict[tuple[str, str], dict[str, None]]  # site and reason, to the groups it holds for


class ByClass(Probe):
    """Keeps every example's row at every site, and counts the examples of each class of ``label``.

    A *group* is ``"all"`` or the name of a class.
    """

    compares = True
    units: str | None = None  # name of the label that says which examples belong together
    rows = Rows()
    classes = Rows()
    seen, total = Sum(torch.int64), Sum(torch.int64)  # by class, and of all: to be known without a look at each class

    def __init__(self, at: Sites, readout: Readout, label: str | None, max_memory: float) -> None:
        super().__init__(at, check_row_readout(readout))
        self.label, self.max_memory = label, max_memory

    def update(self, activations: Mapping[str, Tensor], batch: Batch) -> None:
        classes = torch.zeros_like(batch.index) if self.label is None else batch.label(self.label, per="example")
        rows = {site: x.flatten(1) for site, x in activations.items()}
        present = dict(zip(*(x.tolist() for x in torch.unique(classes, return_counts=True)), strict=True))
        new = sum(str(c) not in self.seen for c in present)
        self._check_memory(rows, self._n + len(batch), len(self.seen) + new)
        for c, count in present.items():
            self.seen.add(str(c), count)
        self.total.add("n", len(batch))
        if self.units is not None:
            self.classes.add("units", batch.index, batch.label(self.units, per="example"))
        self._keep(rows, batch.index, classes)

    def _keep(self, rows: Mapping[str, Tensor], index: Tensor, classes: Tensor) -> None:
        self.classes.add("label", index, classes)
        for site, x in rows.items():
            self.rows.add(site, index, x)

    # ---- memory ----

    def _check_memory(self, rows: Mapping[str, Tensor], n: int, classes: int) -> None:
        """Refuses before a batch is kept; ``n`` and ``classes`` count it in."""
        self._check_rows(rows, n)

    def _check_rows(self, rows: Mapping[str, Tensor], n: int, *ways: str) -> None:
        what = f"rows: {n} examples so far at {sites_of(rows)}"
        self._refuse_above(self._bytes(rows, n), what, "give fewer examples", *ways)

    def _bytes(self, rows: Mapping[str, Tensor], n: int) -> int:
        """Of ``n`` examples' rows, and what is made of them at once."""
        return n * sum(x.element_size() * x.shape[1] for x in rows.values())

    def _refuse_above(self, needed: int, what: str, *ways: str) -> None:
        if needed > self.max_memory * _GIB:
            raise InputError(
                f"{type(self).__name__} would keep {needed / _GIB:.3g} GiB of {what}; that is more than max_memory = "
                f"{self.max_memory:g}; measure fewer layers at a time (at=residual(layers=[...])), {', '.join(ways)}, "
                "or raise max_memory"
            )

    # ---- what was kept ----

    @property
    def _n(self) -> int:
        """Examples so far."""
        return int(self.total["n"]) if "n" in self.total else 0

    def _counts(self) -> dict[str, int]:
        """Examples of each group."""
        classes = {c: int(self.seen[c]) for c in sorted(self.seen, key=int)}
        return {"all": sum(classes.values()), **({} if self.label is None else classes)}

    def _rows_of(self, site: str, group: str) -> Tensor:
        rows = self.rows.get(site)[1]
        return rows if group == "all" else rows[self.classes.get("label")[1] == int(group)]

    def _units_of(self, group: str) -> Tensor | None:
        """``[n]`` the unit of each example of a group; ``None`` without units."""
        if self.units is None:
            return None
        units = self.classes.get("units")[1]
        return units if group == "all" else units[self.classes.get("label")[1] == int(group)]

    def _repeats(self) -> list[str]:
        """A note on repeated states, if they are not said to belong together."""
        if self.units is not None:
            return []
        note = repeats_note(
            {site: self.rows.get(site)[1] for site in self.site_names}, {site.name: site.layer for site in self.sites}
        )
        return [note] if note else []

    def _dims(self) -> dict[str, int]:
        return {site: self.rows.get(site)[1].shape[1] for site in self.site_names}

    def _undefined_notes(self, undefined: Undefined) -> list[str]:
        return [
            f"{site}: {reason} (label {', '.join(groups)}), so its {type(self).__name__} is NaN there"
            for (site, reason), groups in undefined.items()
        ]


class Pairwise(ByClass):
    """Compares sites two by two: of two models, or of one."""

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
        """Also refuses more than two models."""
        if isinstance(model, Mapping) and len(model) != 2:
            raise InputError(
                f"{type(self).__name__} compares two models, but was given {len(model)} "
                f"({', '.join(map(repr, model))}); give two at a time, or one for its own layers"
            )
        return super().bind(model)

    @property
    def _models(self) -> list[str]:
        return list(dict.fromkeys(model for name in self.site_names if (model := split_site(name)[0])))

    def _sides(self) -> tuple[list[Site], list[Site]]:
        """Sites of the first model and of the second, or twice those of the only one."""
        if not (models := self._models):
            return self.sites, self.sites
        first, second = ([s for s in self.sites if split_site(s.name)[0] == m] for m in models)
        return first, second

    def _diagonal(self) -> bool:
        first, second = ([(split_site(s.name)[1], s.layer) for s in side] for side in self._sides())
        return self.pairs == "diagonal" and bool(self._models) and first == second

    def _pairs(self) -> Iterator[tuple[str, str]]:
        """Names of the sites to compare, and each with itself."""
        first, second = ([s.name for s in side] for side in self._sides())
        yield from zip(self.site_names, self.site_names, strict=True)
        if self._diagonal():
            yield from zip(first, second, strict=True)
        else:
            yield from product(first, second) if self._models else combinations(first, 2)

    def _compared(
        self,
        measures: Sequence[str],
        compare: Callable[[str, str, str], Iterable[tuple[str, float, str]]],
        notes: Callable[[Mapping[str, int], Mapping[str, Tensor]], list[str]],
        **metadata: Any,
    ) -> ProbeResult:
        """The result of every pair.

        Args:
            measures: their names.
            compare: from two sites and a group to measures, values, and why a value is NaN (``"x: "`` or
                ``"y: "`` and the reason). One group after another, so that what it prepares of one may go.
            notes: further notes, from examples by group and the values.
            metadata: to add.
        """
        diagonal, (first, second), n, d = self._diagonal(), self._sides(), self._counts(), self._dims()
        shape = (len(first), *(() if diagonal else (len(second),)), len(n))
        values = {m: torch.full(shape, torch.nan, dtype=torch.float64) for m in measures}
        undefined: Undefined = {}
        for (k, group), (i, x), (j, y) in product(enumerate(n), enumerate(first), enumerate(second)):
            if (diagonal and i != j) or (not self._models and j < i):
                continue
            for measure, value, why in compare(x.name, y.name, group):
                if why:
                    side, _, reason = why.partition(": ")
                    undefined.setdefault(((x if side == "x" else y).name, reason), {})[group] = None
                values[measure][(i, k) if diagonal else (i, j, k)] = value
                if not self._models:
                    values[measure][j, i, k] = value
        axes: dict[str, tuple[str, ...]] = dict.fromkeys(
            values, ("site", *(() if diagonal else ("other_site",)), "label")
        )
        names, others = ([split_site(site.name)[1] for site in side] for side in (first, second))
        return self.result(
            {**values, "n": torch.tensor(list(n.values()))},
            {**axes, "n": ("label",)},
            {"site": names, "label": list(n), **({} if diagonal else {"other_site": others})},
            layers={split_site(site.name)[1]: site.layer for site in [*second, *first]},
            metadata={"d": d, "models": self._models, **metadata},
            notes=[*self._pairing_notes(), *self._undefined_notes(undefined), *notes(n, values)],
        )

    def _pairing_notes(self) -> list[str]:
        if not self._models or self.pairs == "all" or self._diagonal():
            return []
        sizes = " and ".join(f"{m!r} has {len(side)}" for m, side in zip(self._models, self._sides(), strict=True))
        return [f"the models do not have the same sites ({sizes}), so every site is compared with every other"]


def sites_of(rows: Mapping[str, Tensor]) -> str:
    """How many, and how wide."""
    return f"{len(rows)} sites of up to {max(x.shape[1] for x in rows.values())} dimensions"


def below(n: Mapping[str, int], least: int) -> str:
    """The groups of fewer examples than that, for a note; empty where there is none."""
    return ", ".join(f"{group} (n = {count})" for group, count in n.items() if count < least)
