"""Base class of ``CKA`` and ``NDims``: keep rows as long as they take less memory than moments, then moments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from probes.engine.devices import sums_device
from probes.engine.moments import Moments, moments_bytes
from probes.engine.probe import Probe
from probes.engine.rows_by_class import RowsByClass, SiteRows
from probes.functional.products import Precision

Form = Literal["auto", "moments", "rows"]
FORMS = ("auto", "moments", "rows")


class RowsOrMoments(RowsByClass):
    """Base class that keeps every example's row, or the moments of ``_pairs`` of sites, by class.

    A subclass sets ``form``, and may set ``precision`` and ``device``.

    Attributes:
        form: ``"rows"``, ``"moments"``, or ``"auto"`` for the smaller of both.
        precision: precision of the products in moments.
        device: device for sums, by default the rows'.
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
        """Return the pairs of site names whose moments are kept, each site with itself at least."""
        return zip(self.site_names, self.site_names, strict=True)

    # ---- memory ----

    def _check_memory(self, rows: SiteRows, n: int, classes: int) -> None:
        needed = self._moments_of(rows, classes)
        if self._needs_rows:
            self._check_rows(rows, n, "take form='moments'")
        elif not self._has_moments and self._bytes(rows, n) <= needed:
            self._check_rows(rows, n)
        else:
            row = sum(x.element_size() * x.shape[1] for x in rows.values()) / 2**20
            what = f"moments for {self._sites_text(rows)} and {classes} classes"
            self._refuse_above(needed, what, f"take form='rows' ({row:.3g} MiB per example)")

    def _moments_of(self, rows: SiteRows, classes: int) -> int:
        """Return the bytes of the moments of so many classes."""
        d = {site: x.shape[1] for site, x in rows.items()}
        return moments_bytes([(d[x], d[y]) for x, y in self._pairs()], classes)

    # ---- states to keep ----

    def _keep(self, rows: SiteRows, index: Int[Tensor, "n"], classes: Int[Tensor, "n"]) -> None:
        device = next(iter(rows.values())).device
        kept = self._bytes(rows, self._n)
        before = self._bytes(rows, self._n - len(index))
        moments = self._moments_of(rows, len(self.seen))
        # Rows and moments are in memory while rows are folded. Fold now if both fit, but no longer after this batch.
        fits_last_time = moments + before <= self.max_memory * 2**30 < moments + kept
        if self._has_moments or (fits_last_time and not self._needs_rows):
            self._fold(device)
            self._add(rows, classes, device)
            return
        super()._keep(rows, index, classes)
        if kept > moments and not self._needs_rows:
            self._fold(device)

    def _add(self, rows: SiteRows, classes: Int[Tensor, "n"], device: torch.device) -> None:
        """Add rows to the moments, on ``self.device`` or else on that device."""
        home = self.device or device
        self.moments.add(rows, classes, list(self._pairs()), precision=self.precision, device=home)

    def _fold(self, device: torch.device) -> None:
        """Replace rows by moments on that device, if there are rows."""
        if len(self.rows):
            rows = {site: self.rows.get(site)[1] for site in self.site_names}
            self._add(rows, self.classes.get("label")[1], device)
            self.rows.load({})
            self.classes.load({})

    def merge(self, other: Probe) -> None:
        """Add the state of another probe, and replace rows by moments if these are smaller by now.

        Raises:
            InputError: as ``Probe.merge``.
        """
        super().merge(other)
        if not len(self.rows):
            return
        if len(self.moments):
            self._fold(self.moments[next(iter(self.moments))].point.device)
        elif not self._needs_rows:  # many small states must not become more than one large one
            rows = {site: self.rows.chunks(site)[0][1] for site in self.site_names}
            if self._bytes(rows, self._n) > self._moments_of(rows, len(self.seen)):
                self._fold(next(iter(rows.values())).device)

    # ---- kept states ----

    def _rows_of(self, site: str, group: str) -> Shaped[Tensor, "n d"]:
        """Return the rows of a group at a site, on the device of the sums."""
        rows = super()._rows_of(site, group)
        return rows if self.device is None else rows.to(sums_device(rows, self.device))

    def _dims(self) -> dict[str, int]:
        if not self._has_moments:
            return super()._dims()
        places = self.moments[next(iter(self.moments))].places
        return {site: places[site].stop - places[site].start for site in self.site_names}

    def _classes_of(self, group: str) -> list[str]:
        """Return the keys of the moments of a group."""
        return sorted(self.moments, key=int) if group == "all" else [group]
