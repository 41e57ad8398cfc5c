"""Gather covariances and the sums that linear CKA needs: ``Moments``, a state like ``Sum`` and ``Rows``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from probes.engine.devices import sums_device
from probes.engine.state import AnyTensor, DeclaredState, KeyedState
from probes.functional.arrays import in_float64
from probes.functional.cross_moments import CrossMoments
from probes.functional.products import Precision, add_product
from tasks import InputError

_SUMS_OF_SITE = ("product", "fourth", "cube_x", "sum_x", "square_x")  # a site paired with itself has each sum once
_SUMS_OF_PAIR = ("product", "fourth", "cube_x", "cube_y")  # the other sums of a pair are its two sites' sums
_MIN_ROWS_PER_BLOCK = 512
_MAX_ELEMENTS_PER_BLOCK = 2**22
SitePair: TypeAlias = tuple[str, str]


class Moments(DeclaredState["MomentsState"]):
    """Declared ``CrossMoments`` of sites with themselves and of pairs of sites, by class of examples.

    Unlike a ``Sum``, they are sums about points near the means, which a merge reconciles. A covariance keeps its digits
    even if the mean is far larger than the spread.

    Memory: ``dx dy + 3 (dx + dy)`` float64 numbers for each pair and class, independent of the number of examples.

    Example:
        >>> from probes import Moments, Probe
        >>> class Spread(Probe):
        ...     '''Participation ratio: the number of directions in which a site varies.'''
        ...     moments = Moments()
        ...     def update(self, activations, batch):
        ...         self.moments.add({site: x.flatten(1) for site, x in activations.items()})
        ...     def compute(self):
        ...         ratios = []
        ...         for site in self.site_names:
        ...             m = self.moments["all"].pair(site, site)
        ...             covariance = m.product / m.n - torch.outer(m.sum_x, m.sum_x) / m.n**2
        ...             ratios.append(covariance.trace() ** 2 / covariance.square().sum())
        ...         spread = torch.stack(ratios)
        ...         notes = ["where all states are the same, their spread is NaN"] if spread.isnan().any() else []
        ...         return self.result({"spread": spread}, {"spread": ("site",)}, notes=notes)
    """

    def _make(self, probe: Any) -> MomentsState:
        return MomentsState()


@dataclass
class _JointMoments:
    """The moments of pairs of sites over shared examples. Sums that pairs share are stored once.

    All float64. The dimensions of all sites are concatenated, in the order of ``places``.

    Attributes:
        n: number of examples.
        places: the place of each site's dimensions among all, by site.
        point: the point that is subtracted from every row.
        total: sum of the rows.
        square: sum of the squared lengths of each site's rows.
        cube: sum of each site's squared length times the rows.
        fourth: sum of the products of squared lengths.
        product: sum of the outer products, by pair. Every site is paired with itself, and maybe with others.
    """

    n: int
    places: dict[str, slice]
    point: Float64[Tensor, "dim"]
    total: Float64[Tensor, "dim"]
    square: Float64[Tensor, "site"]
    cube: Float64[Tensor, "site dim"]
    fourth: Float64[Tensor, "site site"]
    product: dict[SitePair, Float64[Tensor, "dx dy"]]

    @classmethod
    def empty(cls, point: Float64[Tensor, "dim"], dims: Mapping[str, int], pairs: Iterable[SitePair]) -> _JointMoments:
        """Return the moments of no examples.

        Args:
            point: the point to be subtracted from rows.
            dims: number of dimensions of each site.
            pairs: pairs of sites.
        """
        ends = accumulate(dims.values())
        return cls(
            n=0,
            places={site: slice(end - d, end) for (site, d), end in zip(dims.items(), ends, strict=True)},
            point=point,
            total=point.new_zeros(len(point)),
            square=point.new_zeros(len(dims)),
            cube=point.new_zeros(len(dims), len(point)),
            fourth=point.new_zeros(len(dims), len(dims)),
            product={(x, y): point.new_zeros(dims[x], dims[y]) for x, y in pairs},
        )

    @classmethod
    def from_pairs(cls, pairs: Mapping[SitePair, CrossMoments]) -> _JointMoments:
        """Return the joint moments with these moments of pairs, about the points of sites paired with themselves."""
        sites = {x: moments for (x, y), moments in sorted(pairs.items()) if x == y}
        dims = {site: len(moments.x0) for site, moments in sites.items()}
        joint = cls.empty(torch.cat([moments.x0 for moments in sites.values()]), dims, pairs)
        joint.n = next(iter(sites.values())).n
        for pair, moments in pairs.items():
            joint._put(pair, moments)
        return joint

    def copy(self, device: torch.device | None = None) -> _JointMoments:
        """Return a copy, on another device if one is given."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, value in values.items():
            if isinstance(value, Tensor):
                values[name] = value.to(device, copy=True)
        values["product"] = {pair: product.to(device, copy=True) for pair, product in self.product.items()}
        return _JointMoments(**values)

    def pair(self, x: str, y: str) -> CrossMoments:
        """Return the moments of one pair of sites, as views that ``add`` changes."""
        place_x = self.places[x]
        place_y = self.places[y]
        i = self._number(x)
        j = self._number(y)
        return CrossMoments(
            n=self.n,
            x0=self.point[place_x],
            y0=self.point[place_y],
            sum_x=self.total[place_x],
            sum_y=self.total[place_y],
            product=self.product[x, y],
            square_x=self.square[i],
            square_y=self.square[j],
            cube_x=self.cube[j, place_x],
            cube_y=self.cube[i, place_y],
            fourth=self.fourth[i, j],
        )

    def _number(self, site: str) -> int:
        return list(self.places).index(site)

    def add(self, rows: Sequence[Float[Tensor, "n _"]], precision: Precision) -> None:
        """Add examples, block by block.

        Args:
            rows: rows of each site, on any device and in any dtype.
            precision: precision of the outer products.
        """
        size = max(_MIN_ROWS_PER_BLOCK, _MAX_ELEMENTS_PER_BLOCK // len(self.point))
        if len(rows[0]) > self.n:  # the mean of more examples is a better point
            self._move_to(torch.cat([_mean_by_blocks(x, size, self.point.device) for x in rows]))
        for block in zip(*(torch.split(x, size) for x in rows), strict=True):
            self._add_block(torch.cat([in_float64(x.to(self.point.device)) for x in block], dim=1), precision)

    def _add_block(self, rows: Float64[Tensor, "n dim"], precision: Precision) -> None:
        """Add examples, with the dimensions of all sites concatenated. Changes ``rows``."""
        n = len(rows)
        x = rows.sub_(self.point).T.contiguous()
        del rows
        lengths = self._sum_by_site(x.square())
        self.n += n
        self.total += x.sum(1)
        self.square += lengths.sum(1)
        self.cube.addmm_(lengths, x.T)
        self.fourth.addmm_(lengths, lengths.T)
        if precision == "float32":
            x = x.float()
        for (first, second), product in self.product.items():
            add_product(product, x[self.places[first]], x[self.places[second]])
        self._move_if_far()

    def _move_if_far(self) -> None:
        """Move the point to the means if it is far from the mean of a site."""
        squared_sum = self._sum_by_site(self.total.square())
        if bool((squared_sum > self.n / 2 * self.square).any()):
            self._move_to(self.point + self.total / self.n)

    def _move_to(self, point: Float64[Tensor, "dim"]) -> None:
        """Take the moments about another point. One product at a time is in memory twice."""
        if not self.n:
            self.point = point
            return
        shift = self.point - point
        if not bool(shift.any()):
            return
        moved_pairs = {}
        for x, y in self.product:
            moved = self.pair(x, y).translated(shift[self.places[x]], shift[self.places[y]])
            self.product[x, y].copy_(moved.product)
            moved_pairs[x, y] = replace(moved, product=self.product[x, y])
        self.point = self.point - shift
        for pair, moved in moved_pairs.items():
            self._put(pair, moved)

    def _put(self, pair: SitePair, moments: CrossMoments) -> None:
        """Replace the moments of a pair."""
        place_x, place_y = (self.places[site] for site in pair)
        i, j = (self._number(site) for site in pair)
        moments = moments.about(self.point[place_x], self.point[place_y])
        if i == j:
            self.total[place_x] = moments.sum_x
            self.square[i] = moments.square_x
        self.cube[j, place_x] = moments.cube_x
        self.cube[i, place_y] = moments.cube_y
        self.fourth[i, j] = moments.fourth
        self.fourth[j, i] = moments.fourth
        if moments.product is not self.product[pair]:
            self.product[pair].copy_(moments.product)

    def _sum_by_site(self, x: Float64[Tensor, "dim *n"]) -> Float64[Tensor, "site *n"]:
        """Return sums over the dimensions of each site."""
        places = self.places.values()
        widths = {place.stop - place.start for place in places}
        if len(widths) == 1:
            return x.reshape(len(places), *widths, *x.shape[1:]).sum(1)
        return torch.stack([x[place].sum(0) for place in places])

    def merge(self, other: _JointMoments) -> None:
        """Add the examples of ``other``, which does not change."""
        if other.n > self.n:
            self._move_to(other.point.to(self.point.device))
        if other.point.device != self.point.device:
            other = other.copy(self.point.device)
        for x, y in self.product:
            ours = self.pair(x, y)
            added = other.pair(x, y).about(ours.x0, ours.y0)
            for name in _SUMS_OF_SITE if x == y else _SUMS_OF_PAIR:
                getattr(ours, name).add_(getattr(added, name))
            self.fourth[self._number(y), self._number(x)] = ours.fourth
        self.n += other.n
        self._move_if_far()


class MomentsState(KeyedState[_JointMoments]):
    """Moments by class. See ``Moments``."""

    def add(
        self,
        rows: Mapping[str, Float[Tensor, "n _"]],
        classes: Int[Tensor, "n"] | None = None,
        pairs: Sequence[SitePair] = (),
        *,
        precision: Precision = "float64",
        device: str | torch.device | None = None,
    ) -> None:
        """Add the rows of a batch of examples at every site.

        Memory besides the state: three float64 copies of 512 rows at all sites, or of 32 MiB of them if that is more.

        Args:
            rows: by site, with equal sites in every batch.
            classes: classes of the examples, each kept under its number, ``"0"``. ``None``: all under ``"all"``.
            pairs: sites to pair, in addition to each with itself, in one order, equal in every batch.
            precision: precision of the products, by far most of the work. Their sums are float64.
            device: device that computes and keeps the sums, by default the rows'. A device without float64 is replaced
                by the CPU.

        Raises:
            InputError: for a pair in both orders.
        """
        sites = {site: rows[site] for site in sorted(rows)}
        first = next(iter(sites.values()))
        home = sums_device(first, device)
        if not len(first):
            return
        with torch.inference_mode(False), torch.no_grad():  # tensors made in inference mode cannot be added to outside
            for key, examples in _examples_by_class(classes).items():
                chosen = sites
                if examples is not None:
                    chosen = {site: x[examples.to(x.device)] for site, x in sites.items()}
                self._moments_at(key, chosen, pairs, home).add(list(chosen.values()), precision)

    def _moments_at(
        self, key: str, rows: Mapping[str, Float[Tensor, "_ _"]], pairs: Sequence[SitePair], home: torch.device
    ) -> _JointMoments:
        """Return the moments at a key on the device, empty ones for a new key."""
        if key not in self._values:
            given = set(pairs)
            for x, y in pairs:
                if x != y and (y, x) in given:
                    raise InputError(f"the pair of {x!r} and {y!r} is given in both orders; give one of them")
            dims = {site: x.shape[1] for site, x in rows.items()}
            origin = torch.zeros(sum(dims.values()), dtype=torch.float64, device=home)
            with_itself = [(site, site) for site in rows]
            self._values[key] = _JointMoments.empty(origin, dims, dict.fromkeys([*with_itself, *pairs]))
        elif self._values[key].point.device != home:
            self._values[key] = self._values[key].copy(home)
        return self._values[key]

    def __getitem__(self, key: str) -> _JointMoments:
        return self._at(key)

    def merge(self, other: MomentsState) -> None:
        """Add the moments of another state."""
        for key, moments in other._values.items():
            if key in self._values:
                self._values[key].merge(moments)
            else:
                self._values[key] = moments.copy()

    def shapes(self) -> dict[str, Any]:
        """Return the shape of each pair's product, by class."""
        return {
            key: {pair: tuple(product.shape) for pair, product in moments.product.items()}
            for key, moments in self._values.items()
        }

    def tensors(self) -> dict[str, AnyTensor]:
        """Return every sum of every pair on the CPU, named ``x|y|key/sum``."""
        tensors = {}
        for key, moments in self._values.items():
            for x, y in moments.product:
                pair = moments.pair(x, y)
                for field in fields(pair):
                    value = torch.as_tensor(getattr(pair, field.name))
                    tensors[f"{_quoted(x)}|{_quoted(y)}|{key}/{field.name}"] = value.cpu().clone()
        return tensors

    def load(self, tensors: dict[str, AnyTensor]) -> None:
        """Replace all moments by the ``tensors()`` of another state."""
        pairs: dict[str, dict[SitePair, CrossMoments]] = {}
        for name in dict.fromkeys(name.rsplit("/", 1)[0] for name in tensors):
            n, *sums = (tensors[f"{name}/{field.name}"] for field in fields(CrossMoments))
            x, y, key = map(unquote, name.split("|"))
            pairs.setdefault(key, {})[x, y] = CrossMoments(int(n), *sums)
        self._values = {key: _JointMoments.from_pairs(moments) for key, moments in pairs.items()}


def _mean_by_blocks(rows: Float[Tensor, "n d"], size: int, device: torch.device) -> Float64[Tensor, "d"]:
    """Return the mean of rows, of which ``size`` at once are copied in float64. It is exact if all rows are equal."""
    first = in_float64(rows[0].to(device))
    total = torch.zeros_like(first)
    for block in torch.split(rows, size):
        total += (in_float64(block.to(device)) - first).sum(dim=0)
    return first + total / len(rows)


def _examples_by_class(classes: Int[Tensor, "n"] | None) -> dict[str, Int[Tensor, "_"] | None]:
    """Return the places of each class's examples, or ``None`` for all examples."""
    if classes is None:
        return {"all": None}
    present = torch.unique(classes).tolist()
    if len(present) == 1:
        return {str(present[0]): None}
    return {str(c): (classes == c).nonzero()[:, 0] for c in present}


def _quoted(site: str) -> str:
    """Return the name of a site without ``|``, which the name of a model may have."""
    return quote(site, safe="/ ")


def moments_bytes(shapes: Iterable[tuple[int, int]], classes: int) -> int:
    """Return the bytes of the moments of pairs of sites with so many dimensions."""
    return 8 * classes * sum(x * y + 3 * (x + y) for x, y in shapes)
