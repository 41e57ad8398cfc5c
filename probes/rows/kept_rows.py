"""What of each example a row store keeps, and what one that was begun holds already."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probes.engine.hooks import HookedModel
from probes.engine.identity import fingerprint, token_digests
from probes.engine.readout import Readout
from probes.engine.sites import Sites, resolve
from probes.engine.state import RowsState
from probes.rows.collect import Gather
from probes.rows.row_store import ROWS_FORMAT, check_shards, read_header, read_index, shards
from probes.store.files import is_temporary
from probes.store.index_set import IndexSet
from tasks import Batch, InputError

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Keeping:
    """What is kept of each example. As ``save_rows`` takes it; labels are put in order.

    Raises:
        InputError: for a string as labels, and another dtype.
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
        object.__setattr__(self, "labels", sorted(self.labels))

    def probe(self) -> _KeptRows:
        """What gathers it."""
        return _KeptRows(self.at, self.readout, self.labels, self.dtype)

    @property
    def settings(self) -> dict[str, Any]:
        """The part of a store's header that no model is needed for."""
        return {
            "format": ROWS_FORMAT,
            "readout": repr(self.readout),
            "labels": self.labels,
            "dtype": self.dtype and str(self.dtype).removeprefix("torch."),
        }

    def header(self, model: HookedModel) -> dict[str, Any]:
        """Of a store of this model's rows."""
        sites = [list(site) for site in resolve(model, self.at)]
        return {**self.settings, "model": fingerprint(model), "sites": sites, "hooks": list(model.hook_dict)}

    def check_space(self, folder: Path, examples: int, model: HookedModel) -> None:
        """Refuse what the disk has no room for, where the model's configuration tells, before it is measured."""
        sites = resolve(model, self.at)
        if numbers := _numbers(model, sites):
            size = (self.dtype or _dtype_of(model)).itemsize
            check_space(folder, examples, len(sites), numbers, numbers * size)


class _KeptRows(Gather):
    """Rows in the dtype in which they are kept."""

    def __init__(self, at: Sites, readout: Readout, labels: Sequence[str], dtype: torch.dtype | None) -> None:
        super().__init__(at, readout, labels)
        self.dtype = dtype

    def update(self, activations: Mapping[str, Tensor], batch: Batch) -> None:
        if self.dtype is not None:
            activations = {site: self._converted(site, x, batch) for site, x in activations.items()}
        super().update(activations, batch)

    def _converted(self, site: str, x: Tensor, batch: Batch) -> Tensor:
        found = x.to(self.dtype)
        if found.dtype != x.dtype and found.element_size() <= x.element_size():
            over = ~torch.isfinite(found).flatten(1).all(dim=1)
            if bool(over.any()):
                largest = float(x[over][0].abs().max())
                other = "bfloat16 or float32" if self.dtype == torch.float16 else "the model's own dtype (dtype=None)"
                raise InputError(
                    f"{self.dtype} cannot hold the activations at {site!r} for example index "
                    f"{int(batch.index.to(over.device)[over][0])} (up to {largest:.3g}; the dtype's largest number is "
                    f"{torch.finfo(found.dtype).max:.3g}); keep them in {other}"
                )
        return found

    def size(self) -> tuple[int, int]:
        """Numbers and bytes of one example at all sites."""
        rows = [self.rows.get(f"rows/{site}")[1][0] for site in self.site_names]
        return sum(x.numel() for x in rows), sum(x.numel() * x.element_size() for x in rows)


@dataclass
class Stored:
    """What the folder holds, and what was given so far: whether they are the same examples."""

    folder: Path
    labels: Sequence[str]
    known: dict[str, Tensor]  # by index, ascending
    seen: IndexSet = field(default_factory=IndexSet)
    written: int = 0

    @classmethod
    def of(cls, folder: Path, labels: Sequence[str], found: Sequence[Path]) -> Stored:
        """What these shards hold, of which every file must be there."""
        parts = [read_index(path) for path in found]
        for path in found:
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
        return len(self.seen)

    def see(self, index: Tensor) -> None:
        """Note that these examples were given.

        Raises:
            InputError: for one that was given before.
        """
        self.seen.add(index, "give every example an index of its own")

    def new(self, batch: Batch) -> Tensor:
        """Which rows of a batch are not there yet.

        Raises:
            InputError: for an example given twice, and one that is there with other tokens or labels.
        """
        self.see(batch.index)
        index, mine = batch.index.cpu(), self.known["index"]
        there = torch.isin(index, mine)
        if bool(there.any()):
            self._check_same(batch.select(there.to(batch.index.device)), torch.searchsorted(mine, index[there]))
        return (~there).nonzero()[:, 0]

    def _check_same(self, batch: Batch, places: Tensor) -> None:
        """Refuse examples with other tokens or labels than those kept at ``places``."""
        given = {"tokens": token_digests(batch)}
        given |= {f"labels/{name}": batch.label(name, per="example") for name in self.labels}
        for key, values in given.items():
            now, before = values.cpu(), self.known[key][places]
            if not len(other := (now != before).nonzero()):
                continue
            i, label = int(other[0, 0]), key.removeprefix("labels/")
            what, same = "different tokens", "prompts"
            if key != "tokens":
                what, same = f"{now[i].item()} as its label {label!r}, not {before[i].item()} as", "labels"
            raise InputError(
                f"example index {int(batch.index[i])} has {what} in {str(self.folder)!r}; give the same {same}, or a "
                "new folder"
            )

    def check_all_given(self) -> None:
        """Refuse a folder that holds more than was given, and nothing at all."""
        if not len(self.seen):
            raise InputError("there are no examples to measure; give at least one non-empty batch")
        if len(missing := self.known["index"][~self.seen.holds(self.known["index"])]):
            raise InputError(
                f"{str(self.folder)!r} holds example index {int(missing[0])}, which is not in these batches "
                f"({len(missing)} such); give all the examples it was started with, or a new folder"
            )


def files_of(rows: RowsState) -> tuple[dict[str, Tensor], Iterator[tuple[str, Tensor]]]:
    """What ``write_shard`` takes; a site's rows are held no longer once they are taken."""
    index, tokens = rows.get("tokens")
    beside = {"index": index, "tokens": tokens}
    beside |= {key: rows.get(key)[1] for key in rows if key.startswith("labels/")}
    sites = [key.removeprefix("rows/") for key in rows if key.startswith("rows/")]
    return beside, ((site, rows.pop(f"rows/{site}")[1]) for site in sites)


def kept_shards(folder: Path, header: Mapping[str, Any]) -> list[Path]:
    """The shards that a folder holds of these rows. Writes nothing.

    Raises:
        InputError: for a folder of something else, or of other rows.
    """
    old, found = read_header(folder), shards(folder)
    if old is None and found:
        raise InputError(
            f"{str(folder)!r} has shards of rows but no rows.json, which says which model they are of; put it "
            "back, delete the folder, or give a new one"
        )
    if old is None and folder.exists() and any(not is_temporary(path) for path in folder.iterdir()):
        raise InputError(f"{str(folder)!r} has files but is not a row store; give a new folder")
    if old is None or not found:  # nothing is kept yet, so nothing can be mixed
        return found
    words = {
        "sites": "other sites",
        "readout": "another readout",
        "labels": "other labels",
        "dtype": f"dtype {old.get('dtype') or 'of the model'}",
    }
    for key, value in header.items():
        if old.get(key) != value:
            raise InputError(
                f"{str(folder)!r} holds rows of {words.get(key, 'another model')}; "
                "give a new folder, or delete this one"
            )
    return found


# ---- what it will take ----


def count_given(given: Any) -> int | None:
    """How many examples there are at least, where that can be told without drawing them."""
    if isinstance(given, (Batch, Tensor)):
        return len(given)
    if isinstance(given, Mapping):
        main = given["input_ids"] if "input_ids" in given else given.get("text", ())
        many = not isinstance(main, str) and len(main) > 0 and (isinstance(main[0], str) or np.ndim(main[0]) > 0)
        return len(main) if many else 1
    if isinstance(given, (list, tuple)):
        return sum(1 if isinstance(item, str) else count_given(item) or 0 for item in given)
    return len(given) if hasattr(given, "__len__") else None


def _numbers(model: HookedModel, sites: Sequence[Any]) -> int | None:
    """Of one example at these sites, where the model's configuration tells."""
    width = getattr(getattr(model, "cfg", None), "d_model", None)
    known = all(name == "hook_embed" or ".hook_resid_" in name for name, _ in sites)
    return width * len(sites) if isinstance(width, int) and known else None


def _dtype_of(model: HookedModel) -> torch.dtype:
    """That of its activations, as far as can be told."""
    given = getattr(getattr(model, "cfg", None), "dtype", None)
    if isinstance(given, torch.dtype):
        return given
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def check_space(folder: Path, examples: int, sites: int, numbers: int, size: int) -> None:
    """Refuse what the disk has no room for, before it is measured."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    if examples * size > free:
        each = size // numbers
        smaller = "dtype=torch.bfloat16, " if each > 2 else ""
        raise InputError(
            f"the rows of {examples:,} examples take {_bytes(examples * size)} on disk ({sites} hook points, "
            f"{numbers:,} numbers of {each} bytes per example), but {str(folder)!r} has {_bytes(free)} free; give "
            f"fewer prompts or layers, {smaller}or another folder"
        )


def _bytes(size: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1024
    raise AssertionError  # pragma: no cover
