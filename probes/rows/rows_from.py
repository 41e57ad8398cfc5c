"""Rows that another engine extracted: plain tensors, nnsight's, Hugging Face's, vLLM's files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int64, Integer, Shaped
from torch import Tensor

from probes.engine.batch_items import fits_int64
from probes.engine.examples_digest import token_digests
from probes.engine.readout import Readout, check_row_readout, given_position, last_token
from probes.engine.sites import site_called
from probes.rows.row_source import Columns, RowSource
from probes.rows.vllm_rows import VllmFiles, check_rows_finite, vllm_paths
from tasks import Batch, InputError
from tasks.text.visible import quoted

_Array: TypeAlias = Shaped[Tensor, "..."] | Shaped[np.ndarray, "..."]

States: TypeAlias = _Array | Sequence[Any]
"""``[n d]``, ``[n pos d]``, or a list of ``[tokens d]``."""

RowValues: TypeAlias = _Array | Sequence[Any]
"""One for each example, first axis."""

_Rows: TypeAlias = Float[Tensor, "example _"]  # sites differ in width
_ReadRows: TypeAlias = Callable[[Sequence[str], Int64[Tensor, "some"]], dict[str, Float[Tensor, "some _"]]]
_SiteStates: TypeAlias = Float[Tensor, "_ _"] | Float[Tensor, "_ _ _"] | list[Float[Tensor, "_ _"]]
"""Rows, states of padded tokens, or each example's states of its tokens."""

_Positions: TypeAlias = Mapping[str, Integer[Tensor, "example"]]

_EXAMPLES_PER_BLOCK = 4096


def rows_from(
    rows: Mapping[str, States] | Mapping[int, States] | str | Path | Sequence[str | Path],
    *,
    index: Sequence[int] | _Array | Mapping[str, int] | None = None,
    labels: Mapping[str, RowValues] | None = None,
    tokens: RowValues | None = None,
    attention_mask: RowValues | None = None,
    positions: Mapping[str, RowValues] | None = None,
    readout: Readout = last_token(),
    layers: Sequence[int] | None = None,
    model: str = "unknown",
) -> ForeignRows:
    """Take hidden states from another engine, for ``run_stores`` to measure, alone or together with a ``RowStore``.

    **Tensors or arrays**, by hook name or by the number of the hidden state: 0 is ``hook_embed``, ``l`` is
    ``blocks.{l-1}.hook_resid_post``. They have one of three forms: the rows themselves, ``[n d]``, states of padded
    tokens, ``[n pos d]``, with ``attention_mask`` if there is padding, or a list of ``[tokens d]``. ``readout`` takes
    the rows from states of tokens. nnsight's saved ``layer.output`` and ``dict(enumerate(output.hidden_states))`` of
    Hugging Face are accepted unchanged. But Hugging Face's *last* hidden state comes after the final norm: leave it
    out, or name it ``"unembed.hook_in"``.

    **vLLM's files** (``ExampleHiddenStatesConnector``), one safetensors per request with ``hidden_states``
    ``[tokens layers d]`` and ``token_ids`` ``[tokens]``: their folder, or a list of paths in the order of the prompts.
    ``layers`` gives their layers in order: the ``eagle_aux_hidden_state_layer_ids`` given to vLLM, which count as above
    (the last is before the final norm). The files are read one at a time, when rows are needed. Every ``run_stores``
    reads them again, so give it all probes at once.

    Memory: the tensors given, twice if rows are read from states of tokens. For files, their index only.

    Args:
        rows: tensors or arrays, or vLLM's files, as described above.
        index: the examples' identities, as in ``Batch.index``, by default 0, 1, 2, ... For a folder by file name
            without ``.safetensors``, ``{"cmpl-7": 0}``, by default the number in the name.
        labels: by name, one value per example in the order of ``rows`` (for a folder, of the index). Integers are kept,
            strings become the number of their class in alphabetical order.
        tokens: ``[n pos]``, with ``attention_mask`` if there is padding, or a list of token ids per example. With them,
            stores of other prompts are refused. Without them, prompts are not compared, and results say so. vLLM's
            files bring their own.
        attention_mask: ``[n pos]``, 1 on real tokens and 0 on padding.
        positions: by name, one position per example, for ``token_at``, counted with the padding. Stores of the same
            tokens at other positions are refused, unless the rows are ``[n d]`` and have no ``attention_mask``.
        readout: the position that the rows come from, or that is to be read.
        layers: for vLLM's files.
        model: identifies the model, in the metadata of results.

    Raises:
        InputError: for rows, labels or tokens of different numbers of examples, an index given twice, values that are
            not finite or not floating-point numbers, a mask with other numbers than 0 and 1, wrong shapes, a negative
            layer number, files without the fields.

    Example:
        >>> import torch
        >>> from probes import last_token, rows_from, run_stores, TaskClusterARI
        >>> states = torch.randn(8, 5, 4, generator=torch.Generator().manual_seed(0))  # [n pos d]
        >>> rows = rows_from({1: states}, labels={"task": ["add", "copy"] * 4}, readout=last_token())
        >>> rows.sites, rows.classes
        (['blocks.0.hook_resid_post'], {'task': ['add', 'copy']})
        >>> result = run_stores(rows, TaskClusterARI(at=rows.sites, readout=last_token(), n_permutations=10))
        >>> result["ari"].shape
        torch.Size([1, 1])
    """
    check_row_readout(readout)
    _check_kinds(rows, labels)
    places = {name: _tensor(f"positions[{name!r}]", values) for name, values in (positions or {}).items()}
    if isinstance(rows, Mapping):
        if layers is not None:
            raise InputError("layers are for vLLM's files; name the layers of tensors by their keys")
        if isinstance(index, Mapping):
            raise InputError("index is a mapping, which is for a folder of files; give one integer per example")
        mask = None if attention_mask is None else _tensor("attention_mask", attention_mask)
        tokens = _padded_tokens(tokens, mask)
        by_site, columns = _rows_of_tensors(_states_by_site(rows), index, tokens, mask, places, readout)
        read: _ReadRows = partial(_rows_at, by_site)
        sites = list(by_site)
    else:
        if tokens is not None or attention_mask is not None:
            raise InputError("vLLM's files bring their own tokens; leave tokens and attention_mask out")
        paths, index = vllm_paths(rows, index)
        _check_positions(places, len(paths))
        files = VllmFiles(paths, layers, places, readout, _index(index, len(paths)))
        columns = {"index": files.index, "tokens": files.tokens, **_position_column(readout, places)}
        read = files.read
        sites = files.sites
    classes = {}
    for name, values in (labels or {}).items():
        columns[f"labels/{name}"], classes[name] = _label(name, values, len(columns["index"]))
    name = str(rows) if isinstance(rows, (str, Path)) else "rows_from(...)"
    return ForeignRows(read, sites, columns, classes, repr(readout), model, name)


def _check_kinds(rows: object, labels: object) -> None:
    """Refuse an input that only looks like rows, files or labels."""
    layers = "{0: array} by the number of its layer, or {hook name: array}"
    if isinstance(rows, (Tensor, np.ndarray)):
        raise InputError(f"rows are an array of shape {tuple(rows.shape)}, whose layer is not known; give {layers}")
    if not isinstance(rows, (Mapping, str, Path)):
        for item in rows if isinstance(rows, Sequence) else [rows]:
            if not isinstance(item, (str, Path)):
                kind = type(item).__name__
                raise InputError(
                    f"rows hold a {kind}, whose layer is not known; give {layers}, or paths of vLLM's files"
                )
    if labels is not None and not isinstance(labels, Mapping):
        raise InputError(f"labels are a {type(labels).__name__} without a name; give them by name, {{'task': values}}")


def _tensor(name: str, values: Any) -> Shaped[Tensor, "..."]:
    """Return numbers as a tensor.

    Raises:
        InputError: for anything else.
    """
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        kind = values.dtype if isinstance(values, np.ndarray) else type(values).__name__
        raise InputError(f"{name}: {kind} is not an array of numbers ({error}); give numbers") from None


def _rows_at(
    by_site: Mapping[str, _Rows], sites: Sequence[str], places: Int64[Tensor, "some"]
) -> dict[str, Float[Tensor, "some _"]]:
    """Return the rows at some places, in the order in which they were given, by site."""
    return {site: by_site[site][places] for site in sites}


class ForeignRows(RowSource):
    """Rows from ``rows_from``. ``run_stores`` measures them like a ``RowStore``.

    ``take(index, names)`` returns rows and labels of some examples, ``select(index)`` these examples only.

    Attributes:
        index: the examples, ascending.
        tokens: a digest of each example's tokens, or ``None`` if they are not known.
        sites: hook names, in the order given. If these are not all layers, probes need ``at=rows.sites``.
        readout: the readout's ``repr``.
        labels: names of the labels.
        classes: names of the classes by their number, for labels given as strings.
        model: identifies the model.
        source: its name in error messages.

    Example:
        >>> import torch
        >>> from probes import rows_from
        >>> rows_from({"blocks.0.hook_resid_post": torch.zeros(3, 8)}, labels={"task": ["a", "b", "a"]}).labels
        ['task']
    """

    label_way = "give it to rows_from too: rows_from(..., labels={%r: ...})"

    def __init__(
        self,
        read: _ReadRows,
        sites: Sequence[str],
        columns: Columns,
        classes: Mapping[str, list[str]],
        readout: str,
        model: str,
        source: str,
    ) -> None:
        super().__init__(columns, sites, source)
        self.classes = {name: names for name, names in classes.items() if names}
        self.readout = readout
        self.model = model
        self.hook_dict: dict[str, None] = dict.fromkeys(self.sites)
        self.lacks = {"": f"the rows given are of {', '.join(self.sites)}; choose among them with at="}
        self._read_rows = read

    def __repr__(self) -> str:
        return f"ForeignRows({len(self)} examples at {len(self.sites)} sites, model {quoted(self.model)})"

    def with_labels(self, labels: Mapping[str, Integer[Tensor, "example"]]) -> Self:
        """Return the rows with these labels. See ``RowSource.with_labels``. They have no names of classes."""
        labelled = super().with_labels(labels)
        labelled.classes = {}
        return labelled

    def blocks(self) -> Iterator[Integer[Tensor, "block"]]:
        """Yield the examples, some thousand at a time."""
        yield from torch.split(self.index, _EXAMPLES_PER_BLOCK)

    def _read(self, sites: Sequence[str], places: Int64[Tensor, "some"]) -> dict[str, Float[Tensor, "some _"]]:
        return self._read_rows(sites, places)


# ---- tensors ----


def _states_by_site(given: Mapping[Any, States]) -> dict[str, _SiteStates]:
    states: dict[str, _SiteStates] = {}
    for key, values in given.items():
        site = site_called(key)
        if site in states:
            raise InputError(f"the rows of {site!r} were given twice (also as {key!r}); give them once")
        states[site] = _states(site, values)
    return states


def _states(site: str, values: States) -> _SiteStates:
    """Return the input for a site as tensors of one width."""
    if isinstance(values, (Tensor, np.ndarray)):
        x = _floating(site, values)
        if x.ndim not in (2, 3):
            raise _wrong_shape(f"the array of the rows of {site!r}", x)
        return x
    parts = []
    for value in values:
        x = _floating(site, value)
        parts.append(x[0] if x.ndim == 3 and len(x) == 1 else x)  # nnsight's [1 tokens d]
    for x in parts:
        if x.ndim not in (1, 2) or x.ndim != parts[0].ndim or x.shape[-1] != parts[0].shape[-1]:
            raise _wrong_shape(f"an element of the rows of {site!r}", x)
    return torch.stack(parts) if parts and parts[0].ndim == 1 else parts


def _floating(site: str, states: Any) -> Float[Tensor, "..."]:
    x = _tensor(f"the rows of {site!r}", states).detach()
    if not x.is_floating_point():
        raise InputError(f"the rows of {site!r} are {x.dtype}; expected floating-point hidden states")
    return x


def _wrong_shape(name: str, x: Shaped[Tensor, "..."]) -> InputError:
    return InputError(
        f"{name} has shape {tuple(x.shape)}; expected [n d], [n pos d] or a list of [tokens d], all of one width d"
    )


def _count(states: Mapping[str, _SiteStates]) -> int:
    """Return the number of examples, equal at all sites and at least one."""
    if not states:
        raise InputError("no rows were given; give {hook name: [n d]}")
    counts = {site: len(x) for site, x in states.items()}
    first, *others = counts
    if not counts[first]:
        raise InputError(f"there are no rows of {first!r}; give at least one example")
    for site in others:
        if counts[site] != counts[first]:
            raise InputError(
                f"there are {counts[site]} rows of {site!r} but {counts[first]} of {first!r}; give one row per example "
                "at every site"
            )
    return counts[first]


def _rows_of_tensors(
    states: Mapping[str, _SiteStates],
    index: Any,
    tokens: RowValues | None,
    mask: Shaped[Tensor, "..."] | None,
    positions: _Positions,
    readout: Readout,
) -> tuple[dict[str, _Rows], dict[str, Int64[Tensor, "example"]]]:
    """Return each site's rows, and the examples' index and digests of their tokens."""
    columns = {"index": _index(index, _count(states))}
    _check_positions(positions, len(columns["index"]))
    rows, lengths = _read_out(states, mask, positions, readout, columns["index"])
    if mask is not None and lengths is None and not isinstance(tokens, (Tensor, np.ndarray)):
        site = next(iter(rows))
        raise InputError(
            f"attention_mask has nothing to mask: the rows of {site!r} are [n d], one per example; leave it out"
        )
    if tokens is not None:
        columns["tokens"] = _digests(tokens, mask, lengths, columns["index"])
    if lengths is not None or mask is not None:
        columns |= _position_column(readout, positions, mask)
    return rows, columns


def _padded_tokens(tokens: RowValues | None, mask: Shaped[Tensor, "..."] | None) -> RowValues | None:
    """Return lists of token ids as one tensor if they are as long as the mask: a tokenizer pads lists, too."""
    if tokens is None or mask is None or mask.ndim != 2 or isinstance(tokens, (Tensor, np.ndarray)):
        return tokens
    ids = [_tensor("tokens", each).reshape(-1) for each in tokens]
    return torch.stack(ids) if ids and all(len(each) == mask.shape[1] for each in ids) else tokens


def _check_positions(positions: _Positions, n: int) -> None:
    for name, values in positions.items():
        if values.shape != (n,):
            raise InputError(
                f"positions[{name!r}] has shape {tuple(values.shape)}; expected ({n},), one position per example"
            )


def _position_column(
    readout: Readout, positions: _Positions, mask: Shaped[Tensor, "..."] | None = None
) -> dict[str, Int64[Tensor, "example"]]:
    """Return the position of ``token_at`` in each example, from its first real token. Empty for other readouts."""
    name = given_position(readout)
    if name is None or name not in positions:
        return {}
    first = 0 if mask is None else mask.cpu().bool().int().argmax(dim=1)
    return {f"positions/{name}": positions[name].cpu().long() - first}


def _read_out(
    states: Mapping[str, _SiteStates],
    mask: Shaped[Tensor, "..."] | None,
    positions: _Positions,
    readout: Readout,
    index: Int64[Tensor, "example"],
) -> tuple[dict[str, _Rows], Int64[Tensor, "example"] | None]:
    """Return each site's rows, and how many tokens the states of each example cover, if token states were given."""
    rows: dict[str, _Rows] = {}
    lengths: Int64[Tensor, "example"] | None = None
    for site, x in states.items():
        if isinstance(x, list) and mask is not None:
            raise InputError(f"the rows of {site!r} are a list, which has no padding; leave attention_mask out")
        if isinstance(x, Tensor) and x.ndim == 2:
            rows[site] = x.cpu()
        else:
            batches = list(_with_batches(site, x, mask, positions, index))
            rows[site] = torch.cat([readout(part, batch.to(part.device)).cpu() for part, batch in batches])
            covered = torch.cat([batch.lengths().cpu() for _, batch in batches])
            if lengths is not None and not torch.equal(covered, lengths):
                raise InputError(
                    f"the states of {site!r} are of other numbers of tokens than those of the sites before it; give "
                    "the states of the same tokens at every site, or rows [n d]"
                )
            lengths = covered
        check_rows_finite(site, rows[site], index)
    return rows, lengths


def _with_batches(
    site: str,
    states: _SiteStates,
    mask: Shaped[Tensor, "..."] | None,
    positions: _Positions,
    index: Int64[Tensor, "example"],
) -> Iterator[tuple[Float[Tensor, "batch pos d"], Batch]]:
    """Yield states of tokens, each with its batch for the readout: all together, or a list's examples one by one.

    Raises:
        InputError: for an example without real tokens.
    """
    if isinstance(states, Tensor):
        batch = Batch(torch.zeros(states.shape[:2], dtype=torch.int64), mask, positions=positions, index=index)
        batch.check_examples_are_real()
        yield states, batch
        return
    for i, x in enumerate(states):
        if not len(x):
            raise InputError(f"element {i} of the rows of {site!r} has no tokens; leave it out")
        position = {name: values[i : i + 1] for name, values in positions.items()}
        batch = Batch(torch.zeros(1, len(x), dtype=torch.int64), positions=position, index=index[i : i + 1])
        yield x[None], batch


def _digests(
    tokens: RowValues,
    mask: Shaped[Tensor, "..."] | None,
    lengths: Int64[Tensor, "example"] | None,
    index: Int64[Tensor, "example"],
) -> Int64[Tensor, "example"]:
    """Return a digest of each example's tokens. Refuse tokens that do not fit the states."""
    n = len(index)
    if len(tokens) != n:
        raise InputError(f"tokens is for {len(tokens)} examples and the rows for {n}; give tokens for every example")
    if isinstance(tokens, (Tensor, np.ndarray)):
        batches = [Batch(_tensor("tokens", tokens).cpu(), None if mask is None else mask.cpu(), index=index)]
        batches[0].check_examples_are_real()
    else:
        batches = [Batch(_tensor("tokens", ids).reshape(1, -1)) for ids in tokens]
    given = torch.cat([batch.lengths() for batch in batches])
    if lengths is not None:
        wrong = (given != lengths).nonzero()
        if len(wrong):
            i = int(wrong[0, 0])
            raise InputError(
                f"element {i} of tokens has {int(given[i])} tokens, but its hidden states cover {int(lengths[i])}; "
                "give the tokens that the states were computed from, and attention_mask if there is padding"
            )
    return torch.cat([token_digests(batch) for batch in batches])


# ---- index and labels ----


def _index(given: Any, n: int) -> Int64[Tensor, "example"]:
    if given is None:
        return torch.arange(n)
    index = _tensor("index", given).cpu()
    if index.is_floating_point() or index.is_complex() or index.dtype == torch.bool or index.shape != (n,):
        raise InputError(
            f"index has shape {tuple(index.shape)} and dtype {index.dtype}; expected {n} integers, one per example"
        )
    index = index.long()
    values, counts = torch.unique(index, return_counts=True)
    if bool((counts > 1).any()):
        raise InputError(
            f"example index {int(values[counts > 1][0])} was given twice; give every example an index of its own"
        )
    return index


def _label(name: str, values: RowValues, n: int) -> tuple[Int64[Tensor, "example"], list[str]]:
    """Return integers, and the names of their classes if strings were given."""
    listed = values.tolist() if isinstance(values, (Tensor, np.ndarray)) else list(values)
    if len(listed) != n:
        raise InputError(f"label {name!r} has {len(listed)} values for {n} examples; give one per example")
    if all(isinstance(value, str) for value in listed):
        classes = sorted(set(listed))
        number_of = {value: number for number, value in enumerate(classes)}
        return torch.tensor([number_of[value] for value in listed]), classes
    for value in listed:
        if not isinstance(value, (int, np.integer)):
            raise InputError(f"label {name!r} has {value!r}; expected integers only, or strings only")
        if not fits_int64(value):
            raise InputError(f"label {name!r} has {value!r}, too large for 64 bits; number the classes (0, 1, ...)")
    return torch.tensor([int(value) for value in listed]), []
