"""HSIC over mini-batches of examples, in whatever batches these come: ``MiniBatches``, beside ``Sum`` and ``Rows``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from probes.engine.moments import home_of
from probes.engine.state import Declared, Keyed, RowsState, SumState, hashed
from probes.functional.cka import LEAST_DEBIASED
from probes.functional.minibatch_cka import minibatch_hsic
from probes.functional.products import Precision

_SPAN = 64  # mini-batches that are drawn together


class MiniBatches(Declared["MiniBatchState"]):
    """Declares sums of HSIC_1 over mini-batches, of all examples and of each class of a label.

    A *span* is 64 mini-batches' worth of consecutive indices: with 256 rows, indices 0 to 16,383, and so on. The
    examples of a span are put in the order of a hash of their index and cut into mini-batches, once all of the span are
    there, or at the end. So neither their order nor their batches play a part, and each mini-batch is a random
    sample of its span, of whatever classes.

    Memory: every example's rows of the spans that are not complete: one span's where examples come in the order of
    their index, and all where they come in another.

    Args:
        size: the parameter of the probe that holds the rows of a mini-batch.
        label: the one that holds the label, or ``None``.
    """

    def __init__(self, size: str, label: str) -> None:
        self.size, self.label = size, label

    def _make(self, probe: Any) -> MiniBatchState:
        return MiniBatchState(getattr(probe, self.size), getattr(probe, self.label) is not None)


class MiniBatchState(Keyed[None]):
    """Sums over mini-batches and the rows that wait for theirs. See ``MiniBatches``.

    Args:
        size: rows of a mini-batch; of an incomplete span, or a class, the nearest size that cuts it into equal parts.
        by_class: also mini-batches of each class.
    """

    def __init__(self, size: int, by_class: bool) -> None:
        super().__init__()
        self.size, self.span, self.by_class = size, _SPAN * size, by_class
        self.dims: dict[str, int] = {}  # of each site
        self._sums, self._rows = SumState(torch.float64), RowsState(None)

    def __contains__(self, key: str) -> bool:
        return any(key == name for name in self)

    def __iter__(self) -> Iterator[str]:
        yield from (*self._sums, *self._rows)

    def __len__(self) -> int:
        return len(self._sums) + len(self._rows)

    @property
    def waiting(self) -> int:
        """Examples whose span is not complete."""
        return sum(self._waiting().values())

    def _waiting(self) -> dict[str, int]:
        """By span."""
        keys = [(key, *key.split("/", 1)) for key in self._rows]
        return {span: sum(len(i) for i, _ in self._rows.chunks(key)) for key, span, what in keys if what == "classes"}

    def add(
        self,
        rows: Mapping[str, Tensor],
        index: Tensor,
        classes: Tensor,
        *,
        precision: Precision = "float64",
        device: str | torch.device | None = None,
    ) -> None:
        """Add each site's rows ``[n d]`` of the same examples, of these classes."""
        self.dims |= {site: x.shape[1] for site, x in rows.items()}
        spans = torch.div(index, self.span, rounding_mode="floor")
        for span in torch.unique(spans).tolist():
            here = spans == span
            for site, x in {**rows, "classes": classes}.items():
                self._rows.add(f"{span}/{site}", index[here], x[here.to(x.device)])
        self.settle(precision, home_of(next(iter(rows.values())), device))

    def settle(self, precision: Precision, home: torch.device) -> None:
        """Sum the spans that are complete, and forget their rows. To be called after a merge, too."""
        for name, count in self._waiting().items():
            if count == self.span:
                self._sum_span(name, self._sums, precision, home)
                for key in [key for key in self._rows if key.startswith(f"{name}/")]:
                    self._rows.forget(key)

    def _sum_span(self, span: str, sums: SumState, precision: Precision, home: torch.device) -> None:
        index, classes = self._rows.get(f"{span}/classes")
        sites = sorted(key for key in self._rows if key.startswith(f"{span}/") and key != f"{span}/classes")
        rows = [self._rows.get(key)[1] for key in sites]
        groups = {"all": torch.arange(len(index))}
        if self.by_class:
            groups |= {str(c): (classes == c).nonzero()[:, 0] for c in torch.unique(classes).tolist()}
        for group, places in groups.items():
            if len(places) < LEAST_DEBIASED:
                continue
            order = places[torch.argsort(hashed(index[places]), stable=True)]
            for part in order.tensor_split(max(1, round(len(order) / self.size))):
                hsic, terms = minibatch_hsic([x[part].to(home) for x in rows], precision)
                for name, value in (("hsic", len(part) * hsic), ("terms", len(part) * terms), ("n", len(part))):
                    sums.add(f"{group}/{name}", value)
                sums.add(f"{group}/batches", 1)

    def totals(self, precision: Precision, home: torch.device) -> SumState:
        """By group, ``"0/hsic"`` ``[sites sites]`` and ``"0/terms"`` ``[sites]``, sites in the order of their names and
        mini-batches weighted by their examples, ``"0/n"`` these, and ``"0/batches"`` how many: of all so far."""
        sums = SumState(torch.float64)
        sums.merge(self._sums)
        for span in sorted(self._waiting(), key=int):
            self._sum_span(span, sums, precision, home)
        return sums

    def merge(self, other: MiniBatchState) -> None:
        self._sums.merge(other._sums)
        self._rows.merge(other._rows)
        self.dims |= other.dims

    def tensors(self) -> dict[str, Tensor]:
        sums = {f"sums/{name}": x for name, x in self._sums.tensors().items()}
        rows = {f"rows/{name}": x for name, x in self._rows.tensors().items()}
        return sums | rows | {f"dims/{site}": torch.tensor(d) for site, d in self.dims.items()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        for kind, state in (("sums/", self._sums), ("rows/", self._rows)):
            state.load({name.removeprefix(kind): x for name, x in tensors.items() if name.startswith(kind)})
        self.dims = {name.removeprefix("dims/"): int(d) for name, d in tensors.items() if name.startswith("dims/")}
