"""Are the nearest neighbours of a hidden state of its own class?"""

from __future__ import annotations

import torch

from probes.functional.neighbour_purity import neighbour_purity, neighbour_purity_chance
from probes.pairwise import ByClass
from probes.readout import Readout, last_token
from probes.result import ProbeResult
from probes.sites import Sites, residual
from tasks import InputError
from tasks.errors import check_at_least


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
        InputError: for a label with one class only, with one example a class or given per token, not more than ``k``
            examples, or too much memory.

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
        check_at_least(k=(k, 1))
        self.k = k

    def compute(self) -> ProbeResult:
        labels, n = self.classes.get("label")[1], self._counts()
        if len(n) < 3:  # "all" and one class
            raise InputError(f"label {self.label!r} has one class only; purity needs examples of at least 2 classes")
        if max(count for group, count in n.items() if group != "all") == 1:
            raise InputError(
                f"label {self.label!r} has one example a class ({len(labels)} in all), so no neighbour can be of the "
                "same; give at least 2 examples of some classes, better 20 of each"
            )
        found = [neighbour_purity(self._rows_of(site, "all"), labels, self.k) for site in self.site_names]
        return self.result(
            {
                "neighbour_purity": torch.tensor(found, dtype=torch.float64),
                "chance": torch.tensor(neighbour_purity_chance(labels), dtype=torch.float64),
            },
            {"neighbour_purity": ("site",), "chance": ()},
            metadata={"d": self._dims(), "n": n},
        )
