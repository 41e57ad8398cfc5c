"""A model's rows on disk, for models that cannot be in memory together."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from probes.batches import Batches, each_batch
from probes.files import read_safetensors, write_atomic
from probes.hooks import HookedModel
from probes.identity import Examples, fingerprint, token_digests
from probes.probe import Probe
from probes.readout import Readout, last_token
from probes.result import ProbeResult
from probes.rows import Gather
from probes.run import feed
from probes.sites import Sites, residual, resolve, split_site
from tasks import Batch, InputError
from tasks.errors import check_at_least, suggest

_FORMAT = "mechclust-rows-1"


def save_rows(
    model: HookedModel,
    batches: Batches,
    folder: str | Path,
    *,
    at: Sites = residual(),
    readout: Readout = last_token(),
    labels: Sequence[str] = (),
    shard_rows: int = 4096,
    tokenizer: Any = None,
    batch_size: int = 32,
    progress: bool = False,
) -> RowStore:
    """Measure a model as ``run`` does, and keep every example's rows in ``folder``.

    Written in shards, each whole or not at all. After an interruption the same call goes on where it stopped;
    examples that are there are not run again. A folder with rows of another model (any other
    weight), other sites, another readout or
    other tokens under the same index is refused.

    Memory: one shard, ``shard_rows x sites x d``. Disk: every example's rows, in the model's dtype.

    Args:
        model: anything with TransformerLens's hook protocol.
        batches: as ``run`` takes them; every example with an index of its own, the same in the next call.
        folder: a new or an unfinished store.
        at: where to measure.
        readout: which position.
        labels: labels to keep beside the rows, one value per example each.
        shard_rows: examples per file, at least.
        tokenizer: for texts, as in ``run``.
        batch_size: as in ``run``.
        progress: show a progress bar.

    Raises:
        InputError: see above, and where ``run`` raises it.

    Example:
        >>> # a = save_rows(tuned, batches, "rows/tuned", labels=["task"])
        >>> # b = save_rows(base, batches, "rows/base", labels=["task"])
        >>> # run_stores({"tuned": a, "base": b}, CKA(label="task"))
    """
    if isinstance(labels, str):
        raise InputError(f"labels is the string {labels!r}; expected a sequence of label names such as ({labels!r},)")
    check_at_least(shard_rows=(shard_rows, 1))
    folder, probe = Path(folder), Gather(at, readout, labels)
    header = {
        "format": _FORMAT,
        "model": fingerprint(model),
        "sites": [list(site) for site in resolve(model, at)],
        "readout": repr(readout),
        "labels": sorted(labels),
        "hooks": list(model.hook_dict),
    }
    stored, given = _resumed(folder, header), set[int]()
    waiting: list[Batch] = []

    def write() -> None:
        feed(model, waiting, [probe])
        tensors = {"index": probe.rows.get("tokens")[0], **{key: probe.rows.get(key)[1] for key in probe.rows}}
        _write_header(folder, header)  # unfinished again, where it was complete
        last = max((int(path.stem.removeprefix("rows-")) for path in _shards(folder)), default=-1)
        write_atomic(folder / f"rows-{last + 1:05d}.safetensors", save(tensors))
        waiting.clear()

    bar = "saving rows" if progress else None
    for batch in each_batch(batches, {"": model}, tokenizer=tokenizer, batch_size=batch_size, progress=bar):
        index = batch.index.tolist()
        for i, tokens in zip(index, token_digests(batch).tolist(), strict=True):
            if i in given:
                raise InputError(f"example index {i} was given twice; give every example an index of its own")
            given.add(i)
            if stored.get(i, tokens) != tokens:
                raise InputError(
                    f"example index {i} has other tokens than in {str(folder)!r}; "
                    "give the same prompts, or a new folder"
                )
        if new := [row for row, i in enumerate(index) if i not in stored]:
            waiting.append(batch.select(torch.tensor(new, device=batch.index.device)))
        if sum(map(len, waiting)) >= shard_rows:
            write()
    if waiting:
        write()
    if not given:
        raise InputError("there are no examples to measure; give at least one non-empty batch")
    if missing := sorted(stored.keys() - given):
        raise InputError(
            f"{str(folder)!r} holds example index {missing[0]}, which is not in these batches ({len(missing)} such); "
            "give all the examples it was begun with, or a new folder"
        )
    _write_header(folder, {**header, "examples": len(given)})
    return RowStore(folder)


class RowStore:
    """Rows that ``save_rows`` wrote. ``run_stores`` measures them.

    Args:
        folder: of a finished store.

    Attributes:
        index: ``[n]`` the examples, ascending.
        tokens: ``[n]`` a digest of each example's tokens.
        sites: hook names, in order.
        readout: the readout's ``repr``.
        labels: names of the labels kept.
        model: tells the model apart from others.

    Raises:
        InputError: for a folder without a finished store, or a damaged one.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        header = _read_header(self.folder)
        if header is None:
            raise InputError(f"no row store in {str(folder)!r}; write one with save_rows")
        if "examples" not in header:
            raise InputError(
                f"the row store in {str(folder)!r} is unfinished; call save_rows with the same arguments to go on"
            )
        self.sites: list[str] = [name for name, _ in header["sites"]]
        self.readout: str = header["readout"]
        self.labels: list[str] = header["labels"]
        self.model: str = header["model"]
        self.hook_dict: dict[str, None] = dict.fromkeys(header["hooks"])  # what selectors resolve against
        self._shards = _shards(self.folder)
        parts = [_index_of(path) for path in self._shards]
        index = torch.cat([i for i, _ in parts])
        shard = torch.cat([torch.full_like(i, k) for k, (i, _) in enumerate(parts)])
        row = torch.cat([torch.arange(len(i)) for i, _ in parts])
        self.index, order = torch.sort(index)
        self.tokens = torch.cat([tokens for _, tokens in parts])[order]
        self._shard, self._row = shard[order], row[order]
        self._open: tuple[int, dict[str, Tensor]] = (-1, {})
        if len(index) != header["examples"]:
            raise InputError(
                f"{str(folder)!r} holds {len(index)} of {header['examples']} examples; a file is missing: "
                "save the rows anew"
            )

    def __len__(self) -> int:
        return len(self.index)

    def blocks(self) -> Iterator[Tensor]:
        """The examples of one shard after another."""
        for k in torch.unique(self._shard).tolist():
            yield self.index[self._shard == k]

    def select(self, index: Tensor) -> RowStore:
        """The same store with these examples only. Nothing is read or copied."""
        keep, some = torch.isin(self.index, index), copy.copy(self)
        some.index, some.tokens = self.index[keep], self.tokens[keep]
        some._shard, some._row = self._shard[keep], self._row[keep]
        return some

    def take(self, index: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """``"rows/<site>"`` and ``"labels/<name>"`` of these examples, in their order. Reads one shard at a time."""
        places = torch.searchsorted(self.index, index)
        found: dict[str, Tensor] = {}
        for k in torch.unique(self._shard[places]).tolist():
            if self._open[0] != k:
                self._open = (-1, {})  # the old one goes before the new one comes
                self._open = (k, read_safetensors(self._shards[k])[0])
            here = self._shard[places] == k
            for name in names:
                rows = self._open[1][name][self._row[places[here]]]
                found.setdefault(name, rows.new_empty(len(index), *rows.shape[1:]))[here] = rows
        return found


def run_stores(stores: RowStore | Mapping[str, RowStore], probe: Probe) -> ProbeResult:
    """As ``run``, from rows on disk: ``run_stores({"tuned": a, "base": b}, CKA())``. The same value.

    Rows are aligned by example index. The probe sees no tokens (they read -1), only rows, labels and index.

    Memory: a shard of each store, and the probe's state.

    Raises:
        InputError: for stores of different examples (naming which) or prompts, another readout than the
            probe's, or sites or labels that were not saved.
    """
    named = dict(stores) if isinstance(stores, Mapping) else {"": stores}
    if isinstance(stores, Mapping) and not probe.compares:
        raise InputError(f"{type(probe).__name__} measures one model at a time; give it one store")
    (first_name, first), *others = named.items()
    for name, store in others:
        _same_examples(first_name, first, name, store)
    probe.reset()
    probe.bind(stores)
    wanted: dict[str, dict[str, str]] = {}
    for name, store in named.items():
        sites = {site: split_site(site) if isinstance(stores, Mapping) else ("", site) for site in probe.site_names}
        wanted[name] = {site: f"rows/{hook}" for site, (whose, hook) in sites.items() if whose == name}
        if lacking := [key for key in wanted[name].values() if key.removeprefix("rows/") not in store.sites]:
            site = lacking[0].removeprefix("rows/")
            raise InputError(f"{str(store.folder)!r} has no rows of {site!r}{suggest(site, store.sites)}")
        if store.readout != repr(probe.readout):
            raise InputError(
                f"{str(store.folder)!r} holds rows of readout {store.readout}, and the probe has "
                f"{probe.readout!r}; give the probe readout={store.readout}"
            )
    labels = [f"labels/{name}" for name in first.labels]
    with torch.no_grad():
        for index in first.blocks():
            activations: dict[str, Tensor] = {}
            for name, store in named.items():
                keys = wanted[name]
                taken = store.take(index, [*keys.values(), *(labels if store is first else ())])
                activations |= {site: taken[key] for site, key in keys.items()}
                if store is first:
                    known = {key.removeprefix("labels/"): taken[key] for key in labels}
            probe.update(activations, Batch(torch.full((len(index), 1), -1), labels=known, index=index))
    examples = Examples()
    examples.add_digests(first.index, first.tokens)
    result = probe.compute()
    what = examples.record({name: store.model for name, store in named.items()})
    return replace(result, metadata={**result.metadata, **what})


def _same_examples(one: str, first: RowStore, other: str, second: RowStore) -> None:
    for a, b, name_a, name_b in ((first, second, one, other), (second, first, other, one)):
        if len(only := a.index[~torch.isin(a.index, b.index)]):
            raise InputError(
                f"example index {int(only[0])} is in the rows of {name_a!r} and not of {name_b!r} ({len(only)} such); "
                "save both from the same batches"
            )
    if len(different := first.index[first.tokens != second.tokens]):
        raise InputError(
            f"example index {int(different[0])} has other tokens in {one!r} than in {other!r} ({len(different)} such); "
            "save both from the same prompts with the same tokenizer"
        )


def _resumed(folder: Path, header: Mapping[str, Any]) -> dict[int, int]:
    """Index to token digest of what the folder holds; begins a store where there is none."""
    old = _read_header(folder)
    if old is None:
        if folder.exists() and any(folder.iterdir()):
            raise InputError(f"{str(folder)!r} has files and is not a row store; give a new folder")
        _write_header(folder, header)
        return {}
    words = {"sites": "other sites", "readout": "another readout", "labels": "other labels"}
    for key, value in header.items():
        if old.get(key) != value:
            raise InputError(
                f"{str(folder)!r} holds rows of {words.get(key, 'another model')}; "
                "give a new folder, or delete this one"
            )
    parts = [_index_of(path) for path in _shards(folder)]
    return {i: t for index, tokens in parts for i, t in zip(index.tolist(), tokens.tolist(), strict=True)}


def _index_of(path: Path) -> tuple[Tensor, Tensor]:
    """Index and token digests of a shard, without its rows."""
    with safe_open(str(path), framework="pt") as file:
        return file.get_tensor("index"), file.get_tensor("tokens")


def _shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("rows-*.safetensors"))


def _write_header(folder: Path, header: Mapping[str, Any]) -> None:
    write_atomic(folder / "rows.json", (json.dumps(header, indent=1) + "\n").encode())


def _read_header(folder: Path) -> dict[str, Any] | None:
    path = folder / "rows.json"
    if not path.exists():
        return None
    try:
        header: dict[str, Any] = json.loads(path.read_text())
    except ValueError:
        header = {}
    if header.get("format") != _FORMAT:
        raise InputError(f"{str(path)!r} is not the header of a row store; expected a folder from save_rows")
    return header
