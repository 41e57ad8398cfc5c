"""Run probes on stored rows: from disk, or from another engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias, overload

import torch
from jaxtyping import Integer, Shaped
from torch import Tensor

from probes.engine.examples_digest import ExamplesDigest
from probes.engine.hooked_model import check_model_names
from probes.engine.probe import Probe
from probes.engine.readout import given_position
from probes.engine.result import ProbeResult
from probes.engine.run import compute_probe, probes_as_list
from probes.engine.sites import split_site
from probes.rows.row_source import RowSource
from tasks import Batch, InputError
from tasks.errors import error_suggestion

Stores: TypeAlias = RowSource | Mapping[str, RowSource]


@overload
def run_stores(stores: Stores, probes: Probe) -> ProbeResult: ...
@overload
def run_stores(stores: Stores, probes: Sequence[Probe]) -> list[ProbeResult]: ...
def run_stores(stores: Stores, probes: Probe | Sequence[Probe]) -> ProbeResult | list[ProbeResult]:
    """Measure stored rows as ``run`` measures a model: ``run_stores({"tuned": a, "base": b}, CKA())``.

    The values are equal. Rows are aligned by example index. A probe sees no tokens (they read -1), only rows, labels
    and index. Every row is read once for all probes.

    Memory: a shard of each store at the probes' sites, and the probes' states.

    Args:
        stores: a ``RowStore`` or the result of ``rows_from``, or several by name for probes that compare.
        probes: one probe or several. They are reset first.

    Returns:
        One result for one probe, a list for a sequence.

    Raises:
        InputError: for stores of different examples (naming which), prompts, positions or labels, a readout other than
            the probe's, sites or labels that were not saved, or too little memory of a device to compute.

    Example:
        >>> import torch
        >>> from probes import NDims, rows_from, run_stores
        >>> rows = rows_from({"hook_embed": torch.eye(4)})
        >>> run_stores(rows, NDims("hook_embed"))["n_dims"].shape
        torch.Size([1, 1])
    """
    several = probes_as_list(probes)
    named: dict[str, RowSource] = dict(stores) if isinstance(stores, Mapping) else {"": stores}
    _check_stores(named)
    if isinstance(stores, Mapping):
        check_model_names(stores)
    for probe in several:
        if isinstance(stores, Mapping) and not probe.compares:
            raise InputError(f"{type(probe).__name__} measures one model at a time; give it one store")
    needs_position = any(given_position(probe.readout) is not None for probe in several)
    notes = _check_same_examples(named, needs_position=needs_position)
    classes = _class_names(named)
    keys_by_store: dict[str, dict[str, str]] = {name: {} for name in named}  # "rows/<hook>" by site
    for probe in several:
        probe.reset()
        probe.bind(stores)
        for name, store in named.items():
            keys_by_store[name] |= _keys_of(probe, store, name)
    first = next(iter(named.values()))
    with torch.no_grad():
        for batch, rows in _batches(named, keys_by_store):
            for probe in several:
                probe.observe({site: rows[site] for site in probe.site_names}, batch)
    results = [_with_models(compute_probe(probe, len(first)), named, classes, notes) for probe in several]
    return results[0] if isinstance(probes, Probe) else results


def _check_stores(named: Mapping[str, object]) -> None:
    """Refuse objects that only look like stored rows, and no stores at all."""
    for store in named.values():
        if isinstance(store, (str, Path)):
            raise InputError(f"{str(store)!r} is a path; give RowStore({str(store)!r})")
        if not isinstance(store, RowSource):
            raise InputError(f"got {type(store).__name__} as rows; give a RowStore, or what rows_from returns")
    if not named:
        raise InputError("no stores given; give one, or several by name")


def _keys_of(probe: Probe, store: RowSource, name: str) -> dict[str, str]:
    """Return the keys under which ``take`` gives the rows of a probe's sites, for the sites that are of this store.

    Raises:
        InputError: for a site without rows, and another readout.
    """
    keys = {}
    for site in probe.site_names:
        owner, hook = split_site(site) if name else ("", site)
        if owner != name:
            continue
        if hook not in store.sites:
            raise InputError(f"{store.source!r} has no rows of {hook!r}{error_suggestion(hook, store.sites)}")
        keys[site] = f"rows/{hook}"
    if store.readout != repr(probe.readout):
        raise InputError(
            f"{store.source!r} holds rows of readout {store.readout}, but the probe has "
            f"{probe.readout!r}; give the probe readout={store.readout}"
        )
    return keys


def _batches(
    named: Mapping[str, RowSource], keys_by_store: Mapping[str, Mapping[str, str]]
) -> Iterator[tuple[Batch, dict[str, Shaped[Tensor, "example ..."]]]]:
    """Yield a block of examples, with its labels, and the rows of every site."""
    first = next(iter(named.values()))
    lacks = {"": first.label_way}
    for index in first.blocks():
        rows: dict[str, Shaped[Tensor, "example ..."]] = {}
        labels: dict[str, Integer[Tensor, "example"]] = {}
        for name, store in named.items():
            keys = keys_by_store[name]
            label_keys = {label: f"labels/{label}" for label in store.labels}
            values = store.take(index, [*keys.values(), *label_keys.values()])
            rows |= {site: values[key] for site, key in keys.items()}
            for label, key in label_keys.items():
                if label in labels:
                    _check_same_label(label, index, labels[label], values[key], name)
                else:
                    labels[label] = values[key]
        yield Batch(torch.full((len(index), 1), -1), labels=labels, index=index, lacks=lacks), rows


def _check_same_examples(named: Mapping[str, RowSource], *, needs_position: bool) -> list[str]:
    """Refuse stores of different examples. Return notes on stores that could not be compared for lack of tokens."""
    (first_name, first), *others = named.items()
    notes = []
    for name, store in others:
        _check_no_more(first_name, first, name, store)
        _check_no_more(name, store, first_name, first)
        names = [first_name, name]
        notes += _compared(names, first.index, "tokens", first.tokens, store.tokens)
        if needs_position and first.tokens is not None and store.tokens is not None:
            positions = [first.positions, store.positions]
            notes += _compared(names, first.index, "positions", *positions)
    return notes


def _compared(
    names: Sequence[str],
    index: Integer[Tensor, "example"],
    what: str,
    first: Integer[Tensor, "example"] | None,
    second: Integer[Tensor, "example"] | None,
) -> list[str]:
    """Refuse two stores whose tokens or positions differ. Return a note if those of one are not known."""
    if first is None or second is None:
        unknown = [name for name, values in zip(names, (first, second), strict=True) if values is None]
        return [f"The {what} of {' and '.join(map(repr, unknown))} are not known: they were not compared."]
    different = index[first != second]
    if len(different):
        raise InputError(
            f"example index {int(different[0])} has different {what} in {' and '.join(map(repr, names))} "
            f"({len(different)} such); save both from the same prompts, with the same tokenizer and positions"
        )
    return []


def _check_no_more(name: str, store: RowSource, other_name: str, other: RowSource) -> None:
    """Refuse a store that has examples which the other lacks."""
    missing = store.index[~torch.isin(store.index, other.index)]
    if len(missing):
        raise InputError(
            f"example index {int(missing[0])} is in the rows of {name!r} but not of {other_name!r} "
            f"({len(missing)} such); save both from the same batches"
        )


def _check_same_label(
    label: str,
    index: Integer[Tensor, "example"],
    earlier: Integer[Tensor, "example"],
    values: Integer[Tensor, "example"],
    name: str,
) -> None:
    """Refuse a store whose labels differ from an earlier store's."""
    differs = earlier != values
    if bool(differs.any()):
        raise InputError(
            f"example index {int(index[differs][0])} has {values[differs][0].item()} as its label {label!r} in "
            f"{name!r}, and {earlier[differs][0].item()} in an earlier store; save all with the same labels"
        )


def _class_names(named: Mapping[str, RowSource]) -> dict[str, list[str]]:
    """Return the names of each label's classes that were given as strings. Refuse stores that name them differently."""
    classes: dict[str, list[str]] = {}
    for name, store in named.items():
        for label, names in store.classes.items():
            earlier = classes.get(label, [])
            if any(one != other for one, other in zip(earlier, names, strict=False)):  # some may lack the last ones
                raise InputError(
                    f"the classes of label {label!r} are {', '.join(names)} in {name!r}, and {', '.join(earlier)} in "
                    "an earlier store; give all the same labels"
                )
            classes[label] = max(earlier, names, key=len)
    return classes


def _with_models(
    result: ProbeResult, named: Mapping[str, RowSource], classes: Mapping[str, list[str]], notes: Sequence[str]
) -> ProbeResult:
    """Return a result that says of which models, examples and classes the rows were."""
    first = next(iter(named.values()))
    tokens = next((store.tokens for store in named.values() if store.tokens is not None), torch.zeros_like(first.index))
    examples = ExamplesDigest()
    examples.add_digests(first.index, tokens)
    metadata = {**result.metadata, **examples.record({name: store.model for name, store in named.items()})}
    tokenizations = [store.tokenization for store in named.values()]
    known = [tokenization for tokenization in tokenizations if tokenization]
    if known:
        metadata["tokenization"] = known[0]
    if classes:
        metadata["classes"] = dict(classes)
    return replace(result, metadata=metadata, notes=[*result.notes, *notes])
