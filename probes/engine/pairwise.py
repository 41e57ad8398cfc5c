"""Base class of probes that compare pairs of sites, of two models or of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from probes.engine.hooked_model import Models
from probes.engine.readout import Readout
from probes.engine.result import ProbeResult
from probes.engine.rows_by_class import RowsByClass, Undefined
from probes.engine.sites import Site, Sites, split_site
from tasks import InputError
from tasks.settings import check_choice

MeasuredValue: TypeAlias = tuple[str, float | Float[Tensor, "half"], str]  # measure, value, and why it is NaN
Compare: TypeAlias = Callable[[str, str], Iterable[MeasuredValue]]
Notes: TypeAlias = Callable[[Mapping[str, int], Mapping[str, Float[Tensor, "..."]]], list[str]]


class Pairwise(RowsByClass):
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
        self,
        measures: Sequence[str],
        compare_in: Callable[[str], Compare],
        notes: Notes | None = None,
        *,
        n_halves: int = 0,
        **metadata: Any,
    ) -> ProbeResult:
        """Return the result of every pair.

        Args:
            measures: names of the measures.
            compare_in: prepares a group, and returns a function that yields measure, value and reason, given two sites.
                The reason is empty, or says why the value is NaN: ``"x: "`` or ``"y: "`` for the site that causes it,
                and a text. One group is prepared after the other.
            notes: returns further notes, given the number of examples by group and the values.
            n_halves: values of a measure whose name ends in ``_halves``.
            metadata: metadata to add.
        """
        n = self._counts()
        values, undefined = self._values(measures, compare_in, list(n), n_halves)
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
            layers={**_layers_by_hook(second), **_layers_by_hook(first)},
            metadata={"d": self._dims(), "models": self._models, **self._other_layers(), **metadata},
            notes=[*self._pairing_notes(), *self._undefined_notes(undefined), *(notes(n, values) if notes else [])],
        )

    def _values(
        self, measures: Sequence[str], compare_in: Callable[[str], Compare], groups: Sequence[str], n_halves: int
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
        for k, group in enumerate(groups):
            compare = compare_in(group)
            for (i, x), (j, y) in product(enumerate(first), enumerate(second)):
                if (is_diagonal and i != j) or (is_one_model and j < i):
                    continue
                for measure, value, why_nan in compare(x.name, y.name):
                    if why_nan:
                        side, _, reason = why_nan.partition(": ")
                        site = x if side == "x" else y
                        undefined.setdefault((site.name, reason), {})[group] = None
                    values[measure][(i, k) if is_diagonal else (i, j, k)] = value
                    if is_one_model:
                        values[measure][j, i, k] = value
        return values, undefined

    def _other_layers(self) -> dict[str, dict[str, int]]:
        """Return the second model's layers for metadata if a hook that both have is another layer there.

        The final norm is, in models of different depths.
        """
        first, second = map(_layers_by_hook, self._sides())
        differs = any(first.get(hook, layer) != layer for hook, layer in second.items())
        return {"other_layers": second} if differs else {}

    def _pairing_notes(self) -> list[str]:
        if not self._models or self.pairs == "all" or self._diagonal():
            return []
        sizes = " and ".join(f"{m!r} has {len(side)}" for m, side in zip(self._models, self._sides(), strict=True))
        return [f"the models do not have the same sites ({sizes}), so every site is compared with every other"]


def _layers_by_hook(sites: Sequence[Site]) -> dict[str, int]:
    return {split_site(site.name)[1]: site.layer for site in sites}
