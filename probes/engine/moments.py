"""Covariances and all that linear CKA needs, gathered over batches: ``Moments``, beside ``Sum`` and ``Rows``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Any
from urllib.parse import quote, unquote

import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes.engine.state import Declared, Keyed
from probes.functional.cross_moments import CrossMoments
from probes.functional.products import Precision, add_product
from probes.functional.representations import centre, float64

_FIELDS = [field.name for field in fields(CrossMoments)]
_OF_TWO = ("product", "fourth", "cube_x", "cube_y")  # what a pair does not share with its sites' own moments
_LEAST_ROWS, _LARGEST = 512, 2**22  # of a block: rows at least, or elements
SitePair = tuple[str, str]


class Moments(Declared["MomentsState"]):
    """Declares the ``functional.CrossMoments`` of sites with themselves and of pairs of sites, by class of examples.

    They are sums about points that a merge reconciles, unlike ``Sum``: a covariance keeps its digits even if the mean
    is far larger than the spread.

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
        ...         spread = torch.stack(found)
        ...         notes = ["where all states are the same, their spread is NaN"] if spread.isnan().any() else []
        ...         return self.result({"spread": spread}, {"spread": ("site",)}, notes=notes)
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
    product: dict[SitePair, Tensor]

    @classmethod
    def about(cls, point: Tensor, dims: Mapping[str, int], pairs: Iterable[SitePair]) -> Together:
        """Of no examples yet; ``dims`` are each site's."""
        ends = list(accumulate(dims.values()))
        places = {site: slice(end - d, end) for (site, d), end in zip(dims.items(), ends, strict=True)}
        empty = {(x, y): point.new_zeros(dims[x], dims[y]) for x, y in pairs}
        total, square, cube, fourth = (
            point.new_zeros(shape) for shape in ((len(point),), (len(dims),), (len(dims), len(point)), 2 * (len(dims),))
        )
        return cls(0, places, point, total, square, cube, fourth, empty)

    @classmethod
    def of_pairs(cls, pairs: Mapping[SitePair, CrossMoments]) -> Together:
        """From each pair's moments, about the points of their sites with themselves."""
        own = {x: moments for (x, y), moments in sorted(pairs.items()) if x == y}
        dims = {site: len(moments.x0) for site, moments in own.items()}
        new = cls.about(torch.cat([moments.x0 for moments in own.values()]), dims, pairs)
        new.n = next(iter(own.values())).n
        for pair, moments in pairs.items():
            new._put(pair, moments)
        return new

    def copy(self, device: torch.device | None = None) -> Together:
        """The same in memory of its own, there."""
        parts = {f.name: getattr(self, f.name) for f in fields(self)}
        moved = {name: x.to(device, copy=True) for name, x in parts.items() if isinstance(x, Tensor)}
        products = {pair: x.to(device, copy=True) for pair, x in self.product.items()}
        return Together(**{**parts, **moved, "product": products})

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

    def add(self, rows: Sequence[Float[Tensor, "n _"]], precision: Precision) -> None:
        """With these examples too: each site's rows, anywhere and in any dtype, block by block."""
        n = len(rows[0])
        if n > self.n:  # the point of the many fits better
            self._move_to(torch.cat([centre(float64(x.to(self.point.device))) for x in rows]))
        step = max(_LEAST_ROWS, _LARGEST // len(self.point))
        for some in zip(*(torch.split(x, step) for x in rows), strict=True):
            self._add(torch.cat([float64(x.to(self.point.device)) for x in some], dim=1), precision)

    def _add(self, rows: Float[Tensor, "n dims"], precision: Precision) -> None:
        """With these examples, every site's dimensions side by side. Changes ``rows``."""
        n, x = len(rows), rows.sub_(self.point).T.contiguous()
        del rows
        lengths = self._by_site(x.square())
        self.n += n
        self.total += x.sum(1)
        self.square += lengths.sum(1)
        self.cube.addmm_(lengths, x.T)
        self.fourth.addmm_(lengths, lengths.T)
        if precision == "float32":
            x = x.float()
        for (one, other), product in self.product.items():
            add_product(product, x[self.places[one]], x[self.places[other]])
        self._settle()

    def _settle(self) -> None:
        """Moves to the means where a site's point has proved far from its own."""
        if bool((self._by_site(self.total.square()) > self.n / 2 * self.square).any()):
            self._move_to(self.point + self.total / self.n)

    def _move_to(self, point: Float[Tensor, "dims"]) -> None:
        """About another point. One product at a time is in memory twice."""
        shift = self.point - point
        if not self.n or not bool(shift.any()):
            self.point = point if not self.n else self.point
            return
        small = {}
        for x, y in self.product:
            found = self.pair(x, y).translated(shift[self.places[x]], shift[self.places[y]])
            self.product[x, y].copy_(found.product)
            small[x, y] = replace(found, product=self.product[x, y])
        self.point = self.point - shift
        for pair, found in small.items():
            self._put(pair, found)

    def _put(self, pair: SitePair, moments: CrossMoments) -> None:
        """A pair's moments, about our points after it was moved there."""
        sites, (at_x, at_y) = list(self.places), (self.places[site] for site in pair)
        i, j = (sites.index(site) for site in pair)
        found = moments.about(self.point[at_x], self.point[at_y])
        if i == j:
            self.total[at_x], self.square[i] = found.sum_x, found.square_x
        self.cube[j, at_x], self.cube[i, at_y] = found.cube_x, found.cube_y
        self.fourth[i, j] = self.fourth[j, i] = found.fourth
        if found.product is not self.product[pair]:
            self.product[pair].copy_(found.product)

    def _by_site(self, x: Float[Tensor, "dims *n"]) -> Float[Tensor, "sites *n"]:
        """Sums over each site's dimensions."""
        if len(widths := {place.stop - place.start for place in self.places.values()}) == 1:
            return x.reshape(len(self.places), *widths, *x.shape[1:]).sum(1)
        return torch.stack([x[place].sum(0) for place in self.places.values()])

    def merge(self, other: Together) -> None:
        """With the examples of the other, which stays as it is."""
        if other.n > self.n:
            self._move_to(other.point.to(self.point.device))
        other = other if other.point.device == self.point.device else other.copy(self.point.device)
        for pair in self.product:
            mine, found = self.pair(*pair), other.pair(*pair)
            found = found.about(mine.x0, mine.y0)
            names = ["product", "fourth", "cube_x", "sum_x", "square_x"] if pair[0] == pair[1] else _OF_TWO
            for name in names:
                getattr(mine, name).add_(getattr(found, name))
            if pair[0] != pair[1]:
                sites = list(self.places)
                i, j = map(sites.index, pair)
                self.fourth[j, i] = self.fourth[i, j]
        self.n += other.n
        self._settle()


class MomentsState(Keyed[Together]):
    """Moments by class. See ``Moments``."""

    def add(
        self,
        rows: Mapping[str, Tensor],
        classes: Int[Tensor, "n"] | None = None,
        pairs: Sequence[SitePair] = (),
        *,
        precision: Precision = "float64",
        device: str | torch.device | None = None,
    ) -> None:
        """Add each site's rows ``[n d]`` of the same examples.

        Memory beside the state: three float64 copies of 256 rows at all sites, or of 32 MiB of them if that is more.

        Args:
            rows: by site; the same sites in every batch.
            classes: of the examples, each kept under its number, ``"0"``; ``None``: all under ``"all"``.
            pairs: sites to pair beside each with itself; the same in every batch.
            precision: of the products, which are by far most of the work; what is added up is float64.
            device: where the sums are made and held; that of the rows by default. One without float64 gives way to
                the CPU.
        """
        sites = {site: rows[site] for site in sorted(rows)}
        first = next(iter(sites.values()))
        home = home_of(first, device)
        groups: dict[str, Tensor | None] = {"all": None}
        if classes is not None:
            present = torch.unique(classes).tolist()
            groups = {str(c): None if len(present) == 1 else (classes == c).nonzero()[:, 0] for c in present}
        with torch.inference_mode(False), torch.no_grad():  # what is made in inference mode cannot be added to outside
            for key, chosen in groups.items() if len(first) else ():
                part = [x if chosen is None else x[chosen.to(x.device)] for x in sites.values()]
                old = self._values.get(key)
                if old is None:
                    dims = {site: x.shape[1] for site, x in sites.items()}
                    nowhere = torch.zeros(sum(dims.values()), dtype=torch.float64, device=home)
                    old = Together.about(nowhere, dims, dict.fromkeys([*((site, site) for site in sites), *pairs]))
                self._values[key] = old = old if old.point.device == home else old.copy(home)
                old.add(part, precision)

    def __getitem__(self, key: str) -> Together:
        return self._values[key]

    def merge(self, other: MomentsState) -> None:
        for key, value in other._values.items():
            old = self._values.get(key)
            if old is None:
                self._values[key] = value.copy()
            else:
                old.merge(value)

    def tensors(self) -> dict[str, Tensor]:
        return {
            f"{_quoted(x)}|{_quoted(y)}|{key}/{name}": torch.as_tensor(getattr(moments, name)).cpu().clone()
            for key, value in self._values.items()
            for x, y in value.product
            for moments in [value.pair(x, y)]
            for name in _FIELDS
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        pairs: dict[str, dict[SitePair, CrossMoments]] = {}
        for name in dict.fromkeys(name.rsplit("/", 1)[0] for name in tensors):
            n, *sums = (tensors[f"{name}/{field}"] for field in _FIELDS)
            x, y, key = map(unquote, name.split("|"))
            pairs.setdefault(key, {})[x, y] = CrossMoments(int(n), *sums)
        self._values = {key: Together.of_pairs(parts) for key, parts in pairs.items()}


def home_of(rows: Tensor, device: str | torch.device | None) -> torch.device:
    """Where float64 sums of rows are made: on ``device``, or where the rows are; not on MPS, which has no float64."""
    home = rows.device if device is None else torch.empty(0, device=device).device
    return torch.device("cpu") if home.type == "mps" else home


def _quoted(site: str) -> str:
    """Without ``|``, which the name of a model may have."""
    return quote(site, safe="/ ")
