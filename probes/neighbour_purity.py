"""Purity of the nearest neighbours of hidden states."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from probes.engine.devices import check_device
from probes.engine.readout import Readout, last_token
from probes.engine.result import ProbeResult
from probes.engine.rows_by_class import RowsByClass
from probes.engine.sites import Sites, residual
from probes.functional.neighbour_purity import (
    nearest_rows,
    nearest_rows_of_other_units,
    neighbour_purity_chance,
    purity_by_query,
    purity_interval,
    relabelled_purity,
)
from probes.functional.permutation_test import permutation_p_value
from probes.functional.relabelling import Relabelling
from probes.functional.strata import check_strata_labels
from probes.store.splitmix64 import splitmix64
from tasks import Batch, InputError
from tasks.settings import check_count


class NeighbourPurity(RowsByClass):
    """Share of an example's nearest neighbours that have its class, at each site of one model or several.

    Measures:
        ``neighbour_purity`` (site): averaged over examples and their ``k`` nearest others (Euclidean distance). Ties
            are broken by a hash of the index, so that a file sorted by class does not place classes together.
        ``neighbour_purity_low``, ``neighbour_purity_high`` (site): 95% interval over independent examples, each of
            which is a query and a neighbour of others (``functional.neighbour_purity.purity_interval``).
        ``chance`` (): the purity expected of neighbours drawn at random.
        ``null_low``, ``null_high`` (site), with ``n_permutations``: the central 95% of the purity under random
            relabelling, with neighbours unchanged. NaN if no relabelling changes the label.
        ``p_value`` (site), with ``n_permutations``: share of relabellings at least as high, counting the observed one.
            NaN with fewer than 20 different relabellings.

    Memory: every example's row at every site in its own dtype, ``examples x sites x d``. In addition, one site's in
    their own dtype and in float32, or in float64 twice with ``units``, which take several times as long.
    Cost: ``n^2 d`` per site, or ``max_rows n d``.

    Args:
        at: where to measure.
        readout: which position.
        label: the classes, one value per example.
        k: neighbours, fewer than there are examples.
        max_memory: limit on the state, in GiB. A batch that would exceed it is refused.
        max_rows: find the neighbours, among all examples, of at most this many, chosen by their index.
        device: where to compute, such as ``"cuda"``. The CPU if not given.
        units: a label that says which examples belong together, such as the template of prompts. Neighbours are then
            taken from other units, in ``chance`` too, and the interval takes units as independent. Units of one
            class exchange labels as a whole. In the others, examples exchange them within the unit.
        within: a label within whose classes relabellings stay, such as an input that all tasks share.
        n_permutations: number of random relabellings (0: none).
        seed: for the relabellings.

    Raises:
        InputError: for a label with one class only, with one example per class or given per token, not more than ``k``
            examples, a device that is not available, too much memory, or ``within`` without relabellings.

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
        max_rows: int | None = None,
        device: str | None = None,
        units: str | None = None,
        within: str | None = None,
        n_permutations: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(at, readout, label, max_memory)
        check_strata_labels(label, units=units, within=within)
        check_count(k=(k, 1), n_permutations=(n_permutations, 0), seed=(seed, 0))
        if within is not None and not n_permutations:
            raise InputError(f"within is {within!r}, but n_permutations is 0; give 1000, or leave out within")
        if max_rows is not None and max_rows < 2:
            raise InputError(f"max_rows is {max_rows}; expected at least 2, or None for all")
        if device is not None:
            check_device(device)
        self.k = k
        self.max_rows = max_rows
        self.device = device
        self.units = units
        self.within = within
        self.n_permutations = n_permutations
        self.seed = seed

    def update(self, activations: Mapping[str, Shaped[Tensor, "batch ..."]], batch: Batch) -> None:
        """Add one batch to the state.

        Raises:
            InputError: if the state would exceed ``max_memory``, or a label is missing.
        """
        strata = None if self.within is None else batch.label(self.within, per="example")
        super().update(activations, batch)
        if strata is not None:
            self.classes.add("within", batch.index, strata)

    def compute(self) -> ProbeResult:
        """Return the share of neighbours of an example's own class, with intervals. Does not change the state."""
        index, labels = self.classes.get("label")
        n = self._counts()
        self._check_classes(n)
        order = torch.argsort(splitmix64(index), stable=True)
        queries = None
        notes = []
        if self.max_rows is not None and self.max_rows < len(index):
            queries = order[: self.max_rows].sort().values
            notes = [f"neighbour_purity is that of {len(queries)} of {len(index)} examples, among all of them"]
        units = self._units_of("all")
        relabelling = self._relabelling(labels, units)
        notes += self._repeats()
        if self.n_permutations:
            caveats = [relabelling.too_few(self.label, named=False, units=self.units)]
            caveats += [relabelling.unequal_units(self.label, self.units)] if self.units else []
            notes += filter(None, caveats)
        places = torch.argsort(order)
        query_places = places if queries is None else places[queries]
        units_in_order = None if units is None else units[order]
        by_site = []
        for site in self.site_names:
            near = self._nearest(site, order, query_places, units_in_order)
            by_site.append(self._measured(near, labels, units, queries, relabelling))
        values = {name: torch.tensor([at[name] for at in by_site], dtype=torch.float64) for name in by_site[0]}
        return self.result(
            {**values, "chance": torch.tensor(neighbour_purity_chance(labels, units), dtype=torch.float64)},
            {**dict.fromkeys(values, ("site",)), "chance": ()},
            metadata={"d": self._dims(), "n": n, "n_asked": len(index) if queries is None else len(queries)},
            notes=notes,
        )

    def _check_classes(self, n: Mapping[str, int]) -> None:
        """Refuse one class, and one example per class."""
        if len(n) < 3:  # "all" and one class
            raise InputError(f"label {self.label!r} has one class only; purity needs examples of at least 2 classes")
        if max(count for group, count in n.items() if group != "all") == 1:
            raise InputError(
                f"label {self.label!r} has one example per class ({n['all']} in all), so no neighbour can be of the "
                "same; give at least 2 examples of some classes, preferably 20 of each"
            )

    def _relabelling(self, labels: Int[Tensor, "n"], units: Int[Tensor, "n"] | None) -> Relabelling:
        """Return how labels are permuted."""
        strata = None if self.within is None else self.classes.get("within")[1].numpy()
        return Relabelling.from_classes(labels.numpy(), None if units is None else units.numpy(), strata)

    def _nearest(
        self, site: str, order: Int[Tensor, "n"], queries: Int[Tensor, "query"], units: Int[Tensor, "n"] | None
    ) -> Int[Tensor, "query k"]:
        """Return the neighbours of each query. Of examples equally near, the first in ``order`` count.

        Args:
            site: where to measure.
            order: the examples.
            queries: places in this order.
            units: of the examples in this order.
        """
        rows = self._rows_of(site, "all")[order]
        if units is None:
            near = nearest_rows(rows, self.k, queries, device=self.device)
        else:
            near = nearest_rows_of_other_units(rows, self.k, units, queries, device=self.device)
        return order[near]

    def _measured(
        self,
        near: Int[Tensor, "query k"],
        labels: Int[Tensor, "n"],
        units: Int[Tensor, "n"] | None,
        queries: Int[Tensor, "query"] | None,
        relabelling: Relabelling,
    ) -> dict[str, float]:
        """Return every measure at a site, from its queries' neighbours, with chance if labels are permuted."""
        purity = float(purity_by_query(near, labels, queries).mean())
        low, high = purity_interval(near, labels, queries, units)
        measured = {"neighbour_purity": purity, "neighbour_purity_low": low, "neighbour_purity_high": high}
        if not self.n_permutations:
            return measured
        if relabelling.fixed_share == 1:
            return {**measured, "null_low": math.nan, "null_high": math.nan, "p_value": math.nan}
        null = relabelled_purity(near, relabelling, self.n_permutations, self.seed, queries)
        null_low, null_high = np.quantile(null, [0.025, 0.975]).tolist()
        p_value = float(permutation_p_value(purity, null)) if relabelling.enough(named=False) else math.nan
        return {**measured, "null_low": null_low, "null_high": null_high, "p_value": p_value}
