"""What ``CKA`` and ``NDims`` share: rows as long as they take less memory than moments, then moments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from torch import Tensor

from probes.engine.moments import Moments, home_of
from probes.engine.pairwise import ByClass, sites_of
from probes.engine.probe import Probe
from probes.functional.products import Precision

Form = Literal["auto", "moments", "rows"]
FORMS = ("auto", "moments", "rows")


class RowsOrMoments(ByClass):
    """Keeps every example's row, or the moments of ``_pairs`` of sites, by class.

    A probe sets ``form``, and may set ``precision`` and ``device``.
    """

    moments = Moments()
    form: Form
    precision: Precision = "float64"
    device: str | None = None

    @property
    def _needs_rows(self) -> bool:
        return self.form == "rows"

    @property
    def _has_moments(self) -> bool:
        return self.form == "moments" or len(self.moments) > 0

    def _pairs(self) -> Iterable[tuple[str, str]]:
        """Names of the sites whose moments are kept: each with itself, at least."""
        return zip(self.site_names, self.site_names, strict=True)

    # ---- memory ----

    def _check_memory(self, rows: Mapping[str, Tensor], n: int, classes: int) -> None:
        if self._needs_rows:
            return self._check_rows(rows, n, "take form='moments'")
        needed = self._moments_of(rows, classes)
        if not self._has_moments and self._bytes(rows, n) <= needed:
            return self._check_rows(rows, n)
        row = sum(x.element_size() * x.shape[1] for x in rows.values()) / 2**20
        what = f"moments for {sites_of(rows)} and {classes} classes"
        return self._refuse_above(needed, what, f"take form='rows' ({row:.3g} MiB per example)")

    def _moments_of(self, rows: Mapping[str, Tensor], classes: int) -> int:
        d = {site: x.shape[1] for site, x in rows.items()}
        return moments_bytes(((d[x], d[y]) for x, y in self._pairs()), classes)

    # ---- what is kept ----

    def _keep(self, rows: Mapping[str, Tensor], index: Tensor, classes: Tensor) -> None:
        where, n = next(iter(rows.values())), self._n
        kept, moments = self._bytes(rows, n), self._moments_of(rows, len(self.seen))
        # Both are in memory while rows are folded: at once, where they would not fit together later.
        limit = self.max_memory * 2**30
        fits_no_more = moments + self._bytes(rows, n - len(index)) <= limit < moments + kept
        if self._has_moments or (fits_no_more and not self._needs_rows):
            self._fold(where)
            return self._add(rows, classes, where)
        super()._keep(rows, index, classes)
        if kept > moments and not self._needs_rows:
            self._fold(where)
        return None

    def _add(self, rows: Mapping[str, Tensor], classes: Tensor, where: Tensor) -> None:
        home = home_of(where, self.device)
        self.moments.add(rows, classes, list(self._pairs()), precision=self.precision, device=home)

    def _fold(self, where: Tensor) -> None:
        """From rows, if any, to moments on the device of that tensor. What comes next is added to these."""
        if len(self.rows):
            rows = {site: self.rows.get(site)[1] for site in self.site_names}
            self._add(rows, self.classes.get("label")[1], where)
            for state in (self.rows, self.classes):
                state.load({})

    def merge(self, other: Probe) -> None:
        super().merge(other)
        if not len(self.rows):
            return
        if len(self.moments):
            self._fold(self.moments[next(iter(self.moments))].point)
        elif not self._needs_rows:  # many small states must not end with more than one large one
            rows = {site: self.rows.chunks(site)[0][1] for site in self.site_names}
            n = sum(int(self.seen[c]) for c in self.seen)
            if self._bytes(rows, n) > self._moments_of(rows, len(self.seen)):
                self._fold(next(iter(rows.values())))

    # ---- what was kept ----

    def _rows_of(self, site: str, group: str) -> Tensor:
        """On the device of the sums."""
        rows = super()._rows_of(site, group)
        return rows if self.device is None else rows.to(home_of(rows, self.device))

    def _dims(self) -> dict[str, int]:
        if not self._has_moments:
            return super()._dims()
        places = self.moments[next(iter(self.moments))].places
        return {site: places[site].stop - places[site].start for site in self.site_names}

    def _classes_of(self, group: str) -> list[str]:
        """The keys of the moments that make up a group."""
        return sorted(self.moments, key=int) if group == "all" else [group]


def moments_bytes(shapes: Iterable[tuple[int, int]], classes: int) -> int:
    """Of the moments of pairs of so many dimensions."""
    return 8 * classes * sum(x * y + 3 * (x + y) for x, y in shapes)
