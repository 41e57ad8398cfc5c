"""Base class of probes of similarity: every example's rows, and how many examples each class has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from probes.engine.probe import Probe
from probes.engine.readout import Readout, check_row_readout
from probes.engine.repeats import notes_on_repeats
from probes.engine.sites import Sites
from probes.engine.state import Rows, Sum
from tasks import Batch, InputError

_GIB = 2**30
Undefined: TypeAlias = dict[tuple[str, str], dict[str, None]]  # the groups without a value, by site and reason
SiteRows: TypeAlias = Mapping[str, Shaped[Tensor, "n _"]]


class RowsByClass(Probe):
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
        what = f"rows: {n} examples so far at {self._sites_text(rows)}"
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

    @staticmethod
    def _sites_text(rows: SiteRows) -> str:
        """Return a text on how many sites there are, and how wide they are."""
        return f"{len(rows)} sites of up to {max(x.shape[1] for x in rows.values())} dimensions"

    # ---- kept rows ----

    @property
    def _n(self) -> int:
        """Number of examples so far."""
        return int(self.total["n"]) if "n" in self.total else 0

    def _counts(self) -> dict[str, int]:
        """Return the number of examples of each group."""
        classes = {c: int(self.seen[c]) for c in sorted(self.seen, key=int)}
        return {"all": sum(classes.values()), **({} if self.label is None else classes)}

    @staticmethod
    def _small_groups(n: Mapping[str, int], least: int) -> str:
        """Return the groups with fewer than ``least`` examples as a text, for a note. Empty if there are none."""
        return ", ".join(f"{group} (n = {count})" for group, count in n.items() if count < least)

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
        if self.units is not None:
            return []
        return notes_on_repeats({site: self.rows.get(site)[1] for site in self.site_names}, dict(self.sites))

    def _dims(self) -> dict[str, int]:
        return {site: self.rows.get(site)[1].shape[1] for site in self.site_names}

    def _undefined_notes(self, undefined: Undefined) -> list[str]:
        return [
            f"{site}: {reason} (label {', '.join(groups)}), so its {type(self).__name__} is NaN there"
            for (site, reason), groups in undefined.items()
        ]
