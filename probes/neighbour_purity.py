"""Are the nearest neighbours of a hidden state of its own class?"""

from __future__ import annotations

import torch

from probes.engine.hooks import check_device
from probes.engine.pairwise import ByClass
from probes.engine.readout import Readout, last_token
from probes.engine.result import ProbeResult
from probes.engine.sites import Sites, residual
from probes.engine.state import hashed
from probes.functional.neighbour_purity import (
    nearest,
    nearest_of_other_units,
    neighbour_purity_chance,
    purity_interval,
    same_label,
)
from probes.functional.strata import check_given
from tasks import InputError
from tasks.errors import check_at_least

_MEASURES = ("neighbour_purity", "neighbour_purity_low", "neighbour_purity_high")


class NeighbourPurity(ByClass):
    """Share of an example's nearest neighbours that have its class, at each site of one model or several.

    Measures:
        ``neighbour_purity`` (site): averaged over examples and their ``k`` nearest others (Euclidean distance); of
            others equally near, those with the lowest index.
        ``neighbour_purity_low``, ``neighbour_purity_high`` (site): 95% over independent examples, each of which is a
            query and a neighbour of others (``functional.neighbour_purity.purity_interval``).
        ``chance`` (): the same for neighbours drawn at random.

    Memory: every example's row at every site in its own dtype, ``examples x sites x d``; on top, one site's in float32,
    and on a device other than the CPU in their own dtype too. Cost: ``n^2 d`` per site, or ``max_rows n d``.

    Args:
        at: where to measure.
        readout: which position.
        label: the classes, one value per example.
        k: neighbours, fewer than there are examples.
        max_memory: most GiB of state; the first batch that would need more is refused.
        max_rows: find the neighbours, among all examples, of at most this many, chosen by their index.
        device: where to compute, such as ``"cuda"``; the CPU if not given.
        units: a label that says which examples belong together, such as the template of prompts. Neighbours are then
            those of other units, in ``chance`` too, and the interval takes units as independent.

    Raises:
        InputError: for a label with one class only, with one example per class or given per token, not more than ``k``
            examples, a device that is not available, or too much memory.

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
    ) -> None:
        super().__init__(at, readout, label, max_memory)
        check_given(label, units=units)
        check_at_least(k=(k, 1))
        if max_rows is not None and max_rows < 2:
            raise InputError(f"max_rows is {max_rows}; expected at least 2, or None for all")
        if device is not None:
            check_device(device)
        self.k = k
        self.max_rows = max_rows
        self.device = device
        self.units = units

    def compute(self) -> ProbeResult:
        """Return the share of neighbours of an example's own class, with intervals. Does not change the state."""
        index, labels = self.classes.get("label")
        n = self._counts()
        if len(n) < 3:  # "all" and one class
            raise InputError(f"label {self.label!r} has one class only; purity needs examples of at least 2 classes")
        if max(count for group, count in n.items() if group != "all") == 1:
            raise InputError(
                f"label {self.label!r} has one example per class ({len(labels)} in all), so no neighbour can be of the "
                "same; give at least 2 examples of some classes, preferably 20 of each"
            )
        queries = None
        notes = []
        if self.max_rows is not None and self.max_rows < len(index):
            queries = torch.argsort(hashed(index), stable=True)[: self.max_rows].sort().values
            notes = [f"neighbour_purity is that of {len(queries)} of {len(index)} examples, among all of them"]
        measured: dict[str, list[float]] = {name: [] for name in _MEASURES}
        notes += self._repeats()
        units = self._units_of("all")
        for site in self.site_names:
            rows = self._rows_of(site, "all")
            if units is None:
                near = nearest(rows, self.k, queries, device=self.device)
            else:
                near = nearest_of_other_units(rows, self.k, units, queries, device=self.device)
            purity = float(same_label(near, labels, queries).mean())
            for name, value in zip(_MEASURES, (purity, *purity_interval(near, labels, queries, units)), strict=True):
                measured[name].append(value)
        return self.result(
            {
                **{measure: torch.tensor(values, dtype=torch.float64) for measure, values in measured.items()},
                "chance": torch.tensor(neighbour_purity_chance(labels, units), dtype=torch.float64),
            },
            {**dict.fromkeys(measured, ("site",)), "chance": ()},
            metadata={"d": self._dims(), "n": n, "n_asked": len(index) if queries is None else len(queries)},
            notes=notes,
        )
