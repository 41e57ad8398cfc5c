"""Covariances and all that linear CKA needs, gathered over batches: ``Moments``, beside ``Sum`` and ``Rows``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Any
from urllib.parse import quote, unquote

import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes.functional.cka import CrossMoments, centre, float64
from probes.state import Declared, Keyed

_FIELDS = [field.name for field in fields(CrossMoments)]
Pair = tuple[str, str]


class Moments(Declared["MomentsState"]):
    """Declares the ``functional.CrossMoments`` of sites with themselves and of pairs of sites, by class of examples.

    They are sums about points that a merge reconciles, which ``Sum`` cannot: a covariance keeps its digits where the
    mean is far larger than the spread.

    Memory: ``dx dy + 3 (dx + dy)`` float64 numbers for each pair and class, independent of the number of examples.

    Example:
        >>> from probes import Moments, Probe
        >>> class Spread(Probe):
        ...     '''Participation ratio: in how many directions a site varies.'''
        ...     moments = Moments()
        ...     def update(self, activations, batch):
        ...         self.moments.add({site: x.flatten(1) for site, x in activations.items()})
        ...     def compute(self):
        ...         found = []
        ...         for site in self.site_names:
        ...             m = self.moments["all"].pair(site, site)
        ...             covariance = m.product / m.n - torch.outer(m.sum_x, m.sum_x) / m.n**2
        ...             found.append(covariance.trace() ** 2 / covariance.square().sum())
        ...         notes = [] if m.n > 1 else ["one example does not vary, so its spread is NaN"]
        ...         return self.result({"spread": torch.stack(found)}, {"spread": ("site",)}, notes=notes)
    """

    def _make(self, probe: Any) -> MomentsState:
        return MomentsState()


@dataclass
class Together:
    """The moments of pairs of sites that see the same examples: what the pairs share is gathered once.

    Attributes:
        n: number of examples.
        places: where each site's dimensions stand among all; sites by name.
        point: ``[dims]`` what every row is taken about.
        total: ``[dims]`` sum of the rows.
        square: ``[sites]`` sum of the squared lengths.
        cube: ``[sites dims]`` sum of each site's squared length times the rows.
        fourth: ``[sites sites]`` sum of the products of squared lengths.
        product: by pair ``[dx dy]``; every site is paired with itself at least.
    """

    n: int
    places: dict[str, slice]
    point: Tensor
    total: Tensor
    square: Tensor
    cube: Tensor
    fourth: Tensor
    product: dict[Pair, Tensor]

    @classmethod
    def about(cls, point: Tensor, dims: Mapping[str, int], pairs: Iterable[Pair]) -> Together:
        """Of no examples yet; ``dims`` are each site's."""
        ends = list(accumulate(dims.values()))
        places = {site: slice(end - d, end) for (site, d), end in zip(dims.items(), ends, strict=True)}
        empty = {(x, y): point.new_zeros(dims[x], dims[y]) for x, y in pairs}
        total, square, cube, fourth = (
            point.new_zeros(shape) for shape in ((len(point),), (len(dims),), (len(dims), len(point)), 2 * (len(dims),))
        )
        return cls(0, places, point, total, square, cube, fourth, empty)

    @classmethod
    def of_pairs(cls, pairs: Mapping[Pair, CrossMoments]) -> Together:
        """From each pair's moments; those about other points than their sites with themselves are moved there."""
        own = {x: moments for (x, y), moments in sorted(pairs.items()) if x == y}
        dims = {site: len(moments.x0) for site, moments in own.items()}
        new = cls.about(torch.cat([moments.x0 for moments in own.values()]), dims, pairs)
        order = {site: i for i, site in enumerate(own)}
        for (x, y), moments in pairs.items():
            found = moments.about(own[x].x0, own[y].x0)
            i, j, at_x, at_y = order[x], order[y], new.places[x], new.places[y]
            new.n, new.total[at_x], new.square[i] = found.n, own[x].sum_x, own[x].square_x
            new.cube[j, at_x], new.cube[i, at_y] = found.cube_x, found.cube_y
            new.fourth[i, j] = new.fourth[j, i] = found.fourth
            new.product[x, y].copy_(found.product)
        return new

    def pair(self, x: str, y: str) -> CrossMoments:
        """The moments of one pair: views, which ``add`` changes."""
        sites, at_x, at_y = list(self.places), self.places[x], self.places[y]
        i, j = sites.index(x), sites.index(y)
        return CrossMoments(
            self.n,
            self.point[at_x],
            self.point[at_y],
            self.total[at_x],
            self.total[at_y],
            self.product[x, y],
            self.square[i],
            self.square[j],
            self.cube[j, at_x],
            self.cube[i, at_y],
            self.fourth[i, j],
        )

    def add(self, rows: Float[Tensor, "n dims"]) -> Together:
        """With these examples, every site's dimensions side by side. Changes itself too."""
        x = (rows - self.point).T.contiguous()
        lengths = self._by_site(x.square())
        self.n += len(rows)
        self.total += x.sum(1)
        self.square += lengths.sum(1)
        self.cube.addmm_(lengths, x.T)
        self.fourth.addmm_(lengths, lengths.T)
        for (one, other), product in self.product.items():
            product.addmm_(x[self.places[one]], x[self.places[other]].T)
        if not bool((self._by_site(self.total.square()) > self.n / 2 * self.square).any()):
            return self
        return self.of_pairs({pair: self.pair(*pair).near_the_means() for pair in self.product})

    def _by_site(self, x: Float[Tensor, "dims *n"]) -> Float[Tensor, "sites *n"]:
        """Sums over each site's dimensions."""
        if len(widths := {place.stop - place.start for place in self.places.values()}) == 1:
            return x.reshape(len(self.places), *widths, *x.shape[1:]).sum(1)
        return torch.stack([x[place].sum(0) for place in self.places.values()])

    def merge(self, other: Together) -> Together:
        return self.of_pairs({pair: self.pair(*pair).merge(other.pair(*pair)) for pair in self.product})


class MomentsState(Keyed[Together]):
    """Moments by class. See ``Moments``."""

    def add(
        self, rows: Mapping[str, Tensor], classes: Int[Tensor, "n"] | None = None, pairs: Sequence[Pair] = ()
    ) -> None:
        """Add each site's rows ``[n d]`` of the same examples.

        Args:
            rows: by site; the same sites in every batch.
            classes: of the examples, each kept under its number, ``"0"``; ``None``: all under ``"all"``.
            pairs: sites to pair beside each with itself; the same in every batch.
        """
        n = len(next(iter(rows.values())))
        groups = {"all": torch.ones(n, dtype=torch.bool)}
        if classes is not None:
            groups = {str(c): classes == c for c in torch.unique(classes).tolist()}
        with torch.inference_mode(False), torch.no_grad():  # what is made in inference mode cannot be added to outside
            self._add(rows, groups, dict.fromkeys([*((site, site) for site in rows), *pairs]))

    def _add(self, rows: Mapping[str, Tensor], groups: Mapping[str, Tensor], pairs: Iterable[Pair]) -> None:
        sites = {site: float64(rows[site]) for site in sorted(rows)}
        held = next(iter(self._values.values())).point if self._values else next(iter(sites.values()))
        dims, device = {site: x.shape[1] for site, x in sites.items()}, held.device
        together = torch.cat([x.to(device) for x in sites.values()], dim=1)
        for key, chosen in groups.items():
            part, old = together[chosen.to(device)], self._values.get(key)
            if not len(part):
                continue
            if old is not None and old.n >= len(part):
                self._values[key] = old.add(part)
            else:
                new = Together.about(centre(part), dims, pairs).add(part)
                self._values[key] = new if old is None else old.merge(new)

    def __getitem__(self, key: str) -> Together:
        return self._values[key]

    def merge(self, other: MomentsState) -> None:
        for key, value in other._values.items():
            old = self._values.get(key)
            copy = Together.of_pairs({pair: value.pair(*pair) for pair in value.product})
            self._values[key] = copy if old is None else old.merge(copy)

    def tensors(self) -> dict[str, Tensor]:
        return {
            f"{_quoted(x)}|{_quoted(y)}|{key}/{name}": torch.as_tensor(getattr(moments, name)).cpu().clone()
            for key, value in self._values.items()
            for x, y in value.product
            for moments in [value.pair(x, y)]
            for name in _FIELDS
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        pairs: dict[str, dict[Pair, CrossMoments]] = {}
        for name in dict.fromkeys(name.rsplit("/", 1)[0] for name in tensors):
            n, *sums = (tensors[f"{name}/{field}"] for field in _FIELDS)
            x, y, key = map(unquote, name.split("|"))
            pairs.setdefault(key, {})[x, y] = CrossMoments(int(n), *sums)
        self._values = {key: Together.of_pairs(parts) for key, parts in pairs.items()}


def _quoted(site: str) -> str:
    """Without ``|``, which the name of a model may have."""
    return quote(site, safe="/ ")
