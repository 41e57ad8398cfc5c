"""Probes run on rows that are there already: on disk, or from another engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeAlias, overload

import torch
from torch import Tensor

from probes.engine.hooks import HookPoints
from probes.engine.identity import ExamplesDigest
from probes.engine.probe import Probe, computed_of, each_probe
from probes.engine.result import ProbeResult
from probes.engine.sites import split_site
from tasks import Batch, InputError
from tasks.errors import suggest


class RowSource(HookPoints, Protocol):
    """What ``run_stores`` measures: a ``RowStore``, or what ``rows_from`` returns."""

    @property
    def index(self) -> Tensor:
        """``[n]`` the examples, ascending."""

    @property
    def tokens(self) -> Tensor | None:
        """``[n]`` a digest of each example's tokens, where they are known."""

    @property
    def sites(self) -> Sequence[str]:
        """Hook names."""

    @property
    def readout(self) -> str:
        """The readout's ``repr``."""

    @property
    def labels(self) -> Sequence[str]:
        """Names of the labels."""

    @property
    def model(self) -> str:
        """Tells the model apart from others."""

    @property
    def source(self) -> str:
        """What errors call it."""

    def __len__(self) -> int: ...

    def blocks(self) -> Iterator[Tensor]:
        """The examples that are best read together, block by block."""

    def take(self, index: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """``"rows/<site>"`` and ``"labels/<name>"`` of these examples, in their order."""


Stores: TypeAlias = RowSource | Mapping[str, RowSource]


@overload
def run_stores(stores: Stores, probes: Probe) -> ProbeResult: ...
@overload
def run_stores(stores: Stores, probes: Sequence[Probe]) -> list[ProbeResult]: ...
def run_stores(stores: Stores, probes: Probe | Sequence[Probe]) -> ProbeResult | list[ProbeResult]:
    """As ``run``, but from stored rows: ``run_stores({"tuned": a, "base": b}, CKA())``. The values are the same.

    Rows are aligned by example index. A probe sees no tokens (they read -1), only rows, labels and index. Every row is
    read once for all probes.

    Memory: a shard of each store at the probes' sites, and the probes' states.

    Args:
        stores: a ``RowStore`` or what ``rows_from`` gives, or several by name for probes that compare.
        probes: one probe or several. They are reset first.

    Returns:
        One result for one probe, a list for a sequence.

    Raises:
        InputError: for stores of different examples (naming which), prompts or labels, a readout other than the
            probe's, sites or labels that were not saved, or too little memory of a device to compute.

    Example:
        >>> import torch
        >>> from probes import NDims, rows_from, run_stores
        >>> rows = rows_from({"hook_embed": torch.eye(4)})
        >>> run_stores(rows, NDims("hook_embed"))["n_dims"].shape
        torch.Size([1, 1])
    """
    several = each_probe(probes)
    named: dict[str, RowSource] = dict(stores) if isinstance(stores, Mapping) else {"": stores}
    for store in named.values():
        _check_source(store)
    if not named:
        raise InputError("no stores given; give one, or several by name")
    for probe in several:
        if isinstance(stores, Mapping) and not probe.compares:
            raise InputError(f"{type(probe).__name__} measures one model at a time; give it one store")
    notes = _check_same_examples(named)
    wanted = {name: dict[str, str]() for name in named}  # what the probes call a row, and what its store does
    for probe in several:
        probe.reset()
        probe.bind(stores)
        for name, keys in _wanted(stores, named, probe).items():
            wanted[name] |= keys
    first = next(iter(named.values()))
    lacks = {"": getattr(first, "label_way", "give rows that have it, labels=[%r]")}
    with torch.no_grad():
        for index in first.blocks():
            activations: dict[str, Tensor] = {}
            labels: dict[str, Tensor] = {}
            for name, store in named.items():
                names = [f"labels/{label}" for label in store.labels]
                taken = store.take(index, [*dict.fromkeys(wanted[name].values()), *names])
                activations |= {site: taken[key] for site, key in wanted[name].items()}
                for label in store.labels:
                    _check_same_label(label, index, labels.setdefault(label, taken[f"labels/{label}"]), taken, name)
            batch = Batch(torch.full((len(index), 1), -1), labels=labels, index=index, lacks=lacks)
            for probe in several:
                probe.observe({site: activations[site] for site in probe.site_names}, batch)
    results = [_recorded(computed_of(probe, len(first)), named, notes) for probe in several]
    return results[0] if isinstance(probes, Probe) else results


def _check_source(store: object) -> None:
    if isinstance(store, (str, Path)):
        raise InputError(f"{str(store)!r} is a path; give RowStore({str(store)!r})")
    if not hasattr(store, "blocks"):
        raise InputError(f"got {type(store).__name__} as rows; give a RowStore, or what rows_from returns")


def _wanted(stores: Stores, named: Mapping[str, RowSource], probe: Probe) -> dict[str, dict[str, str]]:
    """By store, the key of each of a probe's sites."""
    found = {}
    for name, store in named.items():
        sites = {site: split_site(site) if isinstance(stores, Mapping) else ("", site) for site in probe.site_names}
        keys = {site: f"rows/{hook}" for site, (whose, hook) in sites.items() if whose == name}
        if lacking := [key for key in keys.values() if key.removeprefix("rows/") not in store.sites]:
            site = lacking[0].removeprefix("rows/")
            raise InputError(f"{store.source!r} has no rows of {site!r}{suggest(site, store.sites)}")
        if store.readout != repr(probe.readout):
            raise InputError(
                f"{store.source!r} holds rows of readout {store.readout}, but the probe has "
                f"{probe.readout!r}; give the probe readout={store.readout}"
            )
        found[name] = keys
    return found


def _check_same_examples(named: Mapping[str, RowSource]) -> list[str]:
    """Refuse stores of different examples; where tokens are not known, what could not be compared."""
    (one, first), *others = named.items()
    notes = []
    for other, second in others:
        for a, b, name_a, name_b in ((first, second, one, other), (second, first, other, one)):
            if len(only := a.index[~torch.isin(a.index, b.index)]):
                raise InputError(
                    f"example index {int(only[0])} is in the rows of {name_a!r} but not of {name_b!r} "
                    f"({len(only)} such); save both from the same batches"
                )
        if first.tokens is None or second.tokens is None:
            unknown = " and ".join(repr(name) for name, x in ((one, first), (other, second)) if x.tokens is None)
            notes.append(f"The tokens of {unknown} are not known: whether the prompts are the same was not checked.")
        elif len(different := first.index[first.tokens != second.tokens]):
            raise InputError(
                f"example index {int(different[0])} has different tokens in {one!r} and {other!r} "
                f"({len(different)} such); save both from the same prompts with the same tokenizer"
            )
    return notes


def _check_same_label(label: str, index: Tensor, known: Tensor, taken: Mapping[str, Tensor], name: str) -> None:
    if len(other := (known != taken[f"labels/{label}"]).nonzero()):
        i = int(other[0, 0])
        raise InputError(
            f"example index {int(index[i])} has {taken[f'labels/{label}'][i].item()} as its label {label!r} in "
            f"{name!r}, and {known[i].item()} in an earlier store; save all with the same labels"
        )


def _recorded(result: ProbeResult, named: Mapping[str, RowSource], notes: Sequence[str]) -> ProbeResult:
    """With whose rows they were."""
    first = next(iter(named.values()))
    tokens = next((store.tokens for store in named.values() if store.tokens is not None), torch.zeros_like(first.index))
    examples = ExamplesDigest()
    examples.add_digests(first.index, tokens)
    what = examples.record({name: store.model for name, store in named.items()})
    said = [how for store in named.values() if (how := getattr(store, "tokenization", None))]
    if said:
        what["tokenization"] = said[0]
    classes = {label: names for store in named.values() for label, names in getattr(store, "classes", {}).items()}
    return replace(
        result,
        metadata={**result.metadata, **what, **({"classes": classes} if classes else {})},
        notes=[*result.notes, *notes],
    )
