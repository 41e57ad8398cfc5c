"""Rows for a row store: which values are kept of each example."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from probes.engine.examples_digest import token_digests
from probes.engine.fingerprint import fingerprint
from probes.engine.hooked_model import HookedModel
from probes.engine.probe import Probe
from probes.engine.readout import Readout, check_row_readout, given_position, position_from_first_token
from probes.engine.result import ProbeResult
from probes.engine.sites import Sites, resolve
from probes.engine.state import Rows
from probes.rows.shards import ROWS_FORMAT
from tasks import Batch, InputError
from tasks.repeated_values import repeated_values

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class KeptRows(Probe):
    """Probe that keeps every example's rows and labels, a digest of its tokens, and the readout's position.

    Args:
        at: where to measure.
        readout: which position.
        labels: labels to keep, which are put in order.
        dtype: the dtype of the rows. ``None``: the activations' own.

    Raises:
        InputError: for a string as labels, a label named twice, another dtype, and a readout that keeps no row per
            example.
    """

    rows = Rows()

    def __init__(
        self, at: Sites, readout: Readout, labels: Sequence[str] = (), dtype: torch.dtype | None = None
    ) -> None:
        if isinstance(labels, str):
            given = repr(labels)
            raise InputError(f"labels is the string {given}; expected a sequence of label names such as ({given},)")
        twice = repeated_values(labels)
        if twice:
            raise InputError(f"label {twice[0]!r} is named twice; name it once")
        if dtype not in (None, *_DTYPES):
            known = ", ".join(map(str, _DTYPES))
            raise InputError(f"dtype is {dtype!r}; expected {known}, or None for the model's own")
        super().__init__(at, check_row_readout(readout))
        self.labels = sorted(labels)
        self.dtype = dtype

    @property
    def settings(self) -> dict[str, Any]:
        """The part of a store's header that does not depend on the model."""
        settings = {
            "format": ROWS_FORMAT,
            "readout": repr(self.readout),
            "labels": self.labels,
            "dtype": self.dtype and str(self.dtype).removeprefix("torch."),
        }
        position = given_position(self.readout)
        return settings if position is None else {**settings, "position": position}

    def header(self, model: HookedModel) -> dict[str, Any]:
        """Return the header of a store of this model's rows."""
        sites = [list(site) for site in resolve(model, self.at)]
        return {**self.settings, "model": fingerprint(model), "sites": sites, "hooks": list(model.hook_dict)}

    def update(self, activations: Mapping[str, Float[Tensor, "batch ..."]], batch: Batch) -> None:
        """Keep the rows of a batch."""
        if self.dtype is not None:
            activations = {site: self._converted(site, x, batch) for site, x in activations.items()}
        position = given_position(self.readout)
        if position is not None:
            self.rows.add(f"positions/{position}", batch.index, position_from_first_token(position, batch))
        for site, x in activations.items():
            self.rows.add(f"rows/{site}", batch.index, x.flatten(1))
        for name in self.labels:
            self.rows.add(f"labels/{name}", batch.index, batch.label(name, per="example"))
        self.rows.add("tokens", batch.index, token_digests(batch))

    def compute(self) -> ProbeResult:
        """Return a result without measures, since only the rows are needed."""
        return self.result({}, {})

    def by_site(self) -> dict[str, Float[Tensor, "example d"]]:
        """Return the rows so far by hook name, in the order of the examples' index."""
        return {site: self.rows.get(f"rows/{site}")[1] for site in self.site_names}

    def _converted(self, site: str, x: Float[Tensor, "batch *rest"], batch: Batch) -> Float[Tensor, "batch *rest"]:
        """Return activations in our dtype. Refuse values that it cannot hold."""
        converted = x.to(self.dtype)
        if converted.dtype == x.dtype or converted.element_size() > x.element_size():
            return converted
        too_large = ~torch.isfinite(converted).flatten(1).all(dim=1)
        if bool(too_large.any()):
            example = int(batch.index.to(x.device)[too_large][0])
            largest = float(x[too_large][0].abs().max())
            limit = torch.finfo(converted.dtype).max
            other = "bfloat16 or float32" if self.dtype == torch.float16 else "the model's own dtype (dtype=None)"
            raise InputError(
                f"{self.dtype} cannot hold the activations at {site!r} for example index {example} (up to "
                f"{largest:.3g}; the dtype's largest number is {limit:.3g}); keep them in {other}"
            )
        return converted

    def check_expected_space(self, folder: Path, examples: int, model: HookedModel) -> None:
        """Refuse more rows than the disk has room for, if the model's configuration tells their width."""
        sites = resolve(model, self.at)
        numbers = _numbers_per_example(model, sites)
        if numbers is not None:
            dtype = self.dtype or activations_dtype(model)
            _check_disk_space(folder, examples, len(sites), numbers, numbers * dtype.itemsize)

    def check_space(self, folder: Path, examples: int) -> None:
        """Refuse more rows than the disk has room for, by the first example's."""
        rows = [self.rows.get(f"rows/{site}")[1][0] for site in self.site_names]
        numbers = sum(x.numel() for x in rows)
        size = sum(x.numel() * x.element_size() for x in rows)
        _check_disk_space(folder, examples, len(rows), numbers, size)


def _numbers_per_example(model: HookedModel, sites: Sequence[Any]) -> int | None:
    """Return how many numbers one example has at these sites, if the model's configuration tells."""
    width = getattr(getattr(model, "cfg", None), "d_model", None)
    all_residual = all(name == "hook_embed" or ".hook_resid_" in name for name, _ in sites)
    return width * len(sites) if isinstance(width, int) and all_residual else None


def activations_dtype(model: HookedModel) -> torch.dtype:
    """Return the likely dtype of the model's activations."""
    configured = getattr(getattr(model, "cfg", None), "dtype", None)
    if isinstance(configured, torch.dtype):
        return configured
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def _check_disk_space(folder: Path, examples: int, sites: int, numbers: int, size: int) -> None:
    """Refuse more rows than the disk has room for, before they are measured.

    Args:
        folder: folder for the rows. May be missing.
        examples: number of examples.
        sites: number of hook points.
        numbers: numbers of one example at all sites.
        size: bytes of one example at all sites.
    """
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if examples * size > free:
        bytes_each = size // numbers
        smaller = "dtype=torch.bfloat16, " if bytes_each > 2 else ""
        raise InputError(
            f"the rows of {examples:,} examples take {_bytes(examples * size)} on disk ({sites} hook points, "
            f"{numbers:,} numbers of {bytes_each} bytes per example), but {str(folder)!r} has {_bytes(free)} free; "
            f"give fewer prompts or layers, {smaller}or another folder"
        )


def _bytes(size: float) -> str:
    if size < 1024:
        return f"{size:.0f} bytes"
    for unit in ("KiB", "MiB"):
        size /= 1024
        if size < 1024:
            return f"{size:,.1f} {unit}"
    return f"{size / 1024:,.1f} GiB"
