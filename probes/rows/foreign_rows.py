"""Rows that another engine extracted: plain tensors, nnsight's, Hugging Face's, vLLM's files."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from probes.engine.identity import token_digests
from probes.engine.readout import Readout, check_row_readout, last_token
from probes.rows.row_store import check_row_names, places_of
from probes.rows.vllm_rows import VllmFiles, check_finite_rows, row_files, site_called
from tasks import Batch, InputError
from tasks.text.visible import quoted

States: TypeAlias = Tensor | np.ndarray | Sequence[Any]
"""``[n d]``, ``[n pos d]``, or a list of ``[tokens d]``."""

RowValues: TypeAlias = Tensor | np.ndarray | Sequence[Any]
"""One for each example."""

_BLOCK = 4096  # examples


def rows_from(
    rows: Mapping[str, States] | Mapping[int, States] | str | Path | Sequence[str | Path],
    *,
    index: Sequence[int] | Tensor | np.ndarray | Mapping[str, int] | None = None,
    labels: Mapping[str, RowValues] | None = None,
    tokens: RowValues | None = None,
    attention_mask: Tensor | np.ndarray | None = None,
    positions: Mapping[str, RowValues] | None = None,
    readout: Readout = last_token(),
    layers: Sequence[int] | None = None,
    model: str = "unknown",
) -> ForeignRows:
    """Hidden states from another engine, for ``run_stores`` to measure, alone or together with a ``RowStore``.

    **Tensors or arrays**, by hook name or by the number of the hidden state: 0 is ``hook_embed``, ``l`` is
    ``blocks.{l-1}.hook_resid_post``. Each is ``[n d]``, the rows themselves; ``[n pos d]``, with ``attention_mask``
    where there is padding; or a list of ``[tokens d]``. From the latter two ``readout`` takes the rows. nnsight's saved
    ``layer.output`` and ``dict(enumerate(output.hidden_states))`` of Hugging Face go in as they are; but Hugging Face's
    *last* hidden state comes after the final norm: leave it out, or name it ``"unembed.hook_in"``.

    **vLLM's files** (``ExampleHiddenStatesConnector``), one safetensors per request with ``hidden_states``
    ``[tokens layers d]`` and ``token_ids`` ``[tokens]``: their folder, or a list of paths in the order of the prompts.
    ``layers`` says which layers they hold, in their order: the ``eagle_aux_hidden_state_layer_ids`` given to vLLM,
    which count as above (the last is before the final norm). The files are read one at a time, when rows are asked
    for; every ``run_stores`` reads them again, so give it all probes at once.

    Memory: the tensors given, twice if rows are read from token states; for files, their index only.

    Args:
        rows: tensors or arrays, or vLLM's files, as described above.
        index: the examples' identities, as in ``Batch.index``; 0, 1, 2, ... by default. For a folder by file name
            without ``.safetensors``, ``{"cmpl-7": 0}``; by default the number in the name.
        labels: by name, one value per example in the order of ``rows`` (for a folder, of the index). Integers as they
            are, strings as the number of their class in alphabetical order.
        tokens: ``[n pos]``, with ``attention_mask`` where there is padding, or a list of token ids per example. With
            them, stores of other prompts are refused; without, prompts are not compared, and results say so. vLLM's
            files bring their own.
        attention_mask: ``[n pos]``, 1 on real tokens.
        positions: by name, one position per example, for ``token_at``.
        readout: the position that the rows come from, or that is to be read.
        layers: for vLLM's files.
        model: identifies the model, in the metadata of results.

    Raises:
        InputError: for rows, labels or tokens of different numbers of examples, an index given twice, values that are
            not finite or not floating-point numbers, wrong shapes, a negative layer number, files without the fields.

    Example:
        >>> import torch
        >>> from probes import last_token, rows_from, run_stores, TaskClusterARI
        >>> states = torch.randn(8, 5, 4, generator=torch.Generator().manual_seed(0))  # [n pos d]
        >>> rows = rows_from({1: states}, labels={"task": ["add", "copy"] * 4}, readout=last_token())
        >>> rows.sites, rows.classes
        (['blocks.0.hook_resid_post'], {'task': ['add', 'copy']})
        >>> found = run_stores(rows, TaskClusterARI(at=rows.sites, readout=last_token(), n_permutations=10))
        >>> found["ari"].shape
        torch.Size([1, 1])
    """
    check_row_readout(readout)
    _check_given(rows, labels)
    places = {name: _tensor(f"positions[{name!r}]", values) for name, values in (positions or {}).items()}
    given: _Given
    if isinstance(rows, Mapping):
        if layers is not None:
            raise InputError("layers are for vLLM's files; name the layers of tensors by their keys")
        if isinstance(index, Mapping):
            raise InputError("index is a mapping, which is for a folder of files; give one integer per example")
        given = _Tensors(rows, tokens, attention_mask, places, readout)
    else:
        if tokens is not None or attention_mask is not None:
            raise InputError("vLLM's files bring their own tokens; leave tokens and attention_mask out")
        paths, index = row_files(rows, index)
        given = VllmFiles(paths, layers, places, readout)
    n = len(given)
    numbers = _index(index, n)
    given.check(numbers)
    codes, classes = dict[str, Tensor](), dict[str, list[str]]()
    for name, values in (labels or {}).items():
        codes[name], names = _label(name, values, n)
        classes |= {name: names} if names else {}
    source = str(rows) if isinstance(rows, (str, Path)) else "rows_from(...)"
    return ForeignRows(given, numbers, codes, classes, repr(readout), model, source)


def _check_given(rows: object, labels: object) -> None:
    """Refuse what only looks like rows, files or labels."""
    layers = "{0: array} by the number of its layer, or {hook name: array}"
    if isinstance(rows, (Tensor, np.ndarray)):
        raise InputError(f"rows are an array of shape {tuple(rows.shape)}, whose layer is not known; give {layers}")
    if not isinstance(rows, (Mapping, str, Path)):
        each = rows if isinstance(rows, Sequence) else [rows]
        if other := [one for one in each if not isinstance(one, (str, Path))]:
            raise InputError(
                f"rows hold a {type(other[0]).__name__}, whose layer is not known; give {layers}, or paths of vLLM's "
                "files"
            )
    if labels is not None and not isinstance(labels, Mapping):
        raise InputError(f"labels are a {type(labels).__name__} without a name; give them by name, {{'task': values}}")


def _tensor(what: str, values: Any) -> Tensor:
    """Numbers as a tensor.

    Raises:
        InputError: where they are none.
    """
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        kind = values.dtype if isinstance(values, np.ndarray) else type(values).__name__
        raise InputError(f"{what}: {kind} is not an array of numbers ({error}); give numbers") from None


class ForeignRows:
    """What ``rows_from`` returns; ``run_stores`` measures it as it does a ``RowStore``.

    Attributes:
        index: ``[n]`` the examples, ascending.
        tokens: ``[n]`` a digest of each example's tokens, or ``None`` where they are not known.
        sites: hook names, in the order given. Where they are not all the layers, probes need ``at=rows.sites``.
        readout: the readout's ``repr``.
        labels: names of the labels.
        classes: by label that was given as strings, what its numbers stand for.
        model: identifies the model.
        source: its name in error messages.
    """

    label_way = "give it to rows_from too: rows_from(..., labels={%r: ...})"

    def __init__(
        self,
        given: _Given,
        index: Tensor,
        labels: Mapping[str, Tensor],
        classes: Mapping[str, list[str]],
        readout: str,
        model: str,
        source: str,
    ) -> None:
        self._given, self.readout, self.model, self.source = given, readout, model, source
        self.sites, self.labels, self.classes = given.sites, sorted(labels), dict(classes)
        self.hook_dict: dict[str, None] = dict.fromkeys(given.sites)
        self.lacks = {"": f"the rows given are of {', '.join(given.sites)}; choose among them with at="}
        self.index, self._places = torch.sort(index)
        self.tokens = None if given.tokens is None else given.tokens[self._places]
        self._labels = {name: values[self._places] for name, values in labels.items()}

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        return f"ForeignRows({len(self)} examples at {len(self.sites)} sites, model {quoted(self.model)})"

    def blocks(self) -> Iterator[Tensor]:
        """Some thousand examples after the other."""
        yield from torch.split(self.index, _BLOCK)

    def select(self, index: Tensor) -> ForeignRows:
        """The same with these examples only. Nothing is read or copied."""
        keep, some = torch.isin(self.index, index), copy.copy(self)
        some.index, some._places = self.index[keep], self._places[keep]
        some.tokens = None if self.tokens is None else self.tokens[keep]
        some._labels = {name: values[keep] for name, values in self._labels.items()}
        return some

    def take(self, index: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """``"rows/<site>"`` and ``"labels/<name>"`` of these examples, in their order.

        Raises:
            InputError: for a site, a label or an example that is not there, and files that cannot be read.
        """
        places = places_of(index, self.index, self.source)
        check_row_names(names, self.sites, self.labels, self.source)
        sites = [name.removeprefix("rows/") for name in names if name.startswith("rows/")]
        rows = self._given.rows(self._places[places], sites, index) if sites else {}
        return {
            name: rows[what] if kind == "rows" else self._labels[what][places]
            for name in names
            for kind, _, what in [name.partition("/")]
        }


class _Given(Protocol):
    """Rows in the order in which they were given."""

    sites: list[str]
    tokens: Tensor | None

    def __len__(self) -> int: ...

    def rows(self, places: Tensor, sites: Sequence[str], index: Tensor) -> dict[str, Tensor]:
        """By site ``[places d]``; ``index`` is what these examples are called."""

    def check(self, index: Tensor) -> None:
        """Refuse values that are not finite, as far as they are in memory."""


# ---- tensors ----


class _Tensors:
    """``[n d]`` a site, in memory."""

    def __init__(
        self,
        given: Mapping[Any, States],
        tokens: RowValues | None,
        attention_mask: Tensor | np.ndarray | None,
        positions: Mapping[str, Tensor],
        readout: Readout,
    ) -> None:
        mask = None if attention_mask is None else _tensor("attention_mask", attention_mask).bool()
        self._real = None if mask is None else mask.flatten(1).any(dim=1).cpu() if mask.ndim > 1 else mask.cpu()
        if mask is not None and mask.ndim > 1:  # what has no real token is refused in check, where its index is known
            mask = mask | ~mask.flatten(1).any(dim=1).view(-1, *[1] * (mask.ndim - 1))
        self._rows: dict[str, Tensor] = {}
        lengths: Tensor | None = None
        for key, states in given.items():
            site = site_called(key)
            if site in self._rows:
                raise InputError(f"the rows of {site!r} were given twice (also as {key!r}); give them once")
            self._rows[site], found = _rows_of(site, states, mask, positions, readout)
            lengths = found if lengths is None else lengths
        if not self._rows:
            raise InputError("no rows were given; give {hook name: [n d]}")
        self.sites = list(self._rows)
        first = self.sites[0]
        for site, x in self._rows.items():
            if len(x) != len(self):
                raise InputError(
                    f"there are {len(x)} rows of {site!r} but {len(self)} of {first!r}; give one row per example at "
                    "every site"
                )
        if not len(self):
            raise InputError(f"there are no rows of {first!r}; give at least one example")
        if mask is not None and lengths is None and not isinstance(tokens, (Tensor, np.ndarray)):
            raise InputError(
                f"attention_mask has nothing to mask: the rows of {first!r} are [n d], one per example; leave it out"
            )
        self.tokens = None if tokens is None else _digests(tokens, mask, len(self), lengths)

    def __len__(self) -> int:
        return len(self._rows[self.sites[0]])

    def rows(self, places: Tensor, sites: Sequence[str], index: Tensor) -> dict[str, Tensor]:
        return {site: self._rows[site][places] for site in sites}

    def check(self, index: Tensor) -> None:
        if self._real is not None and not bool(self._real.all()):
            raise InputError(
                f"example index {int(index[~self._real][0])} has no real token (its attention mask is all 0); leave it "
                "out"
            )
        for site, x in self._rows.items():
            check_finite_rows(site, x, index)


def _rows_of(
    site: str, states: States, mask: Tensor | None, positions: Mapping[str, Tensor], readout: Readout
) -> tuple[Tensor, Tensor | None]:
    """``[n d]`` and, where they were taken from token states, ``[n]`` tokens of each."""
    if isinstance(states, (Tensor, np.ndarray)):
        x = _floating(site, states)
        if x.ndim == 2:
            return x.cpu(), None
        if x.ndim == 3:
            batch = Batch(torch.zeros(x.shape[:2], dtype=torch.int64), mask, positions=positions)
            return readout(x, batch.to(x.device)).cpu(), batch.lengths()
        raise _wrong_shape(f"the array of the rows of {site!r}", x)
    if mask is not None:
        raise InputError(f"the rows of {site!r} are a list, which has no padding; leave attention_mask out")
    parts = [_floating(site, each) for each in states]
    parts = [x[0] if x.ndim == 3 and len(x) == 1 else x for x in parts]
    for x in parts:
        if x.ndim not in (1, 2) or x.ndim != parts[0].ndim or x.shape[-1] != parts[0].shape[-1]:
            raise _wrong_shape(f"an element of the rows of {site!r}", x)
    if not parts or parts[0].ndim == 1:
        return (torch.stack(parts).cpu() if parts else torch.zeros(0, 0)), None
    found = []
    for i, x in enumerate(parts):
        if not len(x):
            raise InputError(f"element {i} of the rows of {site!r} has no tokens; leave it out")
        mine = {name: values[i : i + 1] for name, values in positions.items()}
        batch = Batch(torch.zeros(1, len(x), dtype=torch.int64), positions=mine)
        found.append(readout(x[None], batch.to(x.device)).cpu())
    return torch.cat(found), torch.tensor(list(map(len, parts)))


def _floating(site: str, states: Any) -> Tensor:
    x = _tensor(f"the rows of {site!r}", states).detach()
    if not x.is_floating_point():
        raise InputError(f"the rows of {site!r} are {x.dtype}; expected floating-point hidden states")
    return x


def _wrong_shape(what: str, x: Tensor) -> InputError:
    return InputError(
        f"{what} has shape {tuple(x.shape)}; expected [n d], [n pos d] or a list of [tokens d], all of one width d"
    )


def _digests(tokens: RowValues, mask: Tensor | None, n: int, lengths: Tensor | None) -> Tensor:
    """``[n]``, as ``RowStore.tokens``."""
    if len(tokens) != n:
        raise InputError(f"tokens is for {len(tokens)} examples and the rows for {n}; give tokens for every example")
    if isinstance(tokens, (Tensor, np.ndarray)):
        batches = [Batch(_tensor("tokens", tokens).cpu(), None if mask is None else mask.cpu())]
    else:
        batches = [Batch(_tensor("tokens", ids).reshape(1, -1)) for ids in tokens]
    found = torch.cat([batch.lengths() for batch in batches])
    if lengths is not None and len(other := (found != lengths.cpu()).nonzero()):
        i = int(other[0, 0])
        raise InputError(
            f"element {i} of tokens has {int(found[i])} tokens, but its hidden states cover {int(lengths[i])}; give "
            "the tokens that the states were computed from, and attention_mask if there is padding"
        )
    return torch.cat([token_digests(batch) for batch in batches])


# ---- index and labels ----


def _index(given: Any, n: int) -> Tensor:
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


def _label(name: str, values: RowValues, n: int) -> tuple[Tensor, list[str]]:
    """``[n]`` integers, and what they stand for where strings were given."""
    listed = values.tolist() if isinstance(values, (Tensor, np.ndarray)) else list(values)
    if len(listed) != n:
        raise InputError(f"label {name!r} has {len(listed)} values for {n} examples; give one per example")
    if all(isinstance(value, str) for value in listed):
        classes = sorted(set(listed))
        number = {each: i for i, each in enumerate(classes)}
        return torch.tensor([number[value] for value in listed]), classes
    if wrong := [value for value in listed if not isinstance(value, (int, np.integer))]:
        raise InputError(f"label {name!r} has {wrong[0]!r}; expected integers only, or strings only")
    return torch.tensor([int(value) for value in listed]), []
