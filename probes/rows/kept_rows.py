"""Rows for a row store: the values kept of each example, and the examples an unfinished store holds."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64, Integer, Shaped
from torch import Tensor

from probes.engine.examples_digest import token_digests
from probes.engine.fingerprint import fingerprint
from probes.engine.hooked_model import HookedModel
from probes.engine.readout import Readout, check_row_readout
from probes.engine.sites import Sites, resolve
from probes.engine.state import RowsState
from probes.rows.collect import Gather
from probes.rows.row_store import ROWS_FORMAT, check_shards, read_header, read_index, store_shards
from probes.store.files import is_temporary
from probes.store.index_set import IndexSet
from tasks import Batch, InputError

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Keeping:
    """Settings of ``save_rows`` on the values kept of each example. Labels are put in order.

    Raises:
        InputError: for a string as labels, another dtype, and a readout that keeps no row per example.
    """

    at: Sites
    readout: Readout
    labels: Sequence[str]
    dtype: torch.dtype | None

    def __post_init__(self) -> None:
        if isinstance(self.labels, str):
            given = repr(self.labels)
            raise InputError(f"labels is the string {given}; expected a sequence of label names such as ({given},)")
        if self.dtype not in (None, *_DTYPES):
            known = ", ".join(map(str, _DTYPES))
            raise InputError(f"dtype is {self.dtype!r}; expected {known}, or None for the model's own")
        check_row_readout(self.readout)
        object.__setattr__(self, "labels", sorted(self.labels))

    def probe(self) -> _KeptRows:
        """Return a probe that gathers the rows."""
        return _KeptRows(self.at, self.readout, self.labels, self.dtype)

    @property
    def settings(self) -> dict[str, Any]:
        """The part of a store's header that does not depend on the model."""
        return {
            "format": ROWS_FORMAT,
            "readout": repr(self.readout),
            "labels": self.labels,
            "dtype": self.dtype and str(self.dtype).removeprefix("torch."),
        }

    def header(self, model: HookedModel) -> dict[str, Any]:
        """Return the header of a store of this model's rows."""
        sites = [list(site) for site in resolve(model, self.at)]
        return {**self.settings, "model": fingerprint(model), "sites": sites, "hooks": list(model.hook_dict)}

    def check_space(self, folder: Path, examples: int, model: HookedModel) -> None:
        """Refuse more rows than the disk has room for, if the model's configuration tells their width."""
        sites = resolve(model, self.at)
        numbers = _numbers_per_example(model, sites)
        if numbers is not None:
            dtype = self.dtype or _dtype_of(model)
            check_space(folder, examples, len(sites), numbers, numbers * dtype.itemsize)


class _KeptRows(Gather):
    """Collector of rows in the dtype of the store."""

    def __init__(self, at: Sites, readout: Readout, labels: Sequence[str], dtype: torch.dtype | None) -> None:
        super().__init__(at, readout, labels)
        self.dtype = dtype

    def update(self, activations: Mapping[str, Float[Tensor, "batch ..."]], batch: Batch) -> None:
        """Keep the rows of a batch."""
        if self.dtype is not None:
            activations = {site: self._converted(site, x, batch) for site, x in activations.items()}
        super().update(activations, batch)

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

    def size(self) -> tuple[int, int]:
        """Return how many numbers, and bytes, one example has at all sites."""
        rows = [self.rows.get(f"rows/{site}")[1][0] for site in self.site_names]
        return sum(x.numel() for x in rows), sum(x.numel() * x.element_size() for x in rows)


@dataclass
class Stored:
    """The examples that a folder holds, and the examples given so far, which must be equal.

    Attributes:
        folder: folder of the store.
        labels: names of the labels kept.
        known: index, tokens and labels of the examples that the folder held at the start, by index, ascending.
        seen: the examples given so far.
        written: number of examples written since.
    """

    folder: Path
    labels: Sequence[str]
    known: dict[str, Integer[Tensor, "example"]]
    seen: IndexSet = field(default_factory=IndexSet)
    written: int = 0

    @classmethod
    def from_shards(cls, folder: Path, labels: Sequence[str], kept: Sequence[Path]) -> Stored:
        """Read which examples these shards hold. Refuse a shard of which a file is missing."""
        parts = [read_index(path) for path in kept]
        for path in kept:
            check_shards(path)
        if not parts:
            return cls(folder, labels, {"index": torch.zeros(0, dtype=torch.int64)})
        joined = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
        order = torch.argsort(joined["index"])
        return cls(folder, labels, {key: values[order] for key, values in joined.items()})

    def __len__(self) -> int:
        return len(self.known["index"])

    @property
    def given(self) -> int:
        """The number of examples given so far."""
        return len(self.seen)

    def see(self, index: Integer[Tensor, "example"]) -> None:
        """Note that these examples were given.

        Raises:
            InputError: for one that was given before.
        """
        self.seen.add(index, "give every example an index of its own")

    def new(self, batch: Batch) -> Batch:
        """Return the examples of a batch that are not there yet.

        Raises:
            InputError: for an example given twice, and one that is there with other tokens or labels.
        """
        self.see(batch.index)
        index = batch.index.cpu()
        held = self.known["index"]
        is_held = torch.isin(index, held)
        if not bool(is_held.any()):
            return batch
        places = torch.searchsorted(held, index[is_held])
        self._check_same(batch.select(is_held.to(batch.index.device)), places)
        return batch.select((~is_held).to(batch.index.device))

    def _check_same(self, batch: Batch, places: Int64[Tensor, "example"]) -> None:
        """Refuse examples whose tokens or labels differ from the kept ones at ``places``."""
        store = repr(str(self.folder))
        example = _first_difference(token_digests(batch), self.known["tokens"][places])
        if example is not None:
            raise InputError(
                f"example index {int(batch.index[example])} has different tokens in {store}; give the same prompts, or "
                "a new folder"
            )
        for name in self.labels:
            given = batch.label(name, per="example")
            kept = self.known[f"labels/{name}"][places]
            example = _first_difference(given, kept)
            if example is not None:
                raise InputError(
                    f"example index {int(batch.index[example])} has {given[example].item()} as its label {name!r}, not "
                    f"{kept[example].item()} as in {store}; give the same labels, or a new folder"
                )

    def check_all_given(self) -> None:
        """Refuse a folder that holds more examples than were given, and no examples at all."""
        if not len(self.seen):
            raise InputError("there are no examples to measure; give at least one non-empty batch")
        missing = self.known["index"][~self.seen.holds(self.known["index"])]
        if len(missing):
            raise InputError(
                f"{str(self.folder)!r} holds example index {int(missing[0])}, which is not in these batches "
                f"({len(missing)} such); give all the examples it was started with, or a new folder"
            )


def _first_difference(one: Shaped[Tensor, "example"], other: Shaped[Tensor, "example"]) -> int | None:
    """Return the first place at which two tensors differ."""
    places = (one.cpu() != other).nonzero()
    return int(places[0, 0]) if len(places) else None


def files_of(
    rows: RowsState,
) -> tuple[dict[str, Integer[Tensor, "example"]], Iterator[tuple[str, Float[Tensor, "example d"]]]]:
    """Return the arguments of ``write_shard``. A site's rows are released once they are taken."""
    index, tokens = rows.get("tokens")
    columns = {"index": index, "tokens": tokens}
    columns |= {key: rows.get(key)[1] for key in rows if key.startswith("labels/")}
    sites = [key.removeprefix("rows/") for key in rows if key.startswith("rows/")]
    return columns, ((site, rows.pop(f"rows/{site}")[1]) for site in sites)


def kept_shards(folder: Path, header: Mapping[str, Any]) -> list[Path]:
    """Return the shards that a folder holds of these rows, without writing.

    Raises:
        InputError: for a folder that is not a row store, or holds other rows.
    """
    old = read_header(folder)
    kept = store_shards(folder)
    if old is None and kept:
        raise InputError(
            f"{str(folder)!r} has shards of rows but no rows.json, which says which model they are of; put it "
            "back, delete the folder, or give a new one"
        )
    if old is None and folder.exists() and any(not is_temporary(path) for path in folder.iterdir()):
        raise InputError(f"{str(folder)!r} has files but is not a row store; give a new folder")
    if old is None or not kept:  # no rows are kept yet, so none can be mixed
        return kept
    names = {
        "sites": "other sites",
        "readout": "another readout",
        "labels": "other labels",
        "dtype": f"dtype {old.get('dtype') or 'of the model'}",
    }
    for key, value in header.items():
        if old.get(key) != value:
            raise InputError(
                f"{str(folder)!r} holds rows of {names.get(key, 'another model')}; "
                "give a new folder, or delete this one"
            )
    return kept


# ---- space on the disk ----


def count_given(given: Any) -> int | None:
    """Return how many examples there are at least, if that can be known without drawing them."""
    if isinstance(given, (Batch, Tensor)):
        return len(given)
    if isinstance(given, Mapping):
        values = given["input_ids"] if "input_ids" in given else given.get("text", ())
        if isinstance(values, str) or not len(values):
            return 1
        is_batch = isinstance(values[0], str) or np.ndim(values[0]) > 0
        return len(values) if is_batch else 1
    if isinstance(given, (list, tuple)):
        return sum(1 if isinstance(item, str) else count_given(item) or 0 for item in given)
    return len(given) if hasattr(given, "__len__") else None


def _numbers_per_example(model: HookedModel, sites: Sequence[Any]) -> int | None:
    """Return how many numbers one example has at these sites, if the model's configuration tells."""
    width = getattr(getattr(model, "cfg", None), "d_model", None)
    all_residual = all(name == "hook_embed" or ".hook_resid_" in name for name, _ in sites)
    return width * len(sites) if isinstance(width, int) and all_residual else None


def _dtype_of(model: HookedModel) -> torch.dtype:
    """Return the likely dtype of the model's activations."""
    configured = getattr(getattr(model, "cfg", None), "dtype", None)
    if isinstance(configured, torch.dtype):
        return configured
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def check_space(folder: Path, examples: int, sites: int, numbers: int, size: int) -> None:
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
